"""Kill points: every operation on the files of a run has a name, and a process can be told at which one to die.

A name is what is about to happen and to which file, for instance `rename checkpoint/latest.safetensors`. Together with
how often it has happened in this process it is a moment of a run, the same one whenever that run is repeated. Audit
events of Python tell of files that are opened, renamed, cut and removed. `os.fsync`, which has none, is replaced here,
and so is `os.open`, whose event does not tell the folder that a name is looked up in.
Libraries that write without Python are caught when what they wrote is flushed: the file is cut in half first, which is
how a kill in the middle of writing would have left it.

Only the standard library is imported, because this is installed before anything else in processes that runs start.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

VARIABLE = "SPACEDKD_KILL_POINTS"
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
EVENTS: dict[str, tuple[str, int, int | None]] = {
    "os.rename": ("rename", 1, 3),
    "os.remove": ("remove", 0, 1),
    "os.mkdir": ("mkdir", 0, 2),
    "os.rmdir": ("rmdir", 0, 1),
    "os.truncate": ("truncate", 0, None),
}
"""audit event -> what is about to happen, which argument says to what, and which one the folder of a name"""


class Points:
    """What happens to files below a folder, counted by name."""

    def __init__(self, root: str, log: str | None = None, name: str | None = None, at: int = 1) -> None:
        """Every name is written to the file `log`, if there is one; at `name` for the `at`th time the process dies."""
        self.root, self.name, self.at = os.path.realpath(root), name, at
        self.counts: Counter[str] = Counter()
        self._log = None if log is None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def reach(self, what: str, cut: str | None = None) -> None:
        """A moment of this name; whoever dies here leaves half of the file to be `cut`."""
        self.counts[what] += 1
        if self._log is not None:
            os.write(self._log, f"{what}\n".encode())
        if what == self.name and self.counts[what] == self.at:
            if cut is not None:
                os.truncate(cut, os.path.getsize(cut) // 2)  # noqa: PTH202
            os.kill(os.getpid(), signal.SIGKILL)

    def below(self, path: Any, folder: int | None = None) -> str | None:
        """A file's name below the root, without what makes the names of unfinished files unique.

        Where a `folder` is open, the path is one in it.
        """
        if not isinstance(path, (str, bytes, os.PathLike)):
            return None
        inside = "" if folder is None or folder < 0 else os.readlink(f"/proc/self/fd/{folder}")  # noqa: PTH115
        full = os.path.abspath(os.path.join(inside, os.fsdecode(path)))  # noqa: PTH100, PTH118
        if not full.startswith(f"{self.root}{os.sep}") or ".progress.json" in full:  # which is written by the clock
            return None
        return re.sub(r"\.[\w-]+_\d+_[0-9a-f]+\.unfinished", ".unfinished", os.path.relpath(full, self.root))

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            name = self.below(path) if isinstance(flags, int) and flags & WRITES else None
            if name is not None:
                self.reach(f"open {name}")
        elif event in EVENTS:
            what, which, folder = EVENTS[event]
            name = self.below(arguments[which], None if folder is None else arguments[folder])
            if name is not None:
                self.reach(f"{what} {name}")

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        name = self.below(path, dir_fd) if dir_fd is not None and flags & WRITES else None
        if name is not None:
            self.reach(f"open {name}")
        return _open(path, flags, mode, dir_fd=dir_fd)

    def fsync(self, handle: Any) -> None:
        number = handle if isinstance(handle, int) else handle.fileno()
        path = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115
        name = self.below(path)
        if name is not None:
            is_cut = name.endswith(".unfinished") and os.path.isfile(path)  # noqa: PTH113
            self.reach(f"write {name}", cut=path if is_cut else None)
            self.reach(f"fsync {name}")
        _fsync(handle)


_fsync, _open = os.fsync, os.open


def install(**settings: Any) -> Points:
    """From here on this process has kill points, and so have the Python processes it starts."""
    os.environ[VARIABLE] = json.dumps(settings)
    here = str(Path(__file__).parent)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != here]
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *paths])
    points = Points(**settings)
    sys.addaudithook(points.hear)
    os.fsync, os.open = points.fsync, points.open  # type: ignore[assignment]
    os.register_at_fork(after_in_child=points.counts.clear)  # each process counts its own
    return points


def install_from_environment() -> None:
    if VARIABLE in os.environ:
        install(**json.loads(os.environ[VARIABLE]))
