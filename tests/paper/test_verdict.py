"""Verdicts by the printed rule, and a parabola through accuracies."""

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
from benchmarks.verdict_rates import Case, rates

from spacedkd.evaluation.statistics import Difference
from spacedkd.paper.report.findings import optimum
from spacedkd.paper.verdict import (
    SMALLER,
    Reported,
    around_their_means,
    bend_error,
    judge,
    judge_fit,
    parabola,
    reported_error,
    rule,
    sentence,
)


@pytest.mark.parametrize(
    ("low", "high", "paper", "claims", "verdict"),
    [
        (0.002, 0.02, 0.0138, "gain", "agrees"),
        (0.002, 0.01, 0.0138, "gain", "agrees"),
        (-0.02, -0.002, 0.0138, "gain", "disagrees"),
        (-0.004, 0.01, 0.0138, "gain", SMALLER),
        (-0.004, 0.02, 0.0138, "gain", "cannot tell"),
        (-0.03, -0.002, -0.01, "gain", "agrees"),
        (0.002, 0.01, -0.01, "gain", "disagrees"),
        (-0.01, 0.004, -0.0138, "gain", SMALLER),
        (-0.004, 0.02, None, "gain", "cannot tell"),
        (0.001, 0.02, None, "gain", "agrees"),
        (-0.02, -0.001, None, "gain", "disagrees"),
        (None, None, 0.01, "gain", "cannot tell"),
        (0.001, 0.02, 0.0, "gain", "agrees"),
        (0.001, 0.02, -0.0, "gain", "agrees"),
        (-0.02, 0.001, 0.0, "gain", "cannot tell"),
        (-0.01, 0.006, -0.003, "no gain", "agrees"),
        (-0.01, 0.007, -0.003, "no gain", "cannot tell"),
        (-0.02, -0.01, -0.003, "no gain", "agrees"),
        (-0.01, 0.02, -0.003, "no gain", "cannot tell"),
        (0.001, 0.02, -0.003, "no gain", "disagrees"),
        (0.0, 0.0, None, "no cost", "agrees"),
        (5.0, 5.0, None, "no cost", "agrees"),
        (-5.0, -5.0, None, "no cost", "disagrees"),
        (-5.0, 1.0, None, "no cost", "cannot tell"),
    ],
)
def test_verdicts(low: float | None, high: float | None, paper: float | None, claims: str, verdict: str) -> None:
    """With a number of the paper's that is exact, so that its size is ruled out by our interval alone."""
    mean = 0.0 if low is None or high is None else (low + high) / 2
    reported = None if paper is None else Reported(paper, 0.0)
    assert judge(Difference(mean, low, high, None, 6), reported, claims).verdict == verdict


@pytest.mark.parametrize(
    ("error", "verdict"), [(0.0, SMALLER), (0.003, SMALLER), (0.004, "cannot tell"), (None, "cannot tell")]
)
def test_the_error_of_the_papers_repeats_counts(error: float | None, verdict: str) -> None:
    """0.0138 - 0.003 = 0.0108 is more than sqrt(0.007^2 + (2.571 * 0.003)^2) = 0.0104; with 0.004 it is not."""
    found = Difference(0.003, -0.004, 0.01, None, 6)
    assert judge(found, Reported(0.0138, error), "gain").verdict == verdict


def test_the_error_of_the_paper_is_that_of_means_of_three_that_are_not_paired() -> None:
    chance = np.random.default_rng(1)
    arm, reference = [0.51, 0.53, 0.52, 0.55], [0.50, 0.51, 0.49, 0.52]
    deviations = np.std(arm, ddof=1), np.std(reference, ddof=1)
    means = [chance.normal(0, deviation, (200_000, 3)).mean(1) for deviation in deviations]
    assert reported_error(arm, reference) == pytest.approx((means[0] - means[1]).std(), rel=0.01)
    assert reported_error([0.5], reference) is None
    assert reported_error([0.5, 0.5], [0.4, 0.4], 0.01) == pytest.approx(0.01 / math.sqrt(18))


