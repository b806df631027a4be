"""Sentences that claim as much as the numbers do and no more."""

from __future__ import annotations

from typing import Any

from spacedkd.comparison.document import Arm
from spacedkd.reporting.findings import caution, extra_cost, finding, headline, verdict
from spacedkd.runs.schema import PairedDifference


def difference(low: float | None, high: float | None, n: int = 3) -> PairedDifference:
    return {"mean": 0.01, "low": low, "high": high, "p": None, "n": n}


def arm(label: str, gain: PairedDifference | None, updates: float = 100) -> Arm:
    numbers: Any = {"difference": gain, "cost": {"updates": updates}}
    return Arm(label, numbers, [])


REFERENCE = arm("base", None)
BETTER, WORSE, UNCLEAR = difference(0.001, 0.02), difference(-0.02, -0.001), difference(-0.01, 0.02)


def test_an_interval_that_touches_zero_is_no_clear_difference() -> None:
    assert verdict(difference(0.0, 0.02)) == "no clear difference"
    assert verdict(difference(-0.02, 0.0)) == "no clear difference"
    assert verdict(difference(0.0, 0.0)) == "no clear difference"
    assert verdict(difference(1e-9, 0.02)) == "better"
    assert verdict(difference(-0.02, -1e-9)) == "worse"
    assert verdict(difference(None, None, n=1)) is None


def test_headline_names_the_arms_that_differ() -> None:
    arms = [REFERENCE, arm("a", BETTER), arm("b", WORSE), arm("c", BETTER), arm("d", UNCLEAR)]
    assert headline(arms, "base") == ("a and c did better than base; b did worse than base; no clear difference for d.")
    many = [arm(label, WORSE) for label in "efgh"]
    assert (
        headline([REFERENCE, arm("a", BETTER), *many], "base") == "a did better than base; 4 arms did worse than base."
    )
    assert headline([REFERENCE, arm("d", UNCLEAR), arm("e", UNCLEAR)], "base") == (
        "No clear difference: every interval against base includes zero."
    )


def test_an_arm_without_an_interval_is_not_called_equal() -> None:
    single = arm("single", difference(None, None, n=1))
    assert headline([REFERENCE, arm("a", BETTER), single], "base") == (
        "a did better than base; no interval can be given for single."
    )
    assert headline([REFERENCE, arm("d", UNCLEAR), single], "base") == (
        "No clear difference: the interval against base includes zero; no interval can be given for single."
    )


def test_arms_without_a_common_seed() -> None:
    assert finding("a vs base", None) == "a vs base: no seed in common, so no difference can be given."


def test_many_comparisons_call_for_caution() -> None:
    assert caution([None, BETTER]) is None
    assert caution([None, BETTER, difference(None, None, n=1)]) is None
    assert caution([None, BETTER, WORSE]) == (
        "Each interval stands for its own comparison; among 2 of them one may miss zero by chance."
    )
    assert "among 34 of them about 2 may miss zero by chance" in (caution([UNCLEAR] * 34) or "")


def test_extra_updates_are_grouped_by_how_many() -> None:
    arms = [REFERENCE, arm("a", BETTER, 200), arm("b", BETTER, 150), arm("c", BETTER, 200), arm("d", BETTER, 50)]
    took = "a and c took 2.0\u00d7 the updates and b took 1.5\u00d7 the updates of base"
    assert extra_cost(arms, "base") == f"{took}; compare at equal cost with --equal-cost."
    many = [arm(label, BETTER, 200) for label in "abcd"]
    assert "4 arms took 2.0\u00d7 the updates of base" in extra_cost([REFERENCE, *many], "base")
