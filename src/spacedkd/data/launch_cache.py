"""A cache that the processes of one launch share on a machine, so that not every rank reads all files of a dataset.

`compute_once` holds a lock while it computes, and writes the result to ~/.cache/spacedkd/launches, under a name that
only the processes of one launch know; processes that call it later read the result. Nothing is shared with other
launches: at the next start one process reads all files again.
"""

import os
import shutil
import socket
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from spacedkd.runtime.errors import first_line
from spacedkd.runtime.files import cache_folder, write_whole
from spacedkd.runtime.processes import launch_name, print_notice, starts_others

SECONDS_KEPT = 24 * 3600
"""age of results that are removed: all processes of their launch have read them"""

Arrays = Mapping[str, np.ndarray]
"""a result, as arrays by name; none of them of Python objects"""

_is_shared = False
_counts: Counter[str] = Counter()
_process = 0
"""id of the process that has counted; a forked process counts from 0 again"""


@contextmanager
def shared_by(processes: int) -> Iterator[None]:
    """Let `compute_once` share its results inside of the block, if a run has several processes on this machine."""
    global _is_shared
    before, _is_shared = _is_shared, processes > 1
    try:
        yield
    finally:
        _is_shared = before


def is_shared() -> bool:
    """Return whether other processes of the run read the same data."""
    return _is_shared


def compute_once(what: str, compute: Callable[[], Arrays]) -> Arrays:
    """Return the result of `compute`, which one process of the run calls on this machine; `what` names the result.

    All processes must call it with the same names equally often: the second call with a name gets the result of the
    second computation of that name.
    """
    if not _is_shared:
        return compute()
    path = _path(what)
    lock = FileLock(path.with_suffix(".lock"))  # which a kill releases
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except (OSError, NotImplementedError) as error:  # the latter where there are no locks
        _note(path, error)
        return compute()
    try:
        result = _read(path)
        if result is None:
            result = compute()
            _write(path, result)
        return result
    finally:
        lock.release()


def _path(what: str) -> Path:
    """Return the file of the next result with a name; the first process of this launch that computes it writes it."""
    global _process
    launches = cache_folder("launches")
    launch = launches / sha256(f"{socket.gethostname()} {launch_name()}".encode()).hexdigest()[:16]
    if _process != os.getpid():
        _process = os.getpid()
        _counts.clear()
        _remove_old(launches)
        # The process that starts the others is alone yet: these files are of an old launch whose process had its id.
        if starts_others():
            shutil.rmtree(launch, ignore_errors=True)
    _counts[what] += 1
    return launch / f"{sha256(f'{_counts[what]} {what}'.encode()).hexdigest()[:16]}.npz"


def _remove_old(launches: Path) -> None:
    with suppress(OSError):
        for folder in launches.iterdir():
            if time.time() - folder.stat().st_mtime > SECONDS_KEPT:
                shutil.rmtree(folder, ignore_errors=True)


def _read(path: Path) -> Arrays | None:
    """Return the result that another process has written; None where there is none, or it is damaged."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}  # each with a checksum, as in any zip file
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        print_notice(f"{path} is damaged: it is made again.")
        return None


def _write(path: Path, result: Arrays) -> None:
    try:
        with write_whole(path) as unfinished, unfinished.open("r+b") as file:
            np.savez(file, **dict[str, Any](result))
    except OSError as error:
        _note(path, error)


def _note(path: Path, error: Exception) -> None:
    why = getattr(error, "strerror", None) or first_line(error)
    print_notice(f"Nothing can be shared in {path.parent} ({why}): every process of the run looks at all files itself.")
