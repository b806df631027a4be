"""The figure of a reproduced table: rows as lines over an axis, or differences as dots and intervals."""

from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from spacedkd.paper.report.cells import (
    PAPER_DIGITS,
    Key,
    Unit,
    by_seed,
    cells_of,
    compared,
    difference_unit,
    key,
    ours,
    paper,
    reference,
    reference_name,
    unit,
    versus,
)
from spacedkd.paper.report.findings import VERDICTS, has_optimum, optimum, tally
from spacedkd.report.charts import Panel, Point, Tick, can_be_told_apart, domain, dot, label, rounded, ticks
from spacedkd.report.formatting import Found, Write, bounds, join_words, percent_tick, plain, tick
from spacedkd.report.html import Markup, grid, join, legend, note, tag
from spacedkd.report.plots import GAINS, Row, Writing, forest

# Where the paper's numbers are drawn beside ours, which are of other networks and data, and where columns lie.


@dataclass(frozen=True)
class Axis:
    """Where the columns of a table lie from left to right."""

    title: str
    values: Mapping[str, float]

    @property
    def order(self) -> list[float]:
        return sorted({*self.values.values()})

    def place(self, value: float) -> float:
        """A value to scale; where the axis' own cannot be told apart, they lie evenly in their order.

        >>> Axis("s", {"online": 0, "1": 1, "max": 80}).place(40.5)
        1.5
        """
        order = self.order
        if can_be_told_apart(order):
            return value
        left = min(max(bisect(order, value) - 1, 0), len(order) - 2)
        return left + (value - order[left]) / (order[left + 1] - order[left])

    def of(self, cell: Found) -> float:
        return self.place(self.values[cell["column"]])

    @property
    def range(self) -> tuple[float, float]:
        """With some room at both ends."""
        low, high = self.place(self.order[0]), self.place(self.order[-1])
        room = 0.08 * (high - low) or 1
        return low - room, high + room

    @property
    def ticks(self) -> list[Tick]:
        return [(self.place(value), plain(value)) for value in self.order]


def shifts(cells: Sequence[Found], every: Mapping[Key, Found]) -> dict[Key, float]:
    """By how much the paper's number of each cell of a row is moved: as far as its reference's must be to lie on ours.

    Then the paper's mark is above ours where its effect is the larger one. Cells of a row with a single reference all
    follow that; where there is none, the means over the cells that both have are laid on each other. Where nothing of
    ours is there, nothing is moved.
    """
    theirs = [cell for cell in cells if cell["paper"] is not None]
    references = {key(cell): every[of] for cell in cells if (of := reference(cell)) and of in every}
    if len({*map(key, references.values())}) == 1:
        references = dict.fromkeys(map(key, cells), next(iter(references.values())))
    moved = {key(cell): _gap([references[key(cell)]]) for cell in theirs if key(cell) in references}
    if known := {of: gap for of, gap in moved.items() if gap is not None}:
        return known
    gap = _gap(theirs) if any(cell["estimate"] for cell in cells) else 0.0
    return {} if gap is None else {key(cell): gap for cell in theirs}


def _gap(cells: Iterable[Found]) -> float | None:
    """How far the paper's numbers lie below ours, on average."""
    gaps = [
        c["estimate"]["mean"] - c["paper"] / unit(c).factor for c in cells if c["estimate"] and c["paper"] is not None
    ]
    return sum(gaps) / len(gaps) if gaps else None


# The picture of a row over the axis of its table: ours with intervals, the paper's beside it, a fitted parabola.

CURVE = 40
"""pieces of a parabola"""


