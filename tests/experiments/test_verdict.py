"""What a few seeds can say: exact p-values, what could have been shown, verdicts by the printed rule, a parabola."""

import math

import numpy as np
import pytest
import scipy.stats

from spacedkd.evaluation.confidence import Difference
from spacedkd.experiments.reproduction.fit import around_their_means, parabola
from spacedkd.experiments.reproduction.verdict import detectable, judge, judge_fit, sentence, sign_flip
from spacedkd.report.reproduced.words import optimum

GAINS = [0.012, 0.003, -0.004, 0.021, 0.009, 0.015]


def test_the_sign_flip_p_is_that_of_all_changes_of_sign() -> None:
    exact = scipy.stats.permutation_test(
        (GAINS,), lambda x, axis: np.mean(x, axis), permutation_type="samples", n_resamples=np.inf
    )
    assert sign_flip(GAINS) == pytest.approx(exact.pvalue)
    assert sign_flip([0.01] * 5) == 2 / 32
    assert sign_flip([0.01]) is None


def test_many_seeds_are_drawn_from_instead_of_counted() -> None:
    assert sign_flip([0.01, 0.02] * 10) == pytest.approx(1e-5, abs=2e-5)


def test_fewer_than_six_seeds_cannot_reach_five_percent() -> None:
    all_of_one_sign = [sign_flip([1.0 + seed / 10 for seed in range(n)]) for n in (4, 5, 6, 7)]
    assert all_of_one_sign == [2 / 16, 2 / 32, 2 / 64, 2 / 128]


@pytest.mark.parametrize("n", [2, 3, 6])
def test_what_could_have_been_shown_is_found_four_times_of_five(n: int) -> None:
    smallest = detectable(GAINS[:n], 0.0)
    assert smallest is not None
    noncentral = scipy.stats.nct(n - 1, smallest / (np.std(GAINS[:n], ddof=1) / math.sqrt(n)))
    power = 1 - noncentral.cdf(scipy.stats.t(n - 1).ppf(0.975))
    assert power == pytest.approx(0.8, abs=1e-6)


@pytest.mark.parametrize(
    ("low", "high", "paper", "claims", "verdict"),
    [
        (0.002, 0.02, 0.0138, "gain", "agrees"),
        (0.002, 0.01, 0.0138, "gain", "agrees"),
        (-0.02, -0.002, 0.0138, "gain", "disagrees"),
        (-0.004, 0.01, 0.0138, "gain", "disagrees"),
        (-0.004, 0.02, 0.0138, "gain", "cannot tell"),
        (-0.03, -0.002, -0.01, "gain", "agrees"),
        (0.002, 0.01, -0.01, "gain", "disagrees"),
        (-0.004, 0.02, None, "gain", "cannot tell"),
        (0.001, 0.02, None, "gain", "agrees"),
        (-0.02, -0.001, None, "gain", "disagrees"),
        (None, None, 0.01, "gain", "cannot tell"),
        (0.001, 0.02, 0.0, "gain", "agrees"),
        (0.001, 0.02, -0.0, "gain", "agrees"),
        (-0.01, 0.006, -0.003, "no gain", "agrees"),
        (-0.01, 0.007, -0.003, "no gain", "cannot tell"),
        (-0.02, -0.01, -0.003, "no gain", "agrees"),
        (-0.01, 0.02, -0.003, "no gain", "cannot tell"),
        (0.001, 0.02, -0.003, "no gain", "disagrees"),
    ],
)
def test_verdicts(low: float | None, high: float | None, paper: float | None, claims: str, verdict: str) -> None:
    mean = 0.0 if low is None or high is None else (low + high) / 2
    assert judge(Difference(mean, low, high, None, 6), paper, claims).verdict == verdict


def test_a_claim_is_judged_by_its_effects() -> None:
    assert sentence(["agrees", "agrees"], 2).startswith("Seen:")
    assert sentence(["agrees", "cannot tell"], 2).startswith("Seen in part:")
    assert sentence(["agrees", "disagrees"], 2).startswith("Mixed:")
    assert sentence(["disagrees", "cannot tell"], 2).startswith("Contradicted in part:")
    assert sentence(["disagrees"], 1).startswith("Not what the paper says:")
    assert sentence(["cannot tell"], 1) == (
        "Cannot be told from these seeds: of 1 effect 0 agree, 0 disagree, 1 cannot be told."
    )
    assert sentence([], 3) == "Nothing to judge yet."


def test_a_claim_of_which_a_part_was_run_is_seen_or_contradicted_in_part() -> None:
    """One row of a claim about every network and data set does not show it."""
    assert sentence(["agrees"], 14) == (
        "Seen in part: of 14 effects 1 agrees, 0 disagree, 0 cannot be told, 13 were not run."
    )
    assert sentence(["disagrees"], 2) == (
        "Contradicted in part: of 2 effects 0 agree, 1 disagrees, 0 cannot be told, 1 was not run."
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
    assert optimum({**level, "paper": None, "verdict": None}) == (
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
    ("bend", "optimum", "verdict"),
    [
        ((-0.02, -0.01), (1.2, 1.6), "agrees"),
        ((-0.02, -0.01), (0.2, 1.1), "disagrees"),
        ((0.01, 0.02), (0.0, 2.0), "disagrees"),
        ((-0.02, 0.01), (1.2, 1.6), "cannot tell"),
        ((1e-17, 2e-17), (0.0, 2.0), "cannot tell"),
        ((-2e-17, -1e-17), (1.2, 1.6), "cannot tell"),
        ((None, None), (None, None), "cannot tell"),
    ],
)
def test_an_arch_is_judged_by_its_bend_and_its_optimum(
    bend: tuple[float, float], optimum: tuple[float, float], verdict: str
) -> None:
    found = {"bend": dict(zip(("low", "high"), bend, strict=True)), "low": optimum[0], "high": optimum[1]}
    assert judge_fit(found, {"optimum": 1.5}).verdict == verdict
