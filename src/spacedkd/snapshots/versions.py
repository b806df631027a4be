"""How many updates the teacher has made when the student takes a step."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from spacedkd.duration import Duration, in_steps, steps_of
from spacedkd.errors import UserError, whole_number
from spacedkd.schedule import Schedule, Spaced, as_schedule, turns_of

ENDLESS = 10**15
"""steps of a run whose end nobody has said"""


class Versions:
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
    for turn in turns_of(schedule, ("teacher", "student"), range(total)):
        if turn.role == "teacher":
            updates += 1
        else:
            seen[turn.step] = updates
    return seen
