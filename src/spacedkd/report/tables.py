"""The tables of accuracies, costs and what spacing did: their columns, and what every cell says."""

from spacedkd.report.numbers import DASH, TIMES, Found, bare_p, count, counted, estimate, percent, points, ratio, with_p
from spacedkd.report.table import LEAST_NAME, Cell, Column, Table, in_words
from spacedkd.report.words import how, leader_name, only_shared, verdict
from spacedkd.run import Run

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
    seeds = " or ".join([*map(str, fewer), counted(most, "seed")])
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
    """What a run of each arm took on average; on a page also how often the named arm's."""
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
    """What arms saved by sharing a teacher, where they did."""

    def passes(kind: str) -> float:
        counted = ((arm.get(kind) or arm["cost"], len(arm["runs"])) for arm in comparison["arms"])
        return float(sum(runs * (cost["forward_passes"] + 2 * cost["backward_passes"]) for cost, runs in counted))

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
    return in_words("accuracy in percent", columns, rows, left=3)


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
    return Cell(mean, short=short, strong=True, verdict=judged, below=with_p(difference))


def _p(difference: Found | None) -> Cell:
    return Cell("" if difference is None or difference["p"] is None else f"{difference['p']:.3f}")


def _times(value: float | None) -> Cell:
    return Cell(DASH) if value is None else Cell(f"{TIMES}{ratio(value)}", short=f"x{ratio(value)}")


def _cost(cost: Found, base: Found, name: str) -> Cell:
    value, in_seconds = cost[name], name == "seconds"
    written = f"{value:.1f}" if in_seconds and value < 100 else count(value)
    times = f"{TIMES}{ratio(value / base[name])}" if base[name] else ""
    return Cell(written, short=f"{value:.1f}" if in_seconds else f"{value:.0f}", below=times)
