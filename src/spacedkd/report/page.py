"""The report of a comparison as one HTML file that needs nothing else: no network, no font, one script of its own."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from spacedkd.files import write_text
from spacedkd.report import (
    Arm,
    all_colours,
    intervals,
    markup,
    overlays,
    plots,
    read_arms,
    spacing,
    tables,
    turns,
    words,
)
from spacedkd.report.evaluation import evaluation_sections
from spacedkd.report.making import Command, making, typed_by
from spacedkd.report.markup import (
    Markup,
    folded,
    folded_if_many,
    grid,
    html_table,
    legend,
    marked,
    note,
    paragraph,
    tag,
)
from spacedkd.report.numbers import Found, counted
from spacedkd.report.one_arm import render_one


def write_page(path: Path, comparison: Found, unfinished: int = 0, commands: Sequence[Command] = ()) -> None:
    """Write the report of `comparison` and the run folders it names; equal inputs give equal bytes.

    The commands are those that trained the runs, and last the one that makes the page.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render(comparison, read_arms(comparison), unfinished, commands), within=path.parent)


def render(comparison: Found, arms: Sequence[Arm], unfinished: int = 0, commands: Sequence[Command] = ()) -> str:
    """The page as text."""
    if len(arms) == 1:
        return render_one(comparison, arms[0], [*_left_out(comparison, unfinished)], commands)
    against: str = comparison["against"]
    sections = {
        "spacing": ("What spacing did", spacing.effect(comparison, arms)),
        "intervals": ("Accuracy against interval", intervals.against_interval(arms)),
        "curves": ("Learning curves and losses", _curves(arms, against)),
        "results": (f"All arms, against {against}", _results(comparison, arms)),
        "turns": ("Who learned which step when", turns.section(arms)),
        "cost": ("Cost", _costs(comparison, arms)),
        **evaluation_sections(comparison, arms),
        "making": ("How this was made", making(arms, comparison["measured"], commands)),
    }
    return markup.document(
        words.title(arms),
        typed_by(commands),
        words.setting(arms),
        _outcome(comparison, arms, unfinished),
        sections,
        overlays.chooser_style(arms),
        first_figure=_first_figure(comparison, arms),
    )


def _first_figure(comparison: Found, arms: Sequence[Arm]) -> Markup:
    """What spacing did, where that was tried; else how far the arms are from the named one, or how good they are."""
    against = comparison["against"]
    return (
        spacing.gains(comparison["spacing"], arms)
        or _gains(arms, against, words.REFERENCE)
        or plots.accuracies(arms, against)
    )


def _outcome(comparison: Found, arms: Sequence[Arm], unfinished: int) -> Iterator[str]:
    against, pairs = comparison["against"], comparison["spacing"]
    if pairs:
        yield paragraph(spacing.headline(pairs))
        yield from spacing.findings(pairs)
        yield note(spacing.cost(pairs))
    else:
        yield paragraph(words.headline(arms, against))
        yield from _findings(arms, against)
    yield from _left_out(comparison, unfinished)


def _left_out(comparison: Found, unfinished: int) -> Iterator[str]:
    if comparison.get("diverged"):
        yield note("These runs diverged. They are in none of the numbers, which are of the other seeds alone.")
        yield html_table(tables.diverged(comparison))
    if comparison.get("failed"):
        yield note(
            "These runs failed. They are in none of the numbers; the command that made the others tries them again."
        )
        yield html_table(tables.failed(comparison))
    if unfinished:
        yield note(f"{counted(unfinished, 'unfinished run')} {'was' if unfinished == 1 else 'were'} left out.")


def _findings(arms: Sequence[Arm], against: str) -> Iterator[str]:
    others = [arm for arm in arms if arm.label != against]
    lines = [spacing.found_of(f"{arm.label} vs {against}", arm.numbers["difference"]) for arm in others]
    yield from folded_if_many(arms, f"{counted(len(others), 'arm')} against {against}, one by one", tag("ul", *lines))
    yield note(words.caution([arm.numbers["difference"] for arm in arms]))


def _gains(arms: Sequence[Arm], against: str, caption: str) -> Markup:
    base = next(arm for arm in arms if arm.label == against)
    compared = [(arm.label, arm.numbers["difference"], arm, base) for arm in arms]
    return plots.gains(f"Difference against {against}, points", compared, caption)


def _results(comparison: Found, arms: Sequence[Arm]) -> Iterator[str]:
    against: str = comparison["against"]
    if comparison["spacing"]:
        yield paragraph(words.headline(arms, against))
        yield note(words.caution([arm.numbers["difference"] for arm in arms]))
    said = (
        "The student's accuracy on the test images, in percent: mean over seeds ± half the width of its 95 % interval, "
        "which one seed does not give. Last and best epoch are of the deepest head. "
    )
    if any(arm.numbers["ensemble"] for arm in arms):
        said += "The ensemble is the mean of all heads. "
    if any(arm.numbers["leader"] for arm in arms):
        said += f"The {words.leader_name(comparison['arms'])}'s accuracy is after its own last epoch. "
    if shared := words.only_shared(comparison["arms"]):
        said += f"Differences are paired by seed{shared}. "
    yield note(said + words.best_epoch(comparison["best_chosen_on"]))
    numbers, reached = html_table(tables.results(comparison)), plots.accuracies(arms, against)
    gained = _gains(arms, against, words.REFERENCE) if comparison["spacing"] else Markup()
    if len(arms) > markup.MANY:
        yield reached
        yield folded(f"All numbers, and differences against {against}", numbers, gained)
    else:
        yield numbers
        yield tag("div", reached, gained, class_="pair")


def _curves(arms: Sequence[Arm], against: str) -> Iterator[str]:
    yield overlays.chooser(arms, against)
    caption = (
        "Accuracy on the test images, deepest head. Epochs are each role's own: at epoch 5 it has learned 5 epochs of "
        f"data, whenever that was. {words.SECOND_HALF}"
    )
    yield grid([*overlays.accuracy_charts(arms, against)], caption, wide=True)
    if any(arm.first.leader is not None and arm.first.shares_one_model for arm in arms):
        caption = "In self KD both roles are one network, measured during the turns of either. "
    else:
        caption = ""
    caption += "Thick: mean over seeds, with its last value; thin: each seed."
    yield folded(
        "Each arm with its roles and seeds", legend(all_colours(arms), "all"), grid(plots.curves(arms), caption)
    )
    if charts := overlays.loss_charts(arms):
        yield tag("h3", "Losses")
        yield grid(charts, words.losses(any(len(arm.runs) > 1 for arm in arms)))


def _costs(comparison: Found, arms: Sequence[Arm]) -> Iterator[str]:
    against: str = comparison["against"]
    yield tag("p", *marked(words.extra_cost(arms, against), "--equal-cost", "code"))
    said = (
        f"Mean for one run, and relative to {against}. Images seen counts every image of every forward pass in "
        "training; seconds depend on the machine and on what else it did."
    )
    yield paragraph(tables.sharing(comparison))
    yield from folded_if_many(arms, "What a run of each took", html_table(tables.costs(comparison)), note(said))
