"""The effect of spacing, method by method: spaced arms beside their unspaced partners."""

from collections.abc import Iterator, Sequence

from spacedkd.report import findings as words
from spacedkd.report import overlays, plots, tables
from spacedkd.report.arms import Arm
from spacedkd.report.formatting import TIMES, Found, join_words, plural, ratio
from spacedkd.report.html import MANY, Markup, folded_if_many, grid, html_table, join, legend, mark_word, note, tag


def gains(pairs: Sequence[Found], arms: Sequence[Arm]) -> Markup:
    """Return the picture of every spaced arm beside its unspaced partner."""
    arm = {arm.label: arm for arm in arms}
    compared = [(pair["name"], pair["difference"], arm[pair["spaced"]], arm[pair["unspaced"]]) for pair in pairs]
    caption = (
        "Right of the dashed line spacing did better. Large dot and line: mean over seeds and its 95 % interval, "
        "paired by seed; small dots: seeds. A line that crosses zero is no clear difference."
    )
    return plots.gains("Spaced minus unspaced, points", compared, caption)


def findings(pairs: Sequence[Found]) -> Iterator[str]:
    """Yield a line for each pair."""
    lines = [difference_item(f"{pair['spaced']} vs {pair['unspaced']}", pair["difference"]) for pair in pairs]
    yield from folded_if_many(pairs, f"{plural(len(pairs), 'pair')}, one by one", tag("ul", *lines))


def difference_item(pair: str, difference: Found | None) -> Markup:
    """Return a list item that says how far one arm is from another."""
    sentence, verdict = words.finding(pair, difference), words.verdict(difference)
    return tag("li", *(mark_word(sentence, verdict, "b", verdict) if verdict in ("better", "worse") else [sentence]))


def effect(comparison: Found, arms: Sequence[Arm]) -> Iterator[Markup]:
    """Yield the numbers behind it, and when it came about; nothing where no spaced arm has an unspaced partner."""
    pairs: Sequence[Found] = comparison["spacing"]
    if not pairs:
        return
    yield from map(note, (one_role(pairs), caution(pairs)))
    yield html_table(tables.spacing(comparison))
    corrected = f"p, Holm is corrected for all {len(pairs)} tests at once. " if len(pairs) > 1 else ""
    shared = words.only_shared(comparison["arms"])
    yield note(
        f"Accuracies in percent after the last epoch{shared}. {corrected}Costs are those of the spaced run as a "
        "multiple of the unspaced one's. Unspaced is an interval of one step, or one role; offline KD does "
        "not count as spaced."
    )
    index = {arm.label: number for number, arm in enumerate(arms)}
    compared = [
        (index[pair["spaced"]], pair["name"], arms[index[pair["spaced"]]], arms[index[pair["unspaced"]]])
        for pair in pairs
        if pair["difference"] is not None
    ]
    if drawn := overlays.differences(compared, "Spaced minus unspaced after each epoch"):
        lines = legend([(name, overlays.class_of(number)) for number, name, _, _ in compared], "all")
        areas = "; areas: 95 % intervals" if len(compared) <= overlays.BANDS else ""
        caption = (
            f"Above the dashed line spacing did better. Lines: mean over seeds, paired by seed{areas}. "
            f"{words.SECOND_HALF}"
        )
        if len(arms) > MANY:
            caption += " Of so many arms those are drawn that are ticked below."
        title = "Spaced minus unspaced, epoch by epoch"
        yield grid([(title, "at equal epochs of the student", join(lines, drawn))], caption, wide=True)


def headline(pairs: Sequence[Found]) -> str:
    """Return how many did better, worse, or neither; every word follows from an interval."""
    if len(pairs) == 1:
        return _of_one(pairs[0])
    better, worse, unclear, without_interval = (
        _names(pairs, word) for word in ("better", "worse", "no clear difference", None)
    )
    several = len({pair["method"] for pair in pairs}) == len(pairs)
    of = f"Of {plural(len(pairs), 'method' if several else 'spaced arm')}"
    if len(without_interval) == len(pairs):
        return f"{of}, none shares two seeds with its unspaced form, so none is called better or worse."
    if len(unclear) == len(pairs):
        return f"{of}, none did better or worse spaced than unspaced: every interval includes zero."
    parts = [f"{of}, {_did(better, 'did better spaced than unspaced')}", _did(worse, "did worse")]
    if unclear:
        parts.append(f"{len(unclear)} showed no clear difference")
    if without_interval:
        parts.append(f"no interval can be given for {join_words(without_interval)}")
    return "; ".join(parts) + "."


def _of_one(pair: Found) -> str:
    judged, name = words.verdict(pair["difference"]), pair["name"]
    if judged is None:
        return f"No interval can be given for {name} spaced against unspaced: they do not share two seeds."
    if judged == "no clear difference":
        return f"No clear difference between {name} spaced and unspaced: the interval includes zero."
    return f"{name} did {judged} spaced than unspaced."


def cost(pairs: Sequence[Found]) -> str:
    """Return how many updates the spaced runs took, in groups of as many."""
    by_ratio: dict[str, list[str]] = {}
    for pair in pairs:
        by_ratio.setdefault(ratio(pair["cost_ratio"]["updates"]), []).append(pair["name"])
    same = by_ratio.pop("1.0", [])
    parts = [f"{join_words(same) if len(same) < 4 else len(same)} took as many"] if same else []
    parts += [f"{join_words(names)} took {times}{TIMES} as many" for times, names in by_ratio.items()]
    parts[0] += " updates as unspaced"
    return f"Spaced, {'; '.join(parts)}."


def one_role(pairs: Sequence[Found]) -> str | None:
    """Return which pairs differ in more than spacing; None where there are none."""
    names = [pair["name"] for pair in pairs if pair["unspaced_form"] == "plain"]
    if not names:
        return None
    have = "has" if len(names) == 1 else "have"
    return (
        f"Unspaced, {join_words(names)} {have} one role only: there the difference is that of spacing and of the "
        "second role together."
    )


def caution(pairs: Sequence[Found]) -> str | None:
    """Return a warning about many comparisons at once, and which differences remain after Holm's correction."""
    warning = words.caution([pair["difference"] for pair in pairs])
    if warning is None or not (_names(pairs, "better") or _names(pairs, "worse")):
        return warning
    clear = [pair["name"] for pair in pairs if pair["p_holm"] is not None and pair["p_holm"] < 0.05]
    for_whom = join_words(clear) if clear else "none"
    return f"{warning} Corrected for all of them at once (Holm), p stays below 0.05 for {for_whom}."


def _names(pairs: Sequence[Found], judged: str | None) -> list[str]:
    return [pair["name"] for pair in pairs if words.verdict(pair["difference"]) == judged]


def _did(names: Sequence[str], what: str) -> str:
    return f"{len(names)} {what} ({join_words(names)})" if names else f"none {what}"
