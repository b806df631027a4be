"""The terminal and the command that runs in it: safe text, errors in one line, how to resume, and the log of commands.

The log is a file in each folder that commands trained in, with a line for each of them, so that a report can print it.
"""

from __future__ import annotations

import codecs
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path

from spacedkd.reporting.terminal import SafeConsole as SafeConsole
from spacedkd.reporting.terminal import console as console
from spacedkd.reporting.terminal import say as say
from spacedkd.runs.journal import read_journal
from spacedkd.runtime import processes
from spacedkd.runtime.errors import UserError, printable
from spacedkd.runtime.files import Folder
from spacedkd.runtime.signals import Signals, Stopped


def drop_unwritten() -> None:
    """Drop output that cannot be written: Python would try again at its end, and change the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


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


# The log of commands

COMMANDS_FILE = "commands.jsonl"
Command = tuple[str, str]
"""when it ended, and what was typed"""
WORDS: ContextVar[Sequence[str]] = ContextVar("WORDS", default=())
"""the words of the command that is being run"""


def this_command() -> Command:
    """Return the time now, and the command that is being run."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), shlex.join(["spacedkd", *WORDS.get()])


@contextmanager
def log_command(folder: Path, was_finished: bool) -> Iterator[None]:
    """Log this command when it ends or is stopped; nothing where all was finished and logged before."""
    try:
        yield
    except Stopped:
        _append_command(folder)
        raise
    if not (was_finished and (folder / COMMANDS_FILE).exists()):
        _append_command(folder)


def _append_command(folder: Path) -> None:
    """Append this command to the log. The first of several processes writes, and only if the folder exists."""
    if processes.rank() == 0 and folder.is_dir():
        entry = dict(zip(("event", "date", "line"), ("command", *this_command()), strict=True))
        with Folder(folder).append(folder / COMMANDS_FILE) as file:
            file.write((json.dumps(entry, ensure_ascii=False) + "\n").encode())


def read_commands(folders: Iterable[Path]) -> list[Command]:
    """Return the commands that are logged in these folders, in the order of their dates."""
    paths = [folder / COMMANDS_FILE for folder in dict.fromkeys(folders)]
    commands = [
        _parse_command(path, entry)
        for path in paths
        if path.exists()
        for entry in read_journal(path, within=path.parent)
    ]
    return sorted(dict.fromkeys(commands))


def _parse_command(path: Path, entry: dict[str, object]) -> Command:
    date, line = entry.get("date"), entry.get("line")
    if not isinstance(date, str) or not isinstance(line, str):
        raise UserError(f"{path} cannot be read: every entry has a line and a date. Delete it: only reports read it.")
    return date, line
