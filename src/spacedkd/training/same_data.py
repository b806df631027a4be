"""Whether the data is still what a run began with; its folder keeps the classes and a digest in classes.json."""

from typing import Any

from spacedkd.data.digest import difference
from spacedkd.data.parallel import tell
from spacedkd.data.splits import RunData
from spacedkd.documents import read_json
from spacedkd.errors import Linked, UserError
from spacedkd.training.folder import RunFolder

_WAY_OUT = "Put the old data back, or train again in a new folder."


def check_same_data(folder: RunFolder, data: RunData, who: str = "", begins_again: bool = False) -> None:
    """Refuse data that has changed since the run in a folder began; `who` asks, if it is not that run itself.

    A run that begins again may learn from other data, and one line tells that it does. Runs of before there were
    digests are told by their classes and by how many images they have.
    """
    if not folder.classes.exists():
        return
    try:
        changed = _change(folder, data)
    except Linked:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        if begins_again:
            return
        raise UserError(
            f"{folder.classes} cannot be read. Delete it to go on without knowing whether the data is the same."
        ) from None
    if changed is None:
        return
    if not begins_again:
        raise UserError(f"{who}The data of {folder.path} {changed}. {_WAY_OUT}")
    tell(f"The data of {folder.path} {changed}. It begins again with the data as it is now.")


def _change(folder: RunFolder, data: RunData) -> str | None:
    """The rest of a sentence."""
    now, before = data.describe(), read_json(folder.classes, within=folder.path)
    if before["classes"] != now["classes"]:
        return _other_classes(before["classes"], now["classes"])
    digest = before.get("digest")
    counts = {part: {"images": count} for part, count in before["items"].items()} if digest is None else digest
    found = {part: {"images": count} for part, count in now["items"].items()} if digest is None else data.digest
    changed = difference(counts, found)
    return None if changed is None else f"has changed since it began: {changed}"


def _other_classes(trained: list[Any], found: list[Any]) -> str:
    then, now = f"{len(trained)} classes", f"{len(found)} classes"
    if len(trained) == len(found):
        then, now = next((str(a["name"]), str(b["name"])) for a, b in zip(trained, found, strict=True) if a != b)
    return f"has other classes than it was trained on: {then} then, {now} now"
