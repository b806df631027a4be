"""How tables look in a terminal."""

import codecs
import sys
from collections.abc import Iterator, Mapping
from io import TextIOWrapper
from typing import Any

from rich import box
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from spacedkd.config.serialization import to_json
from spacedkd.config.spec import RunSpec
from spacedkd.report.formatting import MINUS
from spacedkd.report.table import Table
from spacedkd.runtime.errors import printable

# Output for terminals and files that know fewer letters than Unicode has.

IN_ASCII = {"±": "+-", "\u00d7": "x", "\u2212": "-", "\u2013": "-", "\u2014": "-", "…": "...", "─": "-", "━": "-"}
"""and a question mark for every other letter"""


def spell_out() -> None:
    """From here on what a stream cannot write is written in other letters, in place of an error."""
    codecs.register_error("spacedkd", _spelt)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # tests and notebooks have others
            stream.reconfigure(errors="spacedkd")


def _spelt(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lost = error.object[error.start : error.end]
    return "".join(IN_ASCII.get(letter, "?") for letter in lost), error.end


# How tables look in a terminal.


def shown(table: Table) -> RichTable:
    """A table in its short form, with the minus sign that can be copied into a calculation."""
    rich = RichTable(
        box=box.SIMPLE_HEAD,
        title=escape(printable(table.title)),
        title_justify="left",
        caption=escape(printable(table.caption)),
        caption_justify="left",
    )
    kept = [(place, column) for place, column in enumerate(table.columns) if column.short is not None]
    for place, column in kept:
        rich.add_column(
            Text(printable(column.short or "")),
            justify="left" if column.left else "right",
            no_wrap=table.unbroken and place > 0,
            overflow="ellipsis" if place else "fold",
            min_width=None if place else table.least_width,
        )
    for row in table.rows:
        rich.add_row(*(_cell(_lines(row[place].in_short.replace(MINUS, "-"), place)) for place, _ in kept))
    return rich


def _lines(text: str, place: int) -> str:
    """Return the text of a cell, safe to print; a line break in the name of a row, its first cell, would fake a row."""
    return "\n".join(map(printable, text.split("\n"))) if place else printable(text)


def _cell(text: str) -> Padding:
    """What begins indented goes on as far indented where it is broken."""
    return Padding(Text(text.lstrip(" ")), (0, 0, 0, len(text) - len(text.lstrip(" "))))


def of_spec(spec: RunSpec, notes: Mapping[str, str]) -> RichTable:
    """Everything a spec says, a line for each setting, and what is to be said of it."""
    table = RichTable(box=None, show_header=False, padding=(0, 2))
    for key, value in (*_settings(to_json(spec)), *notes.items()):
        table.add_row(Text(printable(key)), Text(printable(str(value))))
    return table


def _settings(plain: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in plain.items():
        if isinstance(value, Mapping) and value:
            yield from _settings(value, f"{above}{key}.")
        elif value not in (None, "", [], {}):
            yield f"{above}{key}", value
