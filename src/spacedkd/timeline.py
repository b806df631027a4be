"""A schedule on a run: its turns, its blocks, and how often the teacher was updated before each step of the student.

Nothing else in the package counts a teacher's updates against a student's steps.

>>> from spacedkd.schedule import Spaced
>>> roles = ("teacher", "student")
>>> timeline = Timeline(roles, Spaced("2st").turns(roles, range(3)), trained_roles=roles)
>>> [(block.role, block.start, [*block.steps]) for block in timeline.blocks()]
[('teacher', 0, [0, 1]), ('student', 2, [0, 1]), ('teacher', 4, [2]), ('student', 5, [2])]
>>> sorted(updates_seen(timeline.after(0), "teacher", by="student"))
[2, 3]
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from itertools import groupby, islice
from typing import Any

from spacedkd.runtime.errors import UserError, unknown, whole_number
from spacedkd.schedule import (
    Duration,
    Schedule,
    Spaced,
    Turn,
    as_schedule,
    in_steps,
    iter_turns,
    with_defaults,
)

ENDLESS = 10**15
"""the number of steps of a run whose length is unknown"""


# Turns and blocks


@dataclass(frozen=True)
class Block:
    """Consecutive turns of one role; iterating over a block gives its turns."""

    role: str
    start: int
    """the number of its first turn among all turns of the run"""
    steps: Sequence[int]
    """the step of each of its turns"""

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Turn]:
        return (Turn(self.role, step) for step in self.steps)

    @property
    def stop(self) -> int:
        """The number of turns that are done when this block is."""
        return self.start + len(self.steps)


def group_turns(turns: Iterable[Turn]) -> Iterator[Block]:
    """Group the turns of a schedule into blocks, in order.

    >>> [*group_turns(Spaced("2st").turns(("teacher", "student"), range(2)))]
    [Block(role='teacher', start=0, steps=[0, 1]), Block(role='student', start=2, steps=[0, 1])]
    """
    start = 0
    for role, group in groupby(turns, key=lambda turn: turn.role):
        block = Block(role, start, [turn.step for turn in group])
        yield block
        start = block.stop


def timeline_turns(
    schedule: Schedule, roles: Sequence[str], follower_first: bool, stops: Mapping[str, int], total: int
) -> Iterator[Turn]:
    """Yield the turns of a schedule written in steps; a role has no turns from its step in `stops` on.

    With `follower_first` the last role has the first turn of each block. A schedule with a speed is refused then: the
    last role would be the fast one.
    """
    if follower_first and with_defaults(schedule).has_speed():
        raise UserError("With a speed the teacher's turns come first: leave out --speed or --follower-first.")
    order = roles[::-1] if follower_first else roles
    turns = iter_turns(schedule, order, range(total))
    return (turn for turn in turns if turn.step < stops.get(turn.role, total))


def forward_only_turns(schedule: Schedule, roles: Sequence[str], total: int) -> Mapping[Turn, Turn]:
    """Return a schedule's forward passes without an update: each is passed right before the turn that is its key."""
    return with_defaults(schedule).forward_only_turns(roles, range(total))


