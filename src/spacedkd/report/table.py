"""What a table is: its columns, its cells, and how its lines are put together.

A page and a terminal show the same table. A terminal has less room, so that a cell has a short form for it, and some
columns are on one of the two only.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

LEAST_NAME = 12
"""letters of the name of an arm, a row or a run that a terminal shows in one line, where it has as many"""


@dataclass(frozen=True)
class Cell:
    text: str
    short: str | None = None
    """in a terminal; None is the text"""
    half: str | None = None
    """half the width of the confidence interval, said more quietly"""
    strong: bool = False
    verdict: str = ""
    below: str | None = None
    absent: bool = False
    """there is no number, only a word in its place"""

    @property
    def in_terminal(self) -> str:
        return self.text if self.short is None else self.short


class Column(NamedTuple):
    title: str | None
    """on a page, where it is there"""
    short: str | None
    """in a terminal, where it is there"""
    left: bool = False


@dataclass(frozen=True)
class Table:
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    name: str = ""
    """what a page calls it"""
    marked: Sequence[bool] = ()
    """the rows that others are compared with"""
    least_width: int | None = None
    """of the first column in a terminal"""
    unbroken: bool = False
    """numbers are never broken into lines, however narrow the terminal"""


def text_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str = "",
    left: int = 1,
    least_width: int | None = None,
    unbroken: bool = False,
) -> Table:
    """A table for the terminal alone; the first columns hold words."""
    named = [Column(None, name, place < left) for place, name in enumerate(columns)]
    return Table(
        title,
        named,
        [[Cell(text) for text in row] for row in rows],
        caption,
        least_width=least_width,
        unbroken=unbroken,
    )


def group_rows(lines: Iterable[tuple[str, Sequence[str]]]) -> list[list[str]]:
    """Each line under the name of its group, which has a line to itself.

    >>> group_rows([("a", ["one", "1"]), ("a", ["two", "2"]), ("", ["three", "3"])])
    [['a', ''], ['  one', '1'], ['  two', '2'], ['three', '3']]
    """
    rows: list[list[str]] = []
    above = ""
    for group, (name, *cells) in lines:
        if group not in ("", above):
            rows.append([group, *[""] * len(cells)])
        above = group
        rows.append([f"  {name}" if group else name, *cells])
    return rows
