"""The page of one arm, most often of one run: what was trained, how good it became, when who learned, what it cost."""

from collections.abc import Iterator, Sequence

from spacedkd.json_form import to_json
from spacedkd.report import Arm, all_colours, markup, overlays, turns, words
from spacedkd.report.evaluation import evaluation_sections
from spacedkd.report.making import Command, making, typed_by
from spacedkd.report.markup import Markup, grid, html_table, join, legend, note, paragraph, tag
from spacedkd.report.numbers import Found, count, counted, duration, estimate, spread
from spacedkd.report.table import Cell, Column, Table

COUNTS = ("updates", "forward passes", "backward passes", "forward images", "backward images")


def render_one(comparison: Found, arm: Arm, left_out: Sequence[str], commands: Sequence[Command]) -> str:
    """The page as text."""
    sections = {
        "results": ("How good it is", _results(comparison, arm)),
        "losses": ("Losses", _losses(arm)),
        "turns": ("Who learned which step when", turns.section([arm])),
        "cost": ("What it cost", _costs(arm)),
        **evaluation_sections(comparison, [arm]),
        "making": ("How this was made", making([arm], comparison["measured"], commands)),
    }
    facts = tag("ul", *(tag("li", one) for one in words.facts(arm)))
    outcome = [paragraph(words.reached(arm)), facts, *left_out]
    return markup.document(
        f"{arm.label}: {words.title([arm])}",
        typed_by(commands),
        words.setting([arm]),
        outcome,
        sections,
        first_figure=_curves(arm),
    )


def _curves(arm: Arm) -> Markup:
    caption = "Accuracy on the test images, deepest head. Epochs are each role's own."
    if len(arm.runs) > 1:
        caption += " Thick: mean over seeds; thin: each seed."
    keys = legend(all_colours([arm]), "all")
    return grid([("Learning curves", "", join(keys, overlays.roles_chart(arm)))], caption, wide=True)


def _results(comparison: Found, arm: Arm) -> Iterator[Markup]:
    said = "Accuracy in percent, of every head"
    said += f": mean over {len(arm.runs)} seeds ± half of its 95 % interval. " if len(arm.runs) > 1 else ". "
    yield note(said + words.best_epoch(comparison["best_chosen_on"]))
    yield html_table(_reached(arm))


def _reached(arm: Arm) -> Table:
    """Every head of every role on every part of the data; moving averages too."""
    rows = []
    for role, parts in arm.first.accuracy.items():
        for part, heads in parts.items():
            for head in heads:
                scores = [run.accuracy[role][part][head] for run in arm.runs]
                last, best = ([score[name] for score in scores] for name in ("last", "best"))
                epochs = sorted({score["best_epoch"] for score in scores})
                at = f"{'epoch' if len(epochs) == 1 else 'epochs'} {spread(epochs)}"
                rows.append([Cell(role), Cell(head), Cell(part), _mean(last, True), _mean(best, below=at)])
    titles = ("Role", "Head", "Images", "Last epoch", "Best epoch")
    return Table("", [Column(title, None) for title in titles], rows, name="Accuracy")


def _mean(values: Sequence[float], strong: bool = False, below: str | None = None) -> Cell:
    from spacedkd.evaluation.confidence import confidence_interval  # scipy's, which only a page that is made needs

    mean, _, half = estimate(to_json(confidence_interval(values))).partition(" ")
    return Cell(mean, half=f" {half}" if half else None, strong=strong, below=below)


def _losses(arm: Arm) -> Iterator[Markup]:
    if charts := overlays.role_losses(arm):
        yield legend(all_colours([arm]), "all")
        yield grid(charts, words.losses(len(arm.runs) > 1))


def _costs(arm: Arm) -> Iterator[Markup]:
    cost, several = arm.numbers["cost"], len(arm.runs) > 1
    who = "A run took, in the mean over seeds," if several else "It took"
    yield paragraph(
        f"{who} {counted(cost['updates'], 'update')} in {duration(cost['seconds'])}: {count(cost['forward_passes'])} "
        f"forward and {count(cost['backward_passes'])} backward passes of whole batches, "
        f"{count(cost['forward_images'])} images seen."
    )
    if arm.numbers["computed"]["updates"] != cost["updates"]:
        yield note(
            "Its teacher was trained for another run and followed here: the time is that of what was left to do."
        )
    models = arm.first.cost.get("by_model", {})
    names = dict.fromkeys(key.removesuffix(f" {what}") for key in models for what in COUNTS if key.endswith(f" {what}"))
    if names:
        heads = ("Model", *(what.capitalize() for what in COUNTS))
        rows = [[Cell(name), *(Cell(count(models.get(f"{name} {what}", 0))) for what in COUNTS)] for name in names]
        yield html_table(Table("", [Column(head, None) for head in heads], rows, name="Cost of each model"))
