"""Who learns when.

A schedule turns roles and steps into a list of turns; it is all that tells online, spaced and offline
distillation apart. Roles are named from the one that leads to the one that follows, and the update of
`Turn(role, step)` always uses `batch(step)`: a replay is the same step number once more.

>>> for turn in Spaced("2st").turns(("teacher", "student"), range(3)):
...     print(turn.role, turn.step)
teacher 0
teacher 1
student 0
student 1
teacher 2
student 2
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import groupby
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from spacedkd.errors import UserError


class Turn(NamedTuple):
    """One optimizer update: `role` learns from `batch(step)`."""

    role: str
    step: int


class Schedule(Protocol):
    """Anything that orders turns. Your own is one frozen dataclass with this method."""

    def turns(self, roles: Sequence[str], steps: range) -> Iterator[Turn]: ...


UNITS = {"ep": "epochs", "st": "steps", "%": "percent of the run"}
_DURATION = re.compile(r"\s*([-+]?[\w.]+?)\s*(ep|st|%)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Duration:
    """A length of training: `1.5ep` (epochs), `586st` (steps) or `100%` (of the run).

    >>> Duration.parse("1.5ep").in_steps(391, total=31280)
    586
    >>> str(Duration.parse("4 ep"))
    '4ep'
    """

    amount: float
    unit: str

    @classmethod
    def parse(cls, text: Duration | str | int) -> Duration:
        """Read `1.5ep`, `586st` or `100%`; a bare whole number counts steps."""
        if isinstance(text, Duration):
            return text
        if isinstance(text, int):
            return cls(text, "st")
        match = _DURATION.fullmatch(text)
        try:
            amount, unit = float(match[1]), match[2].lower()  # type: ignore[index]
        except (TypeError, ValueError):
            raise UserError(f"Cannot read {text!r} as a length of training: write 1.5ep, 586st or 50%.") from None
        return cls(amount, unit)

    def __post_init__(self) -> None:
        if not math.isfinite(self.amount) or self.amount < 0:
            raise UserError(f"A length of training must be a number from 0 up, got {self}. Write 1.5ep, 586st or 50%.")
        if self.unit == "st" and self.amount != int(self.amount):
            raise UserError(f"Steps are whole, got {self}. Write {int(self.amount)}st, or use epochs: 1.5ep.")

    def __str__(self) -> str:
        return f"{self.amount:g}{self.unit}" if self.amount != int(self.amount) else f"{int(self.amount)}{self.unit}"

    def in_steps(self, steps_per_epoch: int, total: int) -> int:
        """This length in steps of a run of `total` steps; it must fit into the run."""
        steps = self._floor(steps_per_epoch, total)
        if steps > total:
            epochs = total / steps_per_epoch
            raise UserError(f"{self} is longer than the run of {total} steps ({epochs:g} epochs): use at most {total}st.")
        if steps == 0 and self.amount > 0:
            raise UserError(f"{self} is less than one step; an epoch has {steps_per_epoch}. Use 1st or more.")
        return steps

    def as_period(self, steps_per_epoch: int, total: int) -> int:
        """The same for something that happens again and again: at the least every step, at the most once."""
        return min(max(self._floor(steps_per_epoch, total), 1), total)

    def _floor(self, steps_per_epoch: int, total: int) -> int:
        """The one place where epochs and percent become steps; a part of a step is dropped, as in the paper's code."""
        whole = {"st": 1, "ep": steps_per_epoch, "%": total / 100}[self.unit]
        # 1e-9 keeps a product such as 0.29 * 100 = 28.999... from losing a step to the binary fraction.
        return math.floor(self.amount * whole + 1e-9)


T = TypeVar("T")


def in_steps(plan: T, steps_per_epoch: int, total: int) -> T:
    """`plan`, a dataclass such as a schedule, with every duration in it written in steps.

    >>> in_steps(Spaced("1.5ep"), steps_per_epoch=391, total=31280).interval
    Duration(amount=586, unit='st')
    """

    def convert(value: Any) -> Any:
        if isinstance(value, Duration):
            return Duration(value.in_steps(steps_per_epoch, total), "st")
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{f.name: convert(getattr(value, f.name)) for f in fields(value) if f.init})
        return value

    converted: T = convert(plan)
    return converted


def _parse_durations(plan: Any, *names: str) -> None:
    """Let a frozen dataclass take '1.5ep' where it keeps a Duration."""
    for name in names:
        value = getattr(plan, name)
        if value is not None:
            object.__setattr__(plan, name, Duration.parse(value))


