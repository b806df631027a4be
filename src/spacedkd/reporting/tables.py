"""Tables of comparisons, runs and forecasts: their columns, and the text of every cell.

`comparison_tables` has all of a comparison for the terminal; a page shows them one by one. What they look like is the
renderers' matter (`table.Table`).
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import TYPE_CHECKING

from spacedkd.comparison.document import ArmDocument, ComparisonDocument
from spacedkd.reporting.findings import leader_name, method_and_schedule, shared_seeds, verdict
from spacedkd.reporting.formatting import (
    DASH,
    TIMES,
    amount,
    bare_p,
    count,
    duration,
    estimate,
    interval_and_p,
    percent,
    plural,
    points,
    ratio,
)
from spacedkd.reporting.table import LEAST_NAME, Cell, Column, Table, text_table
from spacedkd.runs.result import Run
from spacedkd.runs.schema import Estimate, PairedDifference

if TYPE_CHECKING:  # these import torch
    from spacedkd.comparison.compare import ComparisonForecast
    from spacedkd.training.forecast import Forecast

COSTS = {
    "updates": ("Optimizer updates", "updates"),
    "forward_passes": ("Forward passes", "forward"),
    "backward_passes": ("Backward passes", "backward"),
    "forward_images": ("Images seen", "images"),
    "seconds": ("Seconds", "seconds"),
}
"""what they are called on a page and in a terminal"""
LONGEST_HEAD = 12
"""letters of the name of an arm that still fit above a column of differences in a terminal"""


def results(comparison: ComparisonDocument) -> Table:
    """Return the accuracies of every arm in percent; a page leaves out the columns that no arm fills."""
    arms, against = comparison["arms"], comparison["against"]
    leader = leader_name(arms)
    accuracies = [
        Column("Last epoch", "last epoch"),
        Column("Best epoch", "best"),
        Column("Ensemble, last" if any(arm["ensemble"] for arm in arms) else None, None),
        Column("Ensemble, best" if any(arm["ensemble_best"] for arm in arms) else None, None),
        Column(leader.capitalize() if any(arm["leader"] for arm in arms) else None, leader),
    ]
    several, fits = len(arms) > 1, len(against) <= LONGEST_HEAD
    head = f"vs {against}" if fits else "difference"
    compared = [Column(f"Difference vs {against}, points", head), Column(None, "p")] if several else []
    *fewer, most = sorted({arm["last"]["n"] for arm in arms})
    seeds = " or ".join([*map(str, fewer), plural(most, "seed")])
    rows = []
    for arm in arms:
        absent = "reference" if arm["label"] == against else "no shared seed"
        differs = [_difference(arm["difference"], absent), _p(arm["difference"])] if several else []
        others = [arm["best"], arm["ensemble"], arm["ensemble_best"], arm["leader"]]
        reached = [_estimate(arm["last"], strong=True), *map(_estimate, others)]
        rows.append([_arm(arm), *reached, *differs, Cell(str(len(arm["runs"])))])
    return Table(
        f"{_metric(comparison)} of the student on the test images, percent",
        [Column("Arm", "arm", left=True), *accuracies, *compared, Column("Seeds", None)],
        rows,
        f"deepest head; ± half of the 95 % interval over {seeds}; p of the "
        f"paired t-test{shared_seeds(arms)}; best epoch chosen on {', '.join(comparison['best_chosen_on'])} images"
        + (f"; differences to {against}" if several and not fits else ""),
        name="Results",
        marked=[arm["label"] == against for arm in arms],
        least_width=min(LEAST_NAME, max(len(arm["label"]) for arm in arms)),
        unbroken=True,
    )


def _metric(comparison: ComparisonDocument) -> str:
    return comparison.get("metric", "accuracy")


OTHER_METRICS = {"mse": "MSE", "accuracy": "pixel accuracy", "miou": "mean IoU"}
"""what the metrics are called that a run is not judged by"""


def other_metrics(comparison: ComparisonDocument) -> Table:
    """Return the means over seeds of the metrics beside the one that arms are compared by, as parts of one."""
    names = dict.fromkeys(name for arm in comparison["arms"] for name in _others(arm))
    return Table(
        "other metrics of the student on the test images",
        [
            Column("Arm", "arm", left=True),
            *(
                Column(f"{OTHER_METRICS[name]}, {epoch} epoch", f"{OTHER_METRICS[name]}, {epoch}")
                for name in names
                for epoch in ("last", "best")
            ),
        ],
        [
            [_arm(arm), *(Cell(f"{_others(arm)[name][epoch]:.4g}") for name in names for epoch in ("last", "best"))]
            for arm in comparison["arms"]
        ],
        f"deepest head, mean over seeds, not in percent; best is the best epoch by {_metric(comparison)}"
        + ("; of the MSE less is better" if "mse" in names else ""),
        name="Other metrics",
        marked=[arm["label"] == comparison["against"] for arm in comparison["arms"]],
        least_width=min(LEAST_NAME, max(len(arm["label"]) for arm in comparison["arms"])),
    )


def _others(arm: ArmDocument) -> dict[str, dict[str, float]]:
    """Return an arm's other metrics: name -> last and best -> mean over seeds."""
    of_runs = [run["heads"]["final"].get("metrics", {}) for run in arm["runs"]]
    return {
        name: {
            "last": fmean(metrics[name]["last"] for metrics in of_runs),
            "best": fmean(metrics[name]["best"] for metrics in of_runs),
        }
        for name in of_runs[0]
    }