@dataclass(frozen=True)
class Line:
    """A row of a table whose columns have places on an axis."""

    found: Found
    row: str

    @cached_property
    def axis(self) -> Axis:
        """The table's, as far as this row has columns on it."""
        mine = {cell["column"] for cell in self.found["cells"] if cell["row"] == self.row}
        title, values = self.found["axis"]["title"], self.found["axis"]["values"]
        return Axis(title, {column: x for column, x in values.items() if column in mine})

    @cached_property
    def cells(self) -> list[Found]:
        """Those with a place, from left to right."""
        mine = [cell for cell in self.found["cells"] if cell["row"] == self.row and cell["column"] in self.axis.values]
        return sorted(mine, key=self.axis.of)

    @cached_property
    def finished(self) -> list[Found]:
        return [cell for cell in self.cells if cell["estimate"]]

    @cached_property
    def shifts(self) -> Mapping[Key, float]:
        return shifts(self.cells, cells_of(self.found))

    @cached_property
    def beside(self) -> list[Found]:
        """Finished cells of another row that these are measured against, column by column."""
        every = cells_of(self.found)
        others = [every[of] for cell in self.cells if (of := reference(cell)) and of in every and of[0] != self.row]
        return [cell for cell in others if cell["estimate"] and cell["column"] in self.axis.values]

    @property
    def fit(self) -> Found | None:
        return next((fit for fit in self.found["fits"] if fit["row"] == self.row), None)

    @property
    def is_drawn(self) -> bool:
        return bool(self.finished or self.shifts)

    @property
    def said(self) -> str:
        """Below the title: the optimum, or how many cells agree."""
        if self.fit:
            return optimum(self.fit)
        verdicts = {word: sum(cell["verdict"] == word for cell in self.cells) for word in VERDICTS}
        return tally(verdicts) if any(verdicts.values()) else ""

    def draw(self) -> Markup:
        mine = [(self.axis.of(cell), cell["estimate"]["mean"]) for cell in self.finished]
        others = [(self.axis.of(cell), cell["estimate"]["mean"]) for cell in self.beside]
        theirs = [
            (self.axis.of(cell), cell["paper"] / unit(cell).factor + self.shifts[key(cell)])
            for cell in self.cells
            if key(cell) in self.shifts
        ]
        curve = [] if self.fit is None else parabola(self.fit, self.axis)
        values = [y for _, y in (*mine, *others, *theirs, *curve)]
        values += [v for cell in self.finished for v in (*bounds(cell["estimate"]), *cell["values"].values())]
        area = Panel(self.axis.range, rounded(*domain(values, -inf, inf)), left=40, right=42)
        lines = ((others, "beside"), (curve, "fit"), (theirs, "paper"), (mine, "student"))
        hollow = [cell for cell in self.cells if key(cell) in self.shifts]
        return area.draw(
            self._described,
            self._frame(area),
            *(area.line(line, f"all {class_}") for line, class_ in lines if line),
            self._optimum(area),
            *(self._estimate(area, cell) for cell in self.finished),
            *(
                dot("hollow", area.to_x(x), area.to_y(y), 4, f"paper, {cell['column']}: {paper(cell)}")
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
        """The paper's own numbers on the right, where one shift holds for all of them."""
        sign = ", %" if self._in_percent else ""
        title = f"{'ours' if self.finished else 'paper'}{sign}"
        frame = area.frame(self.axis.ticks, ticks(*area.y, self._write), self.axis.title, title)
        moved = {*self.shifts.values()}
        if not self.finished or len(moved) != 1:
            return frame
        shift, end = moved.pop(), area.width - area.right
        theirs = ticks(area.y[0] - shift, area.y[1] - shift, self._write)
        labels = [label(words, end + 6, area.to_y(value + shift) + 4, class_="tick theirs") for value, words in theirs]
        return join(frame, *labels, label(f"paper{sign}", area.width - 2, 11, "end", "tick theirs"))

    def _estimate(self, area: Panel, cell: Found) -> Markup:
        by_seed = {int(seed): value for seed, value in cell["values"].items()}
        title = f"{cell['column']}: {ours(cell)}"
        return area.estimate(self.axis.of(cell), cell["estimate"], title, 4.2, by_seed, unit(cell).ours)

    def _optimum(self, area: Panel) -> Markup:
        """A mark at the floor, with its interval as far as the picture goes."""
        if self.fit is None or not has_optimum(self.fit):
            return Markup()
        floor = area.height - area.bottom - 5

        def at(value: float) -> float:
            return min(max(area.to_x(self.axis.place(value)), area.to_x.start), area.to_x.stop)

        mark = dot("optimum", at(self.fit["optimum"]), floor, 4, optimum(self.fit))
        if self.fit["low"] is None:
            return mark
        interval = tag("line", class_="optimum", x1=at(self.fit["low"]), x2=at(self.fit["high"]), y1=floor, y2=floor)
        return join(interval, mark)

    @property
    def _described(self) -> str:
        said = ", ".join(f"{cell['column']}: {ours(cell)} (paper {paper(cell) or 'none'})" for cell in self.cells)
        return f"{self.row} over {self.axis.title}. {said}."


def parabola(fit: Found, axis: Axis) -> list[Point]:
    """A fitted parabola from one end of an axis to the other."""
    (a, b, c), low, high = fit["coefficients"], axis.order[0], axis.order[-1]
    places = (low + (high - low) * piece / CURVE for piece in range(CURVE + 1))
    return [(axis.place(s), a + b * s + c * s**2) for s in places]


# The picture of all rows at once: how far each lies from its own mean over the axis, and the parabola through them.

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


# The figure of a reproduced table: rows as lines over an axis, or differences as dots and intervals.

OURS = "Filled dots and lines: ours, mean over seeds with its 95 % interval; small dots: seeds."
MOVED = (
    " Hollow, dashed: the paper's numbers, moved up or down as a whole so that the reference lies on ours (without a "
    "reference, the mean of all); the axis on the right has them as printed. One point is equally high on both."
)
LONG = 24
"""so many differences are drawn in two columns"""


def figure(found: Found) -> Iterator[Markup]:
    """In the paper's layout where that has an axis; otherwise what differs, and by how much."""
    lines = [line for row in found["rows"] if (line := Line(found, row)).is_drawn] if found["axis"] else []
    if lines:
        yield from _over_an_axis(found, lines)
    elif cells := compared(found):
        kinds = [[cell for cell in cells if cell["unit"] == kind] for kind in ("percent", "number")]
        yield from (_differences(found, alike) for alike in kinds if alike)
    elif found["cells"]:
        yield note("There is nothing to draw yet: no two cells that are compared have finished.")


def _over_an_axis(found: Found, lines: Sequence[Line]) -> Iterator[Markup]:
    names, caption = [("ours", "student")], OURS
    if any(line.shifts for line in lines):
        names.append(("the paper's, moved", "paper"))
        caption += MOVED
    names += [("fitted parabola, with its optimum", "fit")] if any(line.fit for line in lines) else []
    names += [("ours, the row it is compared with", "beside")] if any(line.beside for line in lines) else []
    yield legend(names, "all")
    if any(len({*line.shifts.values()}) > 1 for line in lines):
        caption += " Where every column has a reference of its own, each is moved by itself and has no axis."
    off = [column for column in found["columns"] if column not in found["axis"]["values"]]
    if off:
        caption += f" Not on the axis, but in the table: {join_words(off)}."
    pictures = [(line.row, line.said, line.draw()) for line in lines]
    yield grid([*all_rows(found), *pictures], f"{caption} Every panel has its own height.")


def _differences(found: Found, cells: Sequence[Found]) -> Markup:
    every = cells_of(found)
    groups = {cell["row"] for cell in cells}
    pairs = {(cell["column"], reference_name(cell)) for cell in cells}
    rows = []
    for cell in cells:
        seeds = by_seed(cell, every[of]) if (of := reference(cell)) and of in every else {}
        paper = None if cell["paper_difference"] is None else cell["paper_difference"] / unit(cell).factor
        name = cell["column"] if len({against for _, against in pairs}) == 1 else versus(cell)
        alone = len(pairs) == 1
        group = "" if alone or len(groups) == 1 else cell["row"]
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
    first = next(place for place in range(len(rows) // 2, len(rows)) if _begins(rows, place))
    halves = [(title, rows[:first]), (f"{title}, continued", rows[first:])]
    drawn = [forest(words, half, caption, _writing(cells), values=values) for words, half in halves]
    return tag("div", *drawn, class_="pair")


def _begins(rows: Sequence[Row], place: int) -> bool:
    """Whether a group does here, or there are none; the last line always counts, so that one is found."""
    return not rows[place].group or rows[place].group != rows[place - 1].group or place == len(rows) - 1


def _title(pairs: set[tuple[str, str]]) -> str:
    against = {name for _, name in pairs}
    return f"Difference against {against.pop()}" if len(against) == 1 else "Differences"


def _writing(cells: Sequence[Found]) -> Writing:
    if cells[0]["unit"] == "percent":
        return Writing(Unit(100, PAPER_DIGITS).our_difference, GAINS.tick, -1, 1)
    digits = max(difference_unit(cell).digits for cell in cells)
    return Writing(Unit(1, digits).our_difference, lambda value: ("+" if value > 0 else "") + tick(value), -inf, inf)
