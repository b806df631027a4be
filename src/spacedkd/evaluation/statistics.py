"""Where the mean of a few measurements lies, and how far two arms are apart, paired by seed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtr, stdtrit  # Student's t alone: all of scipy.stats takes a second to import


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
    return float(stdtrit(n - 1, 0.975)) * error


def standard_error(values: Sequence[float]) -> float:
    """s / sqrt(n) with the unbiased s."""
    n = len(values)
    mean = math.fsum(values) / n
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n)


@dataclass(frozen=True)
class Difference:
    """A mean difference paired by seed, its 95 % interval, and the p-value of the paired t-test."""

    mean: float
    low: float | None
    high: float | None
    p: float | None
    n: int

    def turned(self) -> "Difference":
        """The same of numbers of which the lower ones are better."""
        low, high = (None if end is None else -end for end in (self.high, self.low))
        return Difference(-self.mean, low, high, self.p, self.n)


def difference(arm: Mapping[int, float], reference: Mapping[int, float], resolution: float = 0.0) -> Difference | None:
    """How much better an arm is than the reference, over the seeds both have; None where they share none.

    Accuracies are multiples of `resolution` (one image of the test set). Gains that happen to be equal are therefore
    no proof of certainty: their standard error is at least that of rounding two accuracies, resolution / sqrt(6 n).
    """
    seeds = sorted(arm.keys() & reference.keys())
    if not seeds:
        return None
    gains = [arm[seed] - reference[seed] for seed in seeds]
    mean, n = math.fsum(gains) / len(gains), len(gains)
    if n < 2:
        return Difference(mean, None, None, None, n)
    error = max(standard_error(gains), resolution / math.sqrt(6 * n))
    half = half_width(error, n)
    p = float(2 * stdtr(n - 1, -abs(mean) / error)) if error > 0 else None
    return Difference(mean, mean - half, mean + half, p, n)


def holm(ps: Sequence[float | None], tests: int = 0) -> list[float | None]:
    """The p-values of tests that are looked at together (Holm): the k-th smallest of m times m - k + 1, never falling.

    Tests without a p do not count, unless `tests` says how many there will be.

    >>> [p and round(p, 3) for p in holm([0.01, None, 0.04, 0.03])]
    [0.03, None, 0.06, 0.06]
    >>> [p and round(p, 3) for p in holm([0.01, None, 0.04, 0.03], tests=4)]
    [0.04, None, 0.09, 0.09]
    """
    order = sorted((p, place) for place, p in enumerate(ps) if p is not None)
    count = max(tests, len(order))
    corrected: list[float | None] = [None] * len(ps)
    least = 0.0
    for rank, (p, place) in enumerate(order):
        corrected[place] = least = max(least, min(1.0, (count - rank) * p))
    return corrected
