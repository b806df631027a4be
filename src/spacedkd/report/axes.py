"""Where a value lands in a picture: scales, ticks and the frame of a panel."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import NamedTuple

from spacedkd.report.markup import NOTHING, Markup, join, tag, text
from spacedkd.report.numbers import percent_tick

Point = tuple[float, float]


class Scale(NamedTuple):
    """Values from `low` to `high` onto places from `start` to `stop`."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.stop - self.start)


class Tick(NamedTuple):
    value: float
    label: str


def tick_values(low: float, high: float, most: int = 6, whole: bool = False) -> list[float]:
    """Round numbers from `low` to `high`, as many as there may be; `whole` allows no part of one.

    >>> tick_values(0.47, 0.98), tick_values(0, 12, whole=True)
    ([0.5, 0.6, 0.7, 0.8, 0.9], [0.0, 5.0, 10.0])
    """
    for step in _round_steps((high - low) / most, whole):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            return [round(number * step, 12) for number in range(first, last + 1)]
    raise AssertionError("steps grow until they fit")


def rounded(low: float, high: float, most: int = 6) -> tuple[float, float]:
    """A range that begins and ends with a tick.

    >>> rounded(0.08, 0.89)
    (0.0, 1.0)
    """
    for step in _round_steps((high - low) / most):
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if last - first < most:
            return first * step, last * step
    raise AssertionError("steps grow until they fit")


def _round_steps(about: float, whole: bool = False) -> Iterator[float]:
    """Numbers that begin with 1, 2, 2.5 or 5, from a little below `about` up."""
    nice = (1, 2, 5) if whole else (1, 2, 2.5, 5)
    for power in count(math.floor(math.log10(about))):
        yield from (max(digit * 10.0**power, whole) for digit in nice)


def domain(values: Iterable[float], least: float, most: float) -> tuple[float, float]:
    """A little more than the values cover, but never past what is possible."""
    within = [min(max(value, least), most) for value in values]
    low, high = min(within), max(within)
    room = max(0.03 * (high - low), 0.005 if high - low < 0.01 else 0.0)
    return max(least, low - room), min(most, high + room)


@dataclass(frozen=True)
class Panel:
    """One small picture, narrow enough to be read on a phone at its own size."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: float = 350
    height: float = 222
    left: float = 34
    right: float = 38
    top: float = 22
    bottom: float = 38

    @property
    def to_x(self) -> Scale:
        return Scale(*self.x, self.left, self.width - self.right)

    @property
    def to_y(self) -> Scale:
        return Scale(*self.y, self.height - self.bottom, self.top)

    def place(self, points: Iterable[Point]) -> list[Point]:
        return [(self.to_x(x), self.to_y(y)) for x, y in points]

    def draw(self, description: str, *content: Markup) -> Markup:
        box = f"0 0 {self.width:g} {self.height:g}"
        return tag("svg", *content, viewBox=box, role="img", aria_label=description)

    def frame(self, x_ticks: Sequence[Tick], y_ticks: Sequence[Tick], x_title: str, y_title: str) -> Markup:
        """Grid, ticks and titles; the title of the y axis lies flat above it, where it can be read."""
        floor, end = self.height - self.bottom, self.width - self.right
        rows = [
            join(
                tag("line", class_="grid", x1=self.left, x2=end, y1=self.to_y(value), y2=self.to_y(value)),
                tag("text", text(label), class_="tick", x=self.left - 6, y=self.to_y(value) + 4, text_anchor="end"),
            )
            for value, label in y_ticks
        ]
        columns = [
            join(
                tag("line", class_="axis", x1=self.to_x(value), x2=self.to_x(value), y1=floor, y2=floor + 4),
                tag("text", text(label), class_="tick", x=self.to_x(value), y=floor + 16, text_anchor="middle"),
            )
            for value, label in x_ticks
        ]
        titles = [
            tag("line", class_="axis", x1=self.left, x2=end, y1=floor, y2=floor),
            tag("text", text(x_title), class_="tick", x=(self.left + end) / 2, y=self.height - 5, text_anchor="middle"),
            tag("text", text(y_title), class_="tick", x=2, y=11),
        ]
        return join(*rows, *columns, *titles)


def percent_ticks(panel: Panel) -> list[Tick]:
    """Of a y axis of accuracies."""
    return [Tick(value, percent_tick(value)) for value in tick_values(*panel.y)]


def confidence_bar(panel: Panel, x: float, bounds: tuple[float, float] | None) -> Markup:
    """An upright line from bound to bound, as far as the panel goes."""
    if bounds is None:
        return NOTHING
    low, high = (panel.to_y(min(max(value, panel.y[0]), panel.y[1])) for value in bounds)
    return tag("line", class_="confidence", x1=x, x2=x, y1=low, y2=high)


def line(places: Sequence[Point], class_: str) -> Markup:
    return tag("path", d=stroke(places), class_=class_)


def stroke(places: Sequence[Point]) -> str:
    """The path through places.

    >>> stroke([(0, 0), (10.04, 5)])
    'M0 0L10 5'
    """
    return "M" + "L".join(f"{round(x, 1):g} {round(y, 1):g}" for x, y in places)


def apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places near the wanted ones, at least `gap` apart and within bounds, so that labels do not touch.

    >>> apart([10, 11], gap=12, low=0, high=100)
    [4.5, 16.5]
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    crowded = any(wanted[b] - wanted[a] < gap for a, b in pairwise(order))
    if not crowded:
        return [*wanted]
    centre = sum(wanted) / len(wanted)
    span = gap * (len(wanted) - 1)
    start = min(max(centre - span / 2, low), high - span)
    placed = dict(zip(order, (start + gap * rank for rank in range(len(wanted))), strict=True))
    return [placed[i] for i in range(len(wanted))]