def averages(comparison: ComparisonDocument) -> Table:
    """Return the accuracies of the averages of students' weights, next to those of the students themselves."""
    arms, against = [arm for arm in comparison["arms"] if arm["average"] is not None], comparison["against"]
    compared = any(arm["label"] == against for arm in arms) and len(arms) > 1
    head = f"vs {against}" if len(against) <= LONGEST_HEAD else "difference"
    versus = [Column(f"Difference vs average of {against}, points", head), Column(None, "p")] if compared else []
    rows = []
    for arm in arms:
        average = arm["average"]
        assert average is not None
        absent = "reference" if arm["label"] == against else "no shared seed"
        differs = [_difference(average["difference"], absent), _p(average["difference"])] if compared else []
        gain = [_difference(average["gain"]), _p(average["gain"])]
        rows.append([_arm(arm), _estimate(average["last"], strong=True), _estimate(average["best"]), *gain, *differs])
    return Table(
        f"{_metric(comparison)} of the average of the student's weights, percent",
        [
            Column("Arm", "arm", left=True),
            Column("Average, last epoch", "last epoch"),
            Column("Average, best epoch", "best"),
            Column("Average minus student, points", "vs student"),
            Column(None, "p"),
            *versus,
        ],
        rows,
        f"deepest head; ± half of the 95 % interval; p of the paired t-test{shared_seeds(comparison['arms'])}"
        + (f"; differences to the average of {against}" if compared and head == "difference" else ""),
        name="Averages of weights",
        marked=[arm["label"] == against for arm in arms],
        least_width=min(LEAST_NAME, max(len(arm["label"]) for arm in arms)),
        unbroken=True,
    )


def costs(comparison: ComparisonDocument) -> Table:
    """Return what a run of each arm took on average; on a page also as a multiple of the reference's."""
    arms, against = comparison["arms"], comparison["against"]
    base = next(arm["cost"] for arm in arms if arm["label"] == against)
    if sharing(comparison):  # seconds of runs that did not train their teacher are no multiple of those that did
        base = {**base, "seconds": 0}
    return Table(
        "cost of one run, mean over seeds",
        [Column("Arm", "arm", left=True), *(Column(*names) for names in COSTS.values())],
        [[_arm(arm), *(_cost(arm["cost"], base, name) for name in COSTS)] for arm in arms],
        "forward and backward passes of whole batches; images that went forward" + sharing(comparison, ". "),
        name="Cost",
        marked=[arm["label"] == against for arm in arms],
    )


