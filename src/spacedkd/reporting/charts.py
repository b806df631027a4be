"""Charts as SVG: scales, ticks, the frame of a panel, marks, and lines on one axis with the table of their numbers."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from typing import NamedTuple, TypeVar

from spacedkd.reporting.formatting import DASH, Write, bounds, decimals, percent, percent_tick, tick
from spacedkd.reporting.html import Markup, join, numbers, pixels, tag
from spacedkd.runs.schema import Estimate

# Scales, ticks, panels and marks

Point = tuple[float, float]
Tick = tuple[float, str]
P = TypeVar("P", bound=tuple[float, ...])


class Scale(NamedTuple):
    """A linear map of values from `low` to `high` onto pixels from `start` to `stop`."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)


def tick_values(low: float, high: float, most: int = 6, whole: bool = False, outside: bool = False) -> list[float]:
    """Return round numbers from `low` to `high`, as many as there may be; `whole` allows no part of one.

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
    """Return round numbers from `low` to `high`, each with its text."""
    return [(value, write(value)) for value in tick_values(low, high, most, whole)]


def rounded(low: float, high: float) -> tuple[float, float]:
    """Return a range that begins and ends with a tick.

    >>> rounded(0.08, 0.89)
    (0.0, 1.0)
    """
    values = tick_values(low, high, outside=True)
    return values[0], values[-1]


def domain(values: Iterable[float], least: float, most: float) -> tuple[float, float]:
    """Return a range of a little more than the values cover, but never past what is possible."""
    within = [min(max(value, least), most) for value in values]
    low, high = min(within), max(within)
    room = max(0.03 * (high - low), 0.005 if high - low < 0.01 else 0.0)
    return max(least, low - room), min(most, high + room)


def can_be_told_apart(values: Iterable[float]) -> bool:
    """Return whether a reader can distinguish values on a linear axis; offline is often forty times the next interval.

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
        """The width of a letter, in most fonts at most."""
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
        """Return grid, ticks and titles; the title of the y axis is horizontal, above it."""
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
        """Return the ticks of a y axis of accuracies."""
        return ticks(*self.y, percent_tick)

    def estimate(
        self,
        position: float,
        value: Estimate,
        title: str,
        radius: float,
        seeds: Mapping[int, float] | None = None,
        write: Write = percent,
    ) -> Markup:
        """Return a mean with its 95 % interval, as far as the panel goes, and small dots for its seeds next to it."""
        x, parts = self.to_x(position), []
        if interval := bounds(value):
            low, high = (self.to_y(min(max(bound, self.y[0]), self.y[1])) for bound in interval)
            parts.append(tag("line", class_="confidence", x1=x, x2=x, y1=low, y2=high))
        parts += [
            dot("seed", x + 7, self.to_y(reached), 2.2, f"seed {seed}: {write(reached)}")
            for seed, reached in (seeds or {}).items()
        ]
        return join(*parts, dot("mean", x, self.to_y(value["mean"]), radius, title))


def label(words: str, x: float | str, y: float, anchor: str | None = None, class_: str = "tick") -> Markup:
    """Return a text in a picture."""
    return tag("text", words, class_=class_, x=x, y=y, text_anchor=anchor)


def dot(class_: str, x: float | str, y: float, radius: float, title: str = "") -> Markup:
    """Return a dot; its title is shown under the pointer."""
    return tag("circle", tag("title", title) if title else "", class_=class_, cx=x, cy=y, r=radius)


