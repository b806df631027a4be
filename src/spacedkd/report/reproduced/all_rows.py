"""The picture of all rows at once: how far each lies from its own mean over the axis, and the parabola through them."""

from collections.abc import Iterator
from math import inf

from spacedkd.report.axes import Panel, Point, domain, dot, rounded, ticks
from spacedkd.report.markup import Markup
from spacedkd.report.numbers import Found, percent_tick
from spacedkd.report.reproduced.cells import unit
from spacedkd.report.reproduced.panels import Line, parabola
from spacedkd.report.reproduced.words import optimum

Picture = tuple[str, str, Markup]
"""title, what is said below it, and the drawing"""


def all_rows(found: Found) -> Iterator[Picture]:
    """One picture where a parabola was laid through several rows."""
    for fit in (one for one in found["fits"] if len(one["rows"]) > 1):
        lines = [Line(found, row) for row in fit["rows"]]
        dots = [(line.row, *point) for line in lines for point in _away(line)]
        axis = lines[0].axis
        curves = {"fit": parabola(fit, axis)} | ({"paper": parabola(fit["paper"], axis)} if fit["paper"] else {})
        heights = [y for _, _, y in dots] + [y for curve in curves.values() for _, y in curve]
        area = Panel(axis.range, rounded(*domain(heights, -inf, inf)), left=40, right=42)
        frame = area.frame(
            lines[0].axis.ticks, ticks(*area.y, percent_tick), lines[0].axis.title, "from a row's mean, %"
        )
        marks = [dot("mean", area.to_x(x), area.to_y(y), 3.2, f"{row}: {100 * y:+.2f}") for row, x, y in dots]
        drawn = (area.line(curve, f"all {class_}") for class_, curve in curves.items())
        told = f"{fit['row']} over {lines[0].axis.title}: {optimum(fit)}."
        yield f"{fit['row']}, each around its mean", optimum(fit), area.draw(told, frame, *drawn, *marks)


def _away(line: Line) -> list[Point]:
    """A row's means at their places, as distances from their mean."""
    values = [cell["estimate"]["mean"] * unit(cell).factor / 100 for cell in line.finished]
    centre = sum(values) / len(values)
    return [(line.axis.of(cell), value - centre) for cell, value in zip(line.finished, values, strict=True)]
