"""How accuracy responds to something that gets stronger: severity, epsilon, noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spacedkd.report.axes import Panel, Point, Tick, domain, line, rounded, tick_values
from spacedkd.report.layout import panel
from spacedkd.report.markup import NOTHING, Markup, join, tag, text
from spacedkd.report.measures import Measure
from spacedkd.report.numbers import bounds, percent, percent_tick, plain
from spacedkd.report.runs import Arm

CAPTION = "Solid: mean of the arm over seeds, with its 95 % interval. Dashed: mean of {}. Levels are evenly spread."


def panels(
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
    dashed = NOTHING if reference is None else line(area.place(_means(points, levels, reference)), "all teacher")
    frame = area.frame(
        [Tick(place, plain(level)) for place, level in enumerate(levels)],
        [Tick(value, percent_tick(value)) for value in tick_values(*area.y)],
        x_title,
        y_title,
    )
    return [
        panel(arm.label, arm.how, _picture(area, frame, NOTHING if arm is reference else dashed, points, levels, arm))
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
    x, interval = area.to_x(place), bounds(found)
    bar = NOTHING
    if interval is not None:
        low, high = (area.to_y(min(max(value, area.y[0]), area.y[1])) for value in interval)
        bar = tag("line", class_="interval", x1=x, x2=x, y1=low, y2=high)
    title = tag("title", text(f"{measure.title}: {percent(found['mean'])} %"))
    return join(bar, tag("circle", title, class_="mean", cx=x, cy=area.to_y(found["mean"]), r=3.6))
