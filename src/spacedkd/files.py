"""Files that are there whole or not at all, journals, and where things are kept from one run to the next."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spacedkd.errors import UserError


@contextmanager
def write_whole(path: Path, alone: bool = False) -> Iterator[Path]:
    """A name to write to; when the block ends well the file gets its own. A kill leaves the old file or the new one.

    Where nobody else can write it at the same time, because of a lock, what a kill leaves behind is written over.
    """
    unfinished = path.with_name(f"{path.name}.unfinished" if alone else f"{path.name}.{os.getpid()}.unfinished")
    try:
        yield unfinished
        with unfinished.open("r+b") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    with write_whole(path) as unfinished:
        unfinished.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def cache_folder(*parts: str) -> Path:
    """Where what can be made again is kept, for instance ~/.cache/spacedkd/checked; it need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "spacedkd", *parts)


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """What happened in a run, line by line."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.endswith("\n"):  # a line cut off by a kill is not an entry yet
                    entry = json.loads(line)
                    if not isinstance(entry, dict) or not isinstance(entry.get("event"), str):
                        raise ValueError(f"line {number} is {line[:60].strip()!r}, no entry with an event")
                    yield entry
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as a journal: {error}.") from None
