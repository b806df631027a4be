"""The tables of accuracies, costs and what spacing did: their columns, and what every cell says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spacedkd.report.formatting import amount, count, duration
from spacedkd.report.table import Table, text_table

if TYPE_CHECKING:
    from spacedkd.comparison.compare import ComparisonForecast
    from spacedkd.training.forecast import Forecast
from spacedkd.report.findings import how, leader_name, only_shared, verdict
from spacedkd.report.formatting import (
    DASH,
    TIMES,
    Found,
    bare_p,
    estimate,
    interval_and_p,
    percent,
    plural,
    points,
    ratio,
)
from spacedkd.report.table import LEAST_NAME, Cell, Column
from spacedkd.runs.result import Run

# Forecasts


def of_roles(found: Forecast) -> Table:
    """Return what one step of each role takes, as measured."""
    steps = [role.step for role in found.roles]
    rows = [
        ("turns done", *(_of(role.turns - role.turns_left, role.turns) for role in found.roles)),
        ("passes of a step", *(_passes(step.later) for step in steps)),
        ("FLOPs of a step", *(amount(step.flops, "FLOP") for step in steps)),
        ("kept for its backward pass", *(amount(step.activations, "B") for step in steps)),
        ("time of a step", *(duration(step.seconds) for step in steps)),
        ("time of an evaluation", *(duration(step.evaluation_seconds) for step in steps)),
    ]
    return text_table("each role", ("", *(role.role for role in found.roles)), rows)


def _passes(counts: Mapping[str, int]) -> str:
    """Forward and backward passes by model.

    >>> _passes({"teacher forward passes": 1, "student forward passes": 1, "student backward passes": 1})
    'teacher 1F, student 1F 1B'
    """
    ways: dict[str, list[str]] = {}
    for name, number in counts.items():
        model, _, way = name.removesuffix(" passes").rpartition(" ")
        if name.endswith(" passes") and number:
            ways.setdefault(model, []).append(f"{number}{way[0].upper()}")
    return ", ".join(f"{model} {' '.join(each)}" for model, each in ways.items())


def of_run_forecast(found: Forecast) -> Table:
    """Return the forecast of a run, a line for each quantity."""
    memory, disk, cost = found.memory, found.disk, found.cost
    models = ", ".join(f"{name} {amount(number, '')}" for name, number in found.parameters.items())
    device = f"; GPU {amount(memory.device, 'B')}" if memory.device is not None else ""
    rows = [
        ("turns done", _of(found.turns - found.turns_left, found.turns)),
        ("updates", count(cost["updates"])),
        ("passes", f"{count(cost['forward_passes'])} forward, {count(cost['backward_passes'])} backward"),
        ("parameters", models),
        ("FLOPs", f"{amount(found.flops, 'FLOP')} in all turns"),
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
            + (f", snapshots {amount(disk.snapshots, 'B')}" if disk.snapshots else ""),
        ),
        ("time left", _time(found)),
    ]
    processes = found.spec.engine.processes
    caption = f"FLOPs and memory are those of each of {processes} processes" if processes > 1 else ""
    return text_table("the whole run", ("what", "how much"), rows, caption, left=2)


def _time(found: Forecast) -> str:
    if found.finished:
        return "none, it is finished"
    evaluating = sum(role.evaluations_left * role.step.evaluation_seconds for role in found.roles)
    saving = found.saves_left * found.save_seconds + found.finish_seconds
    parts = f"evaluation {duration(evaluating)}, saving {duration(saving)}, start {duration(found.start_seconds)}"
    return f"{duration(found.seconds_left)}; in it {parts}"


def of_comparison(found: ComparisonForecast) -> list[Table]:
    """Return what every arm does, and what that takes; all its seeds together."""
    done, takes = [], []
    for label, runs in found.arms.items():
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
    names = ("arm", "params", "turns done", "updates", "forward", "backward")
    others = ("arm", "runs done", "FLOPs", "memory", "disk", "time left")
    caption = "memory is the peak of one run's process; time as if one run followed the other"
    what = "forward and backward passes of whole batches, as of each run alone"
    if any(run.replays for runs in found.arms.values() for run in runs):
        what += "; turns of a teacher that another run trains count as done"
    return [
        text_table("all runs of each arm", names, done, what, unbroken=True),
        text_table("what they take", others, takes, caption, unbroken=True),
    ]


def _of(done: int, whole: int) -> str:
    return f"{count(done)} of {count(whole)}"


# Comparisons and runs

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


def results(comparison: Found) -> Table:
    """Accuracies in percent of every arm; a page leaves out the columns that no arm fills."""
    arms, against = comparison["arms"], comparison["against"]
    leader = leader_name(arms)
    names = {
        "last": ("Last epoch", "last epoch"),
        "best": ("Best epoch", "best"),
        "ensemble": ("Ensemble, last", None),
        "ensemble_best": ("Ensemble, best", None),
        "leader": (leader.capitalize(), leader),
    }
    shown = [Column(title if any(arm[key] for arm in arms) else None, short) for key, (title, short) in names.items()]
    several, fits = len(arms) > 1, len(against) <= LONGEST_HEAD
    head = f"vs {against}" if fits else "difference"
    compared = [Column(f"Difference vs {against}, points", head), Column(None, "p")] if several else []
    *fewer, most = sorted({arm["last"]["n"] for arm in arms})
    seeds = " or ".join([*map(str, fewer), plural(most, "seed")])
    rows = []
    for arm in arms:
        absent = "reference" if arm["label"] == against else "no shared seed"
        differs = [_difference(arm["difference"], absent), _p(arm["difference"])] if several else []
        reached = [_estimate(arm[key], strong=key == "last") for key in names]
        rows.append([_arm(arm), *reached, *differs, Cell(str(len(arm["runs"])))])
    return Table(
        "accuracy of the student on the test images, percent",
        [Column("Arm", "arm", left=True), *shown, *compared, Column("Seeds", None)],
        rows,
        f"deepest head; ± half of the 95 % interval over {seeds}; p of the "
        f"paired t-test{only_shared(arms)}; best epoch chosen on {', '.join(comparison['best_chosen_on'])} images"
        + (f"; differences to {against}" if several and not fits else ""),
        name="Results",
        marked=[arm["label"] == against for arm in arms],
        least_width=min(LEAST_NAME, max(len(arm["label"]) for arm in arms)),
        unbroken=True,
    )


def costs(comparison: Found) -> Table:
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


def sharing(comparison: Found, before: str = "") -> str:
    """Return what arms saved by sharing a teacher, where they did."""

    def passes(kind: str) -> float:
        costs = ((arm.get(kind) or arm["cost"], len(arm["runs"])) for arm in comparison["arms"])
        return float(sum(runs * (cost["forward_passes"] + 2 * cost["backward_passes"]) for cost, runs in costs))

    part = passes("computed") / passes("cost")
    if part == 1:
        return ""
    return (
        f"{before}Arms with the same teacher shared it: {100 * part:.0f} % of the network passes that all runs would "
        "take alone were computed, a backward pass counted as two. The table says what a run costs alone; seconds are "
        "as they were."
    )


def spacing(comparison: Found) -> Table:
    """Every spaced arm beside its unspaced partner, with what the difference is and how much more it took."""
    pairs = comparison["spacing"]
    ratios = {name: COSTS[name] for name in pairs[0]["cost_ratio"]}
    rows = [
        [
            Cell(pair["name"], below=f"{pair['spaced']} vs {pair['unspaced']}"),
            *(_estimate(pair["accuracy"][form]) for form in ("unspaced", "spaced")),
            _difference(pair["difference"]),
            _p(pair["difference"]),
            Cell(DASH if pair["p_holm"] is None else bare_p(pair["p_holm"])),
            *map(_times, pair["cost_ratio"].values()),
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
        *(Column(title, None if name == "forward_images" else short) for name, (title, short) in ratios.items()),
    ]
    return Table(
        "what spacing did, percent",
        columns,
        rows,
        f"last epoch, paired by seed{only_shared(comparison['arms'])}, p not corrected for the number of methods; "
        "costs as multiples of unspaced",
        name="What spacing did",
        least_width=8,
        unbroken=True,
    )


def diverged(comparison: Found) -> Table:
    """The runs whose training became no number; they are in none of the others."""
    rows = [[one["label"], str(one["seed"]), one["role"], str(one["step"])] for one in comparison["diverged"]]
    return Table(
        "diverged, and not among the numbers",
        [Column(title, title.lower(), left=title == "Arm") for title in ("Arm", "Seed", "Role", "Step")],
        [[Cell(text) for text in row] for row in rows],
        name="Diverged",
    )


def failed(comparison: Found) -> Table:
    """The runs that an exception or the end of their process has ended; they are in none of the other tables."""
    rows = [[one["label"], str(one["seed"]), one["said"]] for one in comparison["failed"]]
    return Table(
        "failed, and not among the numbers",
        [Column(title, title.lower(), left=title != "Seed") for title in ("Arm", "Seed", "What ended it")],
        [[Cell(text) for text in row] for row in rows],
        name="Failed",
        least_width=LEAST_NAME,
    )


def comparison_tables(comparison: Found) -> list[Table]:
    """All of them that say something."""
    lost = [table(comparison) for name, table in _LOST.items() if comparison.get(name)]
    return [results(comparison), *([spacing(comparison)] if comparison["spacing"] else []), costs(comparison), *lost]


_LOST = {"diverged": diverged, "failed": failed}


def of_run(run: Run) -> Table:
    """Every head of every role, last and best."""
    rows = [
        [role, head, part, percent(score["last"]), f"{percent(score['best'])} (epoch {score['best_epoch']:g})"]
        for role, parts in run.accuracy.items()
        for part, heads in parts.items()
        for head, score in heads.items()
    ]
    columns = ("role", "head", "images", "last epoch", f"best epoch (chosen on {run.best_chosen_on})")
    return text_table("accuracy in percent", columns, rows, left=3)


def _arm(arm: Found) -> Cell:
    return Cell(arm["label"], below=how(arm))


def _estimate(value: Found | None, strong: bool = False) -> Cell:
    """Only a strong one has its interval in a terminal."""
    if value is None:
        return Cell(DASH, short="", absent=True)
    mean, _, half = estimate(value).partition(" ")
    return Cell(mean, short=f"{mean} {half}".strip() if strong else mean, half=f" {half}", strong=strong)


def _difference(difference: Found | None, absent: str = "no shared seed") -> Cell:
    if difference is None:
        return Cell(absent, short="", absent=True)
    mean, judged = points(difference["mean"]), verdict(difference)
    if judged is None:
        return Cell(mean, strong=True, below="1 shared seed: no interval")
    short = estimate(difference, points)
    return Cell(mean, short=short, strong=True, verdict=judged, below=interval_and_p(difference))


def _p(difference: Found | None) -> Cell:
    return Cell("" if difference is None or difference["p"] is None else f"{difference['p']:.3f}")


def _times(value: float | None) -> Cell:
    return Cell(DASH) if value is None else Cell(f"{TIMES}{ratio(value)}", short=f"x{ratio(value)}")


def _cost(cost: Found, base: Found, name: str) -> Cell:
    value, in_seconds = cost[name], name == "seconds"
    written = f"{value:.1f}" if in_seconds and value < 100 else count(value)
    times = f"{TIMES}{ratio(value / base[name])}" if base[name] else ""
    return Cell(written, short=f"{value:.1f}" if in_seconds else f"{value:.0f}", below=times)
