"""Intervals, paired differences, exact p-values and detectable differences against scipy."""

from __future__ import annotations

import math
from dataclasses import astuple

import numpy as np
import pytest
from scipy import stats

from spacedkd.evaluation.statistics import (
    confidence_interval,
    detectable_difference,
    paired_difference,
    paired_effect,
    sign_flip,
)

A = {0: 0.81, 1: 0.83, 2: 0.80, 3: 0.86}
B = {0: 0.79, 1: 0.82, 2: 0.81, 3: 0.82}
GAINS = [0.012, 0.003, -0.004, 0.021, 0.009, 0.015]


def test_the_interval_is_students() -> None:
    values = [*A.values()]
    low, high = stats.t.interval(0.95, 3, loc=sum(values) / 4, scale=stats.sem(values))
    assert astuple(confidence_interval(values)) == pytest.approx((sum(values) / 4, low, high, 4))


def test_the_difference_is_a_paired_t_test() -> None:
    found = paired_difference(A, B)
    expected = stats.ttest_rel([*A.values()], [*B.values()])
    interval = expected.confidence_interval(0.95)
    assert found is not None
    assert astuple(found) == pytest.approx((0.015, interval.low, interval.high, expected.pvalue, 4))


def test_only_seeds_that_both_have_are_paired() -> None:
    found = paired_difference({0: 0.9, 5: 0.1}, B)
    assert found is not None
    assert (found.mean, found.low, found.p, found.n) == (pytest.approx(0.11), None, None, 1)
    assert paired_difference({9: 0.5}, B) is None


def test_one_value_has_no_interval_and_equal_differences_no_p() -> None:
    assert astuple(confidence_interval([0.5])) == (0.5, None, None, 1)
    same = paired_difference({0: 0.5, 1: 0.75}, {0: 0.25, 1: 0.5})
    assert same is not None
    assert (same.mean, same.p) == (0.25, None)


def test_gains_that_happen_to_be_equal_are_no_certainty() -> None:
    """Accuracies are whole images: with 898 of them, three equal gains of one image prove nothing."""
    one = 1 / 898
    found = paired_difference({0: 0.8 + one, 1: 0.81 + one, 2: 0.82 + one}, {0: 0.8, 1: 0.81, 2: 0.82}, resolution=one)
    assert found is not None
    assert found.p is not None
    assert found.low is not None
    assert found.p > 0.05
    assert found.low < 0


def test_the_sign_flip_p_is_that_of_all_changes_of_sign() -> None:
    exact = stats.permutation_test(
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
    smallest = detectable_difference(GAINS[:n], 0.0)
    assert smallest is not None
    noncentral = stats.nct(n - 1, smallest / (np.std(GAINS[:n], ddof=1) / math.sqrt(n)))
    power = 1 - noncentral.cdf(stats.t(n - 1).ppf(0.975))
    assert power == pytest.approx(0.8, abs=1e-6)


def test_an_effect_is_the_difference_with_its_exact_p_and_what_could_be_shown() -> None:
    effect, difference = paired_effect(A, B, 0.001), paired_difference(A, B, 0.001)
    gains = [A[seed] - B[seed] for seed in A]
    assert effect is not None
    assert difference is not None
    assert astuple(effect) == (*astuple(difference), sign_flip(gains), detectable_difference(gains, 0.001))
    assert paired_effect({9: 0.5}, B, 0.0) is None
