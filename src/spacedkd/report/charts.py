"""Several lines on one axis, with the table of their numbers, which the page's script reads them from."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from spacedkd.report.axes import Panel, Point, Tick, rounded, thinned, ticks
from spacedkd.report.markup import Markup, join, numbers, tag
from spacedkd.report.numbers import DASH, Write, decimals, tick

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
    """What is on the y axis and how it is written: in the picture, and in the table."""

    title: str
    write: Write = decimals(2)
    tick: Write = tick
    least: float = float("-inf")
    most: float = float("inf")
    zero: bool = False
    """is always in the picture"""


def chart(
    said: str, lines: Sequence[Line], y: Axis, settled: float = 0.0, wide: bool = False, bands: bool = True
) -> Markup:
    """The picture, what it is called when it is read aloud, and its numbers.

    The y axis has room for what comes after the first `settled` part of each line; what lies beyond is cut off.
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
        said,
        frame,
        zero if y.zero else "",
        *(_drawn(line, area) for line in pictured),
        tabindex=0,
        data_x=_places(area.to_x),
        data_y=_places(area.to_y),
    )
    return join(picture, _numbers(said, shown, y))


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
    area = Panel((0, ends), span, right=12, **size)
    return replace(area, left=GAP + widest * area.letter)


def _places(scale: tuple[float, ...]) -> str:
    return " ".join(f"{number:.6g}" for number in scale)


def _x_ticks(area: Panel) -> list[Tick]:
    return ticks(*area.x, whole=area.x[1] > 2)


def _drawn(line: Line, area: Panel) -> Markup:
    parts = []
    if line.band:
        edge = [(x, high) for x, _, high in line.band] + [(x, low) for x, low, _ in reversed(line.band)]
        held = [(x, min(max(value, area.y[0]), area.y[1])) for x, value in edge]
        parts.append(tag("path", d=area.path(held) + "Z", class_=f"around {line.class_}"))
    for class_, several in (("one", line.seeds), ("all", [line.points])):
        pieces = [piece for points in several for piece in within(points, *area.y)]
        if pieces:
            drawn = (area.path(piece if len(piece) > 1 else 2 * piece) for piece in pieces)  # one point is a dot
            parts.append(tag("path", d="".join(drawn), class_=f"{class_} {line.class_}"))
    return tag("g", *parts, class_=line.key)


def within(points: Sequence[Point], low: float, high: float) -> Iterator[list[Point]]:
    """The pieces of a line between two heights.

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


def _at(height: float, one: Point, other: Point) -> Point:
    part = (height - one[1]) / (other[1] - one[1])
    return one[0] + part * (other[0] - one[0]), float(height)


def _numbers(said: str, lines: Sequence[Line], y: Axis) -> Markup:
    """A row for each x that any line has, a column for each line, and for the bounds around it."""
    columns: list[tuple[str, str | None, dict[float, float]]] = []
    for line in lines:
        columns.append((line.name, line.key, dict(line.points)))
        if line.band:
            columns.append((f"{line.name}, low", None, {x: low for x, low, _ in line.band}))
            columns.append((f"{line.name}, high", None, {x: high for x, _, high in line.band}))
    xs = sorted({x for _, _, column in columns for x in column})
    rows = ([f"{round(x, 3):.10g}", *_written(x, columns, y)] for x in xs)
    return numbers(said, [("epoch", None), *((name, key) for name, key, _ in columns)], rows)


def _written(x: float, columns: Iterable[tuple[str, str | None, dict[float, float]]], y: Axis) -> Iterator[str]:
    return (y.write(column[x]) if x in column else DASH for _, _, column in columns)
