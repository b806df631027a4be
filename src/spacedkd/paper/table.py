"""The declaration of one table or figure of the paper: cells, each a run of ours with a number of the paper's.

A file in `paper/tables` declares one `TABLE` with these types.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from spacedkd.config.spec import RunSpec
from spacedkd.paper.scales import Scale

Key = tuple[str, str]
"""row and column"""
ACCURACY = "late"
"""the metric of a cell that names no other"""
AVERAGE = "average"
"""the metric of the average of the student's weights"""
Claims = Literal["gain", "no gain", "no cost"]
"""what the paper says of an effect: it is better, it is not better, it costs no more"""


@dataclass(frozen=True)
class Cell:
    """One number of a table: a run over seeds, the metric that is read of it, and the paper's number."""

    row: str
    column: str
    spec: RunSpec
    paper: float | None = None
    """in percent, as printed"""
    against: Key | None = None
    """the cell that the effect is measured against"""
    metric: str = ACCURACY
    """late, last, best, ensemble, at/20 (an epoch), or a number of evaluation.json such as corruptions/fog/3"""
    note: str = ""
    judged: bool = True
    """whether the paper's claim is about this effect"""
    contrasts: tuple[Key, ...] = ()
    """further cells that the claim says this one is better than"""
    claims: Claims | None = None
    """what the paper says of this effect, where it is not what it says of the table's others"""

    @property
    def key(self) -> Key:
        return self.row, self.column


class Axis(NamedTuple):
    """The x axis of a figure: the value of each column; every row is a line."""

    title: str
    values: Mapping[str, float]


class Instruments(NamedTuple):
    """The instruments of `spacedkd evaluate` that every run of a table must have been measured with."""

    corruptions: tuple[str, ...] = ()
    severities: tuple[int, ...] = (1, 3, 5)
    epsilons: tuple[float, ...] = ()
    """of BIM, in pixel values"""
    noise: tuple[float, ...] = ()
    """deviations of weight noise, as parts of a tensor's root mean square"""
    absolute_noise: tuple[float, ...] = ()
    """deviations of weight noise, the same for every weight"""


class Summary(NamedTuple):
    """A number in the paper's text about the differences of many rows at once."""

    statement: str
    of: Literal["mean", "least", "greatest"]
    stated: float
    """in points, as printed"""
    rows: str = "*"
    """a pattern of the rows it is about"""


class Outcome(NamedTuple):
    """The outcome of an experiment: its headline, a note for each finding, and the pages it wrote."""

    headline: str
    notes: Sequence[str]
    pages: Sequence[str]


Experiment = Callable[[Scale, Path, str, Callable[[str, int, int], None]], Outcome]
"""measures a claim that no runs are trained for; gets the scale, a folder, the command and a progress callback"""


@dataclass(frozen=True)
class Table:
    """A table or figure of the paper."""

    title: str
    reference: str
    """where it is in the paper"""
    order: int
    """its place in lists"""
    cells: Callable[[Scale], Iterable[Cell]]
    axis: Axis | None = None
    instruments: Instruments = Instruments()
    claims: Claims = "gain"
    """what the paper says of the cells that are measured against another"""
    summaries: Sequence[Summary] = ()
    """numbers of the text about all differences of the table; a mean of them is judged, where every row is finished"""
    fitted: bool = False
    """whether a parabola is laid through each row's columns on the axis"""
    notes: Sequence[str] = field(default=())
    also: Sequence[str] = ("last", "best")
    """metrics shown next to the main one"""
    experiment: Experiment | None = None
    """what is measured in place of cells, for a claim such as a theorem"""


class NamedTable(NamedTuple):
    """A table with its name and the paper's claim in one sentence."""

    name: str
    claim: str
    table: Table


def compare_with_column(cells: Iterable[Cell], column: str, only: Sequence[str] = ()) -> list[Cell]:
    """Return the cells, each measured against this column of its row; with `only`, the cells of those columns alone."""
    cells = [*cells]
    keys = {cell.key for cell in cells}
    return [
        replace(cell, against=(cell.row, column))
        if cell.column != column and (not only or cell.column in only) and (cell.row, column) in keys
        else cell
        for cell in cells
    ]