def thinned(points: Sequence[P], most: int) -> list[P]:
    """Return no more points than a small picture can show; the last one stays."""
    fewer = list(points[:: -(-len(points) // most)])
    return fewer if fewer[-1] == points[-1] else [*fewer, points[-1]]


def apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return positions near the wanted ones, at least `gap` apart and within bounds, so that labels do not touch.

    >>> apart([10, 11], gap=12, low=0, high=100)
    [4.5, 16.5]
    """
    if all(b - a >= gap for a, b in pairwise(sorted(wanted))):
        return [*wanted]
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    centre, span = sum(wanted) / len(wanted), gap * (len(wanted) - 1)
    start = min(max(centre - span / 2, low), high - span)
    return [start + gap * order.index(i) for i in range(len(wanted))]


# Lines on one axis, with the table of their numbers, which the page's script reads

MOST_POINTS = 160
"""of a line"""
MOST_NUMBERS = 2400
"""of all lines of a chart together, as long as that leaves each a shape"""
FEWEST_POINTS = 24
WIDE_LETTERS = 17
"""their size in a wide picture on a phone, which look.css says; elsewhere they are smaller"""
GAP = 10
"""between the edge and the y axis, besides the letters"""


class Line(NamedTuple):
    """One line of a chart; its class gives it a colour, its key is what it is shown and hidden by."""

    name: str
    key: str
    class_: str
    points: Sequence[Point]
    band: Sequence[tuple[float, float, float]] = ()
    """x with the bounds of an interval around the line"""
    seeds: Sequence[Sequence[Point]] = ()
    """the lines it is the mean of"""


class Axis(NamedTuple):
    """The y axis of a chart, and how its values are written: in the picture, and in the table."""

    title: str
    write: Write = decimals(2)
    tick: Write = tick
    least: float = float("-inf")
    most: float = float("inf")
    zero: bool = False
    """is always in the picture"""


def chart(
    description: str, lines: Sequence[Line], y: Axis, settled: float = 0.0, wide: bool = False, bands: bool = True
) -> Markup:
    """Return a picture of lines and the table of their numbers; the description is what a screen reader reads.

    The y axis has room for what comes after the first `settled` part of each line; what is outside is cut off.
    Without `bands` the intervals are among the numbers only.
    """
    most = max(FEWEST_POINTS, min(MOST_POINTS, MOST_NUMBERS // max(len(lines), 1)))
    shown = [
        line._replace(
            points=thinned(line.points, most),
            band=thinned(line.band, most) if line.band else (),
            seeds=[thinned(seed, most) for seed in line.seeds],
        )
        for line in lines
    ]
    pictured = shown if bands else [line._replace(band=()) for line in shown]
    area = _area(pictured, y, settled, wide)
    zero = tag("line", class_="mark", x1=area.left, x2=area.to_x.stop, y1=area.to_y(0), y2=area.to_y(0))
    frame = area.frame(_x_ticks(area), ticks(*area.y, y.tick), "epoch", y.title)
    picture = area.draw(
        description,
        frame,
        zero if y.zero else "",
        *(_drawn(line, area) for line in pictured),
        tabindex=0,
        data_x=_scale_text(area.to_x),
        data_y=_scale_text(area.to_y),
    )
    return join(picture, _numbers(description, shown, y))


def _area(lines: Sequence[Line], y: Axis, settled: float, wide: bool) -> Panel:
    ys = [0.0] if y.zero else []
    for line in lines:
        edges = [(x, value) for x, *bounds in line.band for value in bounds]
        begin = settled * line.points[-1][0]
        ys += [value for points in (line.points, *line.seeds, edges) for x, value in points if x >= begin]
    low, high = min(ys), max(ys)
    room = 0.03 * (high - low)
    if high - low < 1e-9 + 1e-6 * abs(high):  # as good as equal: no ticks would lie between them
        room = 0.05 * abs(high) if abs(high) > 1e-6 else 1.0
    ends = max(x for line in lines for x, _ in line.points)
    span = rounded(max(low - room, y.least), min(high + room, y.most))
    widest = max(len(words) for _, words in ticks(*span, y.tick))
    size = {"width": 540, "height": 340, "top": 34, "bottom": 46, "letters": WIDE_LETTERS} if wide else {}
    area = Panel((_first_x(lines, span, ends), ends), span, right=12, **size)
    return replace(area, left=GAP + widest * area.letter)


def _first_x(lines: Sequence[Line], span: tuple[float, float], ends: float) -> float:
    """Return where the x axis begins: at 0, or later where all lines are outside of the picture for long."""
    pieces = [piece for line in lines for drawn in (line.points, *line.seeds) for piece in within(drawn, *span)]
    first = min((piece[0][0] for piece in pieces), default=0.0)
    if ends > 2:
        first = float(math.floor(first))
    return first if 0.1 * ends < first < ends else 0.0


def _scale_text(scale: tuple[float, ...]) -> str:
    return " ".join(f"{number:.6g}" for number in scale)


def _x_ticks(area: Panel) -> list[Tick]:
    return ticks(*area.x, whole=area.x[1] > 2)


def _drawn(line: Line, area: Panel) -> Markup:
    parts = []
    if line.band:
        band = [bounds for bounds in line.band if bounds[0] >= area.x[0]]
        edge = [(x, high) for x, _, high in band] + [(x, low) for x, low, _ in reversed(band)]
        clipped = [(x, min(max(value, area.y[0]), area.y[1])) for x, value in edge]
        parts.append(tag("path", d=area.path(clipped) + "Z", class_=f"around {line.class_}"))
    for class_, several in (("one", line.seeds), ("all", [line.points])):
        pieces = [piece for points in several for piece in within(points, *area.y)]
        if pieces:
            drawn = (area.path(piece if len(piece) > 1 else 2 * piece) for piece in pieces)  # one point is a dot
            parts.append(tag("path", d="".join(drawn), class_=f"{class_} {line.class_}"))
    return tag("g", *parts, class_=line.key)


def within(points: Sequence[Point], low: float, high: float) -> Iterator[list[Point]]:
    """Yield the pieces of a line between two heights.

    >>> [*within([(0, 0), (1, 2), (2, 0)], 1, 9)]
    [[(0.5, 1.0), (1, 2), (1.5, 1.0)]]
    """
    piece = [points[0]] if low <= points[0][1] <= high else []
    for before, after in pairwise(points):
        bounds = [bound for bound in (low, high) if (before[1] - bound) * (after[1] - bound) < 0]
        crossed = sorted(_at(bound, before, after) for bound in bounds)
        inside = low <= after[1] <= high
        piece += crossed + ([after] if inside else [])
        if not inside and piece:
            yield piece
            piece = []
    if piece:
        yield piece


def _at(height: float, start: Point, end: Point) -> Point:
    part = (height - start[1]) / (end[1] - start[1])
    return start[0] + part * (end[0] - start[0]), float(height)


def _numbers(description: str, lines: Sequence[Line], y: Axis) -> Markup:
    """Return a row for each x that any line has, a column for each line, and for the bounds around it."""
    columns: list[tuple[str, str | None, dict[float, float]]] = []
    for line in lines:
        columns.append((line.name, line.key, dict(line.points)))
        if line.band:
            columns.append((f"{line.name}, low", None, {x: low for x, low, _ in line.band}))
            columns.append((f"{line.name}, high", None, {x: high for x, _, high in line.band}))
    xs = sorted({x for _, _, column in columns for x in column})
    rows = ([f"{round(x, 3):.10g}", *_texts(x, columns, y)] for x in xs)
    return numbers(description, [("epoch", None), *((name, key) for name, key, _ in columns)], rows)


def _texts(x: float, columns: Iterable[tuple[str, str | None, dict[float, float]]], y: Axis) -> Iterator[str]:
    return (y.write(column[x]) if x in column else DASH for _, _, column in columns)
