"""The pictures of accuracies: over the epochs of each arm, and arms side by side, each a dot and an interval."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from spacedkd.report.arms import Arm, role_colours
from spacedkd.report.charts import Panel, Point, Scale, apart, domain, dot, label, rounded, thinned, tick_values, ticks
from spacedkd.report.findings import how
from spacedkd.report.formatting import DASH, Write, bounds, estimate, percent, percent_tick, plain, points
from spacedkd.report.html import Markup, Titled, numbers, tag
from spacedkd.runs.journal import Curve
from spacedkd.runs.schema import Estimate, PairedDifference

MOST_POINTS = 160


def curves(arms: Sequence[Arm]) -> list[Titled]:
    """Return the accuracy after each epoch, a picture for each arm, all on the same axes."""
    every = [curve for arm in arms for run in arm.runs for curve in run.curves.values()]
    epochs = max(epoch for curve in every for epoch in curve)
    area = Panel((0, epochs), rounded(*domain([v for curve in every for v in curve.values()], 0, 1)))
    return [(arm.label, how(arm.numbers), _curves_of(arm, area)) for arm in arms]


def _curves_of(arm: Arm, area: Panel) -> Markup:
    thin, thick, ends = [], [], []
    class_of = role_colours(arm.first.roles)
    for role in reversed(arm.first.roles):  # the dashed leader lies over the student, so that equal curves both show
        by_seed = [run.curves[role] for run in arm.runs if role in run.curves]
        if len(by_seed) > 1:
            thin += [area.line(_points(curve), f"one {class_of[role]}") for curve in by_seed]
        if mean := mean_curve(by_seed):
            thick.append(area.line(_points(mean), f"all {class_of[role]}"))
            ends.append((role, max(mean.items())))
    described = ", ".join(f"{role} {percent(value)} % after {plain(epoch)} epochs" for role, (epoch, value) in ends)
    frame = area.frame(ticks(*area.x, whole=area.x[1] > 2), area.percent_ticks(), "epoch", "accuracy, %")
    labels = _end_labels([(class_of[role], end) for role, end in ends], area)
    return area.draw(f"Learning curves of {arm.label}: {described}.", frame, *thin, *thick, *labels)


def _end_labels(ends: Sequence[tuple[str, Point]], area: Panel) -> list[Markup]:
    """Return the last value of each line at its end, moved apart where two would touch."""
    heights = apart([area.to_y(value) for _, (_, value) in ends], 13, area.top, area.height - area.bottom)
    return [
        label(percent(value), area.to_x(epoch) + 5, height + 4, class_=f"end {class_}")
        for (class_, (epoch, value)), height in zip(ends, heights, strict=True)
    ]


def mean_curve(by_seed: Sequence[Curve]) -> Curve:
    """Return the mean curve over the epochs at which every seed was measured."""
    shared = sorted(set(by_seed[0]).intersection(*by_seed)) if by_seed else []
    return {epoch: sum(curve[epoch] for curve in by_seed) / len(by_seed) for epoch in shared}


def _points(curve: Curve) -> list[Point]:
    return thinned(sorted(curve.items()), MOST_POINTS)


class Row(NamedTuple):
    """One line of a dot-and-interval picture."""

    label: str
    value: Estimate
    seeds: Mapping[int, float]
    paper: float | None = None
    """the paper's value, a hollow mark"""
    group: str = ""
    """stands above the first line of each"""

    @property
    def values(self) -> Sequence[float]:
        """All values that are drawn."""
        paper = () if self.paper is None else (self.paper,)
        return (*bounds(self.value), *self.seeds.values(), self.value["mean"], *paper)


class Writing(NamedTuple):
    """The format of a picture's values and ticks, and the range they can lie in."""

    value: Write
    tick: Write
    least: float
    most: float


ACCURACIES = Writing(percent, percent_tick, 0, 1)
GAINS = Writing(points, partial(percent_tick, signed=True), -1, 1)


def accuracies(arms: Sequence[Arm], against: str) -> Markup:
    """Return a picture of the last accuracy of every arm."""
    rows = [Row(arm.label, arm.numbers["last"], arm.by_seed) for arm in arms]
    caption = f"Large dot and line: mean and 95 % interval. Small dots: seeds. Dashed: mean of {against}."
    more = _numbers("Accuracy after the last epoch, percent", rows, percent)
    return forest("Accuracy after the last epoch", rows, caption, ACCURACIES, against=against, more=more)


