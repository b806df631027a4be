"""The types of the JSON documents that reports read: means with their intervals, and comparison.json."""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict


class Interval(TypedDict):
    """A mean over n seeds with its 95 % interval, whose ends are None where one seed gives none."""

    mean: float
    low: float | None
    high: float | None
    n: int


class Difference(Interval):
    """A mean difference paired by seed, and the p-value of its paired t-test."""

    p: float | None


class RunEntry(TypedDict):
    """A finished run of an arm."""

    seed: int
    folder: str
    heads: Mapping[str, Any]
    seconds: float


class ArmNumbers(TypedDict):
    """The numbers of one arm: accuracies of the student over seeds, its difference to the reference, its cost."""

    label: str
    method: str
    schedule: str | None
    roles: Sequence[str]
    epochs: float
    network: str
    last: Interval
    best: Interval
    ensemble: Interval | None
    ensemble_best: Interval | None
    leader: Interval | None
    difference: Difference | None
    cost: Mapping[str, float]
    computed: Mapping[str, float]
    runs: Sequence[RunEntry]


class PairAccuracy(TypedDict):
    """The accuracies of a pair over the seeds that both have."""

    unspaced: Interval | None
    spaced: Interval | None


class SpacingPair(TypedDict):
    """A spaced arm beside its unspaced partner."""

    name: str
    method: str
    variant: str | None
    spaced: str
    unspaced: str
    unspaced_form: str
    interval: str | None
    accuracy: PairAccuracy
    difference: Difference | None
    p_holm: float | None
    cost_ratio: Mapping[str, float | None]


class LostRun(TypedDict):
    """A run that diverged (with its role and step) or failed (with the line that says why)."""

    label: str
    seed: int
    folder: str
    role: NotRequired[str]
    step: NotRequired[int]
    said: NotRequired[str]


class Comparison(TypedDict):
    """A comparison.json: the numbers of all arms, and those of spaced arms beside their unspaced partners."""

    measured: str
    best_chosen_on: Sequence[str]
    against: str
    arms: Sequence[ArmNumbers]
    diverged: NotRequired[Sequence[LostRun]]
    failed: NotRequired[Sequence[LostRun]]
    spacing: Sequence[SpacingPair]
    evaluation: NotRequired[Mapping[str, Any] | None]
