"""How many updates the teacher has made when the student takes a step."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cached_property
from typing import Any

from spacedkd.runtime.errors import UserError, unknown, whole_number
from spacedkd.schedule import (
    Duration,
    ReleasedSelfKD,
    Schedule,
    Spaced,
    Turn,
    as_schedule,
    in_steps,
    iter_turns,
    steps_of,
)
from spacedkd.schedule import iter_turns as schedule_turns

# The turns of a run, as its schedule and its roles have them.


class Timeline:
    """All turns of a run, walked once and kept small: a run on ImageNet has millions."""

    def __init__(
        self, roles: Sequence[str], turns: Iterable[Turn], kept: Sequence[str], looks: Mapping[Turn, Turn] | None = None
    ) -> None:
        """Those of the roles that are `kept`."""
        self.looks = looks or {}
        """turns that are forward passes alone, each by the turn it comes right before"""
        self._roles = roles
        self._places, self._steps = array("H"), array("q")
        place = {role: number for number, role in enumerate(roles)}
        for role, step in turns:
            if role not in place:
                raise unknown("role in the schedule's turns", role, roles)
            if role not in kept:
                continue
            self._places.append(place[role])
            self._steps.append(step)

    def __len__(self) -> int:
        return len(self._steps)

    def counts(self) -> dict[str, int]:
        """How many turns each role has."""
        return {role: self._places.count(place) for place, role in enumerate(self._roles)}

    def ends(self) -> dict[str, int]:
        """How many batches of the run each role comes to, of which it may leave out some."""
        found = dict.fromkeys(self._roles, 0)
        for role, step in self.after(0):
            found[role] = max(found[role], step + 1)
        return found

    def led(self) -> dict[str, Sequence[int]]:
        """The leader's last step at each step of those that follow it; of the first at the least."""
        stands, found = 0, {role: array("q") for role in self._roles[1:]}
        for role, step in self.after(0):
            if role == self._roles[0]:
                stands = step
            else:
                found[role].extend([stands] * (step + 1 - len(found[role])))
                found[role][step] = stands
        return {**found}

    def is_replay(self, turn: Turn) -> bool:
        """Whether a turn belongs to a replay: its role has several turns in a row, or the leader is further already.

        >>> from spacedkd.schedule import Ahead, Spaced
        >>> roles = ("teacher", "student")
        >>> def replays(schedule: Schedule) -> list[bool]:
        ...     turns = Turns(roles, schedule.turns(roles, range(5)), roles)
        ...     return [turns.is_replay(Turn("student", step)) for step in range(5)]
        >>> replays(Spaced("1st")), replays(Spaced("2st"))
        ([False, False, False, False, False], [True, True, True, True, False])
        >>> replays(Ahead("0st")), replays(Ahead("1st"))
        ([False, False, False, False, False], [True, True, True, True, True])
        """
        return turn.role in self._replays and bool(self._replays[turn.role][turn.step])

    @cached_property
    def _replays(self) -> dict[str, bytearray]:
        """For each role that follows and each of its steps, whether that turn belongs to a replay."""
        found = {role: bytearray() for role in self._roles[1:]}
        leader, before = -1, Turn("", 0)
        for turn in self.after(0):
            role, step = turn
            if role == self._roles[0]:
                leader = step
            else:
                found[role].extend(bytes(max(0, step + 1 - len(found[role]))))
                found[role][step] = role == before.role or leader > step
                if role == before.role:
                    found[role][before.step] = True
            before = turn
        return found

    def after(self, done: int) -> Iterator[Turn]:
        """The turns that are left when so many are done."""
        for number in range(done, len(self)):
            yield Turn(self._roles[self._places[number]], self._steps[number])


def masked_by(turn: Turn, frozen_mode: str) -> tuple[str, int]:
    """What decides a turn's dropout masks; those of a shared forward pass are the same in everybody's turns."""
    return ("shared", turn.step) if frozen_mode == "shared" else turn


def timeline_turns(
    schedule: Schedule, roles: Sequence[str], follower_first: bool, stops: Mapping[str, int], total: int
) -> Iterator[Turn]:
    """The turns of a schedule written in steps; a role that has learned enough has no more of them."""
    order = roles[::-1] if follower_first else roles
    every = schedule_turns(schedule, order, range(total))
    return (turn for turn in every if turn.step < stops.get(turn.role, total))


def looks_of(schedule: Schedule, roles: Sequence[str], total: int) -> Mapping[Turn, Turn]:
    """Turns of a schedule written in steps that are forward passes alone, each by the turn it comes right before."""
    return schedule.looked_at(roles, range(total)) if isinstance(schedule, ReleasedSelfKD) else {}


# How many updates the teacher has made when the student takes a step.

ENDLESS = 10**15
"""steps of a run whose end nobody has said"""


class TeacherUpdates:
    """The teacher's updates at each step of the student, under a schedule or an interval.

    >>> seen = Versions(2, total=5)
    >>> [seen(step) for step in range(5)]
    [2, 2, 4, 4, 5]
    """

    def __init__(
        self, interval: Schedule | Duration | str | int, steps_per_epoch: int | None = None, total: int | None = None
    ) -> None:
        steps_per_epoch = None if steps_per_epoch is None else whole_number("steps_per_epoch", steps_per_epoch, 1)
        total = None if total is None else whole_number("total", total, 1)
        if isinstance(interval, Duration | int):
            interval = Spaced(interval)
        schedule = as_schedule(interval, "interval")
        units = {*_units(schedule)}
        self._simple = isinstance(schedule, Spaced) and schedule.tail == "teach"
        if total is None and ("%" in units or not self._simple):
            raise UserError("This interval needs to know how long the run is: give total=, its number of steps.")
        if steps_per_epoch is None and "ep" in units:
            raise UserError(
                "An interval in epochs needs the length of one: give steps_per_epoch=, or a number of steps."
            )
        self.total = total
        schedule = in_steps(schedule, steps_per_epoch or 1, total or ENDLESS)
        self._interval = steps_of(schedule.interval) if isinstance(schedule, Spaced) else 0
        self._seen: Sequence[int] = () if self._simple else _walked(schedule, total or 0)

    def __call__(self, step: int) -> int:
        step = whole_number("step", step)
        if self.total is not None and step >= self.total:
            raise UserError(
                f"A step of this run is from 0 to {self.total - 1}, as total={self.total} says; got {step}."
            )
        if self._simple:
            return min(-(-(step + 1) // self._interval) * self._interval, self.total or ENDLESS)
        if self._seen[step] < 0:
            raise UserError(f"In this schedule the student has no step {step}: nobody teaches it.")
        return self._seen[step]


def _units(plan: Any) -> Iterator[str]:
    """Those of all durations in a schedule."""
    if isinstance(plan, Duration):
        yield plan.unit
    elif is_dataclass(plan) and not isinstance(plan, type):
        for field in fields(plan):
            yield from _units(getattr(plan, field.name))


def _walked(schedule: Schedule, total: int) -> Sequence[int]:
    """The teacher's updates at each of the student's steps, off the schedule's turns; -1 where it has none."""
    updates, seen = 0, array("q", [-1] * total)
    for turn in iter_turns(schedule, ("teacher", "student"), range(total)):
        if turn.role == "teacher":
            updates += 1
        else:
            seen[turn.step] = updates
    return seen
