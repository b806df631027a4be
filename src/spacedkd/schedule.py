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
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, SupportsIndex, TypeVar, runtime_checkable

from spacedkd.runtime.errors import UserError, format_value
from spacedkd.runtime.user_code import failed, untrusted

# How long something lasts, in epochs, steps or percent of a run, and the one place that turns it into steps.

_DURATION = re.compile(r"\s*([-+]?[\w.]+?)\s*(?:(st)|(ep|%)(\+?))\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Duration:
    """A length of training: `1.5ep` (epochs), `586st` (steps) or `100%` (of the run); `1.5ep+` is rounded up.

    >>> Duration.parse("1.5ep").in_steps(391, total=31280), Duration.parse("1.5ep+").in_steps(391, total=31280)
    (586, 587)
    >>> str(Duration.parse("4 ep"))
    '4ep'
    """

    amount: float
    unit: str
    up: bool = field(default=False, repr=False)
    """a part of a step counts as a whole one, where it is dropped otherwise"""

    @classmethod
    def parse(cls, text: Duration | str | int) -> Duration:
        """Read `1.5ep`, `586st` or `100%`; a bare whole number counts steps."""
        if isinstance(text, Duration):
            return text
        if isinstance(text, int) and not isinstance(text, bool) and abs(text) < 10**15:
            return cls(text, "st")
        match = _DURATION.fullmatch(text) if isinstance(text, str) else None
        try:
            amount, unit, up = float(match[1]), (match[2] or match[3]).lower(), bool(match[4])  # type: ignore[index]
        except (TypeError, ValueError):
            raise UserError(
                f"Cannot read {format_value(text)} as a length of training: write 1.5ep, 586st or 50%."
            ) from None
        return cls(amount, unit, up)

    def __post_init__(self) -> None:
        if not math.isfinite(self.amount) or self.amount < 0:
            raise UserError(f"A length of training must be a number from 0 up, got {self}. Write 1.5ep, 586st or 50%.")
        if self.unit == "st" and self.amount != int(self.amount):
            raise UserError(f"Steps are whole, got {self}. Write {math.ceil(self.amount)}st, or use epochs: 1.5ep.")

    def __str__(self) -> str:
        whole = math.isfinite(self.amount) and self.amount == int(self.amount)
        return f"{int(self.amount) if whole else self.amount}{self.unit}{'+' if self.up else ''}"

    def in_steps(self, steps_per_epoch: int, total: int) -> int:
        """This length in steps of a run of `total` steps; it must fit into the run."""
        steps = self.whole_steps(steps_per_epoch, total)
        if steps > total:
            epochs = total / steps_per_epoch
            raise UserError(
                f"{self} is longer than the run of {total} steps ({epochs:g} epochs): use at most {total}st."
            )
        if steps == 0 and self.amount > 0:
            raise UserError(f"{self} is less than one step; an epoch has {steps_per_epoch}. Use 1st or more.")
        return steps

    def as_period(self, steps_per_epoch: int, total: int) -> int:
        """The same for something that happens again and again: at the least every step, at the most once."""
        return min(max(self.whole_steps(steps_per_epoch, total), 1), total)

    def whole_steps(self, steps_per_epoch: int, total: int) -> int:
        """The one place where epochs and percent become steps; a part of a step is dropped, as in the paper's code."""
        whole = {"st": 1, "ep": steps_per_epoch, "%": total / 100}[self.unit]
        # 1e-9 keeps a product such as 0.29 * 100 = 28.999... from losing a step to the binary fraction.
        steps = min(self.amount * whole, 1e15)  # no run is longer, and infinity has no floor
        return math.ceil(steps - 1e-9) if self.up else math.floor(steps + 1e-9)


T = TypeVar("T")


def in_steps(plan: T, steps_per_epoch: int, total: int) -> T:
    """`plan`, a dataclass such as a schedule, with every duration in it written in steps.

    >>> from spacedkd.schedule import Spaced
    >>> in_steps(Spaced("1.5ep"), steps_per_epoch=391, total=31280).interval
    Duration(amount=586, unit='st')
    """

    def convert(value: Any, name: str) -> Any:
        if isinstance(value, Duration):
            try:
                return Duration(value.in_steps(steps_per_epoch, total), "st")
            except UserError as error:
                raise UserError(f"{name.capitalize()} {error}") from None
        if isinstance(value, tuple):
            return tuple(convert(item, name) for item in value)
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{f.name: convert(getattr(value, f.name), f.name) for f in fields(value) if f.init})
        return value

    converted: T = convert(plan, "")
    return converted


