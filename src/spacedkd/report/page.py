"""The report of a comparison as one HTML file that needs nothing else: no network, no script, no font."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from spacedkd.json_form import to_json
from spacedkd.report import Arm, all_colours, markup, plots, read_arms, spacing, tables, turns, words
from spacedkd.report.evaluation import evaluation_sections
from spacedkd.report.markup import Markup, folded_if_many, grid, html_table, legend, marked, note, paragraph, tag
from spacedkd.report.numbers import Found, count, counted, listed, plain


def write_page(path: Path, comparison: Found, unfinished: int = 0) -> None:
    """Write the report of `comparison` and the run folders it names; equal inputs give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(comparison, read_arms(comparison), unfinished), encoding="utf-8", newline="\n")


def render(comparison: Found, arms: Sequence[Arm], unfinished: int = 0) -> str:
    """The page as text."""
    sections = {
        "results": ("Results", _results(comparison, arms)),
        "spacing": ("What spacing did", spacing.effect(comparison, arms)),
        "curves": ("Learning curves", _curves(arms)),
        "intervals": ("Accuracy against interval", spacing.against_interval(arms)),
        "turns": ("Who learned which step when", _turns(arms)),
        "cost": ("Cost", _costs(comparison, arms)),
        **evaluation_sections(comparison, arms),
        "making": ("How this was made", _making(arms, comparison["measured"])),
    }
    outcome = _outcome(comparison, arms, unfinished)
    return markup.document(words.title(arms), "spacedkd report", words.setting(arms), outcome, sections)


def _outcome(comparison: Found, arms: Sequence[Arm], unfinished: int) -> Iterator[str]:
    against, pairs = comparison["against"], comparison["spacing"]
    yield paragraph(words.headline(arms, against))
    yield paragraph(spacing.headline(pairs) if len(pairs) > 1 else None)
    findings = [_finding(arm, against) for arm in arms if arm.label != against]
    found = tag("ul", *findings) if findings else ""
    yield from folded_if_many(arms, f"{counted(len(findings), 'arm')} against {against}, one by one", found)
    yield note(words.caution([arm.numbers["difference"] for arm in arms]))
    if comparison.get("diverged"):
        yield note("These runs diverged. They are in none of the numbers, which are of the other seeds alone.")
        yield html_table(tables.diverged(comparison))
    if unfinished:
        yield note(f"{counted(unfinished, 'unfinished run')} {'was' if unfinished == 1 else 'were'} left out.")


def _finding(arm: Arm, against: str) -> Markup:
    sentence, verdict = words.finding(arm, against), words.verdict(arm.numbers["difference"])
    return tag("li", *(marked(sentence, verdict, "b", verdict) if verdict in ("better", "worse") else [sentence]))


def _results(comparison: Found, arms: Sequence[Arm]) -> Iterator[str]:
    against: str = comparison["against"]
    said = (
        "The student's accuracy on the test images, in percent: mean over seeds ± half the width of its 95 % interval, "
        "which one seed does not give. Last and best epoch are of the deepest head. "
    )
    if any(arm.numbers["ensemble"] for arm in arms):
        said += "The ensemble is the mean of all heads. "
    if any(arm.numbers["leader"] for arm in arms):
        said += f"The {words.leader_name(comparison['arms'])}'s accuracy is after its own last epoch. "
    yield note(said + words.best_epoch(comparison["best_chosen_on"]))
    numbers, reached = html_table(tables.results(comparison)), plots.accuracies(arms, against)
    base = next(arm for arm in arms if arm.label == against)
    compared = [(arm.label, arm.numbers["difference"], arm, base) for arm in arms]
    caption = "Paired by seed. A line that crosses zero is no clear difference."
    gained = plots.gains(f"Difference against {against}, points", compared, caption)
    if len(arms) > markup.MANY:
        yield reached
        yield markup.folded(f"All numbers, and differences against {against}", numbers, gained)
    else:
        yield numbers
        yield tag("div", reached, gained, class_="pair")


def _curves(arms: Sequence[Arm]) -> Iterator[str]:
    yield legend(all_colours(arms), "all")
    caption = (
        "Accuracy on the test images, deepest head. Thick: mean over seeds, with its last value; thin: each seed. "
        "Epochs are each role's own: at epoch 5 it has learned 5 epochs of data, whenever that was. "
    )
    if any(arm.first.leader is not None and arm.first.shares_one_model for arm in arms):
        caption += "In self KD both roles are one network, measured during the turns of either."
    yield grid(plots.curves(arms), caption)


def _turns(arms: Sequence[Arm]) -> Iterator[str]:
    yield legend(all_colours(arms), "band")
    caption = (
        "Each line is a stretch of turns in which one role learns: time runs to the right, the data upwards, and a "
        "second line at the same height replays the same batches. In a two-coloured band turns alternate too "
        "fast to draw."
    )
    known = [arm for arm in arms if turns.is_drawn(arm)]
    yield grid(turns.pictures(turns.timetables(known)), caption)
    if own := [arm.label for arm in arms if arm not in known]:
        yield note(f"Not drawn: {listed(own)}. A report runs no code, and a schedule of one's own is code.")


def _costs(comparison: Found, arms: Sequence[Arm]) -> Iterator[str]:
    against: str = comparison["against"]
    yield tag("p", *marked(words.extra_cost(arms, against), "--equal-cost", "code"))
    said = (
        f"Mean for one run, and relative to {against}. Images seen counts every image of every forward pass in "
        "training; seconds depend on the machine and on what else it did."
    )
    yield paragraph(tables.sharing(comparison))
    yield from folded_if_many(arms, "What a run of each took", html_table(tables.costs(comparison)), note(said))


def _making(arms: Sequence[Arm], measured: str) -> Iterator[str]:
    said = (
        f"Measured: {measured}. Intervals are Student's t over seeds; differences are paired by seed, over the seeds "
        "that both arms have; p is of the paired t-test."
    )
    yield from map(note, (said, *words.environments(arms)))
    yield from folded_if_many(arms, f"The specs of {counted(len(arms), 'arm')}", *map(_spec, arms))


def _spec(arm: Arm) -> Markup:
    """Everything that decided the numbers of an arm, folded away."""
    spec = arm.first.spec
    rate = f"{spec.optimizer.name}, lr {spec.optimizer.lr:g} ({spec.rate.shape})"
    network = words.network_name(spec.network)
    essence = f"{network}, {plain(spec.epochs)} epochs, batch {count(spec.batch_size)}, {rate}"
    prints = "; ".join(f"seed {run.seed}: {run.fingerprint}" for run in arm.runs)
    written = json.dumps(to_json(spec), indent=2, ensure_ascii=False)
    return tag(
        "details",
        tag("summary", tag("b", arm.label), tag("small", f"{words.how(arm.numbers)}; {essence}")),
        tag("p", f"Fingerprints: {prints}. Below, the spec of seed {spec.seed}."),
        tag("pre", tag("code", written), tabindex=0),
    )
