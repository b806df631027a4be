"""The figure of a reproduced table: rows as lines over an axis, or differences as dots and intervals."""

from collections.abc import Iterator, Sequence
from math import inf

from spacedkd.report.markup import Markup, grid, legend, note, tag
from spacedkd.report.numbers import Found, listed, tick
from spacedkd.report.plots import GAINS, Row, Writing, forest
from spacedkd.report.reproduced.all_rows import all_rows
from spacedkd.report.reproduced.cells import (
    PAPER_DIGITS,
    Unit,
    by_seed,
    cells_of,
    compared,
    difference_unit,
    reference,
    reference_name,
    unit,
    versus,
)
from spacedkd.report.reproduced.panels import Line

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
        caption += f" Not on the axis, but in the table: {listed(off)}."
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
