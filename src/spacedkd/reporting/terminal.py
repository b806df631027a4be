"""The terminal: a console for untrusted text, and the renderer of tables.

What is printed is safe: control characters of names and messages are escaped.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from spacedkd.reporting.formatting import MINUS
from spacedkd.reporting.table import Table
from spacedkd.runtime import processes
from spacedkd.runtime.errors import printable

GONE = (errno.EPIPE, errno.EIO)
"""errors of a closed pipe, and of a closed terminal"""


class SafeConsole(Console):
    """A console that prints untrusted text safely, and whose reader may leave: work then continues silently."""

    working = False

    def on_broken_pipe(self) -> None:
        raise  # what rich has caught; it would end the process

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Escape the control characters in all text that is printed; rich's own control codes are no text."""
        for segment in super().render(renderable, options):
            if segment.control is None and not segment.text.isprintable():
                segment = segment._replace(text="\n".join(map(printable, segment.text.split("\n"))))
            yield segment

    def __exit__(self, *exception: Any) -> None:  # all that is printed, by any thread, is written here
        try:
            super().__exit__(*exception)
        except OSError as error:
            if not self.working:
                raise
            self.quiet = self.quiet or error.errno in GONE


console = SafeConsole(quiet=processes.rank() != 0)  # one of several processes speaks for all


@contextmanager
def working() -> Iterator[None]:
    """Let work continue, within this context, when its output is no longer read."""
    console.working = True
    try:
        yield
    finally:
        console.working = False


def say(*lines: str) -> None:
    """Print lines to copy from: without line breaks, colours or markup."""
    console.print("\n".join(map(printable, lines)), highlight=False, markup=False, emoji=False, soft_wrap=True)


# Tables


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
