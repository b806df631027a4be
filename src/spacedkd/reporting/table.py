"""The one table of all reports: columns and cells, without a word about how they are shown.

A renderer shows it: `html` on a page, `terminal`, `markdown`, `latex` and `csv`. They have different room, so that a
column may be there for some of them only, and a cell may have a shorter text for a terminal.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

LEAST_NAME = 12
"""letters of the name of an arm, a row or a run that a terminal shows in one line, where it has as many"""


@dataclass(frozen=True)
class Cell:
    """A cell of a table: a number or a text, with what is written next to it and below it."""

    text: str
    short: str | None = None
    """in a terminal; None is the text"""
    document: str | None = None
    """in Markdown, LaTeX and CSV; None is the text with its half"""
    half: str | None = None
    """half the width of the confidence interval, said more quietly"""
    strong: bool = False
    verdict: str = ""
    below: str | None = None
    """on a page alone"""
    paper: str | None = None
    """the paper's number: in brackets in Markdown, in a row beneath in LaTeX; a page has it in `below`"""
    mark: str = ""
    """of a footnote"""
    absent: bool = False
    """there is no number, only a word in its place"""
    unfinished: bool = False
    """a number that is not there yet, for which LaTeX writes a dash"""

    @property
    def in_terminal(self) -> str:
        return self.text if self.short is None else self.short

    @property
    def in_document(self) -> str:
        return self.text + (self.half or "") if self.document is None else self.document


class Column(NamedTuple):
    """A column of a table, with its title for each kind of renderer; None leaves it out there."""

    title: str | None
    """on a page"""
    short: str | None
    """in a terminal"""
    left: bool = False
    """whether it is flush left, as words are"""
    document: str | None = None
    """in Markdown, LaTeX and CSV"""


@dataclass(frozen=True)
class Table:
    """Columns and rows of cells, with a title and a caption."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    name: str = ""
    """the title on a page"""
    marked: Sequence[bool] = ()
    """the rows that others are compared with"""
    least_width: int | None = None
    """of the first column in a terminal"""
    unbroken: bool = False
    """numbers are never broken into lines, however narrow the terminal"""

    def document_columns(self) -> list[tuple[int, Column]]:
        """Return the columns of Markdown, LaTeX and CSV, each with its index."""
        return [(index, column) for index, column in enumerate(self.columns) if column.document is not None]


def text_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str = "",
    *,
    left: int = 1,
    least_width: int | None = None,
    unbroken: bool = False,
) -> Table:
    """Return a table of texts for the terminal alone; the first `left` columns hold words."""
    return Table(
        title,
        [Column(None, name, index < left) for index, name in enumerate(columns)],
        [[Cell(text) for text in row] for row in rows],
        caption,
        least_width=least_width,
        unbroken=unbroken,
    )


def group_rows(lines: Iterable[tuple[str, Sequence[str]]]) -> list[list[str]]:
    """Return rows, each under the name of its group, which has a row to itself.

    >>> group_rows([("a", ["x", "1"]), ("a", ["y", "2"]), ("", ["z", "3"])])
    [['a', ''], ['  x', '1'], ['  y', '2'], ['z', '3']]
    """
    rows: list[list[str]] = []
    above = ""
    for group, (name, *cells) in lines:
        if group not in ("", above):
            rows.append([group, *[""] * len(cells)])
        above = group
        rows.append([f"  {name}" if group else name, *cells])
    return rows
