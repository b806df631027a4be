"""Which version of the teacher a step sees: what the schedule's own turns say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from spacedkd import Ahead, Duration, Schedule, Spaced, UserError, Window, in_steps
from spacedkd.timeline import TeacherUpdates


def by_the_turns(schedule: Schedule, total: int) -> list[int]:
    updates, seen = 0, {}
    for role, step in schedule.turns(("teacher", "student"), range(total)):
        if role == "teacher":
            updates += 1
        else:
            seen[step] = updates
    return [seen[step] for step in range(total)]


@pytest.mark.parametrize(
    "interval", [1, 2, 5, 7, 20, 23, "1.5ep", Duration(0.29, "ep", True), "online", "offline", "30%"]
)
def test_every_step_of_an_interval(interval: Any) -> None:
    total, epoch = 23, 10
    named = {"online": 1, "offline": total}.get(interval, interval)
    expected = by_the_turns(in_steps(Spaced(named), epoch, total), total)
    seen = TeacherUpdates(interval, epoch, total)
    assert [seen(step) for step in range(total)] == expected


@pytest.mark.parametrize("schedule", [Ahead(3), Window(Spaced(4), Spaced(1), 5, 15)])
def test_every_step_of_other_schedules(schedule: Schedule) -> None:
    seen = TeacherUpdates(schedule, total=23)
    assert [seen(step) for step in range(23)] == by_the_turns(schedule, 23)


@pytest.mark.parametrize("counted", [torch.tensor, np.int64])
def test_whole_numbers_of_others_are_ints(counted: Any) -> None:
    for seen in (TeacherUpdates(2, total=5), TeacherUpdates(2, total=counted(5))):
        found = [seen(counted(step)) for step in range(5)]
        assert found == [2, 2, 4, 4, 5]
        assert {type(updates) for updates in found} == {int}


def test_a_run_without_an_end() -> None:
    assert [TeacherUpdates(4)(step) for step in (0, 3, 4, 1_000_001)] == [4, 4, 8, 1_000_004]
    assert [TeacherUpdates("1.5ep", 391)(step) for step in (0, 585, 586)] == [586, 586, 1172]


@pytest.mark.parametrize(
    ("given", "step", "part"),
    [
        (("1.5ep",), 0, "give steps_per_epoch="),
        (("offline",), 0, "give total="),
        ((Ahead(3),), 0, "give total="),
        ((30, None, 20), 0, "longer than the run of 20 steps"),
        ((0,), 0, "at least one step"),
        ((2, None, 5), 5, "from 0 to 4, as total=5 says; got 5"),
        ((2,), -1, "step must be a whole number from 0 up, got -1"),
        ((2,), 1.0, "step must be a whole number from 0 up, got 1.0"),
        ((2,), "1", "step must be a whole number from 0 up, got '1'"),
        ((2,), torch.tensor([1, 2]), r"step must be a whole number from 0 up, got tensor\(\[1, 2\]\)"),
        ((2, None, 0), 0, "total must be a whole number"),
        ((Spaced(2, tail="drop"), None, 5), 4, "nobody teaches it"),
    ],
)
def test_what_does_not_fit_is_said(given: tuple[Any, ...], step: Any, part: str) -> None:
    with pytest.raises(UserError, match=part):
        TeacherUpdates(*given)(step)
