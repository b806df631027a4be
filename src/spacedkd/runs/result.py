"""result.json, and `Run`: a finished run as its folder describes it, with its spec, accuracies and cost.

Training, comparisons, evaluations and reports all read runs here. Roles are known by their position: the first of
several leads, the last is the student.

A run's network, its predictions and its pictures are made by packages that import this one. `Run` calls them by name
when they are first used, so that reading a run imports nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from spacedkd.config.spec import RunSpec, describe, pairing_json, read_spec, with_extensions
from spacedkd.runs.journal import Curve, Curves, read_accuracies, read_curves
from spacedkd.runs.predictions import Predictions, data_frame
from spacedkd.runs.schema import PlanDocument, ResultDocument, read_checked
from spacedkd.runtime.documents import read_small_json
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.files import Folder
from spacedkd.schedule import interval_of, steps_of

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import nn


@dataclass(frozen=True)
class Run:
    """A finished run; `train` and `read_run` return one.

    run = read_run("runs/kd")
    run.accuracy, run.score("best"), run.cost["updates"]  # numbers
    run.student(images), run.predict(["cat.png"])         # the network, and classes of images
    run.curves, run.results                               # pandas DataFrames
    run.plot()                                            # matplotlib; `run` alone is a picture in a notebook
    """

    folder: Path
    spec: RunSpec
    accuracies: Mapping[str, Any]
    """role (or "average", the student's moving average) -> part of the data -> head -> last, best, best_epoch"""
    best_chosen_on: str
    """the part of the data that chose the best epochs: "holdout", or "test" where no images were held out"""
    cost: Mapping[str, Any]
    """updates, forward_passes, backward_passes, forward_images, backward_images, by_model"""
    seconds: float
    plan: PlanDocument
    environment: Mapping[str, Any]
    fingerprint: str
    digests: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the journal, and of the weights in student/, average/ and best/; runs of earlier versions have none"""
    network: Callable[..., nn.Module] | None = field(default=None, compare=False)
    """the function that made the student's network, where `train` was given one"""

    def __repr__(self) -> str:
        reached = f"{100 * self.accuracy:.1f} % of {self.plan['test_images']} test images"
        if self.spec.task != "classification":
            reached = f"{self.spec.metric_title} {100 * self.accuracy:.1f} %"
        return f"Run({str(self.folder)!r}: {self.name}, seed {self.seed}, {reached})"

    def _repr_html_(self) -> str:
        """Return accuracies, learning curves and cost for a notebook."""
        html: str = resolve_name("spacedkd.reporting.notebook:run_html")(self)
        return html

    @property
    def accuracy(self) -> float:
        """The student's accuracy on the test images after the last epoch, from 0 to 1; of its deepest head."""
        return self.score()

    @cached_property
    def student(self) -> nn.Module:
        """The trained student of the last epoch, in eval mode: inputs as in training [B, ...] to logits [B, C].

        It is loaded once, on the CPU. A network with an `input_size` scales its images here too. A run that `read_run`
        returned does not know a network that was an object: `load_student(run.folder, network=...)`.
        """
        student: nn.Module = resolve_name("spacedkd.training.predict:open_student")(self)
        return student

    def predict(self, images: Any, **options: Any) -> Predictions:
        """Return the classes of images: files, folders, PIL images, arrays or tensors, one or a list of them.

        `spacedkd.training.predict.predict` has the options, and how each kind of image is prepared.
        """
        predictions: Predictions = resolve_name("spacedkd.training.predict:predict")(self, images, **options)
        return predictions

    @property
    def results(self) -> DataFrame:
        """Every accuracy, by role, part of the data and head: after the last epoch and at the best one."""
        return data_frame(
            [
                {"role": role, "part": part, "head": head, **score}
                for role, parts in self.accuracies.items()
                for part, heads in parts.items()
                for head, score in heads.items()
            ]
        )

    @property
    def curves(self) -> DataFrame:
        """Every evaluation: role, the role's own epoch, part of the data, head, accuracy."""
        check_journal(self.folder, self.digests)
        return data_frame(
            [
                {"role": entry["role"], "epoch": entry["epoch"], "part": part, "head": head, "accuracy": accuracy}
                for entry in read_accuracies(self.folder)
                for part, heads in entry["accuracy"].items()
                for head, accuracy in heads.items()
            ]
        )

    def plot(self, axes: Any = None) -> Any:
        """Draw the accuracy of every role after each epoch with matplotlib, and return the `Axes`."""
        return resolve_name("spacedkd.reporting.notebook:plot_run")(self, axes)

    def score(self, epoch: str = "last", head: str = "final", part: str = "test") -> float:
        """Return the student's accuracy, by default of the deepest head on the test images after the last epoch.

        `epoch` is "last" or "best", `head` a name such as "stage2" or "ensemble", `part` "test" or "holdout".
        """
        return float(self.accuracies[self.roles[-1]][part][head][epoch])

    @property
    def keeps_average(self) -> bool:
        """Whether the run has an average of the student's weights."""
        return "average" in self.accuracies

    def average_score(self, epoch: str = "last", head: str = "final", part: str = "test") -> float:
        """Return the accuracy of the average of the student's weights, as `score` does of the student."""
        return float(self.accuracies["average"][part][head][epoch])

    @property
    def label(self) -> str:
        """The run's name in tables."""
        return self.spec.label

    @property
    def name(self) -> str:
        """The run's label, or its method and schedule where it has none."""
        return self.label or describe(self.spec)

    @property
    def seed(self) -> int:
        """The seed of all its random draws."""
        return self.spec.seed

    @property
    def roles(self) -> Sequence[str]:
        """All roles, from the one that leads to the student."""
        return self.plan["roles"]

    @property
    def computed(self) -> Mapping[str, Any]:
        """The cost of this run alone; less than `cost` if a recorded teacher was replayed."""
        return self.plan.get("computed_here", self.cost)

    @property
    def resolution(self) -> float:
        """The smallest difference of two accuracies, one test image; 0 for the metrics of other tasks."""
        return 1 / self.plan["test_images"] if self.spec.task == "classification" else 0.0

    @property
    def leader(self) -> str | None:
        """The role that is updated first in a block, where there is more than one role."""
        return self.roles[0] if len(self.roles) > 1 else None

    @property
    def shares_one_model(self) -> bool:
        """Whether several roles are one network."""
        learners = self.plan["learners"]
        return len({*learners.values()}) < len(learners)

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one role in an epoch."""
        return self.plan["steps_per_epoch"]

    @property
    def total_steps(self) -> int:
        """Steps of one role in the whole run."""
        return self.plan["total_steps"]

    @cached_property
    def journal(self) -> Curves:
        """Curves of every role, read from the journal once; a journal that was changed is refused."""
        check_journal(self.folder, self.digests)
        return read_curves(self.folder, self.roles)

    @property
    def accuracy_curves(self) -> Mapping[str, Curve]:
        """Accuracy of the deepest head on the test images after each evaluated epoch, for each role."""
        return self.journal.accuracy

    @property
    def variant(self) -> str | None:
        """The variant of the method, where it has variants."""
        variant: str | None = self.spec.method.options.get("variant")
        return variant

    @property
    def interval(self) -> int | None:
        """The spaced interval in steps; 0 for the plain variant with one role, None where no single interval exists."""
        if len(self.roles) == 1 or self.spec.schedule is None:
            return 0 if len(self.roles) == 1 and self.variant == "plain" else None
        schedule = with_extensions(self.spec.schedule, self.spec.extends, self.steps_per_epoch, self.total_steps)
        interval = interval_of(schedule)
        return None if interval is None else steps_of(interval)

    @cached_property
    def all_but_spacing(self) -> str:
        """The settings that decide the numbers, except schedule and variant, as JSON: equal for runs to be paired."""
        settings = pairing_json(self.spec)
        options = {key: value for key, value in settings["method"]["options"].items() if key != "variant"}
        settings["method"] = {"name": self.spec.method.name, "options": options}
        settings["teacher"] = settings["teacher"] or settings["network"]
        settings["processes"] = self.spec.engine.processes
        settings["roles"] = max(2, len(self.roles))  # a chain of three is not two with another interval
        return json.dumps(settings, sort_keys=True)


def read_run(folder: Path | str) -> Run:
    """Return the finished run of a folder; refuse one that is not finished, or whose result.json is damaged."""
    folder = Path(folder)
    path = folder / "result.json"
    if not path.exists() and not (folder / "spec.json").exists():
        raise UserError(f"There is no run in {folder}: it has no spec.json. Name the folder of one run.")
    if not path.exists():
        raise UserError(f"The run in {folder} is not finished. Resume it with: spacedkd train --resume {folder}")
    spec, result = read_spec(folder), read_result(folder)
    return Run(
        folder,
        spec,
        accuracies=result["accuracy"],
        best_chosen_on=result["best_chosen_on"],
        cost=result["cost"],
        seconds=result["seconds"],
        plan=result["plan"],
        environment=result["environment"],
        fingerprint=result["fingerprint"],
        digests=result.get("digests", {}),
    )


def read_result(folder: Path) -> ResultDocument:
    """Return the result.json of a run's folder; refuse a damaged one."""
    return read_checked(
        folder / "result.json",
        ResultDocument,
        within=folder,
        rule=_check_roles,
        way_out=f"Delete it, then: spacedkd train --resume {folder}",
    )


def _check_roles(result: ResultDocument) -> None:
    """Refuse a result in which a role has no learner, or the student no accuracy."""
    roles, learners = result["plan"]["roles"], result["plan"]["learners"]
    if not roles:
        raise ValueError("plan.roles is empty")
    for role in roles:
        if role not in learners:
            raise ValueError(f"plan.learners.{role} is missing")
    if roles[-1] not in result["accuracy"]:
        raise ValueError(f"accuracy.{roles[-1]} is missing")


def read_digests(folder: Path) -> Mapping[str, str]:
    """Return the digests in a run's result.json; none where there is no such file, or one of an earlier version."""
    digests = read_small_json(folder / "result.json", folder).get("digests")
    return digests if isinstance(digests, Mapping) else {}


def matches_digest(folder: Folder, path: Path, digest: str | None) -> bool:
    """Return whether a file of a run has this SHA-256; any file has, where the digest is None."""
    if digest is None:
        return True
    try:
        return folder.digest(path) == digest
    except FileNotFoundError:
        return False


def check_journal(folder: Path, digests: Mapping[str, str]) -> None:
    """Refuse a journal that is not the one with which a finished run ended."""
    path = folder / "journal.jsonl"
    if not matches_digest(Folder(folder), path, digests.get("journal")):
        raise UserError(
            f"{path} was changed or damaged: it is not the journal with which this run ended. Repair it with: spacedkd "
            f"train --resume {folder}"
        )


def check_weights(file: Path) -> None:
    """Refuse weights in the student/, average/ or best/ of a finished run that are not those with which it ended.

    Links in the folder of any run are refused, too. Weights outside of a run are not checked.
    """
    folder, run = file.parent, file.parent.parent
    if folder.name not in ("student", "average", "best") or not (run / "spec.json").exists():
        return
    Folder(run).refuse_links([f"{folder.name}/", "result.json"])
    digests = read_result(run).get("digests") if (run / "result.json").exists() else None
    if not digests or matches_digest(Folder(run), file, digests.get(folder.name, "")):
        return
    if folder.name == "best":  # no checkpoint has it
        way_out = f"Remove {folder} if the last student will do, or train the run again with --restart"
    else:
        way_out = "Write it again with"
    raise UserError(
        f"{file} was changed or damaged: it is not the student with which this run ended. {way_out}: spacedkd train "
        f"--resume {run}{' --restart' if folder.name == 'best' else ''}"
    )


def make_result(
    folder: Path, *, cost: Mapping[str, Any], seconds: float, plan: Mapping[str, Any], environment: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the contents of result.json for a run that has ended; the accuracies are read from its journal."""
    spec = read_spec(folder)
    accuracy, chosen_on = summarize_accuracies(read_accuracies(folder))
    identity = {"label": spec.label, "seed": spec.seed, "fingerprint": spec.fingerprint()}
    scores = {"accuracy": accuracy, "best_chosen_on": chosen_on}
    return identity | scores | {"cost": cost, "seconds": seconds, "plan": plan, "environment": environment}


def summarize_accuracies(entries: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], str]:
    """Return last and best accuracy by role, part of the data and head, and the part that chose the best epochs.

    The best epoch of a head is its first with the highest accuracy on the held-out images or, without any, on the test
    images themselves.
    """
    by_role: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        if entry["event"] == "accuracy":
            by_role.setdefault(entry["role"], []).append(entry)
    has_holdout = any("holdout" in entry["accuracy"] for role in by_role.values() for entry in role)
    chosen_on = "holdout" if has_holdout else "test"
    return {role: _summarize_role(role_entries, chosen_on) for role, role_entries in by_role.items()}, chosen_on


def _summarize_role(entries: Sequence[Mapping[str, Any]], chosen_on: str) -> dict[str, dict[str, dict[str, Any]]]:
    last: dict[str, dict[str, float]] = entries[-1]["accuracy"]
    best = {head: max(entries, key=lambda entry: entry["accuracy"][chosen_on][head]) for head in last[chosen_on]}
    return {
        part: {
            head: {
                "last": heads[head],
                "best": entry["accuracy"][part][head],
                "best_epoch": entry["epoch"],
                **_other_metrics(entries[-1], entry, part, head),
            }
            for head, entry in best.items()
        }
        for part, heads in last.items()
    }


def _other_metrics(last: Mapping[str, Any], best: Mapping[str, Any], part: str, head: str) -> dict[str, Any]:
    """Return the metrics beside the one that a run is judged by, in entries of its last and its best epoch."""
    if "metrics" not in last:
        return {}
    then, now = (entry["metrics"][part][head] for entry in (best, last))
    return {"metrics": {name: {"last": value, "best": then[name]} for name, value in now.items()}}
