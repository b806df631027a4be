"""Intervals and paired differences against scipy."""

from __future__ import annotations

from dataclasses import astuple

import pytest
from scipy import stats

from spacedkd.evaluation.statistics import confidence_interval, difference

A = {0: 0.81, 1: 0.83, 2: 0.80, 3: 0.86}
B = {0: 0.79, 1: 0.82, 2: 0.81, 3: 0.82}


def test_the_interval_is_students() -> None:
    values = [*A.values()]
    low, high = stats.t.interval(0.95, 3, loc=sum(values) / 4, scale=stats.sem(values))
    assert astuple(confidence_interval(values)) == pytest.approx((sum(values) / 4, low, high, 4))


def test_the_difference_is_a_paired_t_test() -> None:
    found = difference(A, B)
    expected = stats.ttest_rel([*A.values()], [*B.values()])
    interval = expected.confidence_interval(0.95)
    assert found is not None
    assert astuple(found) == pytest.approx((0.015, interval.low, interval.high, expected.pvalue, 4))


def test_only_seeds_that_both_have_are_paired() -> None:
    found = difference({0: 0.9, 5: 0.1}, B)
    assert found is not None
    assert (found.mean, found.low, found.p, found.n) == (pytest.approx(0.11), None, None, 1)
    assert difference({9: 0.5}, B) is None


def test_one_value_has_no_interval_and_equal_differences_no_p() -> None:
    assert astuple(confidence_interval([0.5])) == (0.5, None, None, 1)
    same = difference({0: 0.5, 1: 0.75}, {0: 0.25, 1: 0.5})
    assert same is not None
    assert (same.mean, same.p) == (0.25, None)


def test_gains_that_happen_to_be_equal_are_no_certainty() -> None:
    """Accuracies are whole images: with 898 of them, three equal gains of one image prove nothing."""
    one = 1 / 898
    found = difference({0: 0.8 + one, 1: 0.81 + one, 2: 0.82 + one}, {0: 0.8, 1: 0.81, 2: 0.82}, resolution=one)
    assert found is not None
    assert found.p is not None
    assert found.low is not None
    assert found.p > 0.05
    assert found.low < 0
