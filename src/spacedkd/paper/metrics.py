"""The metrics of a finished run that tables are made of, read from its result, journal and evaluation."""

from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path

from spacedkd.averages import STUDENT_AVERAGE
from spacedkd.evaluation import document
from spacedkd.evaluation.instrument import Metric
from spacedkd.paper.table import Instruments
from spacedkd.runs.journal import Curve, read_accuracies
from spacedkd.runs.result import Run, check_journal
from spacedkd.runtime.errors import UserError

LATE = 10.0
"""epochs over which the late accuracy is a mean; never more than a quarter of a run"""
CLEAN = "weight_noise/clean/loss"

TITLES = {
    "late": "accuracy of the student, deepest head, test images, mean over the last ten epochs (of runs shorter than "
    "40 epochs over their last quarter)",
    "average": "accuracy of the average of the student's weights, deepest head, test images, mean over the last ten "
    "epochs (of runs shorter than 40 epochs over their last quarter)",
    "last": "after the last epoch",
    "best": "at the best epoch, chosen on the test images themselves",
    "ensemble": "all heads together, after the last epoch",
    "ensemble_best": "all heads together, at their best epoch, chosen on the test images themselves",
}


def title(metric: str) -> str:
    """Return the title of a metric, such as `late`, `at/20` or `corruptions/fog/3`."""
    family, _, rest = metric.partition("/")
    if metric in TITLES:
        return TITLES[metric]
    epoch = f"epoch {rest}" if rest else "some epochs"
    named = {
        "at": f"accuracy of the student, deepest head, test images, after {epoch}",
        "corruptions": "accuracy of the student, deepest head (where a row says so, all heads together), on corrupted "
        "test images, after the last epoch",
        "adversarial": "accuracy of the student, deepest head, on attacked test images, after the last epoch",
        "weight_noise": "accuracy and loss of the student, deepest head, on training images, with noise on its "
        "weights, after the last epoch",
        "cost": "what a run is made of, teacher and student together, counted while it trained",
    }
    return named.get(family, metric)


def read_metric(run: Run, metric: str, evaluated: Callable[[Path], Mapping[str, Metric]]) -> Metric:
    """Return a metric of a run by its name; `evaluated` returns the numbers of the run's evaluation.json.

    Raises LookupError where the run was not measured with that instrument, or has no such head.
    """
    resolution = 1 / run.plan["test_images"]
    if metric in ("late", "average"):
        values = _late(_curve(run) if metric == "late" else _curve_of_average(run), run)
        return Metric(title(metric), sum(values) / len(values), resolution / len(values), "")
    if metric.startswith("at/"):
        return Metric(title(metric), _accuracy_at(run, float(metric[3:])), resolution, "")
    if metric in TITLES:
        head, _, best = metric.partition("_")
        whole = run.accuracy[run.roles[-1]]["test"]
        if head != "ensemble":
            return Metric(title(metric), run.student(metric), resolution, "")
        if "ensemble" not in whole:
            raise LookupError(metric)
        return Metric(title(metric), run.student(best or "last", "ensemble"), resolution, "")
    if metric.startswith("cost/"):
        return Metric(title(metric), run.cost[metric.removeprefix("cost/")], 0.0, "", "low", "number")
    if metric.endswith("/rise"):
        loss, clean = (evaluated(run.folder)[name] for name in (metric.removesuffix("/rise") + "/loss", CLEAN))
        return loss._replace(title="rise of the training loss", value=loss.value - clean.value)
    return evaluated(run.folder)[metric]


def evaluated_metrics(folder: Path) -> dict[str, Metric]:
    """Return the numbers of a run's evaluation after its last epoch; none where there is no such evaluation."""
    evaluation = _read_evaluation(folder)
    return {} if evaluation is None else document.metrics(evaluation)


def is_measured(folder: Path, instruments: Instruments) -> bool:
    """Return whether a run was measured with these after its last epoch; a loss that was not finite counts, too."""
    evaluation = _read_evaluation(folder)
    if evaluation is None:
        return False
    used = {name: evaluation["instruments"].get(name, {}) for name in ("corruptions", "adversarial", "weight_noise")}
    corrupted = {(entry["name"], entry["severity"]) for entry in used["corruptions"].get("found", ())}
    attacks = [entry["attack"] for entry in used["adversarial"].get("attacks", ())]
    noise = {(entry["kind"], entry["level"]) for entry in used["weight_noise"].get("levels", ())}
    return (
        corrupted.issuperset(product(instruments.corruptions, instruments.severities))
        and {attack["epsilon"] for attack in attacks if attack["name"] == "bim"}.issuperset(instruments.epsilons)
        and noise.issuperset(product(("relative",), instruments.noise))
        and noise.issuperset(product(("absolute",), instruments.absolute_noise))
    )


def _read_evaluation(folder: Path) -> document.EvaluationDocument | None:
    """Return the evaluation of a run, if it was made after the last epoch."""
    evaluation = document.read(folder)
    return None if evaluation is None or evaluation["origin"].get("epochs") is None else evaluation


def _curve(run: Run) -> Curve:
    """Return the student's accuracies by epoch; a journal that ends with another one than the result is refused."""
    curve = run.curves.get(run.roles[-1], {})
    if not curve or curve[max(curve)] != run.student():
        raise UserError(
            f"{run.folder / 'journal.jsonl'} does not end with the accuracy that result.json has. Delete {run.folder}, "
            "and the run is trained again."
        )
    return curve


def _curve_of_average(run: Run) -> Curve:
    """Return the accuracies of the average of the student's weights by epoch; LookupError where there is none."""
    if not run.keeps_average:
        raise LookupError("average")
    check_journal(run.folder, run.digests)
    entries = (entry for entry in read_accuracies(run.folder) if entry["role"] == STUDENT_AVERAGE)
    return {entry["epoch"]: entry["accuracy"]["test"]["final"] for entry in entries}


def _late(curve: Curve, run: Run) -> list[float]:
    """Return the accuracies of a curve at the evaluations of the last epochs."""
    least = max(curve) - min(LATE, run.spec.epochs / 4)
    return [value for epoch, value in curve.items() if epoch > least + 1e-9]


def _accuracy_at(run: Run, epoch: float) -> float:
    """Return the accuracy at the evaluation that is nearest to an epoch."""
    curve = _curve(run)
    return curve[min(curve, key=lambda other: abs(other - epoch))]
