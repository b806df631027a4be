"""Arms side by side: a dot and an interval for each, small dots for its seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from spacedkd.report.arms import Arm
from spacedkd.report.axes import Scale, domain, tick_values
from spacedkd.report.markup import Markup, tag, text
from spacedkd.report.numbers import bounds, estimate, percent, percent_tick, points


class Row(NamedTuple):
    """One arm of a dot-and-interval picture."""

    label: str
    mean: float
    confidence: tuple[float, float] | None
    seeds: Mapping[int, float]
    written: str
    reference: bool


def accuracy_rows(arms: Sequence[Arm], against: str) -> list[Row]:
    return [
        Row(
            a.label,
            a.numbers["last"]["mean"],
            bounds(a.numbers["last"]),
            a.by_seed,
            estimate(a.numbers["last"]),
            a.label == against,
        )
        for a in arms
    ]


def difference_rows(arms: Sequence[Arm], against: str) -> list[Row]:
    """Every arm that shares seeds with the named one, as gains over it seed by seed."""
    base = next(arm for arm in arms if arm.label == against).by_seed
    rows = []
    for arm in arms:
        difference = arm.numbers["difference"]
        if difference is not None:
            gains = {seed: value - base[seed] for seed, value in arm.by_seed.items() if seed in base}
            written = points(difference["mean"])
            rows.append(Row(arm.label, difference["mean"], bounds(difference), gains, written, False))
    return rows


def forest(rows: Sequence[Row], least: float, most: float, mark: float, description: str) -> Markup:
    """A dot and an interval for each row, small dots for its seeds, a dashed line at `mark`.

    Places are in percent of the width, so that the picture fits any screen and its text keeps its size.
    """
    values = [v for row in rows for v in (*(row.confidence or ()), *row.seeds.values(), row.mean)]
    scale = Scale(*domain([*values, mark], least, most), 2, 98)
    ticks = tick_values(scale.low, scale.high)
    signed = least < 0
    drawn = [_forest_row(row, scale, ticks, mark, signed) for row in rows]
    labels = [
        tag(
            "text", text(percent_tick(tick, signed)), class_="tick", x=f"{scale(tick):.2f}%", y=13, text_anchor="middle"
        )
        for tick in ticks
    ]
    axis = tag("div", _strip(labels), class_="row axis-row")
    return tag("div", *drawn, axis, class_="forest narrow" if signed else "forest", role="img", aria_label=description)


def _forest_row(row: Row, scale: Scale, ticks: Sequence[float], mark: float, signed: bool) -> Markup:
    def upright(value: float, class_: str) -> Markup:
        return tag("line", class_=class_, x1=f"{scale(value):.2f}%", x2=f"{scale(value):.2f}%", y1=0, y2="100%")

    write = points if signed else percent
    marks = [upright(tick, "grid") for tick in ticks] + [upright(mark, "mark")]
    if row.confidence is not None:
        low, high = (f"{min(max(scale(value), 0), 100):.2f}%" for value in row.confidence)
        marks.append(tag("line", class_="confidence", x1=low, x2=high, y1=12, y2=12))
    marks.append(tag("circle", class_="mean", cx=f"{scale(row.mean):.2f}%", cy=12, r=4.5))
    marks += [
        tag(
            "circle",
            tag("title", text(f"seed {seed}: {write(value)}")),
            class_="seed",
            cx=f"{scale(value):.2f}%",
            cy=24,
            r=2.4,
        )
        for seed, value in row.seeds.items()
    ]
    name = tag("span", text(row.label), class_="name")
    value = tag("span", text(row.written), class_="value")
    return tag(
        "div",
        name,
        _strip(marks),
        value,
        class_="row named" if row.reference else "row",
    )


def _strip(marks: Sequence[Markup]) -> Markup:
    """A drawing as high as its row, so that the lines of the grid run on through a label of several lines."""
    return tag("span", tag("svg", *marks), class_="strip")