def parse_durations(plan: Any, *names: str) -> None:
    """Let a frozen dataclass take '1.5ep' where it keeps a Duration."""
    for name in names:
        value = getattr(plan, name)
        if value is not None:
            object.__setattr__(plan, name, Duration.parse(value))


def steps_of(value: Duration | str | int) -> int:
    """The steps of a duration that is written in steps already."""
    duration = Duration.parse(value)
    if duration.unit != "st":
        raise UserError(
            f"{duration} needs the length of an epoch: call in_steps(schedule, steps_per_epoch, total) first."
        )
    return int(duration.amount)


# Who learns when.


class Turn(NamedTuple):
    """One optimizer update: `role` learns from `batch(step)`."""

    role: str
    step: int


@runtime_checkable
class Schedule(Protocol):
    """Anything that orders turns. Your own is one frozen dataclass with this method."""

    def turns(self, roles: Sequence[str], steps: range) -> Iterator[Turn]: ...


def _at_least_one_step(interval: Duration | str | int) -> None:
    if Duration.parse(interval).amount == 0:
        raise UserError("Spaced interval must be at least one step, got 0. For online KD use Spaced('1st').")


@dataclass(frozen=True)
class Spaced:
    """Block by block: each role in order learns the same `interval` steps, the ones after it replay them.

    At its step t the student sees the teacher after k(t) = ceil(t/s) * s updates (paper, section 4.1). A last
    block shorter than the interval is taught like any other, or, with `tail="drop"`, only the leader learns it.
    """

    interval: Duration | str | int
    tail: Literal["teach", "drop"] = "teach"

    def __post_init__(self) -> None:
        parse_durations(self, "interval")
        _at_least_one_step(self.interval)
        if self.tail not in ("teach", "drop"):
            raise UserError(f"tail must be 'teach' or 'drop', got {self.tail!r}.")

    def turns(self, roles: Sequence[str], steps: range) -> Iterator[Turn]:
        interval = steps_of(self.interval)
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
        parse_durations(self, "lead")

    def turns(self, roles: Sequence[str], steps: range) -> Iterator[Turn]:
        lead = steps_of(self.lead)
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
        parse_durations(self, "start", "stop", "length")
        for name in ("inside", "outside"):
            object.__setattr__(self, name, as_schedule(getattr(self, name), f"{name} of a Window"))
        if (self.stop is None) == (self.length is None):
            raise UserError("Window needs either stop or length: Window(inside, outside, start='20ep', length='10ep').")

    def turns(self, roles: Sequence[str], steps: range) -> Iterator[Turn]:
        start = steps_of(self.start)
        stop = start + steps_of(self.length) if self.length is not None else steps_of(self.stop or 0)
        if not start < stop <= len(steps):
            raise UserError(
                f"A window must start before it stops and end within the run of {len(steps)} steps; "
                f"got {start} to {stop}."
            )
        if isinstance(self.inside, Spaced) and steps_of(self.inside.interval) > stop - start:
            raise UserError(
                f"A window must hold at least one interval, got one of {stop - start} steps for an interval of "
                f"{self.inside.interval}: lengthen the window or shorten the interval."
            )
        yield from iter_turns(self.outside, roles, steps[:start])
        yield from iter_turns(self.inside, roles, steps[start:stop])
        yield from iter_turns(self.outside, roles, steps[stop:])


