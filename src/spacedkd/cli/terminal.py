"""How tables look in a terminal."""

import codecs
import sys
from collections.abc import Iterator, Mapping
from io import TextIOWrapper
from typing import Any

from rich.table import Table as RichTable
from rich.text import Text

from spacedkd.config.serialization import to_json
from spacedkd.config.spec import RunSpec
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
