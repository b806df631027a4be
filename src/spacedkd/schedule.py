"""Schedules: which role learns from which step, in which order.

A schedule is a pure function from roles and steps to a list of turns, and it alone tells online, spaced and offline
distillation apart. Roles are named from the leader to the follower. The update of `Turn(role, step)` always uses
`batch(step)`: when the student replays a step of the teacher, it is the same step number once more.

>>> for turn in Spaced("2st").turns(("teacher", "student"), range(3)):
...     print(turn.role, turn.step)
teacher 0
teacher 1
student 0
student 1
teacher 2
student 2

A user's schedule needs no entry anywhere: `--interval package.module:Name` (docs/own.md). To add one to this package,
write one class here and enter it in `SCHEDULES`, or write it in a file of its own, which may import this one, and
enter it as text, "spacedkd.my_schedule:MySchedule". It needs `turns` alone; the other methods of `BaseSchedule` have
defaults. No other file has to change, except that `LAYERS` in tests/test_architecture.py names a new file.
"""

from __future__ import annotations

import math
import operator
import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import UserDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import accumulate, chain, count, pairwise, repeat
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, SupportsIndex, TypeVar, runtime_checkable

from spacedkd.runtime.errors import UserError, did_you_mean, format_value, pluralize
from spacedkd.runtime.user_code import load_object, untrusted_error, user_code_error


class Turn(NamedTuple):
    """One optimizer update: `role` learns from `batch(step)`."""

    role: str
    step: int


@runtime_checkable
class Schedule(Protocol):
    """Anything that orders turns. Your own schedule is one frozen dataclass with this method.

    `turns` is given the roles from the leader to the follower, and the steps of the run. It yields one turn for each
    update, in order. A step that it leaves out is not learned, and one that it yields twice is learned twice. Fields of
    the type `Duration` are in steps when `turns` is called: `steps_of(self.interval)` is their number.
    """

    def turns(self, roles: Sequence[str], steps: range) -> Iterator[Turn]: ...


