"""Where the mean of a few measurements lies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats


@dataclass(frozen=True)
class ConfidenceInterval:
    """A mean of n measurements with its 95 % interval (Student's t); one measurement has no interval."""

    mean: float
    low: float | None
    high: float | None
    n: int


def confidence_interval(values: Sequence[float]) -> ConfidenceInterval:
    """mean -+ t(0.975, n-1) s / sqrt(n).

    >>> confidence_interval([1.0, 2.0, 3.0]).mean, round(confidence_interval([1.0, 2.0, 3.0]).high, 3)
    (2.0, 4.484)
    """
    n = len(values)
    mean = math.fsum(values) / n
    if n < 2:
        return ConfidenceInterval(mean, None, None, n)
    half = half_width(standard_error(values), n)
    return ConfidenceInterval(mean, mean - half, mean + half, n)


def half_width(error: float, n: int) -> float:
    """Half of the 95 % interval of a mean of n: t(0.975, n-1) times its standard error."""
    return float(stats.t.ppf(0.975, n - 1)) * error


def standard_error(values: Sequence[float]) -> float:
    """s / sqrt(n) with the unbiased s."""
    n = len(values)
    mean = math.fsum(values) / n
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n)
