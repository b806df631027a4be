"""The single numbers of a finished run that tables are made of."""

from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path

from spacedkd.evaluation import document
from spacedkd.evaluation.instrument import Metric
from spacedkd.paper.table import Instruments
from spacedkd.runs.journal import Curve
from spacedkd.runs.result import Run
from spacedkd.runtime.errors import UserError

LATE = 10.0
"""epochs over which the late accuracy is a mean; never more than a quarter of a run"""
CLEAN = "weight_noise/clean/loss"

TITLES = {
    "late": "accuracy of the student, deepest head, test images, mean over the last ten epochs (of runs shorter than "
    "40 epochs over their last quarter)",
    "last": "after the last epoch",
    "best": "at the best epoch, chosen on the test images themselves",
    "ensemble": "all heads together, after the last epoch",
    "ensemble_best": "all heads together, at their best epoch, chosen on the test images themselves",
}


def title(metric: str) -> str:
    """What a metric is, in words."""
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


def number(run: Run, metric: str, evaluated: Callable[[Path], Mapping[str, Metric]]) -> Metric:
    """One number of a run by its name; `evaluated` knows what was measured of it."""
    image = 1 / run.plan["test_images"]
    if metric == "late":
        values = _late(run)
        return Metric(title(metric), sum(values) / len(values), image / len(values), "")
    if metric.startswith("at/"):
        return Metric(title(metric), _at(run, float(metric[3:])), image, "")
    if metric in TITLES:
        head, _, best = metric.partition("_")
        whole = run.accuracy[run.roles[-1]]["test"]
        if head != "ensemble":
            return Metric(title(metric), run.student(metric), image, "")
        if "ensemble" not in whole:
            raise LookupError(metric)
        return Metric(title(metric), run.student(best or "last", "ensemble"), image, "")
    if metric.startswith("cost/"):
        return Metric(title(metric), run.cost[metric.removeprefix("cost/")], 0.0, "", "low", "number")
    if metric.endswith("/rise"):
        loss, clean = (evaluated(run.folder)[name] for name in (metric.removesuffix("/rise") + "/loss", CLEAN))
        return loss._replace(title="rise of the training loss", value=loss.value - clean.value)
    return evaluated(run.folder)[metric]


def evaluated(folder: Path) -> dict[str, Metric]:
    """What was measured of a run after its last epoch."""
    return {} if (found := _evaluation(folder)) is None else document.metrics(found)


def is_measured(folder: Path, instruments: Instruments) -> bool:
    """Whether these were used on a run after its last epoch; a loss that was not finite is measured, too."""
    if (found := _evaluation(folder)) is None:
        return False
    used = {name: found["instruments"].get(name, {}) for name in ("corruptions", "adversarial", "weight_noise")}
    corrupted = {(one["name"], one["severity"]) for one in used["corruptions"].get("found", ())}
    attacks = [one["attack"] for one in used["adversarial"].get("attacks", ())]
    noise = {(one["kind"], one["level"]) for one in used["weight_noise"].get("levels", ())}
    return (
        corrupted.issuperset(product(instruments.corruptions, instruments.severities))
        and {one["epsilon"] for one in attacks if one["name"] == "bim"}.issuperset(instruments.epsilons)
        and noise.issuperset(product(("relative",), instruments.noise))
        and noise.issuperset(product(("absolute",), instruments.absolute_noise))
    )


def _evaluation(folder: Path) -> document.EvaluationDocument | None:
    found = document.read(folder)
    return None if found is None or found["origin"].get("epochs") is None else found


def _curve(run: Run) -> Curve:
    """The student's accuracies, as far as the run went."""
    curve = run.curves.get(run.roles[-1], {})
    if not curve or curve[max(curve)] != run.student():
        raise UserError(
            f"{run.folder / 'journal.jsonl'} does not end with the accuracy that result.json has. Delete {run.folder}, "
            "and the run is trained again."
        )
    return curve


def _late(run: Run) -> list[float]:
    """The accuracies of the student at the evaluations of its last epochs."""
    curve = _curve(run)
    least = max(curve) - min(LATE, run.spec.epochs / 4)
    return [value for epoch, value in curve.items() if epoch > least + 1e-9]


def _at(run: Run, epoch: float) -> float:
    """The accuracy at the evaluation that is nearest to an epoch."""
    curve = _curve(run)
    return curve[min(curve, key=lambda one: abs(one - epoch))]
