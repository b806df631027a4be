"""Roles are known by their place: what they are called changes words and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spacedkd.comparison.document import ComparisonDocument, read_arms
from spacedkd.comparison.results import compare_runs
from spacedkd.config.spec import describe
from spacedkd.reporting.page import render
from spacedkd.reporting.schedules import interval_groups
from spacedkd.reporting.tables import comparison_tables
from spacedkd.runs.result import read_run
from spacedkd.schedule import Ahead, Spaced
from tests.reporting.fake_runs import FakeArm, page_of, write_runs
from tests.reporting.page_text import Page

PAIR = ("mentor", "pupil")
CHAIN = ("mentor", "helper", "pupil")
USUAL = {"mentor": "teacher", "helper": "assistant", "pupil": "student", "Mentor": "Teacher"}


def arms(roles: tuple[str, ...]) -> list[FakeArm]:
    online = FakeArm("online", [0.60, 0.62, 0.61], roles=roles, lead=0.1)
    spaced = replace(online, label="spaced", accuracies=[0.70, 0.72, 0.71], schedule=Spaced("1.5ep"))
    ahead = replace(online, label="ahead", schedule=Ahead("1ep"))
    alone = FakeArm("alone", [0.5, 0.5, 0.6], "none", roles=roles[-1:])
    return [online, spaced, ahead, alone]


def renamed(written: str) -> str:
    for own, usual in USUAL.items():
        written = written.replace(own, usual)
    return written


@pytest.mark.parametrize("roles", [PAIR, CHAIN], ids=["pair", "chain"])
def test_other_names_give_the_same_page_tables_and_numbers(tmp_path: Path, roles: tuple[str, ...]) -> None:
    usual = tuple(USUAL[role] for role in roles)
    own = page_of(tmp_path / "a", *arms(roles))
    assert own != renamed(own) == page_of(tmp_path / "b", *arms(usual))

    def numbers(name: str) -> ComparisonDocument:
        folders = sorted((tmp_path / name / "runs").glob("*/*"))
        return compare_runs(folders)

    found, expected = numbers("a"), numbers("b")
    assert renamed(str(comparison_tables(found))) == str(comparison_tables(expected))
    assert renamed(json.dumps(found)).replace("/a/runs", "/b/runs") == json.dumps(expected)


def test_the_last_role_is_the_student_and_the_first_of_several_leads(tmp_path: Path) -> None:
    found = compare_runs(write_runs(tmp_path, arms(CHAIN)))
    said: dict[str, Any] = {
        arm["label"]: (arm["last"]["mean"], arm["leader"] and arm["leader"]["mean"]) for arm in found["arms"]
    }
    assert said["online"] == pytest.approx((0.61, 0.81))
    assert said["alone"] == (pytest.approx(1.6 / 3), None)
    (pair,) = found["spacing"]
    assert (pair["spaced"], pair["unspaced"]) == ("spaced", "online")
    assert pair["difference"] is not None
    assert pair["difference"]["mean"] == pytest.approx(0.1)


def test_the_page_calls_them_by_their_names(tmp_path: Path) -> None:
    page = Page(page_of(tmp_path, *arms(PAIR)))
    labels = [one["aria-label"] for one in page.all("svg") if one.get("role") == "img"]
    assert "Learning curves of online: pupil 61.0 % after 4 epochs, mentor 71.0 % after 4 epochs." in labels
    assert "Turns of online: mentor then pupil, online, 4 epochs." in labels
    assert "The mentor's accuracy is after its own last epoch." in page.text
    assert "teacher" not in page.text.split("How this was made")[0]


def test_a_moving_average_is_no_role(tmp_path: Path) -> None:
    """It is measured with the student, but has no turns, no line and no say in the axes."""
    kept = FakeArm("kept", [0.60, 0.62], roles=PAIR, lead=0.1, average=0.99)
    (folder, _) = write_runs(tmp_path / "runs", [kept])
    run = read_run(folder)
    assert run.accuracies.keys() == {"mentor", "pupil", "average"}
    assert (run.roles, run.leader, run.score()) == (["mentor", "pupil"], "mentor", 0.6)
    assert run.accuracy_curves.keys() == {"mentor", "pupil"}
    page = Page(page_of(tmp_path / "page", kept))
    assert not any("average" in attributes.get("aria-label", "") for attributes in page.all("svg"))
    above = page.text.split("How this was made")[0]
    assert above.count("average") == above.count("average" + "final" + "test" + "99.0") == 1, "in the table alone"


def test_a_spec_without_a_schedule_is_one_where_nobody_leads(tmp_path: Path) -> None:
    plain = FakeArm("plain", [0.7, 0.8], "self-kd", "plain", roles=("pupil",))
    live = FakeArm("live", [0.7, 0.8], "self-kd", "live", schedule=Spaced("2ep"), roles=PAIR)
    found = compare_runs(write_runs(tmp_path, [plain, live]))
    first, second = read_arms(found)
    expected = render(found, [first, second])
    unscheduled = replace(first, runs=[replace(run, spec=replace(run.spec, schedule=None)) for run in first.runs])
    assert [arm.first.interval for arm in interval_groups([unscheduled, second])[0].arms] == [0, 20]
    parts = [Page(page).text.split("How this was made")[0] for page in (expected, render(found, [unscheduled, second]))]
    assert parts[0] == parts[1]
    assert describe(replace(plain.spec, schedule=None)) == "self-kd, plain"
    assert describe(replace(plain.spec, method=live.spec.method, schedule=None)) == "self-kd, live"
