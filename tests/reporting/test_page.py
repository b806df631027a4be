"""The page as a whole: complete, self-contained, honest, and safe with any label."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import pytest

from spacedkd.comparison.results import compare_runs
from spacedkd.reporting.page import write_page
from spacedkd.runtime.errors import UserError
from spacedkd.schedule import Spaced
from tests.reporting.fake_runs import FakeArm, page_of, write_runs
from tests.reporting.page_text import Page

ONLINE = FakeArm("online KD", [0.70, 0.71, 0.72])
SPACED = FakeArm("spaced KD", [0.80, 0.82, 0.81], schedule=Spaced("1.5ep"))
SELF = FakeArm("self KD", [0.7, 0.7, 0.7], "self-kd", "plain", roles=("student",))
NONE = FakeArm("no KD", [0.60, 0.61, 0.61], "none", roles=("student",))
SECTIONS = ["spacing", "intervals", "curves", "results", "turns", "cost", "advice", "making"]


def test_elements_nest_and_sections_come_in_order(tmp_path: Path) -> None:
    page = Page(page_of(tmp_path, ONLINE, SPACED, SELF, NONE))
    assert [attributes["id"] for attributes in page.all("h2")] == SECTIONS
    assert len(page.all("h1")) == 1


def test_nothing_is_fetched_and_one_script_may_run(tmp_path: Path) -> None:
    html = page_of(tmp_path, ONLINE, SPACED, SELF, NONE)
    page = Page(html)
    for fetching in ("http:", "https:", "//", "src=", "href=", "url(", "@import", "<link", "import(", "fetch("):
        assert fetching not in html, fetching
    (script,) = re.findall("<script>(.*?)</script>", html, re.DOTALL)
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [meta["content"] for meta in page.all("meta") if "http-equiv" in meta]
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def test_what_was_compared(tmp_path: Path) -> None:
    text = Page(page_of(tmp_path, ONLINE, SPACED)).text
    data = "digits (2\u2009000 training images)"
    assert f"2 arms trained resnet18_small (width 8) on {data} for 4 epochs, each with 3 seeds." in text


@pytest.mark.parametrize(
    ("accuracies", "finding", "headline"),
    [
        (
            [0.80, 0.82, 0.81],
            "+10.0 points (95 % interval +7.5 to +12.5, p = 0.003, 3 seeds): better.",
            "spaced KD did better than online KD.",
        ),
        (
            [0.60, 0.62, 0.61],
            "\u221210.0 points (95 % interval \u221212.5 to \u22127.5, p = 0.003, 3 seeds): worse.",
            "spaced KD did worse than online KD.",
        ),
        (
            [0.80, 0.65, 0.71],
            "+1.0 points (95 % interval \u221219.3 to +21.3, p = 0.85, 3 seeds): no clear difference.",
            "No clear difference: the interval against online KD includes zero.",
        ),
        (
            [0.80],
            "+10.0 points on the only seed they share; one seed gives no interval, so this may be chance.",
            "No interval can be given: no arm shares two seeds with online KD, so none is called better or worse.",
        ),
    ],
)
def test_words_follow_the_interval(tmp_path: Path, accuracies: list[float], finding: str, headline: str) -> None:
    arm = FakeArm("spaced KD", accuracies, schedule=Spaced("1.5ep"))
    text = Page(page_of(tmp_path, ONLINE, arm)).text
    assert f"spaced KD vs online KD: {finding}" in text
    assert headline in text
    assert "significant" not in text


def test_one_arm_is_compared_with_nothing(tmp_path: Path) -> None:
    page = Page(page_of(tmp_path, replace(ONLINE, lead=0.1)))
    reached = (
        "The student reached 71.0 \u00b1 2.5 % on the test images after 4 epochs, mean over 3 seeds; the teacher 81.0"
    )
    assert reached in page.text
    assert not any(word in page.text for word in ("ifference", "arms", "reference", "compare", "paired"))
    assert [one["id"] for one in page.all("h2")] == ["results", "losses", "turns", "cost", "making"]


def test_one_run_has_curves_losses_schedule_and_cost(tmp_path: Path) -> None:
    """1.5 epochs of 10 steps; 40 steps of each of two roles."""
    page = Page(page_of(tmp_path, replace(SPACED, accuracies=[0.8], lead=0.1)))
    assert "The student reached 80.0 % on the test images after 4 epochs; the teacher 90.0 %." in page.text
    assert "Turns: the teacher learns 15 steps, then the student the same ones, and so on." in page.text
    assert "It took 80 updates in 40 s: 80 forward and 80 backward passes of whole batches" in page.text
    assert not any(word in page.text for word in ("seeds", "\u00b1", "interval of"))
    labels = [one["aria-label"] for one in page.all("svg") if one.get("role") == "img"]
    assert labels == [
        "Accuracy after each epoch; at the end: student 80.0 %, teacher 90.0 %.",
        "The label loss.",
        "The logit loss.",
        "Turns of spaced KD: teacher then student, spaced 1.5ep, 4 epochs.",
    ]
    # epoch, teacher, student: losses fall with the accuracy, 2 (1 - reached), from 0.9 / 4 and 0.8 / 4 on
    assert "epoch" + "teacher" + "student" + "1" + "1.55" + "1.6" in page.text
    assert page.text.index("Learning curves") < page.text.index("How good it is")


def test_all_arms_are_on_one_axis_with_their_numbers(tmp_path: Path) -> None:
    page = Page(page_of(tmp_path, ONLINE, SPACED, NONE))
    arms = "".join(f"{arm}{arm}, low{arm}, high" for arm in ("online KD", "spaced KD", "no KD"))
    # a quarter of 71, 81 and 60.67 % after the first of four epochs, and of the lowest and the highest seed
    first = "17.7517.5018.00" + "20.2520.0020.50" + "15.1715.0015.25"
    assert "epoch" + arms + "1" + first + "2" + "35.50" in page.text
    # 81 - 71 points at the end, with the bounds that the table of differences has
    assert "4" + "10.00" + "7.52" + "12.48" in page.text
    assert "student: label" in page.text
    assert "student: logit" in page.text
    assert "teacher: label" in page.text
    boxes = [one for one in page.all("input") if one["type"] == "checkbox"]
    assert [one["id"] for one in boxes] == ["show-arm-0", "show-arm-1", "show-arm-2"]
    assert all("checked" in one for one in boxes)
    lines = [one["class"] for one in page.all("g") if "arm-1" in one.get("class", "").split()]
    assert len(lines) == 4 + 3, "student, difference, teacher, the effect of spacing epoch by epoch; three losses"


def test_commands_and_their_dates_are_there(tmp_path: Path) -> None:
    commands = [
        ("2026-01-02 03:04 UTC", "spacedkd compare --arm 'a: <b>'"),
        ("2026-01-03 00:00 UTC", "spacedkd report x"),
    ]
    write_page(tmp_path / "page.html", compare_runs(write_runs(tmp_path / "runs", [ONLINE, SPACED])), commands=commands)
    text = Page((tmp_path / "page.html").read_text(encoding="utf-8")).text
    assert "spacedkd report, 2026-01-03 00:00 UTC" in text
    assert all(date + line in text for date, line in commands)


def test_accuracies_carry_interval_and_seeds(tmp_path: Path) -> None:
    text = Page(page_of(tmp_path, ONLINE, SELF)).text
    assert "online KD" + "kd, online" + "71.0 \u00b1 2.5" + "72.0 \u00b1 2.5" in text
    assert "seed 1: 71.0" in text


@pytest.mark.parametrize(
    ("part", "said"),
    [("test", "it peeks at the test set"), ("holdout", "The best epoch was chosen on images held out of training.")],
)
def test_best_epoch_says_what_it_was_chosen_on(tmp_path: Path, part: str, said: str) -> None:
    text = Page(page_of(tmp_path, FakeArm("online KD", [0.7, 0.8], best_chosen_on=part))).text
    assert said in text


def test_columns_and_notes_appear_only_where_they_apply(tmp_path: Path) -> None:
    assert "nsemble" not in Page(page_of(tmp_path / "two", ONLINE, SPACED)).text
    assert "Ensemble, last" in Page(page_of(tmp_path / "self", ONLINE, SELF)).text
    assert "Teacher" not in Page(page_of(tmp_path / "alone", SELF, NONE)).text


def test_cost_is_relative_and_extra_updates_are_named(tmp_path: Path) -> None:
    page = Page(page_of(tmp_path, SELF, ONLINE, SPACED))
    assert (
        "online KD and spaced KD took 2.0\u00d7 the updates of self KD; compare at equal cost with --equal-cost."
        in page.text
    )
    assert "80" + "\u00d72.0" in page.text
    assert "10\u2009240" in page.text
    assert "No arm took more updates than online KD." in Page(page_of(tmp_path / "b", ONLINE, SELF)).text


@pytest.mark.parametrize(
    ("number", "said"), [(1, "1 unfinished run was left out."), (3, "3 unfinished runs were left out.")]
)
def test_unfinished_runs_are_mentioned(tmp_path: Path, number: int, said: str) -> None:
    assert said in Page(page_of(tmp_path, ONLINE, unfinished=number)).text
    assert "unfinished" not in Page(page_of(tmp_path / "b", ONLINE)).text


def test_labels_are_text(tmp_path: Path) -> None:
    label = "<script>alert('x')</script> & \"quoted\""
    html = page_of(tmp_path, ONLINE, FakeArm(label, [0.7, 0.72, 0.74], schedule=Spaced("1ep")))
    page = Page(html)
    assert html.count("<script") == len(page.all("script")) == 1
    assert label in page.text
    assert any(label in attributes.get("aria-label", "") for _, attributes in page.elements)


def test_same_input_same_bytes(tmp_path: Path) -> None:
    folders = write_runs(tmp_path, [ONLINE, SPACED, SELF])
    for name in ("one.html", "two.html"):
        write_page(tmp_path / "new" / name, compare_runs(folders))
    one, two = ((tmp_path / "new" / name).read_bytes() for name in ("one.html", "two.html"))
    assert one == two


def test_pictures_and_tables_can_be_read_aloud(tmp_path: Path) -> None:
    page = Page(page_of(tmp_path, ONLINE, SPACED, SELF))
    assert all(attributes.get("scope") in ("row", "col") for attributes in page.all("th"))
    assert len(page.all("figure")) == len(page.all("figcaption")) == 9
    assert all(attributes["aria-label"] for _, attributes in page.elements if attributes.get("role") == "img")
    pictures = [attributes for attributes in page.all("svg") if attributes.get("role") == "img"]
    by_arm, charts, intervals, schedules, losses = 3, 1 + 3, 1, 3, 3
    assert len(pictures) == by_arm + charts + intervals + schedules + losses
    assert all(one["tabindex"] == "0" for one in pictures if "data-x" in one)


def test_specs_and_fingerprints_are_there(tmp_path: Path) -> None:
    text = Page(page_of(tmp_path, ONLINE)).text
    assert ONLINE.spec.fingerprint() in text
    assert '"name": "resnet18_small"' in text
    assert "Environment of every run: torch 2.13.0, device cpu, processes 1, threads 2." in text


def test_runs_without_a_label_find_their_arm(tmp_path: Path) -> None:
    text = Page(page_of(tmp_path, FakeArm("", [0.7, 0.8]), FakeArm("", [0.6, 0.7], schedule=Spaced("1.5ep")))).text
    assert "kd, spaced 1.5ep vs kd, online" in text


def test_a_run_that_has_gone_is_said_so(tmp_path: Path) -> None:
    folders = write_runs(tmp_path, [ONLINE, SPACED])
    comparison = compare_runs(folders)
    (folders[0] / "result.json").unlink()
    with pytest.raises(UserError, match=r"seed0 is not finished\..*spacedkd train --resume"):
        write_page(tmp_path / "page.html", comparison)


def test_a_journal_cut_off_by_a_kill_is_read(tmp_path: Path) -> None:
    folders = write_runs(tmp_path, [ONLINE])
    write_page(tmp_path / "whole.html", compare_runs(folders))
    cut = (folders[0] / "journal.jsonl").read_text().splitlines()[-1][:-5]
    with (folders[0] / "journal.jsonl").open("a") as journal:
        journal.write(cut)
    write_page(tmp_path / "cut.html", compare_runs(folders))
    assert (tmp_path / "cut.html").read_bytes() == (tmp_path / "whole.html").read_bytes()


@pytest.mark.parametrize("values", [[0.0, 0.0], [1e-15, 2e-15], [1.0, 1.0 + 1e-15], [-1e299, 1e299], [3e-8, 9e-8]])
def test_any_loss_can_be_drawn(tmp_path: Path, values: list[float]) -> None:
    folders = write_runs(tmp_path / "runs", [replace(SPACED, accuracies=[0.8])])
    lines = [json.loads(line) for line in (folders[0] / "journal.jsonl").read_text().splitlines()]
    for place, line in enumerate(line for line in lines if line["event"] == "loss"):
        line["losses"] = {"own": values[place % 2]}
    (folders[0] / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_page(tmp_path / "page.html", compare_runs(folders))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert [one["aria-label"] for one in Page(page).all("svg") if one.get("role") == "img"][1] == "The own loss."
    assert not any(wrong in page.split("<script>")[0] for wrong in (">nan", "nan ", "inf "))