def sharing(comparison: ComparisonDocument, before: str = "") -> str:
    """Return what arms saved by sharing a teacher, where they did."""
    computed = sum(len(arm["runs"]) * _weighted_passes(arm["computed"]) for arm in comparison["arms"])
    alone = sum(len(arm["runs"]) * _weighted_passes(arm["cost"]) for arm in comparison["arms"])
    if computed == alone:
        return ""
    return (
        f"{before}Arms with the same teacher shared it: {100 * (computed / alone):.0f} % of the network passes that "
        "all runs would take alone were computed, a backward pass counted as two. Updates, passes and images are those "
        "of a run alone, its teacher included; seconds are measured, and without the teacher where a run shared one."
    )


def _weighted_passes(cost: Mapping[str, float]) -> float:
    """Return forward and backward passes of batches as one number, in which a backward pass counts as two."""
    return cost["forward_passes"] + 2 * cost["backward_passes"]


def spacing(comparison: ComparisonDocument) -> Table:
    """Return every spaced arm next to its unspaced partner, with their difference and how much more it took."""
    pairs = comparison["spacing"]
    rows = [
        [
            Cell(pair["name"], below=f"{pair['spaced']} vs {pair['unspaced']}"),
            *(_estimate(pair["accuracy"][form]) for form in ("unspaced", "spaced")),
            _difference(pair["difference"]),
            _p(pair["difference"]),
            Cell(DASH if pair["p_holm"] is None else bare_p(pair["p_holm"])),
            _times(pair["cost_ratio"]["updates"]),
            _times(pair["cost_ratio"]["forward_images"]),
            _times(pair["cost_ratio"]["seconds"]),
        ]
        for pair in pairs
    ]
    columns = [
        Column("Method", "method", left=True),
        Column("Unspaced", "unspaced"),
        Column("Spaced", "spaced"),
        Column("Difference, points", "difference"),
        Column(None, "p"),
        Column("p, Holm" if len(pairs) > 1 else None, None),
        Column(*COSTS["updates"]),
        Column(COSTS["forward_images"][0], None),
        Column(*COSTS["seconds"]),
    ]
    return Table(
        "what spacing did, percent",
        columns,
        rows,
        f"last epoch, paired by seed{shared_seeds(comparison['arms'])}, p not corrected for the number of methods; "
        "costs as multiples of unspaced",
        name="What spacing did",
        least_width=8,
        unbroken=True,
    )


def diverged(comparison: ComparisonDocument) -> Table:
    """Return the runs whose training diverged; they are in none of the other tables."""
    rows = [[run["label"], str(run["seed"]), run["role"], str(run["step"])] for run in comparison["diverged"]]
    return Table(
        "diverged, and not among the numbers",
        [Column(title, title.lower(), left=title == "Arm") for title in ("Arm", "Seed", "Role", "Step")],
        [[Cell(text) for text in row] for row in rows],
        name="Diverged",
    )


def failed(comparison: ComparisonDocument) -> Table:
    """Return the runs that an exception or the end of their process has ended; they are in none of the other tables."""
    rows = [[run["label"], str(run["seed"]), run["said"]] for run in comparison["failed"]]
    return Table(
        "failed, and not among the numbers",
        [Column(title, title.lower(), left=title != "Seed") for title in ("Arm", "Seed", "What ended it")],
        [[Cell(text) for text in row] for row in rows],
        name="Failed",
        least_width=LEAST_NAME,
    )


def comparison_tables(comparison: ComparisonDocument) -> list[Table]:
    """Return all tables of a comparison that have a row."""
    tables = [results(comparison)]
    if "metric" in comparison:
        tables.append(other_metrics(comparison))
    if any(arm["average"] is not None for arm in comparison["arms"]):
        tables.append(averages(comparison))
    if comparison["spacing"]:
        tables.append(spacing(comparison))
    tables.append(costs(comparison))
    if comparison["diverged"]:
        tables.append(diverged(comparison))
    if comparison["failed"]:
        tables.append(failed(comparison))
    return tables


