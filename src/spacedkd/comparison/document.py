"""comparison.json: its types, how it is written, and the arms of a comparison with their runs.

`comparison.results` computes a comparison; everything that shows one takes a `ComparisonDocument`. Nothing heavy is
imported here, so that reports work without torch.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from spacedkd.evaluation.accuracy import BinEntry
from spacedkd.runs.result import Run, read_run
from spacedkd.runs.schema import Estimate, HeadScores, PairedDifference, read_checked
from spacedkd.runtime.errors import Damaged
from spacedkd.runtime.files import remove_leftovers, resolve_links, write_json


class ComparedRun(TypedDict):
    """A run of an arm."""

    seed: int
    folder: str
    heads: Mapping[str, HeadScores]
    """head -> accuracy on the test images after the last epoch and at the best one"""
    seconds: float


class AverageDocument(TypedDict):
    """Accuracies of the average of the student's weights, a separate network."""

    last: Estimate
    """deepest head after the last epoch"""
    best: Estimate
    """deepest head at the best epoch"""
    gain: PairedDifference | None
    """the average's last accuracy minus the student's"""
    difference: PairedDifference | None
    """difference to the reference's average; None for the reference itself, and if one of the two has no average"""


class ArmDocument(TypedDict):
    """Runs that differ in nothing but their seed. Means are over seeds, with 95 % intervals."""

    label: str
    method: str
    schedule: str | None
    roles: list[str]
    epochs: float
    network: str
    last: Estimate
    """deepest head after the last epoch, which differences are taken of"""
    best: Estimate
    """deepest head at the best epoch"""
    ensemble: Estimate | None
    """mean of all heads after the last epoch, where there are several"""
    ensemble_best: Estimate | None
    average: AverageDocument | None
    """accuracies of the average of the student's weights; None if an arm has none"""
    leader: Estimate | None
    """the same as `last` of the role that learns first"""
    difference: PairedDifference | None
    """difference to the reference; None for the reference itself, and for an arm that was tested on other images"""
    cost: dict[str, float]
    computed: dict[str, float]
    """cost without what was replayed from other runs"""
    runs: list[ComparedRun]


class LostRun(TypedDict):
    """A run that diverged or failed, and is in none of the numbers."""

    label: str
    seed: int
    folder: str


class DivergedRun(LostRun):
    """A run whose losses or weights were no finite numbers any more, at this step of this role."""

    role: str
    step: int


class FailedRun(LostRun):
    """A run that an exception or the end of its process has ended."""

    said: str
    """the error, in one line"""


class CostRatios(TypedDict):
    """Costs of a spaced arm as multiples of its unspaced partner's."""

    updates: float
    forward_images: float
    seconds: float | None
    """ratio of the training times; None if one of the arms replayed its teacher"""


class SpacingEffect(TypedDict):
    """A spaced arm compared with the arm that differs from it in the spacing alone."""

    name: str
    """the shortest name that no other pair has"""
    method: str
    variant: str | None
    spaced: str
    unspaced: str
    unspaced_form: str
    """online, or plain where the partner has one role"""
    interval: str | None
    accuracy: dict[str, Estimate | None]
    """"unspaced" and "spaced" -> mean over the seeds that both have"""
    difference: PairedDifference | None
    p_holm: float | None
    """corrected for all pairs of the comparison"""
    cost_ratio: CostRatios


class MetricOfArm(TypedDict):
    """A metric of one arm."""

    estimate: Estimate
    difference: PairedDifference | None
    by_seed: dict[str, float]


class MetricDocument(TypedDict):
    """A metric of all arms that have it."""

    title: str
    unit: str
    better: str | None
    arms: dict[str, MetricOfArm]


class ComparedEvaluations(TypedDict):
    """The evaluations of all arms."""

    metrics: dict[str, MetricDocument]
    reliability: dict[str, list[BinEntry]]
    """label -> bins of all its seeds together"""
    settings: dict[str, str]
    """instrument -> how it was set, in a sentence"""
    notes: list[str]


class ComparisonDocument(TypedDict):
    """The contents of comparison.json."""

    measured: str
    metric: NotRequired[str]
    """title of the metric that arms are compared by, where that is not the accuracy of classifiers"""
    best_chosen_on: list[str]
    against: str
    arms: list[ArmDocument]
    diverged: list[DivergedRun]
    failed: list[FailedRun]
    spacing: list[SpacingEffect]
    evaluation: ComparedEvaluations | None


def write_comparison(path: Path, comparison: ComparisonDocument) -> None:
    """Write comparison.json; folders of runs are relative to its own, so that all of them may be moved together."""

    def relative(run: Mapping[str, Any]) -> dict[str, Any]:
        return {**run, "folder": Path(os.path.relpath(run["folder"], path.parent)).as_posix()}

    document = {
        **comparison,
        "arms": [{**arm, "runs": [relative(run) for run in arm["runs"]]} for arm in comparison["arms"]],
        "diverged": [relative(run) for run in comparison["diverged"]],
        "failed": [relative(run) for run in comparison["failed"]],
    }
    remove_leftovers(path.parent)
    write_json(path, document, path.parent)


@dataclass(frozen=True)
class Arm:
    """An arm of a comparison: its numbers, and the runs they were computed from, which differ in their seed alone."""

    label: str
    numbers: ArmDocument
    runs: Sequence[Run]

    @property
    def first(self) -> Run:
        """The first run, for everything that is equal in all seeds."""
        return self.runs[0]

    @property
    def by_seed(self) -> Mapping[int, float]:
        """The student's last accuracy of each seed."""
        return {run.seed: run.student() for run in self.runs}


def read_arms(comparison: ComparisonDocument) -> list[Arm]:
    """Return the arms in the comparison's order, each with its runs by seed, read from their folders."""
    arms = []
    for numbers in comparison["arms"]:
        runs = sorted(numbers["runs"], key=lambda run: run["seed"])
        arms.append(Arm(numbers["label"], numbers, [read_run(run["folder"]) for run in runs]))
    return arms


# Order of an earlier comparison.


class _RunOrder(TypedDict):
    folder: str


class _ArmOrder(TypedDict):
    label: str
    runs: list[_RunOrder]


class _Order(TypedDict):
    """The part of comparison.json that says in which order its runs are; files of earlier versions have it too."""

    against: str
    arms: list[_ArmOrder]


def keep_order(path: Path, folders: Sequence[Path], against: str | None) -> tuple[list[Path], str | None]:
    """Return runs in the order of the comparison.json at this path, and the arm it was made against.

    Without a file that can be read, the runs stay in their order; a link in its place is refused. A given `against`
    wins.
    """
    try:
        document = read_checked(path, _Order, within=path.parent)
    except (FileNotFoundError, Damaged):
        return [*folders], against
    labels: dict[Path, str] = {}
    for arm in document["arms"]:
        for run in arm["runs"]:
            with suppress(OSError, ValueError):  # a damaged file may have names that no folder can have
                labels[_locate_run(path, run["folder"])] = arm["label"]
    position = {folder: number for number, folder in enumerate(labels)}
    if against is None and any(labels.get(folder) == document["against"] for folder in folders):
        against = document["against"]
    return sorted(folders, key=lambda folder: position.get(folder, len(position))), against


def _locate_run(path: Path, folder: str) -> Path:
    """Return the folder of a run of a comparison; an absolute one may have been copied together with the file."""
    parts = Path(folder).parts if Path(folder).is_absolute() else ()
    copies = (path.parent.joinpath(*parts[-last:]) for last in range(len(parts) - 1, 0, -1))
    return resolve_links(next((copy for copy in copies if copy.exists()), path.parent / folder))
