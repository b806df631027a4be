"""Output for terminals and files that know fewer letters than Unicode has."""

import codecs
import sys
from io import TextIOWrapper

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
