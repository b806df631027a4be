"""What spacing did, method by method: a sentence, a picture and a table of spaced arms beside unspaced ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spacedkd.report import tables, words
from spacedkd.report.arms import Arm
from spacedkd.report.forest import Row, forest
from spacedkd.report.markup import NOTHING, Markup, figure, html_table, join, note, section, tag, text
from spacedkd.report.numbers import TIMES, bounds, counted, listed, points, ratio

Pair = Mapping[str, Any]
"""one entry of the comparison's `spacing`"""


def section_of(comparison: Mapping[str, Any], arms: Sequence[Arm]) -> Markup:
    """The section, or nothing where no arm is spaced and has an unspaced partner."""
    pairs: Sequence[Pair] = comparison["spacing"]
    if not pairs:
        return NOTHING
    remarks = [cost(pairs), one_role(pairs), caution(pairs)]
    return section(
        "spacing",
        "What spacing did",
        tag("p", tag("b", text(headline(pairs)))),
        *(note(remark) for remark in remarks if remark),
        _picture(pairs, {arm.label: arm for arm in arms}),
        html_table(tables.spacing(comparison)),
        note(_reading(len(pairs))),
    )


def _reading(pairs: int) -> str:
    corrected = f"p, Holm is corrected for all {pairs} tests at once. " if pairs > 1 else ""
    return (
        f"Accuracies in percent after the last epoch. {corrected}Costs are those of the spaced run as a multiple of "
        "the unspaced one's. Unspaced is an interval of one step, or one role; offline KD does not count as spaced."
    )


def headline(pairs: Sequence[Pair]) -> str:
    """How many did better, worse, or neither; every word follows from an interval."""
    judged = {word: _named(pairs, word) for word in ("better", "worse", "no clear difference", None)}
    better, worse, unclear, unknown = judged.values()
    if len(pairs) == 1:
        return _of_one(pairs[0])
    several = len({pair["method"] for pair in pairs}) == len(pairs)
    of = f"Of {counted(len(pairs), 'method' if several else 'spaced arm')}"
    if len(unknown) == len(pairs):
        return f"{of}, none shares two seeds with its unspaced form, so none is called better or worse."
    if len(unclear) == len(pairs):
        return f"{of}, none did better or worse spaced than unspaced: every interval includes zero."
    parts = [f"{of}, {_some(better)} did better spaced than unspaced{_names(better)}"]
    parts.append(f"{_some(worse)} did worse{_names(worse)}")
    if unclear:
        parts.append(f"{len(unclear)} showed no clear difference")
    if unknown:
        parts.append(f"no interval can be given for {listed(unknown)}")
    return "; ".join(parts) + "."


def _of_one(pair: Pair) -> str:
    judged, name = _verdict(pair), pair["name"]
    if judged is None:
        return f"No interval can be given for {name} spaced against unspaced: they do not share two seeds."
    if judged == "no clear difference":
        return f"No clear difference between {name} spaced and unspaced: the interval includes zero."
    return f"{name} did {judged} spaced than unspaced."


def cost(pairs: Sequence[Pair]) -> str:
    """How many updates the spaced runs took, in groups of as many."""
    by_ratio: dict[str, list[str]] = {}
    for pair in pairs:
        by_ratio.setdefault(ratio(pair["cost_ratio"]["updates"]), []).append(pair["name"])
    same = by_ratio.pop("1.0", [])
    parts = [f"{listed(same) if len(same) < 4 else len(same)} took as many"] if same else []
    parts += [f"{listed(names)} took {times}{TIMES} as many" for times, names in by_ratio.items()]
    parts[0] += " updates as unspaced"
    return f"Spaced, {'; '.join(parts)}."


def one_role(pairs: Sequence[Pair]) -> str | None:
    """Where spacing is not all that differs."""
    names = [pair["name"] for pair in pairs if pair["unspaced_form"] == "plain"]
    if not names:
        return None
    have = "has" if len(names) == 1 else "have"
    return (
        f"Unspaced, {listed(names)} {have} one role only: there the difference is that of spacing and of the second "
        "role together."
    )


def caution(pairs: Sequence[Pair]) -> str | None:
    """What many comparisons at once do to the intervals, and what is left when that is allowed for."""
    warning = words.caution([pair["difference"] for pair in pairs])
    if warning is None or not (_named(pairs, "better") or _named(pairs, "worse")):
        return warning
    left = [pair["name"] for pair in pairs if pair["p_holm"] is not None and pair["p_holm"] < 0.05]
    remain = f"p stays below 0.05 for {listed(left)}" if left else "p stays below 0.05 for none"
    return f"{warning} Corrected for all of them at once (Holm), {remain}."


def _picture(pairs: Sequence[Pair], arms: Mapping[str, Arm]) -> Markup:
    rows = [_row(pair, arms) for pair in pairs if pair["difference"] is not None]
    if not rows:
        return NOTHING
    title = "Spaced minus unspaced, points"
    described = "; ".join(f"{row.label} {row.written}" for row in rows)
    picture = forest(rows, -1, 1, 0, f"{title}: {described}.")
    caption = (
        "Right of the dashed line spacing did better. Large dot and line: mean over seeds and its 95 % interval, "
        "paired by seed; small dots: seeds. A line that crosses zero is no clear difference."
    )
    return figure(join(tag("h3", text(title)), picture), caption)


def _row(pair: Pair, arms: Mapping[str, Arm]) -> Row:
    spaced, unspaced = (arms[pair[form]].by_seed for form in ("spaced", "unspaced"))
    gains = {seed: value - unspaced[seed] for seed, value in spaced.items() if seed in unspaced}
    difference = pair["difference"]
    return Row(pair["name"], difference["mean"], bounds(difference), gains, points(difference["mean"]), False)


def _verdict(pair: Pair) -> str | None:
    return pair["difference"] and words.verdict(pair["difference"])


def _named(pairs: Sequence[Pair], judged: str | None) -> list[str]:
    return [pair["name"] for pair in pairs if _verdict(pair) == judged]


def _some(names: Sequence[str]) -> str:
    return str(len(names) or "none")


def _names(names: Sequence[str]) -> str:
    return f" ({listed(names)})" if names else ""
