"""The figure of a reproduced table: rows as lines over an axis, or differences as dots and intervals."""

from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING

from spacedkd.paper.report.findings import VERDICTS, has_optimum, optimum, tally
from spacedkd.paper.report.tables import (
    PAPER_DIGITS,
    Key,
    Unit,
    cells_by_key,
    compared_cells,
    difference_unit,
    format_ours,
    format_paper,
    gains_by_seed,
    key,
    pair_name,
    reference,
    reference_name,
    unit,
)
from spacedkd.reporting.charts import Panel, Point, Tick, can_be_told_apart, domain, dot, label, rounded, ticks
from spacedkd.reporting.formatting import Write, bounds, join_words, percent_tick, plain, tick
from spacedkd.reporting.html import Markup, Titled, grid, join, legend, note, tag
from spacedkd.reporting.plots import GAINS, Row, Writing, forest

if TYPE_CHECKING:
    from spacedkd.paper.results import CellResult, FitResult, Results
    from spacedkd.paper.verdict import Fit
    from spacedkd.runs.schema import Estimate

CURVE = 40
"""pieces of a parabola"""
OURS = "Filled dots and lines: ours, mean over seeds with its 95 % interval; small dots: seeds."
MOVED = (
    " Hollow, dashed: the paper's numbers, moved up or down as a whole so that the reference lies on ours (without a "
    "reference, the mean of all); the axis on the right has them as printed. One point is equally high on both."
)
LONG = 24
"""number of differences from which on they are drawn in two columns"""


def figure(results: "Results") -> Iterator[Markup]:
    """Yield the rows as lines where the table has an axis; otherwise what differs, and by how much."""
    lines = [line for row in results["rows"] if (line := Line(results, row)).is_drawn] if results["axis"] else []
    if lines:
        yield from _over_an_axis(results, lines)
    elif cells := compared_cells(results):
        kinds = [[cell for cell in cells if cell["unit"] == kind] for kind in ("percent", "number")]
        yield from (_differences(results, alike) for alike in kinds if alike)
    elif results["cells"]:
        yield note("There is nothing to draw yet: no two cells that are compared have finished.")


def _over_an_axis(results: "Results", lines: "Sequence[Line]") -> Iterator[Markup]:
    names, caption = [("ours", "student")], OURS
    if any(line.offsets for line in lines):
        names.append(("the paper's, moved", "paper"))
        caption += MOVED
    names += [("fitted parabola, with its optimum", "fit")] if any(line.fit for line in lines) else []
    names += [("ours, the row it is compared with", "beside")] if any(line.references for line in lines) else []
    yield legend(names, "all")
    if any(len({*line.offsets.values()}) > 1 for line in lines):
        caption += " Where every column has a reference of its own, each is moved by itself and has no axis."
    axis = results["axis"] or {"title": "", "values": {}}
    off = [column for column in results["columns"] if column not in axis["values"]]
    if off:
        caption += f" Not on the axis, but in the table: {join_words(off)}."
    pictures = [(line.row, line.remark, line.draw()) for line in lines]
    yield grid([*all_rows(results), *pictures], f"{caption} Every panel has its own height.")


