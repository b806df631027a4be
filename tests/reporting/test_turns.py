"""The picture of a schedule: exact where it can be, small always."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spacedkd.comparison.document import Arm, read_arms
from spacedkd.comparison.results import compare_runs
from spacedkd.reporting.plots import role_legend
from spacedkd.reporting.schedules import Stroke, pictures, strokes, timetables
from spacedkd.schedule import Ahead, Blocks, Growing, Offline, Online, Schedule, Spaced, Window
from spacedkd.timeline import Block, group_turns
from tests.reporting.fake_runs import FakeArm, write_runs
from tests.reporting.page_text import Page

ROLES = ("teacher", "student")


def read(root: Path, *arms: FakeArm) -> list[Arm]:
    folders = write_runs(root, arms)
    return read_arms(compare_runs(folders))


def drawn(schedule: Schedule, steps: int, finest: float) -> list[Stroke]:
    return strokes(group_turns(schedule.turns(ROLES, range(steps))), finest)


def test_blocks_are_drawn_where_they_happen() -> None:
    assert drawn(Spaced("2st"), 3, finest=0.5) == [
        Stroke("teacher", [(0, 0), (2, 2)]),
        Stroke("student", [(2, 0), (4, 2)]),
        Stroke("teacher", [(4, 2), (5, 3)]),
        Stroke("student", [(5, 2), (6, 3)]),
    ]


def test_a_faster_teacher_is_ahead_and_ends_before_the_student() -> None:
    assert drawn(Spaced("1st", speed=2), 4, finest=0.5) == [
        Stroke("teacher", [(0, 0), (2, 2)]),
        Stroke("student", [(2, 0), (3, 1)]),
        Stroke("teacher", [(3, 2), (5, 4)]),
        Stroke("student", [(5, 1), (8, 4)]),
    ]


def test_turns_too_fast_to_draw_become_one_band_for_each_role() -> None:
    teacher, student = drawn(Online(), 100, finest=50)
    assert (teacher.role, teacher.points[0], teacher.points[-1], teacher.merged) == (
        "teacher",
        (0, 0),
        (199, 100),
        True,
    )
    assert (student.role, student.points[0], student.points[-1], student.merged) == (
        "student",
        (1, 0),
        (200, 100),
        True,
    )
    assert len(teacher.points) <= 6


def test_a_replay_is_never_merged_with_what_it_replays() -> None:
    assert [stroke.merged for stroke in drawn(Spaced("10st"), 10, finest=50)] == [False, False]


@pytest.mark.parametrize(
    "schedule",
    [
        Online(),
        Spaced("1.5ep"),
        Spaced("0.1ep"),
        Offline(),
        Ahead("8ep"),
        Window(Spaced("1.5ep"), Online(), "20ep", "60ep"),
        Spaced("1.5ep", speed=2),
        Spaced("1st", speed=1.5),
        Spaced("0.1ep", speed="inf"),
        Blocks(["1st", "0.1ep", "1ep"]),
        Growing("1st", 1.1),
    ],
)
def test_a_long_run_stays_a_small_picture(tmp_path: Path, schedule: Schedule) -> None:
    arms = read(tmp_path, FakeArm("arm", [0.7], schedule=schedule, epochs=80, steps_per_epoch=391))
    ((_, _, picture),) = pictures(timetables(arms))
    assert len(picture.encode()) < 60_000
    assert {one["class"] for one in Page(picture).all("path")} == {"band leader", "band student"}


def test_arms_with_the_same_turns_share_a_picture(tmp_path: Path) -> None:
    arms = read(
        tmp_path,
        FakeArm("no KD", [0.7], "none", roles=("student",)),
        FakeArm("one", [0.7], schedule=Spaced("1.5ep")),
        FakeArm("self KD", [0.7], "self-kd", "plain", roles=("student",)),
        FakeArm("two", [0.7], schedule=Spaced("15st")),
        FakeArm("longer", [0.7], schedule=Spaced("15st"), epochs=6),
    )
    assert [table.labels for table in timetables(arms)] == [["no KD", "self KD"], ["one", "two"], ["longer"]]


def test_roles_keep_their_colours(tmp_path: Path) -> None:
    chain = FakeArm("chain", [0.7], roles=("teacher", "assistant", "student"))
    arms = read(tmp_path, FakeArm("alone", [0.7], "none", roles=("student",)), chain)
    classes = [("teacher", "leader"), ("assistant", "middle-1"), ("student", "student")]
    assert role_legend(arms) == classes


def test_colours_go_by_place_and_not_by_name(tmp_path: Path) -> None:
    own = FakeArm("own", [0.7], roles=("mentor", "student", "teacher", "pupil"))
    arms = read(tmp_path, own, FakeArm("kd", [0.7]), FakeArm("alone", [0.7], "none", roles=("teacher",)))
    assert role_legend(arms) == [
        ("mentor", "leader"),
        ("teacher", "leader"),
        ("student", "middle-1"),
        ("teacher", "middle-2"),
        ("pupil", "student"),
        ("student", "student"),
        ("teacher", "student"),
    ]


def test_where_nobody_leads_every_step_comes_once(tmp_path: Path) -> None:
    """Also where the spec of a single role has no schedule at all."""
    (arm,) = read(tmp_path, FakeArm("alone", [0.7], "none", roles=("student",)))
    unscheduled = replace(arm, runs=[replace(run, spec=replace(run.spec, schedule=None)) for run in arm.runs])
    for one in (arm, unscheduled):
        (table,) = timetables([one])
        assert table.description == "every step once"
        assert [*group_turns(table.schedule.turns(["student"], range(40)))] == [Block("student", 0, [*range(40)])]
