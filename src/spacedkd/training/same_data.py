"""Whether the data is still what a run began with; its folder keeps the classes and a digest in classes.json."""

import json
from typing import Any

from spacedkd.data.digest import difference
from spacedkd.data.splits import RunData
from spacedkd.errors import UserError
from spacedkd.training.folder import RunFolder

_WAY_OUT = "Put the old data back, or train again in a new folder."


def check_same_data(folder: RunFolder, data: RunData, who: str = "") -> None:
    """Refuse data that has changed since the run in a folder began; `who` asks, if it is not that run itself.

    Runs of before there were digests are told by their classes and by how many images they have.
    """
    if not folder.classes.exists():
        return
    now = data.describe()
    try:
        before = json.loads(folder.classes.read_text(encoding="utf-8"))
        _check_classes(folder, before["classes"], now["classes"], who)
        digest = before.get("digest")
        counts = {part: {"images": count} for part, count in before["items"].items()} if digest is None else digest
        found = {part: {"images": count} for part, count in now["items"].items()} if digest is None else data.digest
        changed = difference(counts, found)
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            f"{folder.classes} cannot be read. Delete it to go on without knowing whether the data is the same."
        ) from None
    if changed is not None:
        raise UserError(f"{who}The data of {folder.path} has changed since it began: {changed}. {_WAY_OUT}")


def _check_classes(folder: RunFolder, trained: list[Any], found: list[Any], who: str) -> None:
    if trained == found:
        return
    then, now = f"{len(trained)} classes", f"{len(found)} classes"
    if len(trained) == len(found):
        then, now = next((str(a["name"]), str(b["name"])) for a, b in zip(trained, found, strict=True) if a != b)
    raise UserError(
        f"{who}The data of {folder.path} has other classes than it was trained on: {then} then, {now} now. {_WAY_OUT}"
    )
