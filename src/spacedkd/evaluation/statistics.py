"""Statistics of a few seeds: the mean of an arm with its interval, and the difference of two arms paired by seed.

    interval             mean -+ t(0.975, n - 1) s / sqrt(n), Student's t
    paired difference    the same of the gains arm[seed] - reference[seed], with the p-value of the paired t-test
    sign-flip test       the exact p-value of a mean gain whose signs could as well have been the others
    detectable           the smallest difference that as many seeds, scattering as these, show four times of five
    Holm                 p-values of tests that are looked at together

Everything that compares arms computes these here: `compare`, `evaluate`, `reproduce` and the reports.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import nctdtrinc, stdtr, stdtrit  # only Student's t: all of scipy.stats takes a second to import

POWER = 0.8
"""how often a difference that counts as detectable is found"""
FEWEST_SEEDS = 6
"""seeds without which the sign-flip test cannot reach p < 0.05: with all signs equal p is 2 / 2^n"""
MOST_COUNTED = 16
"""gains up to which the sign-flip test counts all 2^n changes of sign; of more it draws a sample"""


@dataclass(frozen=True)
class ConfidenceInterval:
    """A mean of n measurements with its 95 % interval (Student's t); one measurement has no interval."""

    mean: float
    low: float | None
    high: float | None
    n: int


def confidence_interval(values: Sequence[float]) -> ConfidenceInterval:
    """Return the mean of the values and its 95 % interval, mean -+ t(0.975, n-1) s / sqrt(n).

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
    """Return half of the 95 % interval of a mean of n values: t(0.975, n-1) times its standard error."""
    return float(stdtrit(n - 1, 0.975)) * error


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean, s / sqrt(n) with the unbiased s."""
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

    def negated(self) -> "Difference":
        """Return the difference with the other sign: above zero is better where lower numbers are."""
        low, high = (None if end is None else -end for end in (self.high, self.low))
        return Difference(-self.mean, low, high, self.p, self.n)


def paired_difference(
    arm: Mapping[int, float], reference: Mapping[int, float], resolution: float = 0.0
) -> Difference | None:
    """Return how much higher an arm is than the reference over the seeds both have; None where they share none.

    Accuracies are multiples of `resolution` (one image of the test set). Gains that happen to be equal are therefore
    no proof of certainty: their standard error is at least that of rounding two accuracies, resolution / sqrt(6 n).
    """
    gains = paired_gains(arm, reference)
    if not gains:
        return None
    mean, n = math.fsum(gains) / len(gains), len(gains)
    if n < 2:
        return Difference(mean, None, None, None, n)
    error = _error_of_gains(gains, resolution)
    half = half_width(error, n)
    p = float(2 * stdtr(n - 1, -abs(mean) / error)) if error > 0 else None
    return Difference(mean, mean - half, mean + half, p, n)


@dataclass(frozen=True)
class Effect(Difference):
    """A paired difference with the exact p-value of the sign-flip test and the difference that could be detected."""

    sign_flip_p: float | None
    detectable: float | None


def paired_effect(arm: Mapping[int, float], reference: Mapping[int, float], resolution: float) -> Effect | None:
    """Return the paired difference of two arms with everything known of it; None where they share no seed."""
    difference = paired_difference(arm, reference, resolution)
    if difference is None:
        return None
    gains = paired_gains(arm, reference)
    return Effect(**vars(difference), sign_flip_p=sign_flip(gains), detectable=detectable_difference(gains, resolution))


def paired_gains(arm: Mapping[int, float], reference: Mapping[int, float]) -> list[float]:
    """Return arm minus reference of every seed that both have, in the order of seeds."""
    return [arm[seed] - reference[seed] for seed in sorted(arm.keys() & reference.keys())]


def _error_of_gains(gains: Sequence[float], resolution: float) -> float:
    """Return the standard error of the mean gain, at least that of rounding two accuracies."""
    return max(standard_error(gains), resolution / math.sqrt(6 * len(gains)))


def sign_flip(gains: Sequence[float]) -> float | None:
    """Return the p-value of the mean when every gain could as well have had the other sign; None for one gain.

    All changes of sign are counted up to `MOST_COUNTED` gains; of more, 99 999 are drawn.

    >>> sign_flip([1.0, 2.0, 3.0, 0.5, 1.5, 0.1]) == 2 / 2**6
    True
    """
    if len(gains) < 2:
        return None
    if len(gains) > MOST_COUNTED:
        from scipy.stats import permutation_test

        test = permutation_test(
            (gains,), lambda x, axis: x.mean(axis), permutation_type="samples", n_resamples=99_999, rng=0
        )
        return float(test.pvalue)
    reached = abs(math.fsum(gains)) - 1e-12  # sums of the same gains may differ by rounding
    sums = (
        math.fsum(sign * gain for sign, gain in zip(signs, gains, strict=True))
        for signs in itertools.product((1, -1), repeat=len(gains))
    )
    return float(sum(abs(total) >= reached for total in sums) / 2 ** len(gains))


def detectable_difference(gains: Sequence[float], resolution: float) -> float | None:
    """Return the smallest difference that gains which scatter like these show four times of five; None for one gain.

    The t statistic of a difference d is a noncentral t with the noncentrality d / error; d is chosen so that it exceeds
    t(0.975, n-1) with probability `POWER`.
    """
    n = len(gains)
    if n < 2:
        return None
    return float(nctdtrinc(n - 1, 1 - POWER, stdtrit(n - 1, 0.975))) * _error_of_gains(gains, resolution)


def holm(ps: Sequence[float | None], tests: int = 0) -> list[float | None]:
    """Return the p-values corrected by Holm: the k-th smallest of m times m - k + 1, never falling, at most 1.

    Tests without a p do not count, unless `tests` says how many there will be.

    >>> [p and round(p, 3) for p in holm([0.01, None, 0.04, 0.03])]
    [0.03, None, 0.06, 0.06]
    >>> [p and round(p, 3) for p in holm([0.01, None, 0.04, 0.03], tests=4)]
    [0.04, None, 0.09, 0.09]
    """
    order = sorted((p, index) for index, p in enumerate(ps) if p is not None)
    count = max(tests, len(order))
    corrected: list[float | None] = [None] * len(ps)
    least = 0.0
    for rank, (p, index) in enumerate(order):
        corrected[index] = least = max(least, min(1.0, (count - rank) * p))
    return corrected
