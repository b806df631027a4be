"""Files that are there whole or not at all, and where things are kept from one run to the next."""

import errno
import json
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from spacedkd.errors import CannotWrite

HOST = re.sub(r"\W", "-", socket.gethostname())[:32] or "here"
_UNFINISHED = re.compile(r".*\.([\w-]+)_(\d+)_[0-9a-f]+\.unfinished")
_OLD_LEFTOVER = re.compile(r".*\.unfinished|\.tmp\w{6}")
"""what earlier versions, and safetensors itself, leave behind"""
ABANDONED = 3600.0
"""seconds after which what a process of another machine has not finished is taken to be left behind"""


def open_ordinary(path: Path, flags: int = os.O_RDONLY, within: Path | None = None, mode: int = 0o666) -> int:
    """Open an ordinary file and return its descriptor; refuse folders, FIFOs and devices with an OSError.

    `within` is a folder above `path` that somebody else may have filled, such as a run that was downloaded. Below it no
    symbolic link is followed, not even one that leads back into the folder. The folder itself may be reached by links.
    """
    if within is None:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    else:
        *folders, name = path.relative_to(within).parts
        folder = os.open(within, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in folders:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                os.close(folder)
                folder = inner
            # Without O_NONBLOCK, opening a FIFO that nobody writes to would wait for ever.
            descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise OSError(errno.ELOOP, "it is, or lies behind, a symbolic link", str(path)) from None
            raise OSError(error.errno, error.strerror, str(path)) from None
        finally:
            os.close(folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no ordinary file", str(path))
    return descriptor


def read_ordinary(path: Path, most_bytes: int, within: Path | None = None) -> bytes:
    """Return the contents of an ordinary file of at most `most_bytes`; see `open_ordinary` for `within`."""
    with open(open_ordinary(path, within=within), "rb") as file:
        contents = file.read(most_bytes + 1)
    if len(contents) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes:,} bytes", str(path))
    return contents


def resolved(path: Path) -> Path:
    """Return the whole path without links; one that leads to itself stays, where `Path.resolve` raises an error."""
    return Path(os.path.realpath(path))


@contextmanager
def write_whole(path: Path, before: Path | None = None) -> Iterator[Path]:
    """A name to write to; when the block ends well the file gets its own. A kill leaves the old file or the new one.

    The name is this writer's alone, and when the block has ended what was written survives a power cut. What was there
    `before` is kept under that name; then a kill can leave the old file there alone.
    """
    unfinished = _name_for(path)
    with naming(path):
        try:
            os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
            yield unfinished
            publish(unfinished, path, before)
        finally:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)


@contextmanager
def write_folder(path: Path) -> Iterator[Path]:
    """A folder to write files to, which get their places in `path` when the block ends well."""
    unfinished = _name_for(path)
    with naming(path):
        try:
            unfinished.mkdir()
            yield unfinished
            path.mkdir(exist_ok=True)
            for file in unfinished.iterdir():
                publish(file, path / file.name)
            sync_folder(path.parent)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def write_new_folder(path: Path) -> Iterator[Path]:
    """A folder to write files to, which gets the name `path` by one rename when the block ends well.

    `path` must not exist, or be an empty folder. A kill leaves nothing under that name, or all of it. What a killed
    writer of the same folder has left beside it is removed first.
    """
    path = path.resolve()  # of a symbolic link to an empty folder, the rename is to replace the folder
    unfinished = _name_for(path)
    with naming(path):
        _remove_unfinished(path)
        try:
            unfinished.mkdir()
            yield unfinished
            for inner in unfinished.rglob("*"):
                _sync(inner)
            sync_folder(unfinished)
            if path.is_dir():
                shutil.copymode(path, unfinished)
            unfinished.rename(path)  # the system refuses a folder that has got files meanwhile
            sync_folder(path.parent)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _remove_unfinished(path: Path) -> None:
    """Remove what writers of `path` that are gone have left beside it, and nothing else there."""
    for beside in path.parent.iterdir():
        writer = _UNFINISHED.fullmatch(beside.name)
        if writer and beside.name[: writer.start(1) - 1] == path.name and not _is_being_written(beside):
            shutil.rmtree(beside, ignore_errors=True)


def publish(unfinished: Path, path: Path, before: Path | None = None) -> None:
    """Give a file that is complete the name it is to have, for good."""
    _sync(unfinished)
    if before is not None and path.exists():
        path.replace(before)
    unfinished.replace(path)
    sync_folder(path.parent)


def _sync(path: Path) -> None:
    """Force a file's contents, or a folder's names, to disk."""
    if path.is_dir():
        sync_folder(path)
        return
    with path.open("rb") as file:
        os.fsync(file.fileno())


def make_durable(folder: Path) -> None:
    """Make a folder, and those above it, so that its name survives a power cut."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    if not folder.exists():
        make_durable(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut, where the file system can."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(opened)
    finally:
        os.close(opened)


def _name_for(path: Path) -> Path:
    """A name that no other process or thread, on any machine, writes to."""
    return path.with_name(f"{path.name}.{HOST}_{os.getpid()}_{secrets.token_hex(4)}.unfinished")


def check_writable(folder: Path) -> None:
    """Refuse a folder in which no file can be made."""
    with naming(folder):
        tried = _name_for(folder / "tried")
        os.close(os.open(tried, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW))
        tried.unlink()


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Whatever the system refuses while this lasts is one line that names the file and the way out."""
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        raise CannotWrite(f"{path} cannot be written: {_way_out(error, path)}") from error


def _way_out(error: OSError, path: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = "the disk is full" if error.errno == errno.ENOSPC else "the quota of this disk is used up"
        return f"{what}. Make room, then resume the run or give the command again; what was saved is whole."
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        folder = path if path.is_dir() else path.parent
        return f"{folder} is read-only for you. Give another folder, or make this one writable (chmod u+w)."
    return f"{error.strerror or error}."


def is_unfinished(path: Path) -> bool:
    """Whether a name is one of those that are written to before a file gets its own."""
    return _OLD_LEFTOVER.fullmatch(path.name) is not None


def remove_leftovers(*folders: Path, alone: bool = False) -> None:
    """Remove what writers that are gone have left unfinished in these folders.

    Whoever is `alone` in them, because of a lock, need not ask: a number may be that of another process by now.
    """
    for folder in folders:
        for path in folder.iterdir() if folder.is_dir() else ():
            if is_unfinished(path) and (alone or not _is_being_written(path)):
                with suppress(OSError):
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _is_being_written(path: Path) -> bool:
    writer = _UNFINISHED.fullmatch(path.name)
    if writer is None:
        return False
    if writer[1] == HOST:
        return is_alive(int(writer[2]))
    try:
        return time.time() - path.lstat().st_mtime < ABANDONED
    except FileNotFoundError:
        return False


def is_alive(process: int) -> bool:
    """Whether this machine has a process of that number."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    with write_whole(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def cache_folder(*parts: str) -> Path:
    """Where what can be made again is kept, for instance ~/.cache/spacedkd/checked; it need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "spacedkd", *parts)
