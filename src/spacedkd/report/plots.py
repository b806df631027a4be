"""How accuracy develops: over the epochs of each arm, and as images or weights get harder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spacedkd.report.arms import Arm, colours
from spacedkd.report.axes import (
    Panel,
    Point,
    Tick,
    apart,
    confidence_bar,
    domain,
    line,
    percent_ticks,
    rounded,
    tick_values,
)
from spacedkd.report.markup import NOTHING, Markup, join, panel, tag, text
from spacedkd.report.measures import Measure
from spacedkd.report.numbers import bounds, percent, plain
from spacedkd.report.words import how
from spacedkd.run import Curve

MOST_POINTS = 160
LEVELS = "Solid: mean of the arm over seeds, with its 95 % interval. Dashed: mean of {}. Levels are evenly spread."


def curves(arms: Sequence[Arm]) -> list[Markup]:
    """Accuracy after each epoch, a picture for each arm, all on the same axes."""
    every = [curve for arm in arms for run in arm.runs for curve in run.curves.values()]
    epochs = max(epoch for curve in every for epoch in curve)
    area = Panel((0, epochs), rounded(*domain([v for curve in every for v in curve.values()], 0, 1)))
    return [_curves_of(arm, area) for arm in arms]


def _curves_of(arm: Arm, area: Panel) -> Markup:
    thin, thick, ends = [], [], []
    class_of = colours(arm.first.roles)
    for role in reversed(arm.first.roles):  # the dashed leader lies over the student, so that equal curves both show
        by_seed = [run.curves[role] for run in arm.runs if role in run.curves]
        if len(by_seed) > 1:
            thin += [line(area.place(_thinned(curve)), f"one {class_of[role]}") for curve in by_seed]
        if mean := _mean(by_seed):
            thick.append(line(area.place(_thinned(mean)), f"all {class_of[role]}"))
            ends.append((role, max(mean.items())))
    described = ", ".join(f"{role} {percent(value)} % after {plain(epoch)} epochs" for role, (epoch, value) in ends)
    epochs = [Tick(value, plain(value)) for value in tick_values(*area.x, whole=area.x[1] > 2)]
    frame = area.frame(epochs, percent_ticks(area), "epoch", "accuracy, %")
    labels = _end_labels([(class_of[role], end) for role, end in ends], area)
    return area.draw(f"Learning curves of {arm.label}: {described}.", frame, *thin, *thick, *labels)


def _end_labels(ends: Sequence[tuple[str, Point]], area: Panel) -> list[Markup]:
    """The last value of each line at its end, moved apart where two would touch."""
    heights = apart([area.to_y(value) for _, (_, value) in ends], 13, area.top, area.height - area.bottom)
    return [
        tag("text", text(percent(value)), class_=f"end {class_}", x=area.to_x(epoch) + 5, y=height + 4)
        for (class_, (epoch, value)), height in zip(ends, heights, strict=True)
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


def levels_panels(
    arms: Sequence[Arm], against: str, points: Mapping[float, Measure], x_title: str, y_title: str
) -> list[Markup]:
    """A picture for each arm that was measured at the levels of the reference, all on the same axes.

    Levels lie evenly in their order. Where the reference was not measured, the first arm that was takes its place.
    """
    of = {arm.label: [level for level in sorted(points) if arm.label in points[level].arms] for arm in arms}
    levels = next((mine for mine in (of[against], *of.values()) if len(mine) > 1), [])
    if not levels:
        return []
    measured = [arm for arm in arms if {*levels} <= {*of[arm.label]}]
    values = [v for level in levels for arm in measured for v in _values(points[level], arm.label)]
    area = Panel((-0.2, len(levels) - 0.8), rounded(*domain(values, 0, 1)), right=14)
    reference = next((arm for arm in measured if arm.label == against), None)
    dashed = NOTHING if reference is None else line(area.place(_means(points, levels, reference)), "all leader")
    frame = area.frame(
        [Tick(place, plain(level)) for place, level in enumerate(levels)],
        percent_ticks(area),
        x_title,
        y_title,
    )
    return [
        panel(
            arm.label,
            how(arm.numbers),
            _picture(area, frame, NOTHING if arm is reference else dashed, points, levels, arm),
        )
        for arm in measured
    ]


def _picture(
    area: Panel, frame: Markup, dashed: Markup, points: Mapping[float, Measure], levels: Sequence[float], arm: Arm
) -> Markup:
    means = _means(points, levels, arm)
    dots = [_dot(area, place, points[level], arm.label) for place, level in enumerate(levels)]
    said = ", ".join(f"{plain(level)}: {percent(mean)} %" for level, (_, mean) in zip(levels, means, strict=True))
    solid = line(area.place(means), "all student")
    return area.draw(f"Accuracy of {arm.label} at each level. {said}.", frame, dashed, solid, *dots)


def _means(points: Mapping[float, Measure], levels: Sequence[float], arm: Arm) -> list[Point]:
    return [(float(place), points[level].arms[arm.label]["estimate"]["mean"]) for place, level in enumerate(levels)]


def _values(measure: Measure, label: str) -> list[float]:
    found = measure.arms[label]["estimate"]
    return [found["mean"], *(bounds(found) or ())]


def _dot(area: Panel, place: float, measure: Measure, label: str) -> Markup:
    found = measure.arms[label]["estimate"]
    x = area.to_x(place)
    title = tag("title", text(f"{measure.title}: {percent(found['mean'])} %"))
    return join(
        confidence_bar(area, x, bounds(found)),
        tag("circle", title, class_="mean", cx=x, cy=area.to_y(found["mean"]), r=3.6),
    )
