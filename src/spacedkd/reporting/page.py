"""The report of a comparison as one HTML file that needs nothing else: no network, no font, one script of its own.

`write_page` writes it. A comparison of several arms and one of a single arm have different sections.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from spacedkd.comparison.document import Arm, ComparisonDocument, SpacingEffect, read_arms
from spacedkd.config.serialization import to_json
from spacedkd.evaluation.confusion import Confusion
from spacedkd.reporting import findings, html, plots, tables
from spacedkd.reporting.advice import advice
from spacedkd.reporting.evaluation import evaluation_sections
from spacedkd.reporting.formatting import count, duration, estimate, plain, plural, value_range
from spacedkd.reporting.html import (
    MANY,
    Markup,
    folded,
    folded_if_many,
    grid,
    html_table,
    join,
    legend,
    mark_word,
    note,
    paragraph,
    tag,
)
from spacedkd.reporting.schedules import interval_section, schedule_section
from spacedkd.reporting.table import Cell, Column, Table
from spacedkd.runs.result import Run
from spacedkd.runs.schema import PairedDifference
from spacedkd.runtime.files import write_text

Command = tuple[str, str]
"""when it ended, and what was typed"""
COUNTS = ("updates", "forward passes", "backward passes", "forward images", "backward images")
"""of each model, as the cost of a run names them"""


def write_page(
    path: Path, comparison: ComparisonDocument, unfinished: int = 0, commands: Sequence[Command] = ()
) -> None:
    """Write the report of `comparison` and the run folders it names; equal inputs give equal bytes.

    The commands are those that trained the runs, and last the one that makes the page.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render(comparison, read_arms(comparison), unfinished, commands), within=path.parent)


def render(
    comparison: ComparisonDocument, arms: Sequence[Arm], unfinished: int = 0, commands: Sequence[Command] = ()
) -> str:
    """Return the page as text."""
    if len(arms) == 1:
        return _render_single(comparison, arms[0], [*_lost_runs(comparison, unfinished)], commands)
    against = comparison["against"]
    sections = {
        "spacing": ("What spacing did", _spacing_section(comparison, arms)),
        "intervals": (f"{findings.metric_title(arms)} against interval", interval_section(arms)),
        "curves": ("Learning curves and losses", _curves(arms, against)),
        "results": (f"All arms, against {against}", _results(comparison, arms)),
        "metrics": ("Other metrics", _other_metrics(comparison)),
        "averages": ("Averages of weights", _averages(arms, comparison)),
        "turns": ("Who learned which step when", schedule_section(arms)),
        "cost": ("Cost", _costs(comparison, arms)),
        **evaluation_sections(comparison, arms),
        "advice": ("What a study measured in a similar setting", _advice(arms)),
        "making": ("How this was made", _provenance(arms, comparison["measured"], commands)),
    }
    return html.document(
        findings.title(arms),
        kind=_page_kind(commands),
        setting=findings.setting(arms),
        outcome=_outcome(comparison, arms, unfinished),
        sections=sections,
        more_style=plots.chooser_style(arms),
        with_images=_has_images(comparison),
        first_figure=_first_figure(comparison, arms),
    )


def _has_images(comparison: ComparisonDocument) -> bool:
    """Return whether test images are shown, which the page must then allow."""
    evaluation = comparison["evaluation"]
    return evaluation is not None and any(key.startswith(f"{Confusion.name}/") for key in evaluation["metrics"])


def _other_metrics(comparison: ComparisonDocument) -> Iterator[Markup]:
    if "metric" in comparison:
        yield html_table(tables.other_metrics(comparison))


def _first_figure(comparison: ComparisonDocument, arms: Sequence[Arm]) -> Markup:
    """Return the effect of spacing, where that was tried; else differences to the reference, or accuracies."""
    against = comparison["against"]
    return _spacing_gains(comparison["spacing"], arms) or _gains(arms, against) or plots.accuracies(arms, against)


