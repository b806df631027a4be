"""The cells of a reproduced table: which there are, which are best, and how ours are written beside the paper's."""

from collections.abc import Mapping, Sequence
from string import ascii_lowercase
from typing import NamedTuple

from spacedkd.report.findings import verdict
from spacedkd.report.formatting import MINUS, PLUS_MINUS, Found, bounds, decimals_for

Key = tuple[str, str]
"""row and column"""
PAPER_DIGITS = 2
"""the paper prints its percents with so many decimals, and ours stand beside them"""


class Unit(NamedTuple):
    """How the numbers of a cell are written, ours and the paper's alike."""

    factor: float
    """from our numbers to the paper's: 100 from parts of one to percent"""
    digits: int

    def text(self, value: float) -> str:
        """A number of the paper's; what rounds to nothing has no sign.

        >>> Unit(1, 2).text(71.054), Unit(1, 2).text(-0.001)
        ('71.05', '0.00')
        """
        return f"{round(value, self.digits) + 0.0:.{self.digits}f}".replace("-", MINUS)

    def signed(self, value: float) -> str:
        """A difference of the paper's.

        >>> Unit(1, 2).signed(1.38), Unit(1, 2).signed(0.001)
        ('+1.38', '0.00')
        """
        return ("+" if round(value, self.digits) > 0 else "") + self.text(value)

    def ours(self, value: float) -> str:
        return self.text(self.factor * value)

    def our_difference(self, value: float) -> str:
        return self.signed(self.factor * value)

    def interval(self, difference: Found) -> str:
        """Of one of our differences; empty where one seed gives none."""
        return " to ".join(map(self.our_difference, bounds(difference)))


def unit(cell: Found) -> Unit:
    if cell["unit"] == "percent":
        return Unit(100, PAPER_DIGITS)
    near = [abs(value) for value in (_mean(cell), cell["paper"]) if value is not None]
    return Unit(1, decimals_for(max(near, default=0)))


def difference_unit(cell: Found) -> Unit:
    """Of a cell's difference, which may be much smaller than the numbers it is of."""
    of, found = unit(cell), cell["difference"]
    if cell["unit"] == "percent" or not found:
        return of
    largest = max(abs(value) for value in (found["mean"], *bounds(found)))
    return Unit(of.factor, max(of.digits, decimals_for(largest))) if largest else of


def in_points(cell: Found) -> str:
    """The unit of a difference, as it follows a number."""
    return " points" if cell["unit"] == "percent" else ""


def _mean(cell: Found) -> float | None:
    return float(cell["estimate"]["mean"]) if cell["estimate"] else None


def key(cell: Found) -> Key:
    return cell["row"], cell["column"]


def cells_of(found: Found) -> dict[Key, Found]:
    return {key(cell): cell for cell in found["cells"]}


def reference(cell: Found) -> Key | None:
    """The cell that the effect of this one is measured against."""
    if not cell["against"]:
        return None
    row, column = cell["against"]
    return row, column


def reference_name(cell: Found) -> str:
    """As short as can be: the column, where it is of the same row."""
    row, column = cell["against"]
    if row == cell["row"]:
        return str(column)
    return str(row) if column == cell["column"] else f"{row}: {column}"


def versus(cell: Found) -> str:
    """Which two columns a difference is of."""
    return f"{cell['column']} vs {reference_name(cell)}"


def half(of: Unit, value: Found) -> str | None:
    """Half the width of an interval; None where one seed gives none."""
    return of.ours((value["high"] - value["low"]) / 2) if bounds(value) else None


def ours(cell: Found, value: Found | None = None) -> str:
    """The estimate of a cell, or another of its metrics, with half its 95 % interval; or why there is none."""
    shown = value or cell["estimate"]
    if shown is None:
        return "not measured" if cell.get("runs") else "not finished"
    width = half(unit(cell), shown)
    return unit(cell).ours(shown["mean"]) + ("" if width is None else f" {PLUS_MINUS} {width}")


def paper(cell: Found) -> str | None:
    return None if cell["paper"] is None else unit(cell).text(cell["paper"])


def has_paper(found: Found) -> bool:
    """Whether the paper gives numbers at all: some of its figures do not."""
    return any(cell["paper"] is not None for cell in found["cells"])


def paper_difference(cell: Found) -> str | None:
    return None if cell["paper_difference"] is None else difference_unit(cell).signed(cell["paper_difference"])


def our_sign(cell: Found) -> str | None:
    """Which way our effect goes, where its whole interval says so; counts may be exactly equal."""
    if cell["difference"]["low"] == cell["difference"]["high"] == 0:
        return "equal"
    return {"better": "effect +", "worse": f"effect {MINUS}"}.get(verdict(cell["difference"]) or "")


def paper_sign(cell: Found) -> str | None:
    value = cell["paper_difference"]
    return None if value is None else "+" if value > 0 else MINUS if value < 0 else "0"


def signs(cell: Found) -> str | None:
    """The sign of the effect in both; None where none was to be measured, or none is there yet."""
    if not cell["difference"]:
        return None
    mine, theirs = our_sign(cell), paper_sign(cell)
    return (mine or "unclear") + ("" if theirs is None else f" (paper {theirs})")


def shown_best(found: Found) -> set[Key]:
    """Those that the paper would print in bold, but only where a difference is shown.

    Of a cell and those with the same seeds that are measured against it, the best one: if it is another one, its
    interval lies on the good side of zero; if it is the cell itself, the intervals of all others lie on the bad one. A
    cell that another is shown to be better than is never among them. Means over other seeds are not compared.
    """
    cells = cells_of(found)
    groups: dict[Key, list[Found]] = {}
    for cell in cells.values():
        of = reference(cell)
        if of in cells and _better(cell) and cell["difference"] and cell["values"].keys() == cells[of]["values"].keys():
            groups.setdefault(of, []).append(cell)
    best, beaten = set(), set()
    for of, others in groups.items():
        judged = {key(cell): _judged(cell) for cell in others}
        leading = max(others, key=lambda cell: _better(cell) * cell["difference"]["mean"])
        if judged[key(leading)] == "better":
            best.add(key(leading))
            beaten.add(of)
        elif {*judged.values()} == {"worse"}:
            best.add(of)
    return best - beaten


def _better(cell: Found) -> int:
    """1 where more is better, -1 where less is, 0 where neither is known; a cell may say so in `better`."""
    return {"high": 1, "low": -1}.get(cell.get("better") or ("high" if cell["unit"] == "percent" else ""), 0)


def _judged(cell: Found) -> str | None:
    found = verdict(cell["difference"])
    swapped = {"better": "worse", "worse": "better"}
    return swapped.get(found, found) if found and _better(cell) < 0 else found


def footnotes(found: Found) -> Mapping[str, str]:
    """The mark of each footnote of a cell; equal ones share it."""
    texts = dict.fromkeys(cell["note"] for cell in found["cells"] if cell["note"])
    return dict(zip(texts, _marks(len(texts)), strict=True))


def _marks(number: int) -> Sequence[str]:
    """a, b, ..., z, aa, bb, ..."""
    return [ascii_lowercase[place % 26] * (1 + place // 26) for place in range(number)]


def compared(found: Found) -> list[Found]:
    """The cells that have a difference, those with another one beside that of the table at the end."""
    return [cell for cell in (*found["cells"], *found["contrasts"]) if cell["difference"]]


def by_seed(cell: Found, other: Found) -> dict[int, float]:
    """How far a cell is from another, over the seeds both have."""
    mine, theirs = cell["values"], other["values"]
    return {int(seed): mine[seed] - theirs[seed] for seed in mine if seed in theirs}
