"""comparison.json: its types, how it is written, and the arms of a comparison with their runs.

`comparison.results` computes a comparison; everything that shows one takes a `ComparisonDocument`. `Comparison` is what
`compare` returns: the document with tables and pictures. Nothing heavy is imported here, so that reports work without
torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from spacedkd.evaluation.accuracy import BinEntry
from spacedkd.runs.predictions import data_frame
from spacedkd.runs.result import Run, read_run
from spacedkd.runs.schema import Estimate, HeadScores, PairedDifference, read_checked
from spacedkd.runtime.errors import Damaged
from spacedkd.runtime.files import remove_leftovers, resolve_links, write_json

if TYPE_CHECKING:
    from pandas import DataFrame


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
        return {run.seed: run.score() for run in self.runs}


def read_arms(comparison: ComparisonDocument) -> list[Arm]:
    """Return the arms in the comparison's order, each with its runs by seed, read from their folders."""
    arms = []
    for numbers in comparison["arms"]:
        runs = sorted(numbers["runs"], key=lambda run: run["seed"])
        arms.append(Arm(numbers["label"], numbers, [read_run(run["folder"]) for run in runs]))
    return arms


@dataclass(frozen=True)
class Comparison:
    """A comparison of arms; `compare` returns one.

    comparison = compare({"online": ..., "spaced": ...}, "runs/mine")
    comparison.results, comparison.curves        # pandas DataFrames
    comparison.arms["spaced"].runs[0].student    # the network of one run
    comparison.plot()                            # matplotlib; `comparison` alone is a picture in a notebook
    """

    folder: Path
    """the folder of comparison.json and of the runs"""
    document: ComparisonDocument
    """the contents of comparison.json"""

    def __repr__(self) -> str:
        means = (f"{arm['label']} {100 * arm['last']['mean']:.1f} %" for arm in self.document["arms"])
        return f"Comparison({str(self.folder)!r}: {', '.join(means)})"

    def _repr_html_(self) -> str:
        """Return accuracies, differences, learning curves and cost for a notebook."""
        html: str = resolve_name("spacedkd.reporting.notebook:comparison_html")(self)
        return html

    @cached_property
    def arms(self) -> Mapping[str, Arm]:
        """The arms by their names, each with its runs; read from their folders when first used."""
        return {arm.label: arm for arm in read_arms(self.document)}

    @property
    def against(self) -> str:
        """The arm that all others are compared with."""
        return self.document["against"]

    @property
    def diverged(self) -> Sequence[DivergedRun]:
        """Runs that diverged; they are in none of the numbers."""
        return self.document["diverged"]

    @property
    def failed(self) -> Sequence[FailedRun]:
        """Runs that an exception or the end of their process has ended; they are in none of the numbers."""
        return self.document["failed"]

    @property
    def results(self) -> DataFrame:
        """A row for each arm: the student's accuracy, the difference to the arm `against`, and the cost of a run.

        Accuracies are means over seeds, after the last epoch and at the best; low and high bound 95 % intervals.
        """
        return data_frame([_result_row(arm) for arm in self.document["arms"]])

    @property
    def curves(self) -> DataFrame:
        """Every evaluation of every run: arm, seed, role, the role's own epoch, part of the data, head, accuracy."""
        curves = [
            run.curves.assign(arm=label, seed=run.seed).to_dict("records")
            for label, arm in self.arms.items()
            for run in arm.runs
        ]
        columns = ["arm", "seed", "role", "epoch", "part", "head", "accuracy"]
        return data_frame([row for rows in curves for row in rows])[columns]

    def plot(self, axes: Any = None) -> Any:
        """Draw the student's mean accuracy after each epoch for every arm with matplotlib, and return the `Axes`."""
        return resolve_name("spacedkd.reporting.notebook:plot_comparison")(self, axes)


def _result_row(arm: ArmDocument) -> dict[str, Any]:
    """Return the numbers of an arm as one row of a table."""
    accuracy, difference = arm["last"], arm["difference"]
    bounds = ("mean", "low", "high", "p")
    against: Mapping[str, Any] = dict.fromkeys(bounds) if difference is None else {**difference}
    names = ("difference", "difference_low", "difference_high", "p")
    return {
        "arm": arm["label"],
        "accuracy": accuracy["mean"],
        "low": accuracy["low"],
        "high": accuracy["high"],
        "best": arm["best"]["mean"],
        "seeds": accuracy["n"],
        **dict(zip(names, (against[bound] for bound in bounds), strict=True)),
        **arm["cost"],
    }


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