def _outcome(comparison: ComparisonDocument, arms: Sequence[Arm], unfinished: int) -> Iterator[str]:
    against, pairs = comparison["against"], comparison["spacing"]
    if pairs:
        yield paragraph(findings.spacing_headline(pairs))
        yield from _spacing_findings(pairs)
        yield note(findings.spacing_cost(pairs))
    else:
        yield paragraph(findings.headline(arms, against))
        yield from _findings(arms, against)
    yield from _lost_runs(comparison, unfinished)


def _lost_runs(comparison: ComparisonDocument, unfinished: int) -> Iterator[str]:
    if comparison["diverged"]:
        yield note("These runs diverged. They are in none of the numbers, which are of the other seeds alone.")
        yield html_table(tables.diverged(comparison))
    if comparison["failed"]:
        yield note(
            "These runs failed. They are in none of the numbers; the command that made the others tries them again."
        )
        yield html_table(tables.failed(comparison))
    if unfinished:
        yield note(f"{plural(unfinished, 'unfinished run')} {'was' if unfinished == 1 else 'were'} left out.")


def _findings(arms: Sequence[Arm], against: str) -> Iterator[str]:
    others = [arm for arm in arms if arm.label != against]
    lines = [_difference_item(f"{arm.label} vs {against}", arm.numbers["difference"]) for arm in others]
    yield from folded_if_many(arms, f"{plural(len(others), 'arm')} against {against}, one by one", tag("ul", *lines))
    yield note(findings.caution([arm.numbers["difference"] for arm in arms]))


def _difference_item(pair: str, difference: PairedDifference | None) -> Markup:
    """Return a list item that says how far one arm is from another."""
    sentence, verdict = findings.finding(pair, difference), findings.verdict(difference)
    return tag("li", *(mark_word(sentence, verdict, "b", verdict) if verdict in ("better", "worse") else [sentence]))


def _gains(arms: Sequence[Arm], against: str) -> Markup:
    base = next(arm for arm in arms if arm.label == against)
    caption = "Paired by seed. A line that crosses zero is no clear difference."
    return plots.gains(f"Difference against {against}, points", plots.pairs_with(base, arms), caption)


def _results(comparison: ComparisonDocument, arms: Sequence[Arm]) -> Iterator[str]:
    against = comparison["against"]
    if comparison["spacing"]:
        yield paragraph(findings.headline(arms, against))
        yield note(findings.caution([arm.numbers["difference"] for arm in arms]))
    sentences = (
        f"The student's {findings.metric(arms)} on the test images, in percent: mean over seeds ± half the width of "
        "its 95 % interval, which one seed does not give. Last and best epoch are of the deepest head. "
    )
    if any(arm.numbers["ensemble"] for arm in arms):
        sentences += "The ensemble is the mean of all heads. "
    if any(arm.numbers["leader"] for arm in arms):
        leader = findings.leader_name(comparison["arms"])
        sentences += f"The {leader}'s {findings.metric(arms)} is after its own last epoch. "
    if shared := findings.shared_seeds(comparison["arms"]):
        sentences += f"Differences are paired by seed{shared}. "
    yield note(sentences + findings.best_epoch(comparison["best_chosen_on"]))
    numbers, reached = html_table(tables.results(comparison)), plots.accuracies(arms, against)
    gained = _gains(arms, against) if comparison["spacing"] else Markup()
    if len(arms) > html.MANY:
        yield reached
        yield folded(f"All numbers, and differences against {against}", numbers, gained)
    else:
        yield numbers
        yield tag("div", reached, gained, class_="pair")


def _averages(arms: Sequence[Arm], comparison: ComparisonDocument) -> Iterator[str]:
    averaged = [arm for arm in arms if arm.numbers["average"] is not None]
    if not averaged:
        return
    kinds = sorted({str(arm.first.spec.student_average) for arm in averaged})
    yield note(
        f"An average of the student's weights over its updates ({', '.join(kinds)}) is a network of its own, and is "
        "evaluated where the student is. An arm without KD that is averaged is what averaged arms must beat."
    )
    yield html_table(tables.averages(comparison))


