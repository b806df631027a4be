"""The terminal: text that is safe to print, errors in one line, and what is printed when a command is stopped."""

from __future__ import annotations

import codecs
import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from spacedkd.runtime import processes
from spacedkd.runtime.errors import printable
from spacedkd.runtime.signals import Signals, Stopped

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


def drop_unwritten() -> None:
    """Drop output that cannot be written: Python would try again at its end, and change the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(*lines: str) -> None:
    """Print lines to copy from: without line breaks, colours or markup."""
    console.print("\n".join(map(printable, lines)), highlight=False, markup=False, emoji=False, soft_wrap=True)


@contextmanager
def until_stopped(next_command: Callable[[], str]) -> Iterator[Signals]:
    """Let a stop signal, within this context, end the command after the current turn, with everything saved.

    The command prints how to continue (`next_command`) and ends with exit code 128 plus the signal's number.
    """
    with Signals() as stop:
        try:
            yield stop
        except (Stopped, KeyboardInterrupt) as end:
            saved = isinstance(end, Stopped)
            state = "Stopped, and everything is saved" if saved else "Stopped at once"
            say_error(f"{state}. Resume with: {next_command()}")
            if saved and stop.received is None:  # another rank got the signal
                stop.received = signal.SIGTERM
            sys.exit(0 if processes.rank() else stop.code)  # a rank that fails would have the first one killed


def say_error(line: str) -> None:
    """Print an error, from the first of several processes; where it cannot be printed, the exit code remains."""
    if processes.rank() == 0:
        with suppress(OSError):
            text = f"spacedkd: {printable(line)}"
            SafeConsole(stderr=True).print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)


ASCII = {"±": "+-", "\u00d7": "x", "\u2212": "-", "\u2013": "-", "\u2014": "-", "…": "...", "─": "-", "━": "-"}
"""letters for streams that cannot write Unicode; every other letter becomes a question mark"""


def write_ascii_where_needed() -> None:
    """Let stdout and stderr write letters that their encoding lacks in ASCII, where Python would raise an error."""
    codecs.register_error("spacedkd", _to_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # tests and notebooks have others
            stream.reconfigure(errors="spacedkd")


def _to_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lost = error.object[error.start : error.end]
    return "".join(ASCII.get(letter, "?") for letter in lost), error.end
