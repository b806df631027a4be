"""The picture of a row over the axis of its table: ours with intervals, the paper's beside it, a fitted parabola."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf

from spacedkd.report.axes import Panel, Point, domain, dot, label, rounded, ticks
from spacedkd.report.markup import Markup, join, tag
from spacedkd.report.numbers import Found, Write, bounds, percent_tick, tick
from spacedkd.report.reproduced.cells import Key, cells_of, key, ours, paper, reference, unit
from spacedkd.report.reproduced.shifts import Axis, shifts
from spacedkd.report.reproduced.words import VERDICTS, has_optimum, optimum, tally

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
