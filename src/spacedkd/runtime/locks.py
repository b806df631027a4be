"""Locks on folders: a lock of the system, which a kill releases, or a heartbeat where the file system has no locks.

The library `filelock` is not used here. It opens its file by a path, for writing: a lock of a run must be opened from
the handle of the run's folder, so that no link is followed, and `is_held` must work where a user may only read.
"""

import errno
import fcntl
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from spacedkd.runtime.documents import read_small_json
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.files import HOST, Folder, is_alive, open_ordinary, write_errors, write_json

POLL_SECONDS = 0.05
BEAT_SECONDS = 5.0
STALE_SECONDS = 60.0
"""a heartbeat of this age is one of a process that is gone, on whichever machine it was"""
SETTLE_SECONDS = 0.5
"""within which all processes that want a stale heartbeat have written their own"""
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class LockHeld(UserError):
    """Another process holds the lock."""


@contextmanager
def hold(path: Path, seconds: float = 0.0, within: Folder | Path | None = None) -> Iterator[None]:
    """Hold the lock at `path` inside of the block; wait `seconds` for another holder, then raise `LockHeld`.

    Below `within`, a folder with files of unknown origin, no link is followed.
    """
    until = time.monotonic() + seconds
    with write_errors(path):
        while (lock := _try_lock(path, within)) is None:
            if time.monotonic() > until:
                raise LockHeld(f"{path} is held by another process{_holder(path)}.")
            time.sleep(POLL_SECONDS)
    try:
        yield
    finally:
        lock.release()


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock; this works in a read-only folder too."""
    try:
        opened = open_ordinary(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:  # no process ever held it
        return _has_heartbeat(path)
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return _has_heartbeat(path)
    finally:
        os.close(opened)
    return _has_heartbeat(path)


class _SystemLock:
    """A lock of the system on an open file."""

    def __init__(self, opened: int) -> None:
        self._opened = opened

    def release(self) -> None:
        fcntl.flock(self._opened, fcntl.LOCK_UN)  # closing is not enough: a forked process has the file open, too
        os.close(self._opened)


def _try_lock(path: Path, within: Folder | Path | None = None) -> "_SystemLock | _Heartbeat | None":
    """Return the lock at a path, or None while another process holds it."""
    opened = open_ordinary(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, within)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(FileNotFoundError):
            # The holder may have removed the file between our open and our lock, and then we hold a lock on no file.
            if os.path.samestat(os.fstat(opened), path.stat()):
                lock, opened = _SystemLock(opened), -1
                return lock
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return _try_heartbeat(path)
    finally:
        if opened >= 0:
            os.close(opened)
    return None


class _Heartbeat:
    """A file that names the process and the machine that hold a lock, written again every few seconds."""

    def __init__(self, path: Path, token: str) -> None:
        self.path, self.token = path, token
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)
        self._thread.start()

    def _repeat(self) -> None:
        while not self._ends.wait(BEAT_SECONDS):
            with suppress(OSError):
                if read_small_json(self.path).get("token") == self.token:
                    write_json(self.path, _record(self.token))

    def release(self) -> None:
        self._ends.set()
        self._thread.join()
        if read_small_json(self.path).get("token") == self.token:
            self.path.unlink(missing_ok=True)


def _try_heartbeat(lock: Path) -> _Heartbeat | None:
    """Return a heartbeat for a lock, or None where another process has one."""
    path, token = _heartbeat_file(lock), secrets.token_hex(8)
    try:
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    except FileExistsError:
        if _has_heartbeat(lock):
            return None
        write_json(path, _record(token))
        time.sleep(SETTLE_SECONDS)  # other processes may see it stale, too: the last to write holds the lock
    else:
        with open(opened, "w", encoding="utf-8") as file:  # noqa: PTH123, it is open already
            json.dump(_record(token), file)
    return _Heartbeat(path, token) if read_small_json(path).get("token") == token else None


def _heartbeat_file(lock: Path) -> Path:
    return lock.with_name(f"{lock.name}.heartbeat")


def _record(token: str) -> dict[str, Any]:
    return {"host": HOST, "process": os.getpid(), "time": time.time(), "token": token}


def _has_heartbeat(lock: Path) -> bool:
    """Return whether a lock has a heartbeat of a process that lives, as far as this machine can tell."""
    path = _heartbeat_file(lock)
    try:
        age = time.time() - path.stat().st_mtime
    except OSError:
        return False
    record = read_small_json(path)
    if age > STALE_SECONDS:
        return False
    process = record.get("process")
    return record.get("host") != HOST or (isinstance(process, int) and is_alive(process))


def _holder(lock: Path) -> str:
    record = read_small_json(_heartbeat_file(lock))
    return f" ({record['process']} on {record['host']})" if {"process", "host"} <= record.keys() else ""
