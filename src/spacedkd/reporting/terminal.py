"""The renderer of tables for a terminal."""

from rich import box
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from spacedkd.reporting.formatting import MINUS
from spacedkd.reporting.table import Table
from spacedkd.runtime.errors import printable


def rich_table(table: Table) -> RichTable:
    """Return a table in its short form for rich, with the minus sign that can be copied into a calculation."""
    rich = RichTable(
        box=box.SIMPLE_HEAD,
        title=escape(printable(table.title)),
        title_justify="left",
        caption=escape(printable(table.caption)),
        caption_justify="left",
    )
    columns = [(index, column) for index, column in enumerate(table.columns) if column.short is not None]
    for index, column in columns:
        rich.add_column(
            Text(printable(column.short or "")),
            justify="left" if column.left else "right",
            no_wrap=table.unbroken and index > 0,
            overflow="ellipsis" if index else "fold",
            min_width=None if index else table.least_width,
        )
    for row in table.rows:
        texts = [(index, row[index].in_terminal.replace(MINUS, "-")) for index, _ in columns]
        rich.add_row(*(_indented(_printable(text, is_name=index == 0)) for index, text in texts))
    return rich


def _printable(text: str, is_name: bool) -> str:
    """Return the text of a cell, safe to print; a line break in the name of a row would fake another row."""
    return printable(text) if is_name else "\n".join(map(printable, text.split("\n")))


def _indented(text: str) -> Padding:
    """Return a text that keeps its indentation in every line it is broken into."""
    return Padding(Text(text.lstrip(" ")), (0, 0, 0, len(text) - len(text.lstrip(" "))))
