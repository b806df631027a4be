"""Every spaced arm finds the arm that differs from it in nothing but the spacing, and no other."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import pytest

from spacedkd.comparison.results import compare_runs
from spacedkd.evaluation.statistics import holm
from spacedkd.schedule import Ahead, Offline, Online, Spaced, Window
from tests.reporting.fake_runs import FakeArm, write_runs

ONLINE = FakeArm("online", [0.70, 0.72, 0.71])
SPACED = FakeArm("spaced", [0.74, 0.75, 0.77], schedule=Spaced("1.5ep"))
PLAIN = FakeArm("plain", [0.7, 0.8], "self-kd", "plain", roles=("student",))
LIVE = FakeArm("live", [0.7, 0.8], "self-kd", "live", schedule=Spaced("2ep"))
DLB = FakeArm("dlb", [0.7, 0.8], "dlb", "plain", roles=("student",))
TAUGHT = FakeArm("dlb taught", [0.7, 0.8], "dlb", "taught", schedule=Spaced("2ep"))
NONE = FakeArm("none", [0.6, 0.6], "none", roles=("student",))


def effects(root: Path, *arms: FakeArm) -> list[dict[str, Any]]:
    return [{**effect} for effect in compare_runs(write_runs(root, arms))["spacing"]]


def pairs(root: Path, *arms: FakeArm) -> list[tuple[str, str, str]]:
    """Spaced arm, unspaced arm, and how the unspaced one is."""
    return [(e["spaced"], e["unspaced"], e["unspaced_form"]) for e in effects(root, *arms)]


def test_every_interval_is_paired_with_online(tmp_path: Path) -> None:
    longer = replace(SPACED, label="longer", schedule=Spaced("2ep"))
    assert pairs(tmp_path, NONE, longer, ONLINE, SPACED) == [
        ("longer", "online", "online"),
        ("spaced", "online", "online"),
    ]


def test_a_method_with_one_role_is_paired_with_its_plain_variant(tmp_path: Path) -> None:
    assert pairs(tmp_path, PLAIN, LIVE, DLB, TAUGHT) == [("live", "plain", "plain"), ("dlb taught", "dlb", "plain")]


def test_online_of_the_same_variant_goes_before_plain(tmp_path: Path) -> None:
    together = replace(TAUGHT, label="dlb online", schedule=Online())
    assert pairs(tmp_path, DLB, TAUGHT, together) == [("dlb taught", "dlb online", "online")]
    snapshot = replace(LIVE, label="snapshot online", variant="snapshot", schedule=Online())
    assert pairs(tmp_path / "other", PLAIN, LIVE, snapshot) == [("live", "plain", "plain")]


@pytest.mark.parametrize(
    "other",
    [
        replace(ONLINE, epochs=5),
        replace(ONLINE, network="resnet34_small"),
        replace(ONLINE, temperature=4.0),
        replace(ONLINE, method="dkd"),
        replace(ONLINE, schedule=Ahead("1ep")),
        replace(ONLINE, method="none", roles=("student",)),
    ],
)
def test_arms_that_differ_otherwise_are_not_paired(tmp_path: Path, other: FakeArm) -> None:
    assert pairs(tmp_path, other, SPACED) == []


@pytest.mark.parametrize(
    "schedule",
    [
        Offline(),
        Spaced("4ep"),
        Spaced("0.1ep"),
        Ahead("1ep"),
        Window(Spaced("1ep"), Online(), "1ep", "2ep"),
    ],
    ids=["offline", "as long as the run", "one step", "ahead", "window"],
)
def test_what_is_not_spaced_has_no_partner(tmp_path: Path, schedule: Any) -> None:
    assert pairs(tmp_path, ONLINE, replace(SPACED, schedule=schedule)) == []


def test_a_single_role_has_nothing_to_space(tmp_path: Path) -> None:
    """A teacher that stands still has no turns, whatever the interval says."""
    alone = replace(SPACED, roles=("student",))
    assert pairs(tmp_path, ONLINE, replace(ONLINE, label="again"), alone) == []


def test_the_numbers_against_a_hand_computation(tmp_path: Path) -> None:
    """Gains of 4, 3 and 6 points: mean 13/3, standard deviation sqrt(7/3), t(0.975, 2) = 4.3027."""
    (found,) = effects(tmp_path, NONE, ONLINE, SPACED)
    half = 4.302653 * sqrt(7 / 3) / sqrt(3)
    difference = {name: 100 * value for name, value in found["difference"].items() if name in ("mean", "low", "high")}
    assert difference == pytest.approx({"mean": 13 / 3, "low": 13 / 3 - half, "high": 13 / 3 + half})
    t = 13 / 3 / (sqrt(7 / 3) / sqrt(3))
    assert found["difference"]["p"] == pytest.approx(1 - t / sqrt(2 + t * t))  # Student's t with two degrees
    assert found["p_holm"] == found["difference"]["p"]
    assert (found["method"], found["interval"]) == ("kd", "spaced 1.5ep")
    assert found["cost_ratio"] == {"updates": 1.0, "forward_images": 1.0, "seconds": 1.0}


def test_equal_gains_are_no_certainty(tmp_path: Path) -> None:
    """10 000 test images: the standard error is at least that of rounding, 1e-4 / sqrt(6 n)."""
    equal = replace(SPACED, accuracies=[0.71, 0.73, 0.72])
    (found,) = effects(tmp_path, ONLINE, equal)
    assert found["difference"]["high"] - found["difference"]["mean"] == pytest.approx(4.302653 * 1e-4 / sqrt(18))


def test_only_shared_seeds_count_and_costs_are_ratios(tmp_path: Path) -> None:
    one = replace(LIVE, accuracies=[0.9])
    (found,) = effects(tmp_path, PLAIN, one)
    assert (found["difference"]["n"], found["difference"]["low"]) == (1, None)
    assert found["difference"]["mean"] == pytest.approx(0.2)
    assert found["p_holm"] is None
    assert found["cost_ratio"] == {"updates": 2.0, "forward_images": 2.0, "seconds": 2.0}


def test_accuracies_are_over_the_seeds_of_the_difference(tmp_path: Path) -> None:
    """Of 70, 72 and 71 the first two have a partner: 71, and 74.5 of 74 and 75."""
    (found,) = effects(tmp_path, ONLINE, replace(SPACED, accuracies=[0.74, 0.75]))
    means = {form: found["accuracy"][form]["mean"] for form in ("unspaced", "spaced")}
    assert means == pytest.approx({"unspaced": 0.71, "spaced": 0.745})
    assert means["spaced"] - means["unspaced"] == pytest.approx(found["difference"]["mean"])


def test_names_are_as_short_as_tells_them_apart(tmp_path: Path) -> None:
    longer = replace(SPACED, label="longer", schedule=Spaced("2ep"))
    snapshot = replace(LIVE, label="snapshot", variant="snapshot")
    found = effects(tmp_path, ONLINE, SPACED, longer, PLAIN, LIVE, snapshot, DLB, TAUGHT)
    assert [e["name"] for e in found] == ["kd (spaced 1.5ep)", "kd (spaced 2ep)", "live", "snapshot", "dlb"]


def test_holm_multiplies_the_smallest_most_and_never_falls() -> None:
    assert holm([0.04, 0.001, None, 0.03]) == pytest.approx([0.06, 0.003, None, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
