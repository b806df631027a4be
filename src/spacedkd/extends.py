"""Where a run goes on that makes another one longer, and the schedule it then has."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from spacedkd.duration import Duration, in_steps
from spacedkd.errors import check_between
from spacedkd.json_form import check_fields
from spacedkd.schedule import Schedule, Turn, turns_of


@dataclass(frozen=True)
class Extends:
    """A run like this one, but for its epochs, was trained so far; this one goes on from there."""

    epochs: float
    """it was asked for"""
    turn: int
    """its last"""
    how: Literal["exact", "warm", "anew"]
    """exact: a run in one go has the same turns and learning rates until then, and so the same bits; warm: the same
    turns, but other learning rates; anew: the blocks of the schedule begin anew there"""

    def __post_init__(self) -> None:
        check_fields(self)
        check_between("extends.epochs", self.epochs, 0)
        check_between("extends.turn", self.turn, 1)


@dataclass(frozen=True)
class Anew:
    """Schedules one behind the other, each over steps of its own.

    >>> from spacedkd.schedule import Spaced
    >>> [*Anew((Spaced("2st"), Spaced("2st")), at=(1,)).turns(("teacher", "student"), range(3))][:3]
    [Turn(role='teacher', step=0), Turn(role='student', step=0), Turn(role='teacher', step=1)]
    """

    parts: tuple[Schedule, ...]
    at: tuple[int, ...]
    """the steps at which the next one begins"""

    def turns(self, roles: Sequence[str], steps: range) -> Iterator[Turn]:
        for part, (start, stop) in zip(self.parts, pairwise((0, *self.at, len(steps))), strict=True):
            yield from turns_of(part, roles, steps[start:stop])


def with_extensions(schedule: Schedule, extends: Sequence[Extends], steps_per_epoch: int, total: int) -> Schedule:
    """The schedule of a run of `total` steps, written in steps; lengths in percent are of what was added."""
    at = [Duration(one.epochs, "ep").whole_steps(steps_per_epoch, 0) for one in extends if one.how == "anew"]
    lengths = [stop - start for start, stop in pairwise((0, *at, total))]
    parts = tuple(in_steps(schedule, steps_per_epoch, length) for length in lengths)
    return Anew(parts, tuple(at)) if at else parts[0]