def of_run(run: Run) -> Table:
    """Return the accuracies of every head of every role, last and best."""
    rows, others = [], dict[str, None]()
    for role, parts in run.accuracies.items():
        for part, heads in parts.items():
            for head, score in heads.items():
                best = f"{percent(score['best'])} (epoch {score['best_epoch']:g})"
                metrics = score.get("metrics", {})
                others |= dict.fromkeys(metrics)
                rows.append([role, head, part, percent(score["last"]), best])
                rows[-1] += [f"{metrics[name]['last']:.4g}" for name in others]
    columns = ("role", "head", "images", "last epoch", f"best epoch (chosen on {run.best_chosen_on})")
    beside = [f"{OTHER_METRICS[name]}, last" for name in others]
    return text_table(f"{run.spec.metric_title} in percent", (*columns, *beside), rows, left=3)


def _arm(arm: ArmDocument) -> Cell:
    return Cell(arm["label"], below=method_and_schedule(arm))


def _estimate(value: Estimate | None, strong: bool = False) -> Cell:
    """Return the cell of a mean; only a strong one has its interval in a terminal."""
    if value is None:
        return Cell(DASH, short="", absent=True)
    mean, _, half = estimate(value).partition(" ")
    return Cell(mean, short=f"{mean} {half}".strip() if strong else mean, half=f" {half}", strong=strong)


def _difference(difference: PairedDifference | None, absent: str = "no shared seed") -> Cell:
    if difference is None:
        return Cell(absent, short="", absent=True)
    mean, judged = points(difference["mean"]), verdict(difference)
    if judged is None:
        return Cell(mean, strong=True, below="1 shared seed: no interval")
    short = estimate(difference, points)
    return Cell(mean, short=short, strong=True, verdict=judged, below=interval_and_p(difference))


def _p(difference: PairedDifference | None) -> Cell:
    return Cell("" if difference is None or difference["p"] is None else f"{difference['p']:.3f}")


def _times(value: float | None) -> Cell:
    return Cell(DASH) if value is None else Cell(f"{TIMES}{ratio(value)}", short=f"x{ratio(value)}")


def _cost(cost: Mapping[str, float], base: Mapping[str, float], name: str) -> Cell:
    value, in_seconds = cost[name], name == "seconds"
    written = f"{value:.1f}" if in_seconds and value < 100 else count(value)
    times = f"{TIMES}{ratio(value / base[name])}" if base[name] else ""
    return Cell(written, short=f"{value:.1f}" if in_seconds else f"{value:.0f}", below=times)


# Forecasts, which `--plan` prints.


def of_roles(forecast: Forecast) -> Table:
    """Return what one step of each role takes, as measured."""
    steps = [role.step for role in forecast.roles]
    rows = [
        ("turns finished", *(_of(role.turns - role.turns_left, role.turns) for role in forecast.roles)),
        ("passes of a step", *(_passes(step.later) for step in steps)),
        ("FLOPs of a step", *(amount(step.flops, "FLOP") for step in steps)),
        ("activation memory", *(amount(step.activations, "B") for step in steps)),
        ("time of a step", *(duration(step.seconds) for step in steps)),
        ("time of an evaluation", *(duration(step.evaluation_seconds) for step in steps)),
    ]
    return text_table("each role", ("", *(role.role for role in forecast.roles)), rows)


def _passes(counts: Mapping[str, int]) -> str:
    """Return forward and backward passes by model.

    >>> _passes({"teacher forward passes": 1, "student forward passes": 1, "student backward passes": 1})
    'teacher 1F, student 1F 1B'
    """
    ways: dict[str, list[str]] = {}
    for name, number in counts.items():
        model, _, way = name.removesuffix(" passes").rpartition(" ")
        if name.endswith(" passes") and number:
            ways.setdefault(model, []).append(f"{number}{way[0].upper()}")
    return ", ".join(f"{model} {' '.join(each)}" for model, each in ways.items())