def _steps_of(value: Duration | str | int) -> int:
    duration = Duration.parse(value)
    if duration.unit != "st":
        raise UserError(f"{duration} needs the length of an epoch: call in_steps(schedule, steps_per_epoch, total) first.")
    return int(duration.amount)


@dataclass(frozen=True)
class Spaced:
    """Block by block: each role in order learns the same `interval` steps, the ones after it replay them.

    At its step t the student sees the teacher after k(t) = ceil(t/s) * s updates (paper, section 4.1). A last
    block shorter than the interval is taught like any other, or, with `tail="drop"`, only the leader learns it.
    """

    interval: Duration | str | int
    tail: Literal["teach", "drop"] = "teach"

    def __post_init__(self) -> None:
        _parse_durations(self, "interval")
        if Duration.parse(self.interval).amount == 0:
            raise UserError("Spaced interval must be at least one step, got 0. For online KD use Spaced('1st').")
        if self.tail not in ("teach", "drop"):
            raise UserError(f"tail must be 'teach' or 'drop', got {self.tail!r}.")

    def turns(self, roles: Sequence[str], steps: range) -> Iterator[Turn]:
        interval = _steps_of(self.interval)
        for start in range(0, len(steps), interval):
            block = steps[start : start + interval]
            taught = self.tail == "teach" or len(block) == interval
            for role in roles if taught else roles[:1]:
                for step in block:
                    yield Turn(role, step)


def Online() -> Spaced:
    """Teacher and student take turns at every step, the teacher first (the paper's Algorithm 1)."""
    return Spaced("1st")


def Offline() -> Spaced:
    """The teacher learns the whole run, then the student does."""
    return Spaced("100%")


@dataclass(frozen=True)
class Ahead:
    """Each role stays `lead` steps ahead of the next and keeps moving (the paper's 'constant ahead' control).

    At its step t the student sees a teacher that has made `lead` more updates than in online KD; `Ahead(0)` is
    online KD.
    """

    lead: Duration | str | int

    def __post_init__(self) -> None:
        _parse_durations(self, "lead")

    def turns(self, roles: Sequence[str], steps: range) -> Iterator[Turn]:
        lead = _steps_of(self.lead)
        for clock in range(len(steps) + lead * (len(roles) - 1)):
            for place, role in enumerate(roles):
                position = clock - place * lead
                if 0 <= position < len(steps):
                    yield Turn(role, steps[position])


@dataclass(frozen=True)
class Window:
    """`inside` from `start` to `stop` (or for `length`), `outside` before and after: the paper's critical period."""

    inside: Schedule
    outside: Schedule
    start: Duration | str | int
    stop: Duration | str | int | None = None
    length: Duration | str | int | None = None

    def __post_init__(self) -> None:
        _parse_durations(self, "start", "stop", "length")
        if (self.stop is None) == (self.length is None):
            raise UserError("Window needs either stop or length: Window(inside, outside, start='20ep', length='10ep').")

    def turns(self, roles: Sequence[str], steps: range) -> Iterator[Turn]:
        start = _steps_of(self.start)
        if self.stop is not None:
            stop = _steps_of(self.stop)
        else:
            assert self.length is not None
            stop = start + _steps_of(Duration.parse(self.length))
        if not start < stop <= len(steps):
            raise UserError(f"Window must start before it stops and end within the run of {len(steps)} steps, got {start} to {stop}.")
        yield from self.outside.turns(roles, steps[:start])
        yield from self.inside.turns(roles, steps[start:stop])
        yield from self.outside.turns(roles, steps[stop:])


class Segment(NamedTuple):
    """Consecutive turns of one role: steps `first` to `last`, beginning with turn number `turn`."""

    role: str
    turn: int
    first: int
    last: int


def segments(turns: Iterator[Turn]) -> Iterator[Segment]:
    """A schedule as the few blocks a picture needs, in order.

    >>> [*segments(Spaced("2st").turns(("teacher", "student"), range(2)))]
    [Segment(role='teacher', turn=0, first=0, last=1), Segment(role='student', turn=2, first=0, last=1)]
    """
    number = 0
    for role, group in groupby(turns, key=lambda turn: turn.role):
        block = [turn.step for turn in group]
        yield Segment(role, number, block[0], block[-1])
        number += len(block)