def _numbers(title: str, rows: Sequence[Row], write: Write) -> Markup:
    """Return the numbers of a dot-and-interval picture, seeds included."""
    seeds = sorted({seed for row in rows for seed in row.seeds})
    heads = ["", "mean", "low", "high", *(f"seed {seed}" for seed in seeds)]
    body = []
    for row in rows:
        span = map(write, bounds(row.value)) if bounds(row.value) else (DASH, DASH)
        each = (write(row.seeds[seed]) if seed in row.seeds else DASH for seed in seeds)
        body.append([row.label, write(row.value["mean"]), *span, *each])
    return numbers(title, [(head, None) for head in heads], body)


def gains(title: str, compared: Iterable[tuple[str, PairedDifference | None, Arm, Arm]], caption: str) -> Markup:
    """Return a picture of differences in points, seed by seed, around zero; nothing where there are none."""
    rows = []
    for name, difference, arm, base in compared:
        if difference is not None:
            seeds = {seed: arm.by_seed[seed] - base.by_seed[seed] for seed in arm.by_seed if seed in base.by_seed}
            rows.append(Row(name, difference, seeds))
    return forest(title, rows, caption, more=_numbers(title, rows, points)) if rows else Markup()


def forest(
    title: str,
    rows: Sequence[Row],
    caption: str,
    writing: Writing = GAINS,
    *,
    against: str | None = None,
    values: Sequence[float] = (),
    more: str = "",
) -> Markup:
    """Return a picture with a dot and an interval for each row, and small dots for its seeds.

    A dashed line is at the mean of the row `against`.
    Without such a row they are differences around zero. The axis has room for all `values` where pictures share it.
    Places are in percent of the width, so that the picture fits any screen and its text keeps its size.
    """
    signed, mark = against is None, next((row.value["mean"] for row in rows if row.label == against), 0.0)
    shown = [value for row in rows for value in row.values]
    scale = Scale(*domain([*shown, *values, mark], writing.least, writing.most), 2, 98)
    marks = {tick: writing.tick(tick) for tick in tick_values(scale.low, scale.high)}
    lines = [_upright(scale(tick), "grid") for tick in marks] + [_upright(scale(mark), "mark")]
    written = [writing.value(row.value["mean"]) if signed else estimate(row.value) for row in rows]
    drawn = []
    for row, number, before in zip(rows, written, (None, *rows), strict=False):
        if row.group and (before is None or before.group != row.group):
            drawn.append(tag("div", row.group, class_="group-name"))
        name, value = tag("span", row.label, class_="name"), tag("span", number, class_="value")
        strip = _strip([*lines, *_marks(row, scale, writing.value)])
        drawn.append(tag("div", name, strip, value, class_="row named" if row.label == against else "row"))
    labels = [label(words, f"{scale(tick):.2f}%", 13, "middle") for tick, words in marks.items()]
    axis = tag("div", _strip(labels), class_="row axis-row")
    unit = "" if signed else " %"
    names = [f"{row.group}: {row.label}" if row.group else row.label for row in rows]
    spoken = "; ".join(f"{name} {number}{unit}" for name, number in zip(names, written, strict=True))
    class_ = "forest narrow" if signed else "forest"
    picture = tag("div", *drawn, axis, class_=class_, role="img", aria_label=f"{title}: {spoken}.")
    return tag("figure", tag("h3", title if signed else f"{title}, %"), picture, tag("figcaption", caption), more)


def _upright(x: float, class_: str) -> Markup:
    return tag("line", class_=class_, x1=f"{x:.2f}%", x2=f"{x:.2f}%", y1=0, y2="100%")


def _marks(row: Row, scale: Scale, write: Write) -> Iterator[Markup]:
    if interval := bounds(row.value):
        low, high = (f"{min(max(scale(value), 0), 100):.2f}%" for value in interval)
        yield tag("line", class_="confidence", x1=low, x2=high, y1=12, y2=12)
    yield dot("mean", f"{scale(row.value['mean']):.2f}%", 12, 4.5)
    for seed, value in row.seeds.items():
        yield dot("seed", f"{scale(value):.2f}%", 24, 2.4, f"seed {seed}: {write(value)}")
    if row.paper is not None:
        yield dot("hollow", f"{scale(row.paper):.2f}%", 12, 5, f"paper: {write(row.paper)}")


def _strip(marks: Sequence[Markup]) -> Markup:
    """Return a drawing as high as its row, so that the lines of the grid run on through a label of several lines."""
    return tag("span", tag("svg", *marks), class_="strip")
