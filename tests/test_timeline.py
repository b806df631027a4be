"""A schedule on a run: blocks, replays, and which update of the teacher a step sees, against plain walks of turns."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
import pytest
import torch

from spacedkd import Ahead, Duration, Offline, Online, Spaced, UserError
from spacedkd.schedule import Blocks, Growing, ReleasedSelfKD, Schedule, Turn, Window, in_steps
from spacedkd.timeline import TeacherUpdates, Timeline, forward_only_turns, group_turns, timeline_turns, updates_seen

PAIR = ("teacher", "student")
CHAIN = ("teacher", "assistant", "student")
SCHEDULES: list[Schedule] = [
    Online(),
    Spaced("4st"),
    Spaced("4st", tail="drop"),
    Spaced("23st"),
    Ahead("0st"),
    Ahead("3st"),
    Ahead("30st"),
    Window(Spaced("4st"), Spaced("1st"), 5, 15),
    ReleasedSelfKD("3st", "2st"),
    Spaced("4st", speed=2),
    Spaced("3st", speed=1.5),
    Spaced("4st", "drop", 1.5),
    Spaced("1st", speed="inf"),
    Blocks([2, 1, 5]),
    Growing(1, 1.7),
]


def timeline_of(schedule: Schedule, roles: tuple[str, ...], total: int = 23) -> Timeline:
    return Timeline(roles, schedule.turns(roles, range(total)), roles)


@pytest.mark.parametrize("roles", [PAIR, CHAIN])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_blocks_are_the_turns_grouped_by_role(schedule: Schedule, roles: tuple[str, ...]) -> None:
    timeline, turns = timeline_of(schedule, roles), [*schedule.turns(roles, range(23))]
    blocks = [*timeline.blocks()]
    assert [turn for block in blocks for turn in block] == turns == [*timeline.after(0)]
    assert [block.role for block in blocks] == [role for role, _ in groupby(turns, key=lambda turn: turn.role)]
    assert [block.start for block in blocks] == [0, *(block.stop for block in blocks[:-1])]
    assert [(b.role, b.start, [*b.steps]) for b in blocks] == [(b.role, b.start, b.steps) for b in group_turns(turns)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_blocks_after_any_turn_are_what_is_left_of_them(schedule: Schedule) -> None:
    timeline = timeline_of(schedule, PAIR)
    turns = [*timeline.after(0)]
    for done in range(len(turns) + 1):
        blocks = [*timeline.blocks(after=done)]
        assert [turn for block in blocks for turn in block] == turns[done:]
        assert [block.start for block in blocks[:1]] == [done][: len(turns) - done]
        assert [(block.role, block.stop) for block in blocks] == [
            (block.role, block.stop) for block in timeline.blocks() if block.stop > done
        ]


def test_a_block_of_a_million_turns_is_a_view_and_no_copy() -> None:
    teacher, student = timeline_of(in_steps(Offline(), 1, 1_000_000), PAIR, 1_000_000).blocks()
    assert (teacher.role, teacher.start, len(teacher)) == ("teacher", 0, 1_000_000)
    assert (student.role, student.start, student.stop) == ("student", 1_000_000, 2_000_000)
    assert isinstance(student.steps, memoryview)
    assert (student.steps[0], student.steps[-1]) == (0, 999_999)


def test_only_roles_that_are_kept_have_turns() -> None:
    timeline = Timeline(PAIR, Spaced("2st").turns(PAIR, range(5)), ["teacher"])
    assert [*timeline.after(0)] == [("teacher", step) for step in range(5)]
    assert [(block.role, [*block.steps]) for block in timeline.blocks()] == [("teacher", [0, 1, 2, 3, 4])]
    assert timeline.counts() == {"teacher": 5, "student": 0}


def test_a_role_that_nobody_has_is_refused() -> None:
    with pytest.raises(UserError, match="pupil"):
        Timeline(PAIR, [Turn("pupil", 0)], PAIR)


def test_counts_and_ends_of_the_released_self_kd_code() -> None:
    """It leaves out the teacher's turn at each trigger, and what comes after the last one."""
    timeline = timeline_of(ReleasedSelfKD("3st", "2st"), PAIR, 9)
    assert timeline.counts() == {"teacher": 6, "student": 8}
    assert timeline.ends() == {"teacher": 9, "student": 8}


