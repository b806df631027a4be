"""Which process does what, on Linux."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from tests import forked


def holder(folder: Path) -> int:
    """The process that holds a run's folder."""
    inode = (folder / ".lock").stat().st_ino
    held = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return next(int(words[4]) for words in held if words[5].endswith(f":{inode}"))


def children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def command(process: int) -> str:
    return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")


def gone(processes: Iterable[int], within: float = 5.0) -> bool:
    """Whether all of them end within so many seconds; what nobody has asked for its end yet has ended, too."""
    end = time.monotonic() + within
    while any(_lives(process) for process in processes):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split(") ")[1][0] != "Z"
    except OSError:
        return False


def wait_until(there: Callable[[], object], process: subprocess.Popen[str] | forked.Command) -> None:
    while not there():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