@dataclass(frozen=True)
class ReleasedSelfKD:
    """How the paper's self-KD code counts: from minus one epoch, so that the first block is not an interval long.

    With L steps in an epoch, batch number g (from 1) triggers a replay when (g - L) is a multiple of the interval.
    The trigger is replayed with the block it ends, but the leader never learns it; a last, incomplete block is lost.
    """

    interval: Duration | str | int
    epoch: Duration | str | int = "1ep"
    looks: bool = field(default=False, metadata={"later": True})
    """the trigger goes forward before the replay: in train mode, without an update"""

    def __post_init__(self) -> None:
        parse_durations(self, "interval", "epoch")
        _at_least_one_step(self.interval)

    def turns(self, roles: Sequence[str], steps: range) -> Iterator[Turn]:
        for block, ends in self._blocks(steps):
            yield from (Turn(roles[0], step) for step in (block[:-1] if ends else block))
            if ends:
                yield from (Turn(role, step) for role in roles[1:] for step in block)

    def looked_at(self, roles: Sequence[str], steps: range) -> dict[Turn, Turn]:
        """Turns that are forward passes alone, each by the turn it comes right before."""
        blocks = self._blocks(steps) if self.looks else ()
        return {Turn(roles[1], block[0]): Turn(roles[0], block[-1]) for block, ends in blocks if ends}

    def _blocks(self, steps: range) -> Iterator[tuple[range, bool]]:
        """Which steps are replayed together, and whether a trigger ends them."""
        interval = steps_of(self.interval)
        start, end = 0, (steps_of(self.epoch) - 1) % interval + 1
        while start < len(steps):
            yield steps[start:end], end <= len(steps)
            start, end = end, end + interval


@dataclass(frozen=True)
class NamedSchedule:
    """A schedule of somebody's own that a file names, and that was not imported: it can be read about, not followed."""

    kind: str
    options: Mapping[str, Any]

    def turns(self, roles: Sequence[str], steps: range) -> Iterator[Turn]:
        raise untrusted(self.kind)


def iter_turns(schedule: Schedule, roles: Sequence[str], steps: range) -> Iterator[Turn]:
    """Return the turns of a schedule, which pairs (role, step) may stand for.

    Whatever else a schedule of the user's gives is refused, and what it raises is said in one line.
    """
    if isinstance(schedule, Spaced | Ahead | Window | ReleasedSelfKD | NamedSchedule):
        return schedule.turns(roles, steps)
    return _checked_turns(schedule, roles, steps)


def _checked_turns(schedule: Schedule, roles: Sequence[str], steps: range) -> Iterator[Turn]:
    name, number = f"Schedule {type(schedule).__module__}:{type(schedule).__qualname__}", 0
    try:
        turns = iter(schedule.turns(roles, steps))
    except UserError:
        raise
    except Exception as error:
        raise failed(name, error, "to give its turns") from error
    while True:
        try:
            turn: Any = next(turns)
        except StopIteration:
            return
        except UserError:
            raise
        except Exception as error:
            raise failed(name, error, f"at turn {number}") from error
        if not (isinstance(turn, tuple | list) and len(turn) == 2 and isinstance(turn[0], str) and _is_step(turn[1])):
            raise UserError(
                f"{name} gives {format_value(turn)} as turn {number}: a turn is Turn(role, step), with a role of "
                f"{', '.join(roles)} and a whole number from 0 to {steps.stop - 1}."
            )
        yield Turn(turn[0], operator.index(turn[1]))
        number += 1


def _is_step(step: Any) -> bool:
    return isinstance(step, SupportsIndex) and not isinstance(step, bool) and operator.index(step) >= 0


SCHEDULES: dict[str, type[Schedule]] = {
    "spaced": Spaced,
    "ahead": Ahead,
    "window": Window,
    "released-self-kd": ReleasedSelfKD,
}
"""by the name a spec gives them"""


def by_name(interval: str) -> Spaced:
    """Online, offline, or spaced by a length."""
    return {"online": Online(), "offline": Offline()}.get(interval) or Spaced(interval)


def as_schedule(value: Any, what: str) -> Schedule:
    """A schedule; '1.5ep' and the like are one too, and `Online` stands for `Online()`."""
    if callable(value):
        try:
            value = value()
        except TypeError as error:
            raise UserError(f"{what}: {error}. Write it as Spaced('1.5ep').") from None
    if isinstance(value, str):
        return by_name(value)
    if not isinstance(value, Schedule) or isinstance(value, type):
        raise UserError(
            f"{what} must be a schedule, for instance Spaced('1.5ep'), or its length; got {format_value(value)}."
        )
    return value
