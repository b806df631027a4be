"""The log of commands: a line in a folder for each command that trained there, so that a report can print it."""

import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path

from spacedkd.runs.journal import read_journal
from spacedkd.runtime import processes
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.files import Folder
from spacedkd.runtime.signals import Stopped

NAME = "commands.jsonl"
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
        _append(folder)
        raise
    if not (was_finished and (folder / NAME).exists()):
        _append(folder)


def _append(folder: Path) -> None:
    """Append this command to the log. The first of several processes writes, and only if the folder exists."""
    if processes.rank() == 0 and folder.is_dir():
        entry = dict(zip(("event", "date", "line"), ("command", *this_command()), strict=True))
        with Folder(folder).append(folder / NAME) as file:
            file.write((json.dumps(entry, ensure_ascii=False) + "\n").encode())


def read_commands(folders: Iterable[Path]) -> list[Command]:
    """Return the commands that are logged in these folders, in the order of their dates."""
    paths = [folder / NAME for folder in dict.fromkeys(folders)]
    commands = [
        _command(path, entry) for path in paths if path.exists() for entry in read_journal(path, within=path.parent)
    ]
    return sorted(dict.fromkeys(commands))


def _command(path: Path, entry: dict[str, object]) -> Command:
    date, line = entry.get("date"), entry.get("line")
    if not isinstance(date, str) or not isinstance(line, str):
        raise UserError(f"{path} cannot be read: every entry has a line and a date. Delete it: only reports read it.")
    return date, line