def test_forward_passes_without_an_update() -> None:
    schedule = ReleasedSelfKD("3st", "2st", looks=True)
    assert forward_only_turns(schedule, PAIR, 9) == {
        Turn("student", 0): Turn("teacher", 1),
        Turn("student", 2): Turn("teacher", 4),
        Turn("student", 5): Turn("teacher", 7),
    }
    assert forward_only_turns(ReleasedSelfKD("3st", "2st"), PAIR, 9) == {}
    assert forward_only_turns(Online(), PAIR, 9) == {}


@pytest.mark.parametrize("roles", [PAIR, CHAIN])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_replays(schedule: Schedule, roles: tuple[str, ...]) -> None:
    """A turn is part of a replay if a neighbour has the same role, or the leader has learned a later step before it."""
    turns = [Turn("", 0), *schedule.turns(roles, range(23)), Turn("", 0)]
    timeline, leader_step = timeline_of(schedule, roles), -1
    for before, turn, behind in zip(turns, turns[1:], turns[2:], strict=False):
        if turn.role == "teacher":
            leader_step = turn.step
            assert not timeline.is_replay(turn)
        else:
            in_a_row = turn.role in (before.role, behind.role)
            assert timeline.is_replay(turn) == (in_a_row or leader_step > turn.step)


def updates_by_the_turns(schedule: Schedule, total: int) -> dict[int, int]:
    updates, seen = 0, {}
    for role, step in schedule.turns(PAIR, range(total)):
        if role == "teacher":
            updates += 1
        else:
            seen[step] = updates
    return seen


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_updates_seen_and_the_step_the_leader_learned_last(schedule: Schedule) -> None:
    expected = updates_by_the_turns(schedule, 23)
    assert updates_seen(schedule.turns(PAIR, range(23)), "teacher", by="student") == {*expected.values()}
    steps = [turn.step for turn in schedule.turns(PAIR, range(23)) if turn.role == "teacher"]
    leader_steps = timeline_of(schedule, PAIR).leader_steps()["student"]
    assert {step: leader_steps[step] for step in expected} == {step: steps[seen - 1] for step, seen in expected.items()}


def test_a_follower_that_goes_first_sees_a_leader_without_updates() -> None:
    turns = [Turn("student", 0), Turn("teacher", 0), Turn("student", 1), Turn("teacher", 1)]
    assert updates_seen(turns, "teacher", by="student") == {0, 1}
    assert [*Timeline(PAIR, turns, PAIR).leader_steps()["student"]] == [0, 0]


@pytest.mark.parametrize(
    "interval", [1, 2, 5, 7, 20, 23, "1.5ep", Duration(0.29, "ep", True), "online", "offline", "30%"]
)
def test_updates_at_every_step_of_an_interval(interval: Any) -> None:
    total, epoch = 23, 10
    named = {"online": 1, "offline": total}.get(interval, interval)
    expected = updates_by_the_turns(in_steps(Spaced(named), epoch, total), total)
    updates = TeacherUpdates(interval, epoch, total)
    assert {step: updates.at(step) for step in range(total)} == expected
    assert [update for update in range(total + 1) if updates.includes(update)] == sorted({*expected.values()})


OTHERS = [
    Ahead(3),
    Window(Spaced(4), Spaced(1), 5, 15),
    Spaced(4, speed=2),
    Spaced(4, speed=1.5),
    Spaced(3, speed=1.1),
    Spaced(1, speed=7),
    Spaced(4, speed="inf"),
    Blocks([2, 1, 5]),
    Blocks([1, 9, 2, 9, 9]),
    Growing(1, 1.7),
    Growing(9, 0.5),
]


