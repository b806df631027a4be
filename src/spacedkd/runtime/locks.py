"""Who has a folder to itself: a lock that a kill releases, or a heartbeat where the file system knows no locks."""

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
"""a heartbeat as old as this is of a process that is gone, on whichever machine it was"""
SETTLE_SECONDS = 0.5
"""in which all that want to take over a stale heartbeat have written theirs"""
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class LockHeld(UserError):
    """Somebody else has the lock."""


@contextmanager
def hold(path: Path, seconds: float = 0.0, within: Folder | Path | None = None) -> Iterator[None]:
    """Have the lock at `path` while this lasts; whoever has it is waited for that long, and then it is `Held`.

    Below `within`, a folder that somebody else may have filled, no links are followed.
    """
    until = time.monotonic() + seconds
    with write_errors(path):
        while (lock := _taken(path, within)) is None:
            if time.monotonic() > until:
                raise LockHeld(f"{path} is held by another process{_whose(path)}.")
            time.sleep(POLL_SECONDS)
    try:
        yield
    finally:
        lock.release()


def is_held(path: Path) -> bool:
    """Whether somebody has the lock; a place where one can only read is no hindrance."""
    try:
        opened = open_ordinary(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:  # nobody ever had it
        return _beats(path)
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return _beats(path)
    finally:
        os.close(opened)
    return _beats(path)


class _Lock:
    """Of the system, on an open file."""

    def __init__(self, opened: int) -> None:
        self._opened = opened

    def release(self) -> None:
        fcntl.flock(self._opened, fcntl.LOCK_UN)  # to close it is not enough where a process was forked
        os.close(self._opened)


def _taken(path: Path, within: Folder | Path | None = None) -> "_Lock | _Heartbeat | None":
    opened = open_ordinary(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, within)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(opened), path.stat()):  # else whoever had it has removed the file
                lock, opened = _Lock(opened), -1
                return lock
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return _heartbeat(path)
    finally:
        if opened >= 0:
            os.close(opened)
    return None


class _Heartbeat:
    """A file that says which process of which machine has the lock, written anew again and again."""

    def __init__(self, path: Path, token: str) -> None:
        self.path, self.token = path, token
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._ends.wait(BEAT_SECONDS):
            with suppress(OSError):
                if read_small_json(self.path).get("token") == self.token:
                    write_json(self.path, _record(self.token))

    def release(self) -> None:
        self._ends.set()
        self._thread.join()
        if read_small_json(self.path).get("token") == self.token:
            self.path.unlink(missing_ok=True)


def _heartbeat(lock: Path) -> _Heartbeat | None:
    """The lock, if nobody's heart beats there."""
    path, token = _beside(lock), secrets.token_hex(8)
    try:
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    except FileExistsError:
        if _beats(lock):
            return None
        write_json(path, _record(token))
        time.sleep(SETTLE_SECONDS)  # others may have found it stale, too: the last to write has it
    else:
        with open(opened, "w", encoding="utf-8") as file:  # noqa: PTH123, it is open already
            json.dump(_record(token), file)
    return _Heartbeat(path, token) if read_small_json(path).get("token") == token else None


def _beside(lock: Path) -> Path:
    return lock.with_name(f"{lock.name}.heartbeat")


def _record(token: str) -> dict[str, Any]:
    return {"host": HOST, "process": os.getpid(), "time": time.time(), "token": token}


def _beats(lock: Path) -> bool:
    """Whether there is a heartbeat of a process that lives, as far as can be seen from here."""
    path = _beside(lock)
    try:
        age = time.time() - path.stat().st_mtime
    except OSError:
        return False
    found = read_small_json(path)
    if age > STALE_SECONDS:
        return False
    process = found.get("process")
    return found.get("host") != HOST or (isinstance(process, int) and is_alive(process))


def _whose(lock: Path) -> str:
    found = read_small_json(_beside(lock))
    return f" ({found['process']} on {found['host']})" if {"process", "host"} <= found.keys() else ""
