"""Where the paper's numbers are drawn beside ours, which are of other networks and data, and where columns lie."""

from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spacedkd.report.axes import Tick, can_be_told_apart
from spacedkd.report.numbers import Found, plain
from spacedkd.report.reproduced.cells import Key, key, reference, unit


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
    references = {key(cell): every[of] for cell in cells if (of := reference(cell)) in every}
    if len({*map(key, references.values())}) == 1:
        references = dict.fromkeys(map(key, cells), next(iter(references.values())))
    moved = {key(cell): _gap([references[key(cell)]]) for cell in theirs if key(cell) in references}
    if known := {of: gap for of, gap in moved.items() if gap is not None}:
        return known
    gap = _gap(theirs) if any(cell["estimate"] for cell in cells) else 0.0
    return {} if gap is None else {key(cell): gap for cell in theirs}


def _gap(cells: Iterable[Found]) -> float | None:
    """How far the paper's numbers lie below ours, on average."""
    gaps = [c["estimate"]["mean"] - c["paper"] / unit(c).factor for c in cells if c["estimate"] and c["paper"] is not None]
    return sum(gaps) / len(gaps) if gaps else None
