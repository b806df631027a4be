"""What spacing did, method by method, and accuracy against interval where arms differ in nothing else."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, product
from typing import NamedTuple

from spacedkd.report import Arm, plots, tables, words
from spacedkd.report.axes import Panel, can_be_told_apart, domain, rounded
from spacedkd.report.markup import Markup, grid, html_table, note, tag
from spacedkd.report.numbers import TIMES, Found, bounds, counted, estimate, listed, plain, ratio
from spacedkd.schedule import Spaced


def effect(comparison: Found, arms: Sequence[Arm]) -> Iterator[Markup]:
    """Spaced arms beside unspaced ones, or nothing where no spaced arm has an unspaced partner."""
    pairs: Sequence[Found] = comparison["spacing"]
    if not pairs:
        return
    yield tag("p", tag("b", headline(pairs)))
    yield from map(note, (cost(pairs), one_role(pairs), caution(pairs)))
    arm = {arm.label: arm for arm in arms}
    compared = [(pair["name"], pair["difference"], arm[pair["spaced"]], arm[pair["unspaced"]]) for pair in pairs]
    caption = (
        "Right of the dashed line spacing did better. Large dot and line: mean over seeds and its 95 % interval, "
        "paired by seed; small dots: seeds. A line that crosses zero is no clear difference."
    )
    yield plots.gains("Spaced minus unspaced, points", compared, caption)
    yield html_table(tables.spacing(comparison))
    corrected = f"p, Holm is corrected for all {len(pairs)} tests at once. " if len(pairs) > 1 else ""
    yield note(
        f"Accuracies in percent after the last epoch. {corrected}Costs are those of the spaced run as a multiple of "
        "the unspaced one's. Unspaced is an interval of one step, or one role; offline KD does not count as spaced."
    )


def headline(pairs: Sequence[Found]) -> str:
    """How many did better, worse, or neither; every word follows from an interval."""
    if len(pairs) == 1:
        return _of_one(pairs[0])
    better, worse, unclear, unknown = (_named(pairs, word) for word in ("better", "worse", "no clear difference", None))
    several = len({pair["method"] for pair in pairs}) == len(pairs)
    of = f"Of {counted(len(pairs), 'method' if several else 'spaced arm')}"
    if len(unknown) == len(pairs):
        return f"{of}, none shares two seeds with its unspaced form, so none is called better or worse."
    if len(unclear) == len(pairs):
        return f"{of}, none did better or worse spaced than unspaced: every interval includes zero."
    parts = [f"{of}, {_did(better, 'did better spaced than unspaced')}", _did(worse, "did worse")]
    if unclear:
        parts.append(f"{len(unclear)} showed no clear difference")
    if unknown:
        parts.append(f"no interval can be given for {listed(unknown)}")
    return "; ".join(parts) + "."


def _of_one(pair: Found) -> str:
    judged, name = words.verdict(pair["difference"]), pair["name"]
    if judged is None:
        return f"No interval can be given for {name} spaced against unspaced: they do not share two seeds."
    if judged == "no clear difference":
        return f"No clear difference between {name} spaced and unspaced: the interval includes zero."
    return f"{name} did {judged} spaced than unspaced."


def cost(pairs: Sequence[Found]) -> str:
    """How many updates the spaced runs took, in groups of as many."""
    by_ratio: dict[str, list[str]] = {}
    for pair in pairs:
        by_ratio.setdefault(ratio(pair["cost_ratio"]["updates"]), []).append(pair["name"])
    same = by_ratio.pop("1.0", [])
    parts = [f"{listed(same) if len(same) < 4 else len(same)} took as many"] if same else []
    parts += [f"{listed(names)} took {times}{TIMES} as many" for times, names in by_ratio.items()]
    parts[0] += " updates as unspaced"
    return f"Spaced, {'; '.join(parts)}."


def one_role(pairs: Sequence[Found]) -> str | None:
    """Where spacing is not all that differs."""
    names = [pair["name"] for pair in pairs if pair["unspaced_form"] == "plain"]
    if not names:
        return None
    have = "has" if len(names) == 1 else "have"
    return (
        f"Unspaced, {listed(names)} {have} one role only: there the difference is that of spacing and of the second "
        "role together."
    )


def caution(pairs: Sequence[Found]) -> str | None:
    """What many comparisons at once do to the intervals, and what is left when that is allowed for."""
    warning = words.caution([pair["difference"] for pair in pairs])
    if warning is None or not (_named(pairs, "better") or _named(pairs, "worse")):
        return warning
    left = [pair["name"] for pair in pairs if pair["p_holm"] is not None and pair["p_holm"] < 0.05]
    for_whom = listed(left) if left else "none"
    return f"{warning} Corrected for all of them at once (Holm), p stays below 0.05 for {for_whom}."


def _named(pairs: Sequence[Found], judged: str | None) -> list[str]:
    return [pair["name"] for pair in pairs if words.verdict(pair["difference"]) == judged]


def _did(names: Sequence[str], what: str) -> str:
    return f"{len(names)} {what} ({listed(names)})" if names else f"none {what}"


class Group(NamedTuple):
    """Arms that differ only in their interval, from the shortest to the longest."""

    title: str
    data: str
    arms: Sequence[Arm]

    @property
    def to_scale(self) -> bool:
        return can_be_told_apart(map(epochs, self.arms))


def epochs(arm: Arm) -> float:
    """An arm's interval; 0 where one network teaches itself at every update."""
    return (arm.first.interval or 0) / arm.first.steps_per_epoch


