"""The pictures of accuracies: over the epochs of each arm, and arms side by side, each a dot and an interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from spacedkd.report import Arm, colours
from spacedkd.report.axes import Panel, Point, Scale, apart, domain, dot, label, rounded, thinned, tick_values, ticks
from spacedkd.report.markup import NOTHING, Markup, figure, join, tag, text
from spacedkd.report.numbers import bounds, estimate, percent, percent_tick, plain, points
from spacedkd.run import Curve

MOST_POINTS = 160


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
            thin += [area.line(_points(curve), f"one {class_of[role]}") for curve in by_seed]
        if mean := _mean(by_seed):
            thick.append(area.line(_points(mean), f"all {class_of[role]}"))
            ends.append((role, max(mean.items())))
    described = ", ".join(f"{role} {percent(value)} % after {plain(epoch)} epochs" for role, (epoch, value) in ends)
    frame = area.frame(ticks(*area.x, whole=area.x[1] > 2), area.percent_ticks(), "epoch", "accuracy, %")
    labels = _end_labels([(class_of[role], end) for role, end in ends], area)
    return area.draw(f"Learning curves of {arm.label}: {described}.", frame, *thin, *thick, *labels)


def _end_labels(ends: Sequence[tuple[str, Point]], area: Panel) -> list[Markup]:
    """The last value of each line at its end, moved apart where two would touch."""
    heights = apart([area.to_y(value) for _, (_, value) in ends], 13, area.top, area.height - area.bottom)
    return [
        label(percent(value), area.to_x(epoch) + 5, height + 4, class_=f"end {class_}")
        for (class_, (epoch, value)), height in zip(ends, heights, strict=True)
    ]


def _mean(by_seed: Sequence[Curve]) -> Curve:
    """Over the epochs at which every seed was measured."""
    shared = sorted(set(by_seed[0]).intersection(*by_seed)) if by_seed else []
    return {epoch: sum(curve[epoch] for curve in by_seed) / len(by_seed) for epoch in shared}


def _points(curve: Curve) -> list[Point]:
    return thinned(sorted(curve.items()), MOST_POINTS)


class Row(NamedTuple):
    """One arm of a dot-and-interval picture."""

    label: str
    value: Mapping[str, Any]
    seeds: Mapping[int, float]
    written: str
    reference: bool = False


def accuracies(arms: Sequence[Arm], against: str) -> Markup:
    """The last accuracy of every arm."""
    lasts = {arm.label: arm.numbers["last"] for arm in arms}
    rows = [Row(a.label, lasts[a.label], a.by_seed, estimate(lasts[a.label]), a.label == against) for a in arms]
    described = "; ".join(f"{row.label} {row.written} %" for row in rows)
    picture = _forest(rows, 0, 1, lasts[against]["mean"], f"Accuracy after the last epoch: {described}.")
    caption = f"Large dot and line: mean and 95 % interval. Small dots: seeds. Dashed: mean of {against}."
    return figure(join(tag("h3", text("Accuracy after the last epoch, %")), picture), caption)


def gains(title: str, rows: Sequence[Row], caption: str) -> Markup:
    """Differences in points around zero, or nothing where there are none."""
    if not rows:
        return NOTHING
    described = "; ".join(f"{row.label} {row.written}" for row in rows)
    return figure(join(tag("h3", text(title)), _forest(rows, -1, 1, 0, f"{title}: {described}.")), caption)


def gain(name: str, difference: Mapping[str, Any], arm: Arm, base: Arm) -> Row:
    """An arm's gains over another one, seed by seed."""
    seeds = {seed: value - base.by_seed[seed] for seed, value in arm.by_seed.items() if seed in base.by_seed}
    return Row(name, difference, seeds, points(difference["mean"]))


def _forest(rows: Sequence[Row], least: float, most: float, mark: float, description: str) -> Markup:
    """A dot and an interval for each row, small dots for its seeds, a dashed line at `mark`.

    Places are in percent of the width, so that the picture fits any screen and its text keeps its size.
    """
    values = [v for row in rows for v in (*(bounds(row.value) or ()), *row.seeds.values(), row.value["mean"])]
    scale = Scale(*domain([*values, mark], least, most), 2, 98)
    signed = least < 0
    marks = {tick: percent_tick(tick, signed) for tick in tick_values(scale.low, scale.high)}
    lines = [_upright(scale(tick), "grid") for tick in marks] + [_upright(scale(mark), "mark")]
    drawn = [_forest_row(row, scale, lines, signed) for row in rows]
    labels = [label(words, f"{scale(tick):.2f}%", 13, "middle") for tick, words in marks.items()]
    axis = tag("div", _strip(labels), class_="row axis-row")
    return tag("div", *drawn, axis, class_="forest narrow" if signed else "forest", role="img", aria_label=description)


def _upright(place: float, class_: str) -> Markup:
    return tag("line", class_=class_, x1=f"{place:.2f}%", x2=f"{place:.2f}%", y1=0, y2="100%")


def _forest_row(row: Row, scale: Scale, lines: Sequence[Markup], signed: bool) -> Markup:
    marks = [*lines]
    if interval := bounds(row.value):
        low, high = (f"{min(max(scale(value), 0), 100):.2f}%" for value in interval)
        marks.append(tag("line", class_="confidence", x1=low, x2=high, y1=12, y2=12))
    marks.append(dot("mean", f"{scale(row.value['mean']):.2f}%", 12, 4.5))
    write = points if signed else percent
    marks += [
        dot("seed", f"{scale(value):.2f}%", 24, 2.4, f"seed {seed}: {write(value)}")
        for seed, value in row.seeds.items()
    ]
    name = tag("span", text(row.label), class_="name")
    value = tag("span", text(row.written), class_="value")
    return tag("div", name, _strip(marks), value, class_="row named" if row.reference else "row")


def _strip(marks: Sequence[Markup]) -> Markup:
    """A drawing as high as its row, so that the lines of the grid run on through a label of several lines."""
    return tag("span", tag("svg", *marks), class_="strip")