class Timeline:
    """All turns of a run. A turn takes ten bytes: runs on ImageNet have millions of turns."""

    def __init__(
        self,
        roles: Sequence[str],
        turns: Iterable[Turn],
        trained_roles: Sequence[str],
        forward_only_turns: Mapping[Turn, Turn] | None = None,
    ) -> None:
        """Keep the turns of the trained roles; a role that is not in `roles` is refused."""
        self.forward_only_turns = forward_only_turns or {}
        """forward passes without an update: each value is passed right before the turn that is its key"""
        self._roles = roles
        self._role_numbers, self._steps = array("H"), array("q")
        numbers = {role: number for number, role in enumerate(roles)}
        for role, step in turns:
            if role not in numbers:
                raise unknown("role in the schedule's turns", role, roles)
            if role not in trained_roles:
                continue
            self._role_numbers.append(numbers[role])
            self._steps.append(step)

    def __len__(self) -> int:
        return len(self._steps)

    def after(self, done: int) -> Iterator[Turn]:
        """Yield the turns that come after the first `done`."""
        for number in range(done, len(self)):
            yield Turn(self._roles[self._role_numbers[number]], self._steps[number])

    def in_parts(self, role: str, steps: int) -> "Timeline":
        """Return this timeline with the blocks of a role cut before each multiple of a number of steps.

        The role then waits for what it reads before every part. Nothing else changes: to the loop the next part is a
        block that follows one of the same role, like one that is resumed in its middle.

        >>> timeline = Timeline(("a", "b"), Spaced("5st").turns(("a", "b"), range(5)), ("a", "b")).in_parts("b", 2)
        >>> [(block.role, block.start, [*block.steps]) for block in timeline.blocks()]
        [('a', 0, [0, 1, 2, 3, 4]), ('b', 5, [0, 1]), ('b', 7, [2, 3]), ('b', 9, [4])]
        """
        return _TimelineInParts(self, role, steps)

    def blocks(self, after: int = 0) -> Iterator[Block]:
        """Yield the blocks after the first `after` turns; of a block that is partly done, the turns that are left."""
        steps, start = memoryview(self._steps), after  # a view: an offline run has one block of all steps
        while start < len(self):
            number, stop = self._role_numbers[start], start + 1
            while stop < len(self) and self._role_numbers[stop] == number:
                stop += 1
            yield Block(self._roles[number], start, steps[start:stop])
            start = stop

    def counts(self) -> dict[str, int]:
        """Return how many turns each role has."""
        return {role: self._role_numbers.count(number) for number, role in enumerate(self._roles)}

    def ends(self) -> dict[str, int]:
        """Return the step after the last one of each role, which may leave out steps before it."""
        ends = dict.fromkeys(self._roles, 0)
        for role, step in self.after(0):
            ends[role] = max(ends[role], step + 1)
        return ends

    def leader_steps(self) -> dict[str, Sequence[int]]:
        """Return, for each other role and each of its steps, the step that the first role learned last (at least 0)."""
        leader_steps = {role: array("q") for role in self._roles[1:]}
        for (role, step), _, last_step in _leader_progress(self.after(0), self._roles[0]):
            steps = leader_steps[role]
            steps.extend([max(last_step, 0)] * (step + 1 - len(steps)))
            steps[step] = max(last_step, 0)
        return {**leader_steps}

    def is_replay(self, turn: Turn) -> bool:
        """Return whether a turn is part of a replay: its block has several turns, or the first role is ahead.

        >>> from spacedkd.schedule import Ahead, Spaced
        >>> roles = ("teacher", "student")
        >>> def replays(schedule: Schedule) -> list[bool]:
        ...     timeline = Timeline(roles, schedule.turns(roles, range(5)), roles)
        ...     return [timeline.is_replay(Turn("student", step)) for step in range(5)]
        >>> replays(Spaced("1st")), replays(Spaced("2st"))
        ([False, False, False, False, False], [True, True, True, True, False])
        >>> replays(Ahead("0st")), replays(Ahead("1st"))
        ([False, False, False, False, False], [True, True, True, True, True])
        """
        return turn.role in self._replays and bool(self._replays[turn.role][turn.step])

    @cached_property
    def _replays(self) -> dict[str, bytearray]:
        """For each role but the first, a byte for each of its steps: 1 if that turn is part of a replay."""
        replays = {role: bytearray() for role in self._roles[1:]}
        leader_step = -1
        for block in self.blocks():
            if block.role == self._roles[0]:
                leader_step = block.steps[-1]
                continue
            flags = replays[block.role]
            for step in block.steps:
                flags.extend(bytes(max(0, step + 1 - len(flags))))
                flags[step] = len(block) > 1 or leader_step > step
        return replays


