"""How accuracy develops: over the epochs of each arm, and over the interval between teacher and student."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from spacedkd.report.axes import Panel, Point, Tick, apart, domain, line, rounded, tick_values
from spacedkd.report.markup import NOTHING, Markup, join, tag, text
from spacedkd.report.numbers import bounds, estimate, percent, percent_tick, plain
from spacedkd.report.runs import Arm, Curve
from spacedkd.report.spacing import Group, Spacing

MOST_POINTS = 160


def curves(arms: Sequence[Arm], colours: Mapping[str, str]) -> list[Markup]:
    """Accuracy after each epoch, a picture for each arm, all on the same axes."""
    every = [curve for arm in arms for run in arm.runs for curve in run.curves.values()]
    epochs = max(epoch for curve in every for epoch in curve)
    panel = Panel((0, epochs), rounded(*domain([v for curve in every for v in curve.values()], 0, 1)))
    return [_curves_of(arm, panel, colours) for arm in arms]


def _curves_of(arm: Arm, panel: Panel, colours: Mapping[str, str]) -> Markup:
    thin, thick, ends = [], [], []
    for role in reversed(arm.first.roles):  # the dashed teacher lies over the student, so that equal curves both show
        by_seed = [run.curves[role] for run in arm.runs if role in run.curves]
        if len(by_seed) > 1:
            thin += [line(panel.place(_thinned(curve)), f"one {colours[role]}") for curve in by_seed]
        if mean := _mean(by_seed):
            thick.append(line(panel.place(_thinned(mean)), f"all {colours[role]}"))
            ends.append((role, max(mean.items())))
    described = ", ".join(f"{role} {percent(value)} % after {plain(epoch)} epochs" for role, (epoch, value) in ends)
    frame = panel.frame(_epoch_ticks(panel), _percent_ticks(panel), "epoch", "accuracy, %")
    labels = _end_labels(ends, panel, colours)
    return panel.draw(f"Learning curves of {arm.label}: {described}.", frame, *thin, *thick, *labels)


def _end_labels(ends: Sequence[tuple[str, Point]], panel: Panel, colours: Mapping[str, str]) -> list[Markup]:
    """The last value of each line at its end, moved apart where two would touch."""
    heights = apart([panel.to_y(value) for _, (_, value) in ends], 13, panel.top, panel.height - panel.bottom)
    return [
        tag("text", text(percent(value)), class_=f"end {colours[role]}", x=panel.to_x(epoch) + 5, y=height + 4)
        for (role, (epoch, value)), height in zip(ends, heights, strict=True)
    ]


def _mean(by_seed: Sequence[Curve]) -> Curve:
    """Over the epochs at which every seed was measured."""
    shared = sorted(set(by_seed[0]).intersection(*by_seed)) if by_seed else []
    return {epoch: sum(curve[epoch] for curve in by_seed) / len(by_seed) for epoch in shared}


def _thinned(curve: Curve) -> list[Point]:
    """No more points than a small picture can show; the last one stays."""
    found = sorted(curve.items())
    kept = found[:: -(-len(found) // MOST_POINTS)]
    return kept if kept[-1] == found[-1] else [*kept, found[-1]]


def interval_panels(found: Sequence[Group]) -> list[Markup]:
    """Accuracy against interval, a picture for each group; groups on the same data share their y axis."""
    return [_interval_panel(group, [other for other in found if other.data == group.data]) for group in found]


def _interval_panel(group: Group, alike: Sequence[Group]) -> Markup:
    arms = [spacing.arm for one in alike for spacing in one.spacings]
    values = [v for arm in arms for v in (*(bounds(arm.numbers["last"]) or ()), *arm.by_seed.values())]
    places = _interval_places(group.spacings)
    margin = 0.08 * (max(places) - min(places))
    panel = Panel((min(places) - margin, max(places) + margin), rounded(*domain(values, 0, 1)), right=12)
    ticks = [Tick(place, _in_epochs(s)) for place, s in zip(places, group.spacings, strict=True)]
    frame = panel.frame(ticks, _percent_ticks(panel), "interval, epochs", "accuracy, %")
    means = [(place, s.arm.numbers["last"]["mean"]) for place, s in zip(places, group.spacings, strict=True)]
    dots = [_dot(panel, place, s.arm) for place, s in zip(places, group.spacings, strict=True)]
    words = ", ".join(f"{_in_epochs(s)}: {estimate(s.arm.numbers['last'])} %" for s in group.spacings)
    return panel.draw(
        f"Accuracy against interval in epochs, {group.title}. {words}.",
        frame,
        line(panel.place(means), "all student"),
        *dots,
    )


def to_scale(spacings: Sequence[Spacing]) -> bool:
    """Whether intervals can be told apart on a linear axis; offline is often forty times the next one."""
    intervals = sorted({spacing.epochs for spacing in spacings})
    nearest = min(b - a for a, b in pairwise(intervals))
    return nearest / (intervals[-1] - intervals[0]) > 0.1


def _interval_places(spacings: Sequence[Spacing]) -> list[float]:
    """In epochs, or evenly in their order where epochs would lie on top of each other."""
    if to_scale(spacings):
        return [spacing.epochs for spacing in spacings]
    order = sorted({spacing.interval for spacing in spacings})
    return [float(order.index(spacing.interval)) for spacing in spacings]


def _in_epochs(spacing: Spacing) -> str:
    return "1 step" if spacing.interval == 1 else plain(round(spacing.epochs, 2))


def _dot(panel: Panel, place: float, arm: Arm) -> Markup:
    x, interval = panel.to_x(place), bounds(arm.numbers["last"])
    bar = NOTHING
    if interval is not None:
        low, high = (panel.to_y(min(max(value, panel.y[0]), panel.y[1])) for value in interval)
        bar = tag("line", class_="interval", x1=x, x2=x, y1=low, y2=high)
    seeds = [
        tag(
            "circle",
            tag("title", text(f"seed {seed}: {percent(value)}")),
            class_="seed",
            cx=x + 7,
            cy=panel.to_y(value),
            r=2.2,
        )
        for seed, value in arm.by_seed.items()
    ]
    mean = tag(
        "circle", tag("title", text(arm.label)), class_="mean", cx=x, cy=panel.to_y(arm.numbers["last"]["mean"]), r=4.5
    )
    return join(bar, *seeds, mean)


def _percent_ticks(panel: Panel) -> list[Tick]:
    return [Tick(value, percent_tick(value)) for value in tick_values(*panel.y)]


def _epoch_ticks(panel: Panel) -> list[Tick]:
    return [Tick(value, plain(value)) for value in tick_values(*panel.x, whole=panel.x[1] > 2)]