def of_run_forecast(forecast: Forecast) -> Table:
    """Return the forecast of a run, a line for each quantity."""
    memory, disk, cost = forecast.memory, forecast.disk, forecast.cost
    models = ", ".join(f"{name} {amount(number, '')}" for name, number in forecast.parameters.items())
    device = f"; GPU {amount(memory.device, 'B')}" if memory.device is not None else ""
    rows = [
        ("turns finished", _of(forecast.turns - forecast.turns_left, forecast.turns)),
        ("updates", count(cost["updates"])),
        ("passes", f"{count(cost['forward_passes'])} forward, {count(cost['backward_passes'])} backward"),
        ("parameters", models),
        ("FLOPs", f"{amount(forecast.flops, 'FLOP')} in all turns"),
        (
            "memory",
            f"weights {amount(memory.weights, 'B')}, gradients {amount(memory.gradients, 'B')}, optimizers "
            f"{amount(memory.optimizers, 'B')}, activations {amount(memory.activations, 'B')}",
        ),
        ("memory, peak", f"process {amount(memory.process, 'B')}{device}"),
        (
            "disk",
            f"{amount(disk.needed, 'B')}: checkpoint {amount(disk.checkpoint, 'B')}, three of them while one is "
            f"written, students {amount(disk.students, 'B')}, journal {amount(disk.journal, 'B')}"
            + (f", snapshots {amount(disk.snapshots, 'B')}" if disk.snapshots else "")
            + (f", targets {amount(disk.targets, 'B')}" if disk.targets else ""),
        ),
        ("workers", forecast.workers),
        ("time left", _time(forecast)),
        *([("faster", forecast.advice)] if forecast.advice else []),
    ]
    processes = forecast.spec.engine.processes
    caption = f"FLOPs and memory are those of each of {processes} processes" if processes > 1 else ""
    return text_table("the whole run", ("what", "how much"), rows, caption, left=2)


def _time(forecast: Forecast) -> str:
    if forecast.finished:
        return "none, it is finished"
    evaluating = sum(role.evaluations_left * role.step.evaluation_seconds for role in forecast.roles)
    saving = forecast.saves_left * forecast.save_seconds + forecast.finish_seconds
    parts = f"evaluation {duration(evaluating)}, saving {duration(saving)}, start {duration(forecast.start_seconds)}"
    return f"{duration(forecast.seconds_left)}; in it {parts}"


def of_comparison(forecast: ComparisonForecast) -> list[Table]:
    """Return what every arm does, and what that takes; all its seeds together."""
    done, takes = [], []
    for label, runs in forecast.arms.items():
        turns = sum(run.turns for run in runs)
        passes = [sum(run.cost[name] for run in runs) for name in ("updates", "forward_passes", "backward_passes")]
        parameters = sum(runs[0].parameters.values())
        turns_done = _of(turns - sum(run.turns_left for run in runs), turns)
        done.append([label, amount(parameters, ""), turns_done, *map(count, passes)])
        takes.append(
            [
                label,
                _of(sum(run.finished for run in runs), len(runs)),
                amount(sum(run.flops for run in runs), "FLOP"),
                amount(max(run.memory.process for run in runs), "B"),
                amount(sum(run.disk.needed for run in runs), "B"),
                duration(sum(run.seconds_left for run in runs)),
            ]
        )
    names = ("arm", "params", "turns finished", "updates", "forward", "backward")
    others = ("arm", "runs finished", "FLOPs", "memory", "disk", "time left")
    workers = "; or ".join(sorted({run.workers for runs in forecast.arms.values() for run in runs}))
    caption = (
        "memory is the peak of one run's process; time as if one run were trained after the other; processes that "
        f"prepare batches for each: {workers}"
    )
    what = "forward and backward passes of whole batches, as of each run alone"
    if any(run.replays for runs in forecast.arms.values() for run in runs):
        what += "; turns of a teacher that another run trains count as done"
    return [
        text_table("all runs of each arm", names, done, what, unbroken=True),
        text_table("what they take", others, takes, caption, unbroken=True),
    ]


def _of(done: int, whole: int) -> str:
    return f"{count(done)} of {count(whole)}"