def _curves(arms: Sequence[Arm], against: str) -> Iterator[str]:
    yield plots.chooser(arms, against)
    caption = (
        f"{findings.metric_title(arms)} on the test images, deepest head. Epochs are each role's own: at epoch 5 it "
        f"has learned 5 epochs of data, whenever that was. {findings.SECOND_HALF}"
    )
    yield grid([*plots.accuracy_charts(arms, against)], caption, wide=True)
    if any(arm.first.leader is not None and arm.first.shares_one_model for arm in arms):
        caption = "In self KD both roles are one network, measured during the turns of either. "
    else:
        caption = ""
    caption += "Thick: mean over seeds, with its last value; thin: each seed."
    yield folded(
        "Each arm with its roles and seeds", legend(plots.role_legend(arms), "all"), grid(plots.curves(arms), caption)
    )
    if charts := plots.loss_charts(arms):
        yield tag("h3", "Losses")
        yield grid(charts, findings.losses_caption(any(len(arm.runs) > 1 for arm in arms)))


def _costs(comparison: ComparisonDocument, arms: Sequence[Arm]) -> Iterator[str]:
    against = comparison["against"]
    yield tag("p", *mark_word(findings.extra_cost(arms, against), "--equal-cost", "code"))
    remark = (
        f"Mean for one run, and relative to {against}. Images seen counts every image of every forward pass in "
        "training; seconds depend on the machine and on what else it did."
    )
    yield paragraph(tables.sharing(comparison))
    yield from folded_if_many(arms, "What a run of each took", html_table(tables.costs(comparison)), note(remark))


def _advice(arms: Sequence[Arm]) -> Iterator[str]:
    """Yield what the study of spacing and averaging measured in the setting closest to these arms."""
    sentences = [*advice([arm.first.spec for arm in arms])]
    if sentences:
        yield note(f"{sentences[0]} The project's studies/spacing has all numbers and their protocol.")
        yield tag("ul", *(tag("li", sentence) for sentence in sentences[1:]))


# The effect of spacing.


def _spacing_pairs(pairs: Sequence[SpacingEffect], arms: Sequence[Arm]) -> list[plots.ArmPair]:
    """Return every spaced arm with its unspaced partner."""
    index = {arm.label: number for number, arm in enumerate(arms)}
    return [
        plots.ArmPair(
            index=index[pair["spaced"]],
            name=pair["name"],
            arm=arms[index[pair["spaced"]]],
            base=arms[index[pair["unspaced"]]],
            difference=pair["difference"],
        )
        for pair in pairs
    ]


def _spacing_gains(pairs: Sequence[SpacingEffect], arms: Sequence[Arm]) -> Markup:
    caption = (
        "Right of the dashed line spacing did better. Large dot and line: mean over seeds and its 95 % interval, "
        "paired by seed; small dots: seeds. A line that crosses zero is no clear difference."
    )
    return plots.gains("Spaced minus unspaced, points", _spacing_pairs(pairs, arms), caption)


def _spacing_findings(pairs: Sequence[SpacingEffect]) -> Iterator[str]:
    lines = [_difference_item(f"{pair['spaced']} vs {pair['unspaced']}", pair["difference"]) for pair in pairs]
    yield from folded_if_many(pairs, f"{plural(len(pairs), 'pair')}, one by one", tag("ul", *lines))