def _differences(results: "Results", cells: Sequence["CellResult"]) -> Markup:
    every = cells_by_key(results)
    groups = {cell["row"] for cell in cells}
    pairs = {(cell["column"], reference_name(cell)) for cell in cells}
    rows = []
    for cell in cells:
        seeds = gains_by_seed(cell, every[of]) if (of := reference(cell)) and of in every else {}
        paper = None if cell["paper_difference"] is None else cell["paper_difference"] / unit(cell).factor
        name = cell["column"] if len({against for _, against in pairs}) == 1 else pair_name(cell)
        alone = len(pairs) == 1
        group = "" if alone or len(groups) == 1 else cell["row"]
        assert cell["difference"] is not None, "cells are compared"
        rows.append(Row(cell["row"] if alone else name, cell["difference"], seeds, paper, group))
    what = " minus ".join(next(iter(pairs))) if len(pairs) == 1 else _title(pairs)
    caption = (
        "Filled dot and line: ours, mean and 95 % interval, paired by seed; small dots: seeds. Hollow: the paper's "
        "difference. A line that crosses zero is no clear difference."
    )
    title = what + (", points" if cells[0]["unit"] == "percent" else "")
    if len(rows) < LONG:
        return forest(title, rows, caption, _writing(cells))
    values = [value for row in rows for value in row.values]
    first = next(index for index in range(len(rows) // 2, len(rows)) if _can_split(rows, index))
    halves = [(title, rows[:first]), (f"{title}, continued", rows[first:])]
    drawn = [forest(heading, half, caption, _writing(cells), values=values) for heading, half in halves]
    return tag("div", *drawn, class_="pair")


def _can_split(rows: Sequence[Row], index: int) -> bool:
    """Return whether a group begins here, or there are none; the last line always counts, so that one is found."""
    return not rows[index].group or rows[index].group != rows[index - 1].group or index == len(rows) - 1


def _title(pairs: set[tuple[str, str]]) -> str:
    against = {name for _, name in pairs}
    return f"Difference against {against.pop()}" if len(against) == 1 else "Differences"


def _writing(cells: Sequence["CellResult"]) -> Writing:
    if cells[0]["unit"] == "percent":
        return Writing(Unit(100, PAPER_DIGITS).our_difference, GAINS.tick, -1, 1)
    digits = max(difference_unit(cell).digits for cell in cells)
    return Writing(Unit(1, digits).our_difference, lambda value: ("+" if value > 0 else "") + tick(value), -inf, inf)


@dataclass(frozen=True)
class Axis:
    """The x axis of a table: where its columns lie from left to right."""

    title: str
    values: Mapping[str, float]

    @property
    def order(self) -> list[float]:
        return sorted({*self.values.values()})

    def position(self, value: float) -> float:
        """Return where a value lies: to scale, or, where the columns' values are too close, evenly in their order.

        >>> Axis("s", {"online": 0, "1": 1, "max": 80}).position(40.5)
        1.5
        """
        order = self.order
        if can_be_told_apart(order):
            return value
        below = min(max(bisect(order, value) - 1, 0), len(order) - 2)
        return below + (value - order[below]) / (order[below + 1] - order[below])

    def of(self, cell: "CellResult") -> float:
        return self.position(self.values[cell["column"]])

    @property
    def range(self) -> tuple[float, float]:
        """With some room at both ends."""
        low, high = self.position(self.order[0]), self.position(self.order[-1])
        room = 0.08 * (high - low) or 1
        return low - room, high + room

    @property
    def ticks(self) -> list[Tick]:
        return [(self.position(value), plain(value)) for value in self.order]


def paper_offsets(cells: Sequence["CellResult"], every: Mapping[Key, "CellResult"]) -> dict[Key, float]:
    """Return how far the paper's number of each cell of a row is moved: so that its reference's lies on ours.

    Then the paper's mark is above ours where its effect is the larger one. Cells of a row with a single reference all
    follow that; where there is none, the means over the cells that both have are laid on each other. Where nothing of
    ours is there, nothing is moved.
    """
    theirs = [cell for cell in cells if cell["paper"] is not None]
    references = {key(cell): every[of] for cell in cells if (of := reference(cell)) and of in every}
    if len({*map(key, references.values())}) == 1:
        references = dict.fromkeys(map(key, cells), next(iter(references.values())))
    moved = {key(cell): _gap([references[key(cell)]]) for cell in theirs if key(cell) in references}
    if by_reference := {of: gap for of, gap in moved.items() if gap is not None}:
        return by_reference
    gap = _gap(theirs) if any(cell["estimate"] for cell in cells) else 0.0
    return {} if gap is None else {key(cell): gap for cell in theirs}


def _gap(cells: Iterable["CellResult"]) -> float | None:
    """Return how far the paper's numbers lie below ours, on average."""
    both = [cell for cell in cells if cell["estimate"] and cell["paper"] is not None]
    gaps = [_estimate(cell)["mean"] - _paper(cell) for cell in both]
    return sum(gaps) / len(gaps) if gaps else None


def _estimate(cell: "CellResult") -> "Estimate":
    """Return the mean of a finished cell."""
    assert cell["estimate"] is not None
    return cell["estimate"]


def _paper(cell: "CellResult") -> float:
    """Return the paper's number of a cell that has one, in our unit."""
    assert cell["paper"] is not None
    return cell["paper"] / unit(cell).factor


@dataclass(frozen=True)
class Line:
    """A row of a table as a line over the table's axis."""

    results: "Results"
    row: str

    @cached_property
    def axis(self) -> Axis:
        """The table's axis, as far as this row has columns on it."""
        axis = self.results["axis"]
        assert axis is not None, "rows are lines where the table has an axis"
        columns = {cell["column"] for cell in self.results["cells"] if cell["row"] == self.row}
        return Axis(axis["title"], {column: x for column, x in axis["values"].items() if column in columns})

    @cached_property
    def cells(self) -> list["CellResult"]:
        """The cells of the row that are on the axis, from left to right."""
        row = [cell for cell in self.results["cells"] if cell["row"] == self.row]
        return sorted((cell for cell in row if cell["column"] in self.axis.values), key=self.axis.of)

    @cached_property
    def finished(self) -> list["CellResult"]:
        return [cell for cell in self.cells if cell["estimate"]]

    @cached_property
    def offsets(self) -> Mapping[Key, float]:
        return paper_offsets(self.cells, cells_by_key(self.results))

    @cached_property
    def references(self) -> list["CellResult"]:
        """The finished cells of another row that these are measured against, column by column."""
        every = cells_by_key(self.results)
        others = [every[of] for cell in self.cells if (of := reference(cell)) and of in every and of[0] != self.row]
        return [cell for cell in others if cell["estimate"] and cell["column"] in self.axis.values]

    @property
    def fit(self) -> "FitResult | None":
        return next((fit for fit in self.results["fits"] if fit["row"] == self.row), None)

    @property
    def is_drawn(self) -> bool:
        return bool(self.finished or self.offsets)

    @property
    def remark(self) -> str:
        """The line below the title: the optimum, or how many cells agree."""
        if self.fit:
            return optimum(self.fit)
        verdicts = {word: sum(cell["verdict"] == word for cell in self.cells) for word in VERDICTS}
        return tally(verdicts) if any(verdicts.values()) else ""

    def draw(self) -> Markup:
        ours = [(self.axis.of(cell), _estimate(cell)["mean"]) for cell in self.finished]
        others = [(self.axis.of(cell), _estimate(cell)["mean"]) for cell in self.references]
        hollow = [cell for cell in self.cells if key(cell) in self.offsets]
        theirs = [(self.axis.of(cell), _paper(cell) + self.offsets[key(cell)]) for cell in hollow]
        curve = [] if self.fit is None else parabola(self.fit, self.axis)
        values = [y for _, y in (*ours, *others, *theirs, *curve)]
        values += [v for cell in self.finished for v in (*bounds(_estimate(cell)), *cell["values"].values())]
        area = Panel(self.axis.range, rounded(*domain(values, -inf, inf)), left=40, right=42)
        lines = ((others, "beside"), (curve, "fit"), (theirs, "paper"), (ours, "student"))
        return area.draw(
            self._description,
            self._frame(area),
            *(area.line(line, f"all {class_}") for line, class_ in lines if line),
            self._optimum(area),
            *(self._mark(area, cell) for cell in self.finished),
            *(
                dot("hollow", area.to_x(x), area.to_y(y), 4, f"paper, {cell['column']}: {format_paper(cell)}")
                for cell, (x, y) in zip(hollow, theirs, strict=True)
            ),
        )

    @property
    def _write(self) -> Write:
        return percent_tick if self._in_percent else tick

    @property
    def _in_percent(self) -> bool:
        return bool(self.cells[0]["unit"] == "percent")

    def _frame(self, area: Panel) -> Markup:
        """Return the axes, with the paper's own numbers on the right where one offset holds for all of them."""
        sign = ", %" if self._in_percent else ""
        title = f"{'ours' if self.finished else 'paper'}{sign}"
        frame = area.frame(self.axis.ticks, ticks(*area.y, self._write), self.axis.title, title)
        moved = {*self.offsets.values()}
        if not self.finished or len(moved) != 1:
            return frame
        offset, end = moved.pop(), area.width - area.right
        theirs = ticks(area.y[0] - offset, area.y[1] - offset, self._write)
        labels = [label(text, end + 6, area.to_y(value + offset) + 4, class_="tick theirs") for value, text in theirs]
        return join(frame, *labels, label(f"paper{sign}", area.width - 2, 11, "end", "tick theirs"))

    def _mark(self, area: Panel, cell: "CellResult") -> Markup:
        by_seed = {int(seed): value for seed, value in cell["values"].items()}
        title = f"{cell['column']}: {format_ours(cell)}"
        return area.estimate(self.axis.of(cell), _estimate(cell), title, 4.2, by_seed, unit(cell).ours)

    def _optimum(self, area: Panel) -> Markup:
        """Return a mark at the floor, with the optimum's interval as far as the picture goes."""
        if self.fit is None or not has_optimum(self.fit):
            return Markup()
        floor = area.height - area.bottom - 5

        def at(value: float) -> float:
            return min(max(area.to_x(self.axis.position(value)), area.to_x.start), area.to_x.stop)

        mark = dot("optimum", at(self.fit["optimum"]), floor, 4, optimum(self.fit))
        low, high = self.fit["low"], self.fit["high"]
        if low is None or high is None:
            return mark
        interval = tag("line", class_="optimum", x1=at(low), x2=at(high), y1=floor, y2=floor)
        return join(interval, mark)

    @property
    def _description(self) -> str:
        numbers = (
            f"{cell['column']}: {format_ours(cell)} (paper {format_paper(cell) or 'none'})" for cell in self.cells
        )
        return f"{self.row} over {self.axis.title}. {', '.join(numbers)}."


def parabola(fit: "Fit", axis: Axis) -> list[Point]:
    """Return the points of a fitted parabola from one end of an axis to the other."""
    (a, b, c), low, high = fit["coefficients"], axis.order[0], axis.order[-1]
    xs = (low + (high - low) * piece / CURVE for piece in range(CURVE + 1))
    return [(axis.position(x), a + b * x + c * x**2) for x in xs]


def all_rows(results: "Results") -> Iterator[Titled]:
    """Yield a picture of all rows, each around its mean, where a parabola was laid through several."""
    for fit in (fit for fit in results["fits"] if len(fit["rows"]) > 1):
        lines = [Line(results, row) for row in fit["rows"]]
        dots = [(line.row, *point) for line in lines for point in _distances(line)]
        axis = lines[0].axis
        curves = {"fit": parabola(fit, axis)} | ({"paper": parabola(fit["paper"], axis)} if fit["paper"] else {})
        heights = [y for _, _, y in dots] + [y for curve in curves.values() for _, y in curve]
        area = Panel(axis.range, rounded(*domain(heights, -inf, inf)), left=40, right=42)
        frame = area.frame(
            lines[0].axis.ticks, ticks(*area.y, percent_tick), lines[0].axis.title, "from a row's mean, %"
        )
        marks = [dot("mean", area.to_x(x), area.to_y(y), 3.2, f"{row}: {100 * y:+.2f}") for row, x, y in dots]
        drawn = (area.line(curve, f"all {class_}") for class_, curve in curves.items())
        description = f"{fit['row']} over {lines[0].axis.title}: {optimum(fit)}."
        yield f"{fit['row']}, each around its mean", optimum(fit), area.draw(description, frame, *drawn, *marks)


def _distances(line: Line) -> list[Point]:
    """Return a row's means at their x, as distances from their mean."""
    values = [_estimate(cell)["mean"] * unit(cell).factor / 100 for cell in line.finished]
    centre = sum(values) / len(values)
    return [(line.axis.of(cell), value - centre) for cell, value in zip(line.finished, values, strict=True)]