class BaseSchedule(ABC):
    """Defaults for all methods of a schedule besides its turns."""

    examples: ClassVar[Mapping[str, str]] = {}
    """flags of the command line, each with what it does: the lines of `spacedkd list schedules`"""
    restarts: ClassVar[bool] = False
    """whether an extended run may begin the schedule again where the shorter run ended"""

    @abstractmethod
    def turns(self, roles: Sequence[str], steps: range) -> Iterator[Turn]:
        """Yield the turns of these roles over these steps; durations are in steps by now (see `steps_of`)."""

    def describe(self) -> str:
        """Return the schedule in a few words, for tables and titles."""
        return type(self).__name__

    def to_json(self, kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a spec's JSON says of the schedule: its name there, and its fields as JSON."""
        return {"kind": kind, **options}

    def common_interval(self) -> Duration | None:
        """Return the interval that all blocks have in common; None where there is no such interval."""
        return None

    def teacher_updates(self, step: int) -> int | None:
        """Return how many updates the teacher has made when the student takes `step`, in a run that never ends.

        None where there is no formula; the teacher's turns are counted then, which needs a run with an end.
        """
        return None

    def forward_only_turns(self, roles: Sequence[str], steps: range) -> Mapping[Turn, Turn]:
        """Return forward passes without an update: each value is passed right before the turn that is its key."""
        return {}

    def has_speed(self) -> bool:
        """Return whether a role learns faster than the one after it; then the roles cannot take turns in reverse."""
        return False

    def is_imported(self) -> bool:
        """Return whether `turns` can be called; False for a user's schedule whose code was not imported."""
        return True


@dataclass(frozen=True)
class Spaced(BaseSchedule):
    """Blocks of `interval` steps: the leader learns the steps of a block, then each role after it replays them.

    At its step t, counted from 1, the student sees the teacher after k(t) = ceil(t/s) * s updates (paper, section
    4.1). A last block shorter than the interval is replayed like any other, or, with `tail="drop"`, only the leader
    learns it.

    With a `speed` v each role is v times as fast as the one after it: a block has v * s steps of the teacher and s of
    the student, which sees the teacher after k(t) = min(T, floor(ceil(t/s) * s * v)) of its T updates. When the
    teacher has ended, the student learns the rest of its steps from the final teacher. Speed 1 is the paper's
    schedule, infinite speed is offline KD, and the number of updates is the same at any speed. Students that follow a
    teacher's trajectory faster than the teacher made it are known from RCO (Jin et al., arXiv 1904.09149) and
    progressive distillation (Panigrahi et al., arXiv 2410.05464): they learn from a few checkpoints on the way to the
    final teacher.

    >>> " ".join(f"{role[0]}{step}" for role, step in Spaced("1st", speed=2).turns(("teacher", "student"), range(4)))
    't0 t1 s0 t2 t3 s1 s2 s3'
    """

    interval: Duration | str | int
    tail: Literal["teach", "drop"] = "teach"
    # `later`: written only where it is not the default, because older files lack it (see `config.serialization.option`)
    speed: float | Literal["inf"] = field(default=1.0, metadata={"later": True})
    """steps of a role for each step of the one after it: 1 or more, or inf"""

    restarts = True
    examples: ClassVar[Mapping[str, str]] = {
        "--interval online": "teacher and student take turns at every step",
        "--interval 1.5ep": "spaced: the teacher learns 1.5 epochs alone, then the student replays them",
        "--interval 586st": "the same in steps",
        "--interval offline": "the teacher learns the whole run, then the student does",
        "--interval 1.5ep --tail drop": "a last block shorter than the interval is not replayed",
        "--interval 1.5ep --speed 2": "the teacher learns 3 epochs per 1.5 of the student, until the teacher ends",
    }

    def __post_init__(self) -> None:
        parse_durations(self, "interval")
        _check_interval(self.interval)
        if self.tail not in ("teach", "drop"):
            raise UserError(f"tail must be 'teach' or 'drop', got {self.tail!r}.")
        object.__setattr__(self, "speed", _read_speed(self.speed))
        if self.has_speed() and self.interval == _WHOLE_RUN:
            raise UserError("In offline KD the teacher learns the whole run first, at any speed: leave out --speed.")

    def turns(self, roles: Sequence[str], steps: range) -> Iterator[Turn]:
        interval, total = steps_of(self.interval), len(steps)
        speeds = [float(self.speed) ** behind for behind in reversed(range(len(roles)))]  # the last role has speed 1
        done = [0] * len(roles)  # steps that each role has learned
        for end in range(
            interval, total + interval, interval
        ):  # ends of the last role's blocks; the last may be > total
            is_replayed = self.tail == "teach" or end <= total
            for number, role in enumerate(roles if is_replayed else roles[:1]):
                start, done[number] = done[number], _steps_at_speed(end, speeds[number], total)
                for step in steps[start : done[number]]:
                    yield Turn(role, step)

    def describe(self) -> str:
        interval = Duration.parse(self.interval)
        name = {_ONE_STEP: "online", _WHOLE_RUN: "offline"}.get(interval, f"spaced {interval}")
        speed = f", speed {self.speed:g}" if self.has_speed() else ""
        return name + speed + ("" if self.tail == "teach" else ", tail dropped")

    def to_json(self, kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
        infinite = {"speed": "inf"} if self.speed == math.inf else {}  # JSON has no number for it
        return super().to_json(kind, {**options, **infinite})

    def common_interval(self) -> Duration | None:
        return None if self.has_speed() else Duration.parse(self.interval)

    def teacher_updates(self, step: int) -> int | None:
        if self.tail == "drop" or self.speed == math.inf:
            return None
        interval = steps_of(self.interval)
        return _steps_at_speed(-(-(step + 1) // interval) * interval, float(self.speed), None)

    def has_speed(self) -> bool:
        return self.speed != 1


FASTEST = 1e6
"""the greatest finite speed, and the greatest factor of growing blocks; in a run of fewer steps it acts like inf"""


def _read_speed(speed: Any) -> float:
    number = math.inf if speed == "inf" else speed
    if not _is_number(number) or not (1 <= number <= FASTEST or number == math.inf):
        raise UserError(
            f"speed must be a number from 1 to {FASTEST:g}, or inf, got {format_value(speed)}. 1 is the paper's "
            "schedule, inf is offline KD."
        )
    return float(number)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _steps_at_speed(steps: int, speed: float, total: int | None) -> int:
    """Return the steps that a role of this speed has learned when the last one has learned `steps`; at most `total`."""
    if total is not None and steps * speed >= total:
        return total
    return _whole(steps * speed)


def _whole(steps: float) -> int:
    """Round a number of steps down; a product that is a whole number but for rounding errors keeps its last step.

    Without the 1e-9, 0.29 * 100 = 28.999... would be 28 steps.
    """
    return math.floor(steps + 1e-9)


def _check_interval(interval: Duration | str | int) -> None:
    if Duration.parse(interval).amount == 0:
        raise UserError("Spaced interval must be at least one step, got 0. For online KD use Spaced('1st').")


def Online() -> Spaced:
    """Return the schedule of online KD: roles take turns at every step, the teacher first (the paper's Algorithm 1)."""
    return Spaced("1st")


def Offline() -> Spaced:
    """Return the schedule of offline KD: the teacher learns the whole run, then the student does."""
    return Spaced("100%")


@dataclass(frozen=True)
class Blocks(BaseSchedule):
    """Blocks of these `lengths`, one after the other; the last length repeats until the end of the run.

    Each role in order learns the steps of a block, as in `Spaced`, which has blocks of one length. A block that would
    pass the end of the run is cut there.

    >>> Blocks(["1st", "2st"]).describe()
    'blocks of 1st, 2st'
    >>> " ".join(f"{role[0]}{step}" for role, step in Blocks([1, 2]).turns(("teacher", "student"), range(4)))
    't0 s0 t1 t2 s1 s2 t3 s3'
    """

    lengths: tuple[Duration, ...]

    examples: ClassVar[Mapping[str, str]] = {
        "--blocks 1ep 2ep 4ep": "blocks of these lengths; the last one repeats until the end of the run"
    }

    def __init__(self, lengths: Iterable[Duration | str | int]) -> None:
        """Take lengths such as 1.5ep, 586st or 10%, or whole numbers of steps."""
        if isinstance(lengths, str | Duration) or not isinstance(lengths, Iterable):
            raise UserError(f"Blocks need a list of lengths, got {format_value(lengths)}: Blocks(['1ep', '2ep']).")
        object.__setattr__(self, "lengths", tuple(map(Duration.parse, lengths)))
        if not self.lengths:
            raise UserError("Blocks need one length or more: Blocks(['1ep', '2ep']).")
        if any(length.amount == 0 for length in self.lengths):
            raise UserError("The lengths of Blocks must be at least one step each, got 0.")

    def turns(self, roles: Sequence[str], steps: range) -> Iterator[Turn]:
        lengths = [*map(steps_of, self.lengths)]
        yield from _turns_of_blocks(chain(lengths, repeat(lengths[-1])), roles, steps)

    def describe(self) -> str:
        words = [*map(str, self.lengths)]
        if (interval := self.common_interval()) is not None:
            return f"blocks of {interval}"
        return f"blocks of {', '.join(words if len(words) <= 4 else [*words[:3], '...', words[-1]])}"

    def common_interval(self) -> Duration | None:
        return self.lengths[0] if len({*self.lengths}) == 1 else None

    def teacher_updates(self, step: int) -> int:
        lengths = [*map(steps_of, self.lengths)]
        ends = [*accumulate(lengths)]
        if step < ends[-1]:
            return ends[bisect_right(ends, step)]
        return ends[-1] + -(-(step + 1 - ends[-1]) // lengths[-1]) * lengths[-1]


@dataclass(frozen=True)
class Growing(BaseSchedule):
    """Blocks that grow or shrink: block n, counted from 0, has floor(first * factor^n) steps, and at least one.

    Each role in order learns the steps of a block, as in `Spaced`; the last block is cut at the end of the run.

    >>> " ".join(f"{role[0]}{step}" for role, step in Growing(1, 2).turns(("teacher", "student"), range(4)))
    't0 s0 t1 t2 s1 s2 t3 s3'
    """

    first: Duration | str | int
    factor: float = 2.0
    """length of a block relative to the one before it: above 1 blocks grow, between 0 and 1 they shrink"""

    examples: ClassVar[Mapping[str, str]] = {
        "--growing 0.5ep": "blocks of 0.5, 1, 2, 4, ... epochs",
        "--growing 16ep --set schedule.factor=0.5": "blocks of 16, 8, 4, ... epochs",
    }

    def __post_init__(self) -> None:
        parse_durations(self, "first")
        if Duration.parse(self.first).amount == 0:
            raise UserError("The first block of Growing must be at least one step, got 0.")
        if not _is_number(self.factor) or not 0 < self.factor <= FASTEST:
            raise UserError(
                f"factor must be a number above 0, at most {FASTEST:g}, got {format_value(self.factor)}. 2 makes each "
                "block twice as long as the one before it, 0.5 half as long."
            )
        object.__setattr__(self, "factor", float(self.factor))

    def turns(self, roles: Sequence[str], steps: range) -> Iterator[Turn]:
        return _turns_of_blocks(self._lengths(len(steps)), roles, steps)

    def _lengths(self, total: int) -> Iterator[int]:
        """Yield the lengths of all blocks; none is longer than the run."""
        first = steps_of(self.first)
        for number in count():
            yield max(_whole(min(first * self.factor**number, total)), 1)

    def describe(self) -> str:
        return f"blocks from {self.first}, each {self.factor:g} times the one before"

    def common_interval(self) -> Duration | None:
        return Duration.parse(self.first) if self.factor == 1 else None


def _turns_of_blocks(lengths: Iterable[int], roles: Sequence[str], steps: range) -> Iterator[Turn]:
    """Yield the turns of blocks of these lengths, until all steps are in one; the last block is cut."""
    start = 0
    for length in lengths:
        if start >= len(steps):
            return
        yield from (Turn(role, step) for role in roles for step in steps[start : start + length])
        start += length


@dataclass(frozen=True)
class Ahead(BaseSchedule):
    """Each role stays `lead` steps ahead of the next and keeps moving (the paper's 'constant ahead' control).

    At its step t the student sees a teacher that has made `lead` more updates than in online KD; `Ahead(0)` is
    online KD.
    """

    lead: Duration | str | int

    restarts = True
    examples: ClassVar[Mapping[str, str]] = {
        "--ahead 1.5ep": "the teacher stays this far ahead but keeps moving (control)"
    }

    def __post_init__(self) -> None:
        parse_durations(self, "lead")

    def turns(self, roles: Sequence[str], steps: range) -> Iterator[Turn]:
        lead = steps_of(self.lead)
        for clock in range(len(steps) + lead * (len(roles) - 1)):
            for number, role in enumerate(roles):
                position = clock - number * lead
                if 0 <= position < len(steps):
                    yield Turn(role, steps[position])

    def describe(self) -> str:
        return f"constantly {self.lead} ahead"


@dataclass(frozen=True)
class Window(BaseSchedule):
    """`inside` from `start` to `stop` (or for `length`), `outside` before and after: the paper's critical period."""

    inside: Schedule
    outside: Schedule
    start: Duration | str | int
    stop: Duration | str | int | None = None
    length: Duration | str | int | None = None

    examples: ClassVar[Mapping[str, str]] = {
        "--interval 1.5ep --window 20ep..40ep": "spaced only then, online before and after (critical period)"
    }

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
        # With a speed `Spaced` has no interval in common, but must have a block in the window all the same.
        interval = self.inside.interval if isinstance(self.inside, Spaced) else interval_of(self.inside)
        if interval is not None and steps_of(interval) > stop - start:
            raise UserError(
                f"The window has {pluralize(stop - start, 'step')}, fewer than one interval ({interval}): lengthen the "
                "window or shorten the interval."
            )
        yield from iter_turns(self.outside, roles, steps[:start])
        yield from iter_turns(self.inside, roles, steps[start:stop])
        yield from iter_turns(self.outside, roles, steps[stop:])

    def describe(self) -> str:
        end = f"to {self.stop}" if self.stop is not None else f"for {self.length}"
        inside, outside = (with_defaults(schedule).describe() for schedule in (self.inside, self.outside))
        return f"{inside} from {self.start} {end}, else {outside}"

    def has_speed(self) -> bool:
        return any(with_defaults(schedule).has_speed() for schedule in (self.inside, self.outside))

    def is_imported(self) -> bool:
        return all(with_defaults(schedule).is_imported() for schedule in (self.inside, self.outside))


@dataclass(frozen=True)
class ReleasedSelfKD(BaseSchedule):
    """The schedule of the paper's self-KD code, which counts from minus one epoch: the first block has another length.

    With L steps in an epoch, batch number g (from 1) triggers a replay when (g - L) is a multiple of the interval.
    The trigger is replayed with the block it ends, but the leader never learns it; a last, incomplete block is lost.
    """

    interval: Duration | str | int
    epoch: Duration | str | int = "1ep"
    looks: bool = field(default=False, metadata={"later": True})
    """pass the batch that triggers a replay through the network before it: in train mode, without an update"""

    examples: ClassVar[Mapping[str, str]] = {
        "--interval released-self-kd --set schedule.interval=4ep": "as the paper's self-KD code counts its blocks"
    }

    def __post_init__(self) -> None:
        parse_durations(self, "interval", "epoch")
        _check_interval(self.interval)

    def turns(self, roles: Sequence[str], steps: range) -> Iterator[Turn]:
        for block, ends in self._blocks(steps):
            yield from (Turn(roles[0], step) for step in (block[:-1] if ends else block))
            if ends:
                yield from (Turn(role, step) for role in roles[1:] for step in block)

    def forward_only_turns(self, roles: Sequence[str], steps: range) -> Mapping[Turn, Turn]:
        blocks = self._blocks(steps) if self.looks else ()
        return {Turn(roles[1], block[0]): Turn(roles[0], block[-1]) for block, ends in blocks if ends}

    def _blocks(self, steps: range) -> Iterator[tuple[range, bool]]:
        """Yield the steps of each block, and whether its last step is a trigger; without one it is not replayed."""
        interval = steps_of(self.interval)
        start, end = 0, (steps_of(self.epoch) - 1) % interval + 1
        while start < len(steps):
            yield steps[start:end], end <= len(steps)
            start, end = end, end + interval


@dataclass(frozen=True)
class Joined(BaseSchedule):
    """Schedules one after the other, for an extended run whose schedule begins again where the shorter run ended.

    >>> [*Joined((Spaced("2st"), Spaced("2st")), boundaries=(1,)).turns(("teacher", "student"), range(3))][:3]
    [Turn(role='teacher', step=0), Turn(role='student', step=0), Turn(role='teacher', step=1)]
    """

    schedules: tuple[Schedule, ...]
    boundaries: tuple[int, ...]
    """the steps at which the next schedule begins"""

    def turns(self, roles: Sequence[str], steps: range) -> Iterator[Turn]:
        ends = pairwise((0, *self.boundaries, len(steps)))
        for schedule, (start, stop) in zip(self.schedules, ends, strict=True):
            yield from iter_turns(schedule, roles, steps[start:stop])

    def common_interval(self) -> Duration | None:
        intervals = {interval_of(schedule) for schedule in self.schedules}
        return intervals.pop() if len(intervals) == 1 else None

    def has_speed(self) -> bool:
        return any(with_defaults(schedule).has_speed() for schedule in self.schedules)

    def is_imported(self) -> bool:
        return all(with_defaults(schedule).is_imported() for schedule in self.schedules)


@dataclass(frozen=True)
class NamedSchedule(BaseSchedule):
    """A user's schedule that a file names and that was not imported: it can be described, but has no turns."""

    kind: str
    options: Mapping[str, Any]

    def turns(self, roles: Sequence[str], steps: range) -> Iterator[Turn]:
        raise untrusted_error(self.kind)

    def describe(self) -> str:
        return self.kind.partition(":")[2]

    def to_json(self, kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
        return {"kind": self.kind, **options["options"]}

    def is_imported(self) -> bool:
        return False


class _Schedules(UserDict[str, Any]):
    """A mapping from names to classes; an entry "package.module:Class" is imported when it is read."""

    def __getitem__(self, name: str) -> Any:
        entry = self.data[name]
        return load_object(entry) if isinstance(entry, str) else entry

    def name_of(self, kind: type) -> str | None:
        """Return the name of a class, or None; nothing is imported."""
        qualified = f"{kind.__module__}:{kind.__qualname__}"
        return next((name for name, entry in self.data.items() if entry is kind or entry == qualified), None)


SCHEDULES = _Schedules(
    {
        "spaced": Spaced,
        "blocks": Blocks,
        "growing": Growing,
        "ahead": Ahead,
        "window": Window,
        "released-self-kd": ReleasedSelfKD,
    }
)
"""the schedules by the name that a spec and `--interval` give them: a class, or "package.module:Class" """


# Any schedule, also a user's that has `turns` alone


_WORD = re.compile(r"[^\W\d][\w-]*")
"""a text that is the name of a schedule rather than a length"""


def by_name(name: str) -> Spaced:
    """Return the schedule that is called online or offline, or is spaced by a length such as 1.5ep."""
    check_name(name)
    return {"online": Online(), "offline": Offline()}.get(name) or Spaced(name)


def check_name(name: str) -> None:
    """Refuse a word that is neither the name of a schedule nor a length."""
    names = ["online", "offline", *SCHEDULES]
    if _WORD.fullmatch(name) and name not in names and not _DURATION.fullmatch(name):
        raise UserError(
            f"Unknown schedule {format_value(name)}.{did_you_mean(name, names)} Give a length (1.5ep, 586st), online, "
            f"offline, or one of: {', '.join(SCHEDULES)}."
        )


def as_schedule(value: Any, what: str) -> Schedule:
    """Return a schedule from an object, a class (`Online`), a name in `SCHEDULES`, or a length such as '1.5ep'.

    Anything else is refused; the message begins with `what`, such as "inside of a Window".
    """
    if isinstance(value, str):
        value = SCHEDULES.get(value) or by_name(value)
    if callable(value):
        try:
            value = value()
        except TypeError as error:
            raise UserError(f"{what}: {error}. Write it as Spaced('1.5ep').") from None
    if not isinstance(value, Schedule) or isinstance(value, type):
        raise UserError(
            f"{what} must be a schedule, for instance Spaced('1.5ep'), or its length; got {format_value(value)}."
        )
    return value


@dataclass(frozen=True)
class _WithDefaults(BaseSchedule):
    """A schedule that has nothing but its turns, with the defaults for all else."""

    schedule: Schedule

    def turns(self, roles: Sequence[str], steps: range) -> Iterator[Turn]:
        return iter_turns(self.schedule, roles, steps)

    def describe(self) -> str:
        return type(self.schedule).__name__


def with_defaults(schedule: Schedule) -> BaseSchedule:
    """Return the schedule itself, or, where it has nothing but its turns, one with defaults for all else."""
    return schedule if isinstance(schedule, BaseSchedule) else _WithDefaults(schedule)


def describe_schedule(schedule: Schedule | None) -> str | None:
    """Return a schedule in a few words; None for a run that has none, because its method has no role that leads.

    >>> describe_schedule(Window(Spaced("1.5ep"), Spaced("1st"), "20ep", length="10ep"))
    'spaced 1.5ep from 20ep for 10ep, else online'
    """
    return None if schedule is None else with_defaults(schedule).describe()


def interval_of(schedule: Schedule | None) -> Duration | None:
    """Return the interval that all blocks of a schedule have in common; None where there is no such interval.

    >>> interval_of(Spaced("1.5ep")), interval_of(Ahead("1.5ep"))
    (Duration(amount=1.5, unit='ep'), None)
    """
    return None if schedule is None else with_defaults(schedule).common_interval()


MOST_REPEATS = 1000
"""turns for each step and role, on average: a user's schedule that gives more is taken for one without an end"""


def iter_turns(schedule: Schedule, roles: Sequence[str], steps: range) -> Iterator[Turn]:
    """Yield the turns of a schedule; a user's schedule may yield plain pairs (role, step).

    Anything else that a user's schedule yields is refused, and what it raises becomes a UserError of one line.
    """
    if type(schedule).__module__.startswith("spacedkd."):  # the checks would cost seconds in a run of millions of turns
        return schedule.turns(roles, steps)
    return _checked_turns(schedule, roles, steps)


def _checked_turns(schedule: Schedule, roles: Sequence[str], steps: range) -> Iterator[Turn]:
    name, number = f"Schedule {type(schedule).__module__}:{type(schedule).__qualname__}", 0
    most = MOST_REPEATS * max(len(steps) * len(roles), 1)
    try:
        turns = iter(schedule.turns(roles, steps))
    except UserError:
        raise
    except Exception as error:
        raise user_code_error(name, error, "to give its turns") from error
    while True:
        try:
            turn: Any = next(turns)
        except StopIteration:
            return
        except UserError:
            raise
        except Exception as error:
            raise user_code_error(name, error, f"at turn {number}") from error
        is_pair = isinstance(turn, tuple | list) and len(turn) == 2 and isinstance(turn[0], str)
        if not (is_pair and _is_step(turn[1], steps.stop)):
            raise UserError(
                f"{name} gives {format_value(turn)} as turn {number}: a turn is Turn(role, step), with a role of "
                f"{', '.join(roles)} and a whole number from 0 to {steps.stop - 1}."
            )
        if number == most:
            raise UserError(
                f"{name} gives more than {most} turns for {len(steps)} steps of {len(roles)} roles: does it ever end?"
            )
        yield Turn(turn[0], operator.index(turn[1]))
        number += 1


def _is_step(step: Any, stop: int) -> bool:
    """Return whether a value is the number of a step before `stop`."""
    return isinstance(step, SupportsIndex) and not isinstance(step, bool) and 0 <= operator.index(step) < stop


# Lengths of training


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
    """round a part of a step up; otherwise it is dropped"""

    @classmethod
    def parse(cls, text: Duration | str | int) -> Duration:
        """Return the duration of a text such as `1.5ep`, `586st` or `100%`; a bare whole number counts steps."""
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
        """Return this length in steps of a run of `total` steps; one that does not fit into the run is refused."""
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
        """Return the steps between two events of this period: at least one, and at most the whole run."""
        return min(max(self.whole_steps(steps_per_epoch, total), 1), total)

    def whole_steps(self, steps_per_epoch: int, total: int) -> int:
        """Return this length in steps: the one place where epochs and percent become steps.

        A part of a step is dropped, as in the paper's code, or rounded up where the length ends with `+`.
        """
        steps_per_unit = {"st": 1, "ep": steps_per_epoch, "%": total / 100}[self.unit]
        steps = min(self.amount * steps_per_unit, 1e15)  # no run is longer, and infinity has no floor
        return math.ceil(steps - 1e-9) if self.up else _whole(steps)


_ONE_STEP, _WHOLE_RUN = Duration(1, "st"), Duration(100, "%")

T = TypeVar("T")


def in_steps(plan: T, steps_per_epoch: int, total: int) -> T:
    """Return `plan`, a dataclass such as a schedule, with every duration in it, at any depth, converted to steps.

    >>> from spacedkd.schedule import Spaced
    >>> in_steps(Spaced("1.5ep"), steps_per_epoch=391, total=31280).interval
    Duration(amount=586, unit='st')
    """

    def convert(value: Any, name: str) -> Any:
        if isinstance(value, Duration):
            try:
                return Duration(value.in_steps(steps_per_epoch, total), "st")
            except UserError as error:
                raise UserError(f"{name.capitalize()}: {error}") from None
        if isinstance(value, tuple):
            return tuple(convert(item, name) for item in value)
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{f.name: convert(getattr(value, f.name), f.name) for f in fields(value) if f.init})
        return value

    converted: T = convert(plan, "")
    return converted


def parse_durations(plan: Any, *names: str) -> None:
    """Turn texts such as '1.5ep' in these fields of a frozen dataclass into durations."""
    for name in names:
        value = getattr(plan, name)
        if value is not None:
            object.__setattr__(plan, name, Duration.parse(value))


def steps_of(value: Duration | str | int) -> int:
    """Return the number of steps of a duration that is written in steps; one in epochs or percent is refused."""
    duration = Duration.parse(value)
    if duration.unit != "st":
        raise UserError(
            f"{duration} needs the length of an epoch: call in_steps(schedule, steps_per_epoch, total) first. In a "
            f"schedule of yours a field's default is no text but a Duration: Duration.parse('{duration}')."
        )
    return int(duration.amount)
