"""The declaration of one table or figure of the paper: cells, each a run of ours with a number of the paper's.

A file in `paper/tables` declares one `TABLE` with these types. The functions at the end make the runs of its arms.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from spacedkd.config.spec import MethodSpec, RunSpec
from spacedkd.paper.scales import Scale
from spacedkd.schedule import Ahead, Duration, Offline, Online, Schedule, Spaced, Window

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


# The arms that tables are made of, each from a run that is spaced


def no_kd(run: RunSpec) -> RunSpec:
    """Return the run of the student alone."""
    return replace(run, method=MethodSpec("none"), schedule=None, teacher=None)


def teacher_alone(run: RunSpec) -> RunSpec:
    """Return the run of the teacher's network alone."""
    return no_kd(replace(run, network=run.teacher or run.network))


def with_schedule(run: RunSpec, schedule: Schedule) -> RunSpec:
    """Return the run with another schedule."""
    return replace(run, schedule=schedule)


def online(run: RunSpec) -> RunSpec:
    """Return the online run: each step of the teacher is replayed at once."""
    return with_schedule(run, Online())


def spaced(run: RunSpec, epochs: float = 1.5) -> RunSpec:
    """Return the run spaced by an interval in epochs."""
    return with_schedule(run, Spaced(Duration(epochs, "ep")))


def offline(run: RunSpec) -> RunSpec:
    """Return the offline run: the teacher is trained first."""
    return with_schedule(run, Offline())


def ahead(run: RunSpec, epochs: float) -> RunSpec:
    """Return the run of a teacher that stays `epochs` ahead and keeps moving."""
    return with_schedule(run, Ahead(Duration(epochs, "ep")))


def spaced_from(run: RunSpec, start: float, length: float | None = None) -> RunSpec:
    """Return the run spaced from an epoch on, for some epochs or to the end; online before and after."""
    stop = {"stop": Duration(run.epochs, "ep")} if length is None else {"length": Duration(length, "ep")}
    return with_schedule(run, Window(Spaced(Duration(1.5, "ep")), Online(), Duration(start, "ep"), **stop))


def with_method(run: RunSpec, name: str, **options: Any) -> RunSpec:
    """Return the run with another method and its options."""
    return replace(run, method=MethodSpec(name, options))


def with_options(run: RunSpec, **options: Any) -> RunSpec:
    """Return the run with other options of the same method."""
    return replace(run, method=MethodSpec(run.method.name, {**run.method.options, **options}))
