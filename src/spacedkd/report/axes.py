"""Where a value lands in a picture: scales, ticks, the frame of a panel, and the marks that several pictures share."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import NamedTuple, TypeVar

from spacedkd.report.markup import Markup, join, pixels, tag
from spacedkd.report.numbers import Found, Write, bounds, percent, percent_tick, tick

Point = tuple[float, float]
Tick = tuple[float, str]
P = TypeVar("P", bound=tuple[float, ...])


class Scale(NamedTuple):
    """Values from `low` to `high` onto places from `start` to `stop`."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)


def tick_values(low: float, high: float, most: int = 6, whole: bool = False, outside: bool = False) -> list[float]:
    """Round numbers from `low` to `high`, as many as there may be; `whole` allows no part of one.

    Those `outside` begin and end at or beyond the range.

    >>> tick_values(0.47, 0.98), tick_values(0, 12, whole=True)
    ([0.5, 0.6, 0.7, 0.8, 0.9], [0.0, 5.0, 10.0])
    """
    digits = (1, 2, 5) if whole else (1, 2, 2.5, 5)
    powers = count(math.floor(math.log10((high - low) / most)))
    begin, end, slack = (math.floor, math.ceil, 1e-9) if outside else (math.ceil, math.floor, -1e-9)
    for step in (max(digit * 10.0**power, whole) for power in powers for digit in digits):
        first, last = begin(low / step + slack), end(high / step - slack)
        if last - first < most:
            return [round(number * step, 12) for number in range(first, last + 1)]
    raise AssertionError("steps grow until they fit")


def ticks(low: float, high: float, write: Write = tick, most: int = 6, whole: bool = False) -> list[Tick]:
    return [(value, write(value)) for value in tick_values(low, high, most, whole)]


def rounded(low: float, high: float) -> tuple[float, float]:
    """A range that begins and ends with a tick.

    >>> rounded(0.08, 0.89)
    (0.0, 1.0)
    """
    values = tick_values(low, high, outside=True)
    return values[0], values[-1]


def domain(values: Iterable[float], least: float, most: float) -> tuple[float, float]:
    """A little more than the values cover, but never past what is possible."""
    within = [min(max(value, least), most) for value in values]
    low, high = min(within), max(within)
    room = max(0.03 * (high - low), 0.005 if high - low < 0.01 else 0.0)
    return max(least, low - room), min(most, high + room)


def can_be_told_apart(values: Iterable[float]) -> bool:
    """Whether places on a linear axis can be; offline is often forty times the next interval.

    >>> can_be_told_apart([0, 0.5, 1, 1.5, 2]), can_be_told_apart([0, 0.5, 1, 80])
    (True, False)
    """
    order = sorted({*values})
    return len(order) < 2 or min(b - a for a, b in pairwise(order)) / (order[-1] - order[0]) > 0.1


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
    letters: float = 12
    """the largest size that ticks and titles have, on any screen"""

    @property
    def letter(self) -> float:
        """The width of one, in most fonts at most."""
        return 0.64 * self.letters

    @property
    def to_x(self) -> Scale:
        return Scale(*self.x, self.left, self.width - self.right)

    @property
    def to_y(self) -> Scale:
        return Scale(*self.y, self.height - self.bottom, self.top)

    def path(self, points: Iterable[Point]) -> str:
        return "M" + "L".join(f"{pixels(self.to_x(x))} {pixels(self.to_y(y))}" for x, y in points)

    def line(self, points: Iterable[Point], class_: str) -> Markup:
        return tag("path", d=self.path(points), class_=class_)

    def draw(self, description: str, *content: str, **attributes: str | float) -> Markup:
        box = f"0 0 {self.width:g} {self.height:g}"
        return tag("svg", *content, viewBox=box, role="img", aria_label=description, **attributes)

    def frame(self, x_ticks: Sequence[Tick], y_ticks: Sequence[Tick], x_title: str, y_title: str) -> Markup:
        """Grid, ticks and titles; the title of the y axis lies flat above it, where it can be read."""
        floor, end = self.height - self.bottom, self.width - self.right
        parts = []
        for y, words in ((self.to_y(value), words) for value, words in y_ticks):
            parts.append(tag("line", class_="grid", x1=self.left, x2=end, y1=y, y2=y))
            parts.append(label(words, self.left - 6, y + self.letters / 3, "end"))
        for x, words in ((self.to_x(value), words) for value, words in x_ticks):
            parts.append(tag("line", class_="axis", x1=x, x2=x, y1=floor, y2=floor + 4))
            parts.append(label(words, x, floor + 4 + self.letters, "middle"))
        parts.append(tag("line", class_="axis", x1=self.left, x2=end, y1=floor, y2=floor))
        parts.append(label(x_title, (self.left + end) / 2, self.height - 5, "middle"))
        return join(*parts, label(y_title, 2, self.letters - 1))

    def percent_ticks(self) -> list[Tick]:
        """Of a y axis of accuracies."""
        return ticks(*self.y, percent_tick)

    def estimate(
        self,
        place: float,
        value: Found,
        title: str,
        radius: float,
        seeds: Mapping[int, float] | None = None,
        write: Write = percent,
    ) -> Markup:
        """A mean with its 95 % interval, as far as the panel goes, and small dots for its seeds beside it."""
        x, parts = self.to_x(place), []
        if interval := bounds(value):
            low, high = (self.to_y(min(max(bound, self.y[0]), self.y[1])) for bound in interval)
            parts.append(tag("line", class_="confidence", x1=x, x2=x, y1=low, y2=high))
        parts += [
            dot("seed", x + 7, self.to_y(reached), 2.2, f"seed {seed}: {write(reached)}")
            for seed, reached in (seeds or {}).items()
        ]
        return join(*parts, dot("mean", x, self.to_y(value["mean"]), radius, title))


def label(words: str, x: float | str, y: float, anchor: str | None = None, class_: str = "tick") -> Markup:
    return tag("text", words, class_=class_, x=x, y=y, text_anchor=anchor)


def dot(class_: str, x: float | str, y: float, radius: float, title: str = "") -> Markup:
    return tag("circle", tag("title", title) if title else "", class_=class_, cx=x, cy=y, r=radius)


def thinned(points: Sequence[P], most: int) -> list[P]:
    """No more points than a small picture can show; the last one stays."""
    kept = list(points[:: -(-len(points) // most)])
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places near the wanted ones, at least `gap` apart and within bounds, so that labels do not touch.

    >>> apart([10, 11], gap=12, low=0, high=100)
    [4.5, 16.5]
    """
    if all(b - a >= gap for a, b in pairwise(sorted(wanted))):
        return [*wanted]
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    centre, span = sum(wanted) / len(wanted), gap * (len(wanted) - 1)
    start = min(max(centre - span / 2, low), high - span)
    return [start + gap * order.index(i) for i in range(len(wanted))]
