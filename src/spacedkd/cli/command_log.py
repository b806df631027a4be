"""What was typed, and when: a line for each command that trained in a folder, so that a report can say it."""

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
"""of the command that is being run"""


def this_command() -> Command:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), shlex.join(["spacedkd", *WORDS.get()])


@contextmanager
def kept(folder: Path, was_finished: bool) -> Iterator[None]:
    """Write this command down in the folder it has trained in, also when it was stopped; not where all was done."""
    try:
        yield
    except Stopped:
        _keep(folder)
        raise
    if not (was_finished and (folder / NAME).exists()):
        _keep(folder)


def _keep(folder: Path) -> None:
    """Of several processes the first one writes; one that was stopped before its folder was there leaves nothing."""
    if processes.rank() == 0 and folder.is_dir():
        entry = dict(zip(("event", "date", "line"), ("command", *this_command()), strict=True))
        with Folder(folder).append(folder / NAME) as file:
            file.write((json.dumps(entry, ensure_ascii=False) + "\n").encode())


def read_commands(folders: Iterable[Path]) -> list[Command]:
    """All that were written down in these folders, in the order of their dates."""
    places = [folder / NAME for folder in dict.fromkeys(folders)]
    found = [
        _command(path, entry) for path in places if path.exists() for entry in read_journal(path, within=path.parent)
    ]
    return sorted(dict.fromkeys(found))


def _command(path: Path, entry: dict[str, object]) -> Command:
    date, line = entry.get("date"), entry.get("line")
    if not isinstance(date, str) or not isinstance(line, str):
        raise UserError(f"{path} cannot be read: every entry has a line and a date. Delete it: only reports read it.")
    return date, line