@pytest.mark.parametrize("printed", [True, False])
@pytest.mark.parametrize(("effect", "seeds"), [(0.25, 6), (0.25, 3), (0.25, 2), (0.6, 6), (1.38, 6)])
def test_where_the_paper_is_right_wrong_verdicts_are_rare(effect: float, seeds: int, printed: bool) -> None:
    shares = rates(Case("", effect, effect, seeds, printed), draws=1000)
    assert shares["disagrees"] <= 0.025
    assert shares["disagrees"] + shares[SMALLER] <= 0.05


def test_where_the_paper_is_wrong_verdicts_say_so() -> None:
    nothing = rates(Case("", 0.0, 1.38, printed=True), draws=1000)
    assert nothing["agrees"] <= 0.05
    assert nothing["disagrees"] <= 0.05
    assert nothing[SMALLER] > 0.4
    assert rates(Case("", -1.38, 1.38, printed=True), draws=500)["disagrees"] > 0.95
    slight = rates(Case("", -0.25, 0.25, printed=True), draws=1000)
    assert slight["disagrees"] > 0.1
    assert slight["agrees"] <= 0.025


def test_the_rule_speaks_of_the_claims_that_are_judged() -> None:
    assert "no gain" not in rule({"gain"})
    assert "no gain" in rule({"gain", "no gain"})
    assert "A claim of no cost" in rule({"no cost"})
    assert "parabola" in rule({"gain"}, fitted=True)


def test_a_claim_is_judged_by_its_effects() -> None:
    assert sentence(["agrees", "agrees"], 2).startswith("Seen:")
    assert sentence(["agrees", "cannot tell"], 2).startswith("Seen in part:")
    assert sentence(["agrees", SMALLER], 2).startswith("Seen in part:")
    assert sentence(["agrees", "disagrees"], 2).startswith("Mixed:")
    assert sentence(["disagrees", SMALLER], 2).startswith("Contradicted in part:")
    assert sentence(["disagrees"], 1).startswith("Not what the paper says:")
    assert sentence([SMALLER], 1).startswith("Smaller than the paper's:")
    assert sentence([SMALLER, "cannot tell"], 2).startswith("Smaller than the paper's in part:")
    assert sentence(["cannot tell"], 1) == (
        "Cannot be told from these seeds: of 1 effect 0 agree, 0 disagree, 1 cannot be told."
    )
    assert sentence([], 3) == "Nothing to judge yet."


def test_a_claim_of_which_a_part_was_run_is_seen_or_contradicted_in_part() -> None:
    """One row of a claim about every network and data set does not show it."""
    assert sentence(["agrees"], 14) == (
        "Seen in part: of 14 effects 1 agrees, 0 disagree, 0 cannot be told, 13 were not run."
    )
    assert sentence(["disagrees", SMALLER], 3) == (
        "Contradicted in part: of 3 effects 0 agree, 1 disagrees, 1 is smaller than the paper's, 0 cannot be told, "
        "1 was not run."
    )


def test_the_parabola_through_points_of_one_is_found() -> None:
    def arch(x: float, seed: int) -> float:
        return 0.5 + 0.03 * x - 0.01 * x**2 + 0.001 * seed

    found = parabola({x: {seed: arch(x, seed) for seed in range(3)} for x in (0, 0.5, 1, 1.5, 2)})
    assert found is not None
    assert found["coefficients"] == pytest.approx([0.501, 0.03, -0.01])
    assert [found[name] for name in ("low", "optimum", "high")] == pytest.approx([1.5, 1.5, 1.5])


def test_the_optimum_lies_within_what_was_measured() -> None:
    rising = parabola({x: {0: 0.1 * x} for x in (0, 1, 2)})
    assert rising is not None
    assert (rising["optimum"], rising["low"]) == (2, None)
    assert rising["within"] == [0, 2]
    assert parabola({0: {0: 1.0}, 1: {0: 1.0}}) is None
    assert parabola({0: {0: 1.0}, 1: {1: 1.0}, 2: {0: 1.0}}) is None


@pytest.mark.parametrize("optima", [[0.99, 1.01], [0.95, 1.0, 1.1], [0.9, 1.0, 1.1, 1.2]])
def test_the_interval_of_an_optimum_is_as_wide_as_few_seeds_make_it(optima: list[float]) -> None:
    """Of a parabola whose bend is known the optimum is a mean, whose interval is Student's."""
    x = (0.0, 1.0, 2.0)
    found = parabola({place: {seed: -0.01 * (place - best) ** 2 for seed, best in enumerate(optima)} for place in x})
    assert found is not None
    low, high = scipy.stats.t.interval(0.95, len(optima) - 1, np.mean(optima), scipy.stats.sem(optima))
    assert (found["low"], found["high"]) == pytest.approx((low, high), abs=0.03)
    assert found["optimum"] == pytest.approx(np.mean(optima))


