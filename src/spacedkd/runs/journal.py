"""journal.jsonl: the events of a run, one line of JSON each, and the curves that are read from them.

Nothing in a journal depends on the clock, so a run that is resumed writes the same bytes as one that was never stopped.
"""

import hashlib
import json
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from spacedkd.runs.schema import AccuracyEntry, LossEntry, check
from spacedkd.runtime.documents import parse_json, read_lines
from spacedkd.runtime.errors import Damaged, UserError, format_value
from spacedkd.runtime.files import Folder, write_errors


class Journal(AbstractContextManager["Journal"]):
    """A run's journal, open for writing."""

    def __init__(self, path: Path, keep_bytes: int = 0, digest: str = "", within: Folder | None = None) -> None:
        """Keep the first `keep_bytes`, which must have this SHA-256 if one is given, and cut off what follows them."""
        self.path, self._folder = path, within or Folder(path.parent)
        if not self._folder.exists(path):
            with self._folder.write_whole(path):
                pass
        with write_errors(path):
            self._file = os.fdopen(self._folder.open(path, os.O_RDWR), "r+b")
            self._digest = hashlib.sha256(self._file.read(keep_bytes))
            if digest and self.digest() != digest:
                self._file.close()
                raise Damaged(
                    f"{path} was changed or damaged: it is not what this run wrote. Restart in the same folder with: "
                    f"spacedkd train --resume {self._folder.path} --restart"
                )
            self._file.truncate(keep_bytes)  # the run repeats what came after its checkpoint
            self._file.seek(keep_bytes)

    def __exit__(self, *exception: object) -> None:
        with write_errors(self.path):
            self._file.close()

    def write(self, entry: Mapping[str, Any]) -> None:
        """Append one line, and flush it to the system."""
        line = json.dumps(entry).encode() + b"\n"
        self._folder.check()
        with write_errors(self.path):
            self._file.write(line)
            self._file.flush()
        self._digest.update(line)

    def length(self) -> int:
        """Return the number of bytes written."""
        return self._file.tell()

    def digest(self) -> str:
        """Return the SHA-256 of all that was written."""
        return self._digest.hexdigest()

    def check_whole(self) -> None:
        """Refuse a journal whose file differs from what this process wrote."""
        if self._folder.digest(self.path) != self.digest():
            raise Damaged(
                f"{self.path} was changed while the run was trained, so it gets no result. Train the changed part "
                f"again with: spacedkd train --resume {self._folder.path}"
            )

    def sync(self) -> None:
        """Force everything to disk."""
        with write_errors(self.path):
            os.fsync(self._file.fileno())


def read_journal(path: Path, within: Folder | Path | None = None) -> Iterator[dict[str, Any]]:
    """Yield the entries of a journal; a line that is no object with an `event` is refused."""
    number = 0
    try:
        for number, line in enumerate(read_lines(path, within), 1):
            entry = parse_json(line, f"{path} cannot be read: line {number}")
            if not isinstance(entry, dict) or not isinstance(entry.get("event"), str):
                start = format_value(line[:60].decode(errors="replace").strip())
                raise Damaged(f"{path} cannot be read: line {number} is {start}, not an entry with an event.")
            yield entry
    except FileNotFoundError:
        raise UserError(f"{path} cannot be read: there is no such file.") from None


_FORMS: Mapping[str, type[AccuracyEntry] | type[LossEntry]] = {"accuracy": AccuracyEntry, "loss": LossEntry}


def check_entries(entries: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the entries with accuracies or losses; one that lacks something raises a ValueError that names it."""
    for entry in entries:
        form = _FORMS.get(entry.get("event", ""))
        if form is not None:
            yield check(entry, form)


def read_entries(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the entries with accuracies or losses in the journal of a run's folder; refuse a damaged one."""
    path = folder / "journal.jsonl"
    try:
        yield from check_entries(read_journal(path, within=folder))
    except UserError:
        raise
    except ValueError as error:
        raise Damaged(f"{path} cannot be read: {error}.") from None


def read_accuracies(folder: Path) -> list[Mapping[str, Any]]:
    """Return the entries with accuracies in the journal of a run's folder; refuse a damaged one."""
    return [entry for entry in read_entries(folder) if entry["event"] == "accuracy"]


MOST_POINTS = 128
"""largest number of points of a loss curve"""
Curve = Mapping[float, float]
"""values by the role's own epoch"""
Point = tuple[float, float]


class Curves(NamedTuple):
    """Curves of a run's roles."""

    accuracy: Mapping[str, Curve]
    """role -> accuracy of the deepest head on the test images"""
    losses: Mapping[tuple[str, str], "LossCurve"]
    """(role, term of its loss) -> curve"""


class LossCurve:
    """One term of a loss over epochs. When it has too many points, each pair of neighbours is replaced by its mean.

    >>> loss = LossCurve(most=4)
    >>> for step in range(7):
    ...     loss.add(epoch=step, value=10 * step)
    >>> loss.points
    [(0.5, 5.0), (2.5, 25.0), (4.5, 45.0), (6.0, 60.0)]
    """

    def __init__(self, most: int = MOST_POINTS) -> None:
        self._most, self._values_per_point = most, 1
        self._flat: array[float] = array("d")
        """epoch, value, epoch, value and so on: a report of a thousand runs has many of them"""
        self._pending: list[Point] = []
        """values of a point that is not complete"""

    def add(self, epoch: float, value: float) -> None:
        """Append a value."""
        self._pending.append((epoch, value))
        if len(self._pending) == self._values_per_point:
            self._flat.extend(_mean(self._pending))
            self._pending = []
        if len(self._flat) == 2 * self._most:
            pairs = zip(*[iter(self._complete)] * 2, strict=True)
            self._flat = array("d", chain.from_iterable(map(_mean, pairs)))
            self._values_per_point *= 2

    @property
    def _complete(self) -> Iterator[Point]:
        return zip(self._flat[::2], self._flat[1::2], strict=True)

    @property
    def points(self) -> list[Point]:
        """Epochs and values; the last point may be the mean of fewer values than the others."""
        return [*self._complete, *([_mean(self._pending)] if self._pending else [])]


def _mean(points: Sequence[Point]) -> Point:
    epochs, values = zip(*points, strict=True)
    return sum(epochs) / len(points), sum(values) / len(points)


def read_curves(folder: Path, roles: Sequence[str]) -> Curves:
    """Return the curves of these roles, read from the journal of a run's folder.

    What else was measured, such as a moving average of the student, is no role. A journal without an accuracy of the
    last role, the student, is refused.
    """
    accuracy: dict[str, dict[float, float]] = {}
    losses: dict[tuple[str, str], LossCurve] = {}
    for entry in read_entries(folder):
        role, epoch = entry["role"], entry["epoch"]
        if entry["event"] == "accuracy":
            accuracy.setdefault(role, {})[epoch] = entry["accuracy"]["test"]["final"]
            continue
        for term, value in entry["losses"].items():
            losses.setdefault((role, term), LossCurve()).add(epoch, value)
    if roles[-1] not in accuracy:
        raise Damaged(f"{folder / 'journal.jsonl'} has no accuracy of the {roles[-1]}.")
    return Curves(
        {role: accuracy[role] for role in roles if role in accuracy},
        {key: curve for key, curve in losses.items() if key[0] in roles},
    )
