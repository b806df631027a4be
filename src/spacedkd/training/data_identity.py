"""Whether the data is still what a run was started with: classes.json in its folder has the classes and a digest."""

from collections.abc import Sequence

from spacedkd.data.run_data import RunData, describe_difference
from spacedkd.runs.folder import RunFolder
from spacedkd.runs.schema import ClassesDocument, ClassName, read_checked
from spacedkd.runtime.errors import Damaged, UserError
from spacedkd.runtime.processes import print_notice

_WAY_OUT = "Put the old data back, or train again in a new folder."


def check_same_data(folder: RunFolder, data: RunData, who: str = "", restart: bool = False) -> None:
    """Refuse data that has changed since the run in a folder began; `who` asks, if it is not that run itself.

    With `restart` other data is allowed, and one line says so. Runs of earlier versions have no digest; they are
    compared by their classes and their number of images.
    """
    if not folder.classes.exists():
        return
    way_out = "Delete it to go on without knowing whether the data is the same."
    try:
        before = read_checked(folder.classes, ClassesDocument, within=folder.path, way_out=way_out)
    except Damaged:
        if restart:
            return
        raise
    changed = _change(before, data)
    if changed is None:
        return
    if not restart:
        raise UserError(f"{who}The data of {folder.path} {changed}. {_WAY_OUT}")
    print_notice(f"The data of {folder.path} {changed}. It starts again with the data as it is now.")


def _change(before: ClassesDocument, data: RunData) -> str | None:
    """Return how the data differs from what it was, as the end of a sentence, or None where it does not."""
    now = data.describe()
    if before["classes"] != now["classes"]:
        return _other_classes(before["classes"], now["classes"])
    digest = before.get("digest")
    counts = {part: {"images": count} for part, count in before["items"].items()} if digest is None else digest
    counts_now = {part: {"images": count} for part, count in now["items"].items()} if digest is None else data.digest
    changed = describe_difference(counts, counts_now)
    return None if changed is None else f"has changed since it began: {changed}"


def _other_classes(trained: Sequence[ClassName], given: Sequence[ClassName]) -> str:
    then, now = f"{len(trained)} classes", f"{len(given)} classes"
    if len(trained) == len(given):
        then, now = next((str(a["name"]), str(b["name"])) for a, b in zip(trained, given, strict=True) if a != b)
    return f"has other classes than it was trained on: {then} then, {now} now"