def _spacing_section(comparison: ComparisonDocument, arms: Sequence[Arm]) -> Iterator[Markup]:
    """Yield the numbers of spaced arms, and their gain epoch by epoch; nothing where none has an unspaced partner."""
    pairs = comparison["spacing"]
    if not pairs:
        return
    yield from map(note, (findings.single_role_caution(pairs), findings.spacing_caution(pairs)))
    yield html_table(tables.spacing(comparison))
    corrected = f"p, Holm is corrected for all {len(pairs)} tests at once. " if len(pairs) > 1 else ""
    shared = findings.shared_seeds(comparison["arms"])
    yield note(
        f"{'Accuracies' if 'metric' not in comparison else findings.metric_title(arms)} in percent after the last "
        f"epoch{shared}. {corrected}Costs are those of the spaced run as a "
        "multiple of the unspaced one's. Unspaced is an interval of one step, or one role; offline KD does "
        "not count as spaced."
    )
    compared = [pair for pair in _spacing_pairs(pairs, arms) if pair.difference is not None]
    if drawn := plots.differences(compared, "Spaced minus unspaced after each epoch"):
        lines = legend([(pair.name, plots.arm_colour(pair.index)) for pair in compared], "all")
        areas = "; areas: 95 % intervals" if len(compared) <= plots.BANDS else ""
        caption = (
            f"Above the dashed line spacing did better. Lines: mean over seeds, paired by seed{areas}. "
            f"{findings.SECOND_HALF}"
        )
        if len(arms) > MANY:
            caption += " Only the arms that are ticked below are drawn."
        title = "Spaced minus unspaced, epoch by epoch"
        yield grid([(title, "at equal epochs of the student", join(lines, drawn))], caption, wide=True)


# A single arm.


def _render_single(
    comparison: ComparisonDocument, arm: Arm, left_out: Sequence[str], commands: Sequence[Command]
) -> str:
    """Return the page as text."""
    sections = {
        "results": ("How good it is", _results_of_one(comparison, arm)),
        "losses": ("Losses", _losses(arm)),
        "turns": ("Who learned which step when", schedule_section([arm])),
        "cost": ("What it cost", _costs_of_one(arm)),
        **evaluation_sections(comparison, [arm]),
        "making": ("How this was made", _provenance([arm], comparison["measured"], commands)),
    }
    facts = tag("ul", *(tag("li", fact) for fact in findings.facts(arm)))
    outcome = [paragraph(findings.accuracies_reached(arm)), facts, *left_out]
    return html.document(
        f"{arm.label}: {findings.title([arm])}",
        kind=_page_kind(commands),
        setting=findings.setting([arm]),
        outcome=outcome,
        sections=sections,
        with_images=_has_images(comparison),
        first_figure=_curves_of_one(arm),
    )


def _curves_of_one(arm: Arm) -> Markup:
    caption = f"{findings.metric_title([arm])} on the test images, deepest head. Epochs are each role's own."
    if len(arm.runs) > 1:
        caption += " Thick: mean over seeds; thin: each seed."
    keys = legend(plots.role_legend([arm]), "all")
    return grid([("Learning curves", "", join(keys, plots.roles_chart(arm.runs)))], caption, wide=True)


def _results_of_one(comparison: ComparisonDocument, arm: Arm) -> Iterator[Markup]:
    sentences = f"{findings.metric_title([arm])} in percent, of every head"
    sentences += f": mean over {len(arm.runs)} seeds ± half of its 95 % interval. " if len(arm.runs) > 1 else ". "
    yield note(sentences + findings.best_epoch(comparison["best_chosen_on"]))
    yield html_table(reached(arm.runs))
    yield from _other_metrics(comparison)


def reached(runs: Sequence[Run]) -> Table:
    """Return every head of every role on every split of the data; moving averages too. Runs differ in their seeds."""
    rows = []
    for role, parts in runs[0].accuracies.items():
        for part, heads in parts.items():
            for head in heads:
                scores = [run.accuracies[role][part][head] for run in runs]
                last, best = ([score[name] for score in scores] for name in ("last", "best"))
                epochs = sorted({score["best_epoch"] for score in scores})
                at = f"{'epoch' if len(epochs) == 1 else 'epochs'} {value_range(epochs)}"
                rows.append([Cell(role), Cell(head), Cell(part), _mean(last, True), _mean(best, below=at)])
    titles = ("Role", "Head", "Images", "Last epoch", "Best epoch")
    return Table("", [Column(title, None) for title in titles], rows, name=runs[0].spec.metric_title)


