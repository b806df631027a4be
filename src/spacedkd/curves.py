"""The curves of a run, read off its journal in one go: accuracy after each epoch, and every term of the losses."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from spacedkd.documents import read_journal
from spacedkd.errors import UserError
from spacedkd.result_form import checked

MOST_POINTS = 128
"""kept of a loss, however often it was logged"""
Curve = Mapping[float, float]
"""values by the role's own epoch"""
Point = tuple[float, float]


class Curves(NamedTuple):
    accuracy: Mapping[str, Curve]
    """of the deepest head on the test images, for each role that was measured"""
    losses: Mapping[tuple[str, str], "Loss"]
    """for each role and term"""


class Loss:
    """What was logged of one term; when it becomes too long, neighbours are replaced by their mean.

    >>> loss = Loss(most=4)
    >>> for step in range(7):
    ...     loss.add(epoch=step, value=10 * step)
    >>> loss.points
    [(0.5, 5.0), (2.5, 25.0), (4.5, 45.0), (6.0, 60.0)]
    """

    def __init__(self, most: int = MOST_POINTS) -> None:
        self._most, self._each = most, 1
        self._kept: array[float] = array("d")
        """epoch, value, epoch, value and so on: a thousand runs have many of them"""
        self._begun: list[Point] = []

    def add(self, epoch: float, value: float) -> None:
        self._begun.append((epoch, value))
        if len(self._begun) == self._each:
            self._kept.extend(_mean(self._begun))
            self._begun = []
        if len(self._kept) == 2 * self._most:
            self._kept = array("d", chain.from_iterable(map(_mean, zip(*[iter(self._closed)] * 2, strict=True))))
            self._each *= 2

    @property
    def _closed(self) -> Iterator[Point]:
        return zip(self._kept[::2], self._kept[1::2], strict=True)

    @property
    def points(self) -> list[Point]:
        """Epoch and value; the last may stand for fewer of what was logged than the others."""
        return [*self._closed, *([_mean(self._begun)] if self._begun else [])]


def _mean(points: Sequence[Point]) -> Point:
    epochs, values = zip(*points, strict=True)
    return sum(epochs) / len(points), sum(values) / len(points)


def read_curves(folder: Path, roles: Sequence[str]) -> Curves:
    """The curves of these roles; whatever else was measured, such as a moving average, is no role."""
    path = folder / "journal.jsonl"
    accuracy: dict[str, dict[float, float]] = {}
    losses: dict[tuple[str, str], Loss] = {}
    try:
        for entry in checked(read_journal(path, within=folder)):
            role, epoch = entry["role"], entry["epoch"]
            if entry["event"] == "accuracy":
                accuracy.setdefault(role, {})[epoch] = entry["accuracy"]["test"]["final"]
                continue
            for term, value in entry["losses"].items():
                losses.setdefault((role, term), Loss()).add(epoch, value)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{path} cannot be read as a journal: {error}.") from None
    if roles[-1] not in accuracy:
        raise UserError(f"{path} says nothing of how good the {roles[-1]} was.")
    return Curves(
        {role: accuracy[role] for role in roles if role in accuracy},
        {key: loss for key, loss in losses.items() if key[0] in roles},
    )