@pytest.mark.parametrize("schedule", OTHERS)
def test_updates_at_every_step_of_other_schedules(schedule: Schedule) -> None:
    updates, expected = TeacherUpdates(schedule, total=23), updates_by_the_turns(schedule, 23)
    assert {step: updates.at(step) for step in range(23)} == expected
    assert [update for update in range(24) if updates.includes(update)] == sorted({*expected.values()})


@pytest.mark.parametrize("schedule", [Spaced(4, "drop"), Spaced(4, "drop", 1.5), Spaced(4, "drop", "inf")])
def test_updates_where_the_last_block_is_not_taught(schedule: Schedule) -> None:
    updates, expected = TeacherUpdates(schedule, total=23), updates_by_the_turns(schedule, 23)
    assert {step: updates.at(step) for step in expected} == expected
    assert [update for update in range(24) if updates.includes(update)] == sorted({*expected.values()})


def test_what_a_run_without_an_end_sees_of_a_faster_teacher() -> None:
    faster = TeacherUpdates(Spaced(4, speed=1.5))
    assert [faster.at(step) for step in (0, 3, 4, 8, 1_000_001)] == [6, 6, 12, 18, 1_500_006]
    assert [update for update in range(20) if faster.includes(update)] == [6, 12, 18]
    blocks = TeacherUpdates(Blocks([2, 1, 5]))
    assert [blocks.at(step) for step in (0, 1, 2, 3, 7, 8, 1_000_001)] == [2, 2, 3, 8, 8, 13, 1_000_003]
    assert [update for update in range(20) if blocks.includes(update)] == [2, 3, 8, 13, 18]


def test_a_speed_needs_the_turns_of_the_teacher_first() -> None:
    for schedule in (Spaced(2, speed=2), Window(Spaced(2, speed=2), Spaced(1), 1, 3)):
        with pytest.raises(UserError, match="teacher's turns come first"):
            [*timeline_turns(schedule, PAIR, True, {}, 5)]
    assert [*timeline_turns(Blocks([1, 2]), PAIR, True, {}, 2)] == [
        Turn(role, step) for step in range(2) for role in PAIR[::-1]
    ]


@pytest.mark.parametrize("number", [torch.tensor, np.int64])
def test_whole_numbers_of_others_are_ints(number: Any) -> None:
    for updates in (TeacherUpdates(2, total=5), TeacherUpdates(2, total=number(5))):
        seen = [updates.at(number(step)) for step in range(5)]
        assert seen == [2, 2, 4, 4, 5]
        assert {type(update) for update in seen} == {int}


def test_a_run_without_an_end() -> None:
    assert [TeacherUpdates(4).at(step) for step in (0, 3, 4, 1_000_001)] == [4, 4, 8, 1_000_004]
    assert [TeacherUpdates("1.5ep", 391).at(step) for step in (0, 585, 586)] == [586, 586, 1172]


@pytest.mark.parametrize(
    ("arguments", "step", "named"),
    [
        (("1.5ep",), 0, "steps_per_epoch="),
        (("offline",), 0, "total="),
        ((Ahead(3),), 0, "total="),
        ((30, None, 20), 0, "20 steps"),
        ((0,), 0, "got 0"),
        ((2, None, 5), 5, "got 5"),
        ((2,), -1, "got -1"),
        ((2,), 1.0, "got 1.0"),
        ((2,), "1", "got '1'"),
        ((2,), torch.tensor([1, 2]), r"got tensor\(\[1, 2\]\)"),
        ((2, None, 0), 0, "total"),
        ((Spaced(2, speed="inf"),), 0, "total="),
        ((Growing(2),), 0, "total="),
        ((1.5, None, 5), 0, "got 1.5"),
        ((Spaced(2, tail="drop"), None, 5), 4, "step 4"),
    ],
)
def test_refused_intervals_and_steps(arguments: tuple[Any, ...], step: Any, named: str) -> None:
    with pytest.raises(UserError, match=named):
        TeacherUpdates(*arguments).at(step)