def _mean(values: Sequence[float], strong: bool = False, below: str | None = None) -> Cell:
    from spacedkd.evaluation.statistics import confidence_interval  # scipy's, which only a page that is made needs

    mean, _, half = estimate(to_json(confidence_interval(values))).partition(" ")
    return Cell(mean, half=f" {half}" if half else None, strong=strong, below=below)


def _losses(arm: Arm) -> Iterator[Markup]:
    if charts := plots.role_losses(arm):
        yield legend(plots.role_legend([arm]), "all")
        yield grid(charts, findings.losses_caption(len(arm.runs) > 1))


def _costs_of_one(arm: Arm) -> Iterator[Markup]:
    cost, several = arm.numbers["cost"], len(arm.runs) > 1
    who = "A run took, in the mean over seeds," if several else "It took"
    yield paragraph(
        f"{who} {plural(cost['updates'], 'update')} in {duration(cost['seconds'])}: {count(cost['forward_passes'])} "
        f"forward and {count(cost['backward_passes'])} backward passes of whole batches, "
        f"{count(cost['forward_images'])} images seen."
    )
    if arm.numbers["computed"]["updates"] != cost["updates"]:
        yield note(
            "Its teacher was trained for another run and replayed here: the time is that of what was left to do."
        )
    models = arm.first.cost.get("by_model", {})
    names = dict.fromkeys(key.removesuffix(f" {what}") for key in models for what in COUNTS if key.endswith(f" {what}"))
    if names:
        heads = ("Model", *(what.capitalize() for what in COUNTS))
        rows = [[Cell(name), *(Cell(count(models.get(f"{name} {what}", 0))) for what in COUNTS)] for name in names]
        yield html_table(Table("", [Column(head, None) for head in heads], rows, name="Cost of each model"))


# Provenance: commands, machines, and every arm's spec.


def _page_kind(commands: Sequence[Command]) -> str:
    """Return the line above the title: which program made the page, and when."""
    return f"spacedkd report, {commands[-1][0]}" if commands else "spacedkd report"


def _provenance(arms: Sequence[Arm], measured: str, commands: Sequence[Command]) -> Iterator[str]:
    """Yield the commands, how numbers were measured, the machines, and the spec of every arm."""
    shown = [*map(_command, commands)]
    yield from shown[:MANY]
    if shown[MANY:]:
        yield folded(f"{len(shown) - MANY} more commands", *shown[MANY:])
    sentences = f"Measured: {measured}. "
    if any(len(arm.runs) > 1 for arm in arms):
        sentences += "Intervals are Student's t over seeds"
        paired = "; differences are paired by seed, over the seeds that both arms have; p is of the paired t-test"
        sentences += f"{paired if len(arms) > 1 else ''}."
    yield from map(note, (sentences, *findings.environments(arms)))
    yield from folded_if_many(arms, f"The specs of {plural(len(arms), 'arm')}", *map(_spec, arms))


def _command(command: Command) -> Markup:
    date, line = command
    return join(tag("p", date, class_="note date"), tag("pre", tag("code", line), tabindex=0))


def _spec(arm: Arm) -> Markup:
    """Return the spec of an arm, which decided its numbers, folded away."""
    spec = arm.first.spec
    rate = f"{spec.optimizer.name}, lr {spec.optimizer.lr:g} ({spec.rate.shape})"
    network = findings.network_name(spec.network)
    essence = f"{network}, {plain(spec.epochs)} epochs, batch {count(spec.batch_size)}, {rate}"
    prints = "; ".join(f"seed {run.seed}: {run.fingerprint}" for run in arm.runs)
    written = json.dumps(to_json(spec), indent=2, ensure_ascii=False)
    return tag(
        "details",
        tag("summary", tag("b", arm.label), tag("small", f"{findings.method_and_schedule(arm.numbers)}; {essence}")),
        tag("p", f"Fingerprints: {prints}. Below, the spec of seed {spec.seed}."),
        tag("pre", tag("code", written), tabindex=0),
    )