def groups(arms: Sequence[Arm]) -> list[Group]:
    """Every set of at least two arms with different intervals and all else equal."""
    by_rest: dict[str, list[Arm]] = {}
    for arm in arms:
        if arm.first.interval is not None:
            by_rest.setdefault(arm.first.all_but_spacing, []).append(arm)
    found: dict[tuple[str, ...], Group] = {}
    for alike in by_rest.values():
        kinds = [_kind(arm) for arm in alike]
        for variant, tail in product(*map(_seen, zip(*kinds, strict=True))):
            fits = [mine in (None, variant) and ending in (None, tail) for mine, ending in kinds]
            members = sorted(compress(alike, fits), key=epochs)
            if len({*map(epochs, members)}) > 1:
                found.setdefault(tuple(arm.label for arm in members), _group(members, variant))
    return [*found.values()]


def _group(members: Sequence[Arm], variant: str | None) -> Group:
    spec = members[0].first.spec
    method = spec.method.name + (f" ({variant})" if variant else "")
    return Group(f"{method}, {words.network_name(spec.network)}", words.data_name(spec), members)


def _kind(arm: Arm) -> tuple[str | None, str | None]:
    """What neighbours on the interval axis must share: the variant, and how the schedule ends.

    None fits any: plain self KD is the interval 0 of every spaced variant, and blocks that divide the run have no tail.
    """
    run = arm.first
    if not run.interval:
        return None, None
    assert isinstance(run.spec.schedule, Spaced)
    return run.variant, run.spec.schedule.tail if run.total_steps % run.interval else None


def _seen(values: Iterable[str | None]) -> list[str | None]:
    """The distinct values, or only None where nothing else occurs."""
    return [value for value in dict.fromkeys(values) if value is not None] or [None]


def against_interval(arms: Sequence[Arm]) -> Iterator[Markup]:
    """A picture for each group, or nothing where no arms differ in the interval alone."""
    if found := groups(arms):
        panels = [(one.title, one.data, _picture(one, [o for o in found if o.data == one.data])) for one in found]
        caption = (
            "Arms that differ in nothing but the interval. Large dot and line: mean over seeds and its 95 % interval; "
            "small dots: seeds. Interval 0 is self KD without spacing; one step is online KD. "
        )
        if not all(group.to_scale for group in found):
            caption += "Where intervals differ too much for one scale they are evenly spread in their order."
        yield grid(panels, caption)


def _picture(group: Group, alike: Sequence[Group]) -> Markup:
    """Groups on the same data share their y axis; intervals too close to be told apart lie evenly in their order."""
    every = [arm for one in alike for arm in one.arms]
    values = [v for arm in every for v in (*bounds(arm.numbers["last"]), *arm.by_seed.values())]
    intervals = [epochs(arm) for arm in group.arms]
    order = sorted({*intervals})
    places = intervals if group.to_scale else [order.index(interval) for interval in intervals]
    margin = 0.08 * (max(places) - min(places))
    area = Panel((min(places) - margin, max(places) + margin), rounded(*domain(values, 0, 1)), right=12)
    written = ["1 step" if arm.first.interval == 1 else plain(round(epochs(arm), 2)) for arm in group.arms]
    placed = [(place, arm, arm.numbers["last"]) for place, arm in zip(places, group.arms, strict=True)]
    said = ", ".join(f"{name}: {estimate(last)} %" for name, (_, _, last) in zip(written, placed, strict=True))
    ticks = [*zip(places, written, strict=True)]
    return area.draw(
        f"Accuracy against interval in epochs, {group.title}. {said}.",
        area.frame(ticks, area.percent_ticks(), "interval, epochs", "accuracy, %"),
        area.line([(place, last["mean"]) for place, _, last in placed], "all student"),
        *(area.estimate(place, last, arm.label, 4.5, arm.by_seed) for place, arm, last in placed),
    )
