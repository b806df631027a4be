"""The renderer of tables as Markdown, and how text is escaped in it."""

import re
from collections.abc import Collection, Iterable, Sequence

from spacedkd.reporting.table import Cell, Table


class Markdown(str):
    """Text that is Markdown already; every other string of a cell is escaped."""


def escaped(text: str) -> str:
    r"""Return text that Markdown shows as it is, in a table too.

    >>> print(escaped("a|b *c* & &copy;"))
    a\|b \*c\* & \&copy;
    """
    return re.sub(r"([\\`*_<>|\[\]#~]|&(?=#?\w+;))", r"\\\1", " ".join(text.split()))


def fenced(text: str, language: str = "") -> str:
    """Return text as a block of code, whatever it holds."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"


def code(text: str) -> str:
    """Return text as code within a sentence, whatever it holds.

    >>> print(code("name"), code("a `b`"))
    `name` `` a `b` ``
    """
    text, ticks = " ".join(text.split()), max(map(len, re.findall("`+", text)), default=0)
    return f"{'`' * (ticks + 1)} {text} {'`' * (ticks + 1)}" if ticks else f"`{text}`"


def markdown_table(table: Table) -> str:
    """Return a table as Markdown: strong cells are bold, the paper's number is in brackets."""
    columns = table.document_columns()
    rows = [[_cell(row[index]) for index, _ in columns] for row in table.rows]
    words = [number for number, (_, column) in enumerate(columns) if column.left]
    return grid([column.document or "" for _, column in columns], rows, words)


def _cell(cell: Cell) -> str:
    text = cell.in_document
    text = text if isinstance(text, Markdown) else escaped(text)
    if cell.strong:
        text = f"**{text}**"
    paper = "" if cell.paper is None else f" ({cell.paper})"
    return text + paper + (f" <sup>{cell.mark}</sup>" if cell.mark else "")


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]], words: Collection[int] = (0,)) -> str:
    """Return a table; columns of numbers are flush right, those whose index is in `words` are not.

    Cells are Markdown already, heads are not.
    """
    sides = ["---" if index in words else "---:" for index in range(len(heads))]
    lines = [map(escaped, heads), sides, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
