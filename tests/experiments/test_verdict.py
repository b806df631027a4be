"""What a few seeds can say: exact p-values, what could have been shown, verdicts by the printed rule, a parabola."""

import math

import numpy as np
import pytest
import scipy.stats

from spacedkd.evaluation.confidence import Difference
from spacedkd.experiments.reproduction.fit import parabola
from spacedkd.experiments.reproduction.verdict import detectable, judge, sentence, sign_flip

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


def test_what_could_have_been_shown_is_found_four_times_of_five() -> None:
    smallest = detectable(GAINS, 0.0)
    assert smallest is not None
    n, scatter = len(GAINS), np.std(GAINS, ddof=1)
    noncentral = scipy.stats.nct(n - 1, smallest / (scatter / math.sqrt(n)))
    power = 1 - noncentral.cdf(scipy.stats.t(n - 1).ppf(0.975))
    assert power == pytest.approx(0.8, abs=0.03)


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
        (-0.01, 0.01, -0.003, "no gain", "agrees"),
        (-0.02, -0.01, -0.003, "no gain", "agrees"),
        (-0.01, 0.02, -0.003, "no gain", "cannot tell"),
        (0.001, 0.02, -0.003, "no gain", "disagrees"),
    ],
)
def test_verdicts(low: float | None, high: float | None, paper: float | None, claims: str, verdict: str) -> None:
    mean = 0.0 if low is None or high is None else (low + high) / 2
    assert judge(Difference(mean, low, high, None, 6), paper, claims).verdict == verdict


def test_a_claim_is_judged_by_its_effects() -> None:
    assert sentence(["agrees", "agrees"]).startswith("Seen:")
    assert sentence(["agrees", "cannot tell"]).startswith("Seen in part:")
    assert sentence(["agrees", "disagrees"]).startswith("Mixed:")
    assert sentence(["disagrees", "cannot tell"]).startswith("Contradicted in part:")
    assert sentence(["disagrees"]).startswith("Not what the paper says:")
    assert sentence(["cannot tell"]) == (
        "Cannot be told from these seeds: of 1 effects 0 agree, 0 disagree, 1 cannot be told."
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
    assert parabola({0: {0: 1.0}, 1: {0: 1.0}}) is None
    assert parabola({0: {0: 1.0}, 1: {1: 1.0}, 2: {0: 1.0}}) is None
