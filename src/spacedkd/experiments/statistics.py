"""Differences between arms, paired by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy import stats

from spacedkd.evaluation.confidence import half_width, standard_error


@dataclass(frozen=True)
class Difference:
    """A mean difference paired by seed, its 95 % interval, and the p-value of the paired t-test."""

    mean: float
    low: float | None
    high: float | None
    p: float | None
    n: int


def difference(arm: Mapping[int, float], reference: Mapping[int, float], resolution: float = 0.0) -> Difference | None:
    """How much better an arm is than the reference, over the seeds both have; None where they share none.

    Accuracies are multiples of `resolution` (one image of the test set). Gains that happen to be equal are therefore
    no proof of certainty: their standard error is at least that of rounding two accuracies, resolution / sqrt(6 n).
    """
    seeds = sorted(arm.keys() & reference.keys())
    if not seeds:
        return None
    gains = [arm[seed] - reference[seed] for seed in seeds]
    n = len(gains)
    mean = math.fsum(gains) / n
    if n < 2:
        return Difference(mean, None, None, None, n)
    error = max(standard_error(gains), resolution / math.sqrt(6 * n))
    half = half_width(error, n)
    p = float(2 * stats.t.sf(abs(mean) / error, n - 1)) if error > 0 else None
    return Difference(mean, mean - half, mean + half, p, n)


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """The p-values of tests that are looked at together (Holm): the k-th smallest of m times m - k + 1, never falling.

    Tests without a p do not count.

    >>> [p and round(p, 3) for p in holm([0.01, None, 0.04, 0.03])]
    [0.03, None, 0.06, 0.06]
    """
    order = sorted((p, place) for place, p in enumerate(ps) if p is not None)
    corrected: list[float | None] = [None] * len(ps)
    least = 0.0
    for rank, (p, place) in enumerate(order):
        corrected[place] = least = max(least, min(1.0, (len(order) - rank) * p))
    return corrected
