"""The types of the estimates in JSON documents that reports read: means and differences with their intervals."""

from typing import TypedDict


class Interval(TypedDict):
    """A mean over n seeds with its 95 % interval, whose ends are None where one seed gives none."""

    mean: float
    low: float | None
    high: float | None
    n: int


class Difference(Interval):
    """A mean difference paired by seed, and the p-value of its paired t-test."""

    p: float | None