class _TimelineInParts(Timeline):
    def __init__(self, whole: Timeline, role: str, steps: int) -> None:
        vars(self).update(vars(whole))
        self._whole, self._role, self._part = whole, role, steps

    def blocks(self, after: int = 0) -> Iterator[Block]:
        for block in self._whole.blocks(after):
            start, numbers = block.start, block.steps
            for _, part in groupby(numbers, key=lambda step: step // self._part if block.role == self._role else 0):
                steps = [*part]
                yield Block(block.role, start, steps)
                start += len(steps)

    def is_replay(self, turn: Turn) -> bool:
        return self._whole.is_replay(turn)


def describe_order(timeline: Timeline, most: int = 4) -> str:
    """Return the steps of the first `most` blocks, in words.

    >>> roles = ("teacher", "student")
    >>> describe_order(Timeline(roles, Spaced("2st").turns(roles, range(5)), roles), most=3)
    'teacher 0-1, student 0-1, teacher 2-3, ...'
    """
    first = [*islice(timeline.blocks(), most + 1)]
    words = [f"{block.role} {_describe_steps(block.steps)}" for block in first[:most]]
    return ", ".join([*words, *(["..."] if len(first) > most else [])])


def _describe_steps(steps: Sequence[int]) -> str:
    first, last = steps[0], steps[-1]
    if len(steps) == 1:
        return f"{first}"
    are_consecutive = all(step == first + number for number, step in enumerate(steps))
    return f"{first}-{last}" if are_consecutive else f"{len(steps)} steps from {first} to {last}"


def dropout_key(turn: Turn, frozen_mode: str) -> tuple[str, int]:
    """Return what seeds a turn's dropout masks; roles that share a forward pass share the masks of a step."""
    return ("shared", turn.step) if frozen_mode == "shared" else turn


# The teacher's number of updates at each step of the student


def _leader_progress(turns: Iterable[Turn], leader: str) -> Iterator[tuple[Turn, int, int]]:
    """Yield the turns of other roles, each with the leader's number of updates before it and its last step (or -1)."""
    updates, last_step = 0, -1
    for turn in turns:
        if turn.role == leader:
            updates, last_step = updates + 1, turn.step
        else:
            yield turn, updates, last_step


def updates_seen(turns: Iterable[Turn], leader: str, by: str) -> set[int]:
    """Return the leader's numbers of updates that role `by` learns from, over all of its turns.

    >>> updates_seen(Spaced("2st").turns(("teacher", "student"), range(5)), "teacher", by="student")
    {2, 4, 5}
    """
    return {updates for _, updates in updates_by_step(turns, leader, by)}


def updates_by_step(turns: Iterable[Turn], leader: str, by: str) -> Iterator[tuple[int, int]]:
    """Yield each step of role `by`, in the order of its turns, with the leader's number of updates before it.

    >>> [*updates_by_step(Spaced("2st").turns(("teacher", "student"), range(3)), "teacher", by="student")]
    [(0, 2), (1, 2), (2, 3)]
    """
    return ((turn.step, updates) for turn, updates, _ in _leader_progress(turns, leader) if turn.role == by)


class TeacherUpdates:
    """The number of updates after which a student sees its teacher, at each of the student's steps.

    >>> updates = TeacherUpdates(2, total=5)
    >>> [updates.at(step) for step in range(5)]
    [2, 2, 4, 4, 5]
    """

    def __init__(
        self, interval: Schedule | Duration | str | int, steps_per_epoch: int | None = None, total: int | None = None
    ) -> None:
        """Take an interval or any schedule; lengths in epochs need `steps_per_epoch`.

        `total`, the run's number of steps, is needed by lengths in percent, and by a schedule that has no formula for
        its teacher's updates (`BaseSchedule.teacher_updates`), such as `Ahead` or a window.
        """
        steps_per_epoch = None if steps_per_epoch is None else whole_number("steps_per_epoch", steps_per_epoch, 1)
        total = None if total is None else whole_number("total", total, 1)
        schedule = parse_interval(interval)
        units = {*_units(schedule)}
        if steps_per_epoch is None and "ep" in units:
            raise UserError(
                "An interval in epochs needs the length of one: give steps_per_epoch=, or a number of steps."
            )
        self.total = total
        schedule = in_steps(schedule, steps_per_epoch or 1, total or ENDLESS)
        # A schedule with a formula, such as plain spaced KD, needs no end of the run; others are walked through.
        self._formula = with_defaults(schedule).teacher_updates
        has_formula = self._formula(0) is not None
        if total is None and ("%" in units or not has_formula):
            raise UserError("This interval depends on the length of the run: give total=, its number of steps.")
        self._updates: Sequence[int] = () if has_formula else _walk(schedule, total or 0)

    def at(self, step: int) -> int:
        """Return the teacher's number of updates at a step of the student, counted from 0."""
        step = whole_number("step", step)
        if self.total is not None and step >= self.total:
            raise UserError(
                f"A step of this run is from 0 to {self.total - 1}, as total={self.total} says; got {step}."
            )
        if (updates := self._formula(step)) is not None:
            return min(updates, self.total or ENDLESS)
        if self._updates[step] < 0:
            raise UserError(f"In this schedule the student has no step {step}: it is left out.")
        return self._updates[step]

    def includes(self, update: int) -> bool:
        """Return whether a student of this schedule ever sees the teacher after exactly this number of updates."""
        update = whole_number("updates", update)
        if self.total is not None and update > self.total:
            raise UserError(f"A run of total={self.total} steps has no more updates than that; got {update}.")
        if self._updates:
            return update in self._updates_seen
        # With a formula the student never sees fewer updates than it has made, and never fewer than at an earlier step.
        steps = range(update)
        return update > 0 and self.at(bisect_left(steps, update, key=self.at)) == update

    def needed(self) -> Sequence[int]:
        """Return all numbers of updates after which a student of this schedule sees the teacher, in order.

        >>> TeacherUpdates(2, total=5).needed()
        [2, 4, 5]
        """
        if self.total is None:
            raise UserError("Which snapshots a run needs depends on its length: give total=, its number of steps.")
        return sorted(self._updates_seen if self._updates else {self.at(step) for step in range(self.total)})

    @cached_property
    def _updates_seen(self) -> frozenset[int]:
        """The numbers of updates in a schedule without a formula; -1 is a step that the student leaves out."""
        return frozenset(self._updates) - {-1}


def parse_interval(interval: Schedule | Duration | str | int) -> Schedule:
    """Return the schedule of an interval: a number of steps, a length such as "1.5ep", or any schedule."""
    return as_schedule(Spaced(interval) if isinstance(interval, Duration | int) else interval, "interval")


def _units(plan: Any) -> Iterator[str]:
    """Yield the units of all durations in a schedule."""
    if isinstance(plan, Duration):
        yield plan.unit
    elif is_dataclass(plan) and not isinstance(plan, type):
        for field in fields(plan):
            yield from _units(getattr(plan, field.name))


def _walk(schedule: Schedule, total: int) -> Sequence[int]:
    """Return the teacher's updates at each of the student's steps, from the schedule's turns; -1 where it has none."""
    updates_at = array("q", [-1] * total)
    for turn, updates, _ in _leader_progress(iter_turns(schedule, ("teacher", "student"), range(total)), "teacher"):
        updates_at[turn.step] = updates
    return updates_at
