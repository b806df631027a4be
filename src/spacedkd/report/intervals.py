"""Accuracy against interval, where arms differ in nothing else."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress, pairwise, product
from statistics import fmean
from typing import NamedTuple, TypeVar

from spacedkd.config.serialization import value_at
from spacedkd.report import findings
from spacedkd.report.arms import Arm
from spacedkd.report.charts import Panel, Tick, can_be_told_apart, domain, rounded
from spacedkd.report.formatting import DASH, bounds, estimate, percent, plural
from spacedkd.report.html import Markup, grid, join, numbers
from spacedkd.schedule import interval_of

T = TypeVar("T")


class Group(NamedTuple):
    """Arms that differ only in their interval, from the shortest to the longest."""

    title: str
    data: str
    arms: Sequence[Arm]

    @property
    def to_scale(self) -> bool:
        return can_be_told_apart(map(epochs, self.arms))


def epochs(arm: Arm) -> float:
    """Return an arm's interval in epochs; 0 where one network teaches itself at every update."""
    return (arm.first.interval or 0) / arm.first.steps_per_epoch


def typed(arm: Arm) -> str:
    """Return an arm's interval as it was typed, in epochs where it says nothing else."""
    interval = interval_of(arm.first.spec.schedule)
    if not arm.first.interval or interval is None:
        return "0"
    if interval.unit == "ep":
        return f"{interval.amount:g}"
    if interval.unit == "st":
        return plural(interval.amount, "step")
    return "offline" if interval.amount == 100 else f"{interval.amount:g} %"


def groups(arms: Sequence[Arm]) -> list[Group]:
    """Return every set of at least two arms with different intervals and all else equal."""
    by_rest: dict[str, list[Arm]] = {}
    for arm in arms:
        if arm.first.interval is not None:
            by_rest.setdefault(arm.first.all_but_spacing, []).append(arm)
    found: dict[tuple[str, ...], Group] = {}
    for alike in by_rest.values():
        kinds = [_kind(arm) for arm in alike]
        for variant, tail in product(*map(_distinct, zip(*kinds, strict=True))):
            fits = [mine in (None, variant) and ending in (None, tail) for mine, ending in kinds]
            members = sorted(compress(alike, fits), key=epochs)
            if len({*map(epochs, members)}) > 1:
                found.setdefault(tuple(arm.label for arm in members), _group(members, variant))
    return [*found.values()]


def _group(members: Sequence[Arm], variant: str | None) -> Group:
    spec = members[0].first.spec
    method = spec.method.name + (f" ({variant})" if variant else "")
    return Group(f"{method}, {findings.network_name(spec.network)}", findings.data_name(spec), members)


def _kind(arm: Arm) -> tuple[str | None, str | None]:
    """Return what neighbours on the interval axis must share: the variant, and how the schedule ends.

    None fits any: plain self KD is the interval 0 of every spaced variant, and blocks that divide the run have no tail.
    """
    run = arm.first
    if not run.interval:
        return None, None
    return run.variant, value_at(run.spec, "schedule.tail") if run.total_steps % run.interval else None


def _distinct(values: Iterable[str | None]) -> list[str | None]:
    """Return the distinct values, or only None where nothing else occurs."""
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
    written = [*map(typed, group.arms)]
    placed = [(place, arm, arm.numbers["last"]) for place, arm in zip(places, group.arms, strict=True)]
    said = ", ".join(f"{name}: {estimate(last)} %" for name, (_, _, last) in zip(written, placed, strict=True))
    ticks = _ticks(area, _gathered(places, written))
    means = _gathered(places, [last["mean"] for _, _, last in placed])
    title = f"Accuracy against interval, {group.title}. {said}."
    picture = area.draw(
        title,
        area.frame(ticks, area.percent_ticks(), "interval, epochs", "accuracy, %"),
        area.line([(place, fmean(at_once)) for place, at_once in means.items()], "all student"),
        *(area.estimate(place, last, arm.label, 4.5, arm.by_seed) for place, arm, last in placed),
    )
    return join(picture, _numbers(title, group))


def _ticks(area: Panel, names: Mapping[float, Sequence[str]]) -> list[Tick]:
    """All names of each interval; where neighbours would touch, the shortest of each."""
    ticks = [(place, " = ".join(dict.fromkeys(found))) for place, found in names.items()]
    for (place, one), (following, other) in pairwise(ticks):
        if area.to_x(following) - area.to_x(place) < area.letter * (len(one) + len(other) + 1) / 2:
            return [(place, min(found, key=len)) for place, found in names.items()]
    return ticks


def _gathered(places: Iterable[float], values: Iterable[T]) -> dict[float, list[T]]:
    """Gather the values at each position: intervals that were typed in several ways may be the same.

    >>> _gathered([0.2, 1.4, 1.4], "abc")
    {0.2: ['a'], 1.4: ['b', 'c']}
    """
    found: dict[float, list[T]] = {}
    for place, value in zip(places, values, strict=True):
        found.setdefault(place, []).append(value)
    return found


def _numbers(title: str, group: Group) -> Markup:
    heads = ["interval", "in steps", "arm", "mean, %", "low, %", "high, %"]
    rows = []
    for arm in group.arms:
        last = arm.numbers["last"]
        reached = [percent(last["mean"]), *(map(percent, bounds(last)) if bounds(last) else (DASH, DASH))]
        rows.append([typed(arm), str(arm.first.interval or 0), arm.label, *reached])
    return numbers(title, [(head, None) for head in heads], rows)
