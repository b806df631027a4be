"""Accuracy against interval is drawn only through arms that differ in nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from spacedkd.comparison.document import read_arms
from spacedkd.comparison.results import compare_runs
from spacedkd.reporting.schedules import interval_groups, interval_in_epochs, interval_text
from spacedkd.schedule import Ahead, Blocks, Growing, Offline, Spaced
from tests.reporting.fake_runs import FakeArm, page_of, write_runs
from tests.reporting.page_text import Page

ONLINE = FakeArm("online", [0.7, 0.8])
SPACED = FakeArm("spaced", [0.7, 0.8], schedule=Spaced("1.5ep"))
PLAIN = FakeArm("plain", [0.7, 0.8], "self-kd", "plain", roles=("student",))
LIVE = FakeArm("live", [0.7, 0.8], "self-kd", "live", schedule=Spaced("2ep"))
SNAPSHOT = FakeArm("snapshot", [0.7, 0.8], "self-kd", "snapshot", schedule=Spaced("2ep"))


def grouped(root: Path, *arms: FakeArm) -> list[list[tuple[str, float]]]:
    """Label and interval in epochs of the members of every group."""
    folders = write_runs(root, arms)
    groups = interval_groups(read_arms(compare_runs(folders)))
    return [[(arm.label, interval_in_epochs(arm)) for arm in group.arms] for group in groups]


def test_online_is_one_step_and_offline_the_whole_run(tmp_path: Path) -> None:
    offline = FakeArm("offline", [0.7, 0.8], schedule=Offline())
    assert grouped(tmp_path, offline, SPACED, ONLINE) == [[("online", 0.1), ("spaced", 1.5), ("offline", 4.0)]]


def test_intervals_are_said_as_they_were_typed(tmp_path: Path) -> None:
    """1.5 epochs of 13 steps are 19 steps, which nobody has typed."""
    asked = {"1.5ep": "1.5", "0.5ep+": "0.5", "7st": "7 steps", "1st": "1 step", "50%": "50 %", "100%": "offline"}
    arms = [replace(SPACED, label=text, schedule=Spaced(text), steps_per_epoch=13) for text in asked]
    read = read_arms(compare_runs(write_runs(tmp_path / "runs", [*arms, PLAIN])))
    assert [interval_text(arm) for arm in read] == [*asked.values(), "0"]
    assert read[0].first.interval == 19
    page = Page(page_of(tmp_path / "page", replace(ONLINE, steps_per_epoch=13), *arms[:1]))
    assert "1.46" not in page.text
    assert any(
        "1 step: 75.0" in one.get("aria-label", "") and ", 1.5: 75.0" in one["aria-label"] for one in page.all("svg")
    )


def test_plain_self_kd_is_interval_zero_of_each_variant(tmp_path: Path) -> None:
    found = grouped(tmp_path, ONLINE, PLAIN, LIVE, SNAPSHOT)
    assert found == [[("plain", 0.0), ("live", 2.0)], [("plain", 0.0), ("snapshot", 2.0)]]


def test_arms_that_differ_otherwise_are_not_joined(tmp_path: Path) -> None:
    longer = replace(SPACED, label="longer", epochs=5)
    other_network = replace(SPACED, label="other", network="resnet34_small")
    chain = replace(SPACED, label="chain", roles=("teacher", "assistant", "student"))
    ahead = replace(SPACED, label="ahead", schedule=Ahead("1ep"))
    none = FakeArm("none", [0.7, 0.8], "none", roles=("student",))
    same = replace(ONLINE, label="online again")
    assert grouped(tmp_path, ONLINE, same, longer, other_network, chain, ahead, none) == []


def test_a_dropped_tail_matters_only_where_there_is_one(tmp_path: Path) -> None:
    dropped = replace(SPACED, label="dropped", schedule=Spaced("1.5ep", tail="drop"))
    assert grouped(tmp_path, ONLINE, SPACED, dropped) == [
        [("online", 0.1), ("spaced", 1.5)],
        [("online", 0.1), ("dropped", 1.5)],
    ]


def test_an_interval_with_a_speed_is_no_interval_of_the_chart(tmp_path: Path) -> None:
    faster = replace(SPACED, label="faster", schedule=Spaced("1.5ep", speed=2))
    assert grouped(tmp_path / "runs", ONLINE, SPACED, faster) == [[("online", 0.1), ("spaced", 1.5)]]
    page = Page(page_of(tmp_path / "page", ONLINE, SPACED, faster))
    assert "the same interval is another schedule: faster." in page.text
    assert "the same interval" not in Page(page_of(tmp_path / "without", ONLINE, SPACED)).text


def test_equal_blocks_are_an_interval_and_others_are_not(tmp_path: Path) -> None:
    equal = replace(SPACED, label="equal", schedule=Blocks(["1ep"]))
    other = replace(SPACED, label="other", schedule=Blocks(["1ep", "2ep"]))
    growing = replace(SPACED, label="growing", schedule=Growing("1ep"))
    assert grouped(tmp_path, ONLINE, equal, other, growing) == [[("online", 0.1), ("equal", 1.0)]]


def test_the_section_appears_only_where_there_is_a_group(tmp_path: Path) -> None:
    with_group = Page(page_of(tmp_path / "with", ONLINE, SPACED))
    without = Page(page_of(tmp_path / "without", ONLINE, PLAIN))
    assert "intervals" in [attributes["id"] for attributes in with_group.all("h2")]
    assert "intervals" not in [attributes["id"] for attributes in without.all("h2")]
    assert "Accuracy against interval" not in without.text


def picture(root: Path, *arms: FakeArm) -> tuple[list[str], int]:
    """Of the picture of accuracy against interval: what stands below its x axis, and how many points its line has."""
    html = page_of(root, *arms)
    drawn = html[html.index('id="intervals"') :]
    drawn = drawn[drawn.index("<svg") : drawn.index("</svg>")]
    below = re.findall(r'<text class="tick" [^>]*text-anchor="middle">([^<]*)<', drawn)
    (line,) = re.findall(r'<path d="M([^"]*)" class="all student"', drawn)
    return below[:-1], line.count("L") + 1


def test_equal_intervals_are_one_place(tmp_path: Path) -> None:
    """With 5 steps an epoch 1.5 epochs are 7 steps, as typed by somebody else."""
    online, spaced = replace(ONLINE, steps_per_epoch=5), replace(SPACED, steps_per_epoch=5)
    steps = replace(spaced, label="steps", schedule=Spaced("7st"))
    assert picture(tmp_path / "one", online, spaced, steps) == (["1 step", "1.5 = 7 steps"], 2)
    near = replace(spaced, label="near", schedule=Spaced("1.6ep"))
    assert picture(tmp_path / "two", online, spaced, steps, near) == (["1 step", "1.5", "1.6"], 3)