def test_a_parabola_through_equal_values_opens_nowhere() -> None:
    level = parabola({x: {seed: 0.3 + 0.1 * seed for seed in range(2)} for x in (0, 0.5, 1, 1.5, 2)})
    assert level is not None
    assert level["opens"] == "nowhere"
    assert optimum({**level, "row": "", "rows": [], "paper": None, "verdict": None, "why": ""}) == (
        "the fitted parabola is a straight line and has no optimum"
    )


def test_one_parabola_through_rows_of_different_heights_is_that_of_least_squares() -> None:
    rows = [
        {x: {0: height + 0.03 * x - bend * x**2} for x in (0, 0.5, 1, 2)} for height, bend in ((0.5, 0.01), (0.7, 0.02))
    ]
    found = parabola(around_their_means(rows))
    places = [(number, x) for number in (0, 1) for x in rows[number]]
    design = np.array([[number == 0, number == 1, x, x**2] for number, x in places], dtype=float)
    expected = np.linalg.lstsq(design, np.array([rows[number][x][0] for number, x in places]), rcond=None)[0]
    assert found is not None
    assert found["coefficients"][1:] == pytest.approx(expected[2:])


@pytest.mark.parametrize(
    ("bend", "optimum", "error", "verdict"),
    [
        ((-0.02, -0.01), (1.2, 1.6), 0.0, "agrees"),
        ((-0.02, -0.01), (0.2, 1.1), 0.0, "agrees"),
        ((0.01, 0.02), (0.0, 2.0), 0.0, "disagrees"),
        ((-0.02, 0.01), (1.2, 1.6), 0.0, "cannot tell"),
        ((-0.005, 0.005), (1.2, 1.6), 0.0, SMALLER),
        ((-0.005, 0.005), (1.2, 1.6), 0.01, "cannot tell"),
        ((1e-17, 2e-17), (0.0, 2.0), 0.01, "cannot tell"),
        ((-2e-17, -1e-17), (1.2, 1.6), 0.01, "cannot tell"),
        ((None, None), (None, None), 0.0, "cannot tell"),
    ],
)
def test_an_arch_is_judged_by_its_bend(
    bend: tuple[float | None, float | None], optimum: tuple[float, float], error: float, verdict: str
) -> None:
    """The paper's bend is -0.015; where the optimum lies is said beside the verdict."""
    mean = 0.0 if bend[0] is None or bend[1] is None else (bend[0] + bend[1]) / 2
    ends = {"mean": mean, "low": bend[0], "high": bend[1], "n": 6}
    paper = {"optimum": 1.5, "opens": "down", "coefficients": [0.7, 0.045, -0.015]}
    ours: Any = {"bend": ends, "low": optimum[0], "high": optimum[1]}
    judged = judge_fit(ours, paper, error)
    assert judged.verdict == verdict
    if verdict == "agrees":
        assert ("without" in judged.why) == (optimum[1] < 1.5)


def test_the_error_of_a_bend_is_that_of_parabolas_through_means_of_three() -> None:
    chance = np.random.default_rng(0)
    x = (0.0, 0.5, 1.0, 1.5, 2.0)
    rows = [{place: dict(enumerate(chance.normal(0.5, 0.01 + 0.01 * place, 6).tolist())) for place in x} for _ in "ab"]
    drawn = np.zeros((100_000, 5))
    for row in rows:
        scatter = np.array([np.std([*row[place].values()], ddof=1) for place in x])
        drawn += chance.normal(0, scatter / math.sqrt(3), drawn.shape) / 2
    bends = np.polynomial.polynomial.polyfit(np.array(x), drawn.T, 2)[2]
    assert bend_error(rows, 3) == pytest.approx(bends.std(), rel=0.01)
    assert bend_error([{place: {0: 0.5} for place in x}], 3) is None
    assert bend_error([], 3) is None
