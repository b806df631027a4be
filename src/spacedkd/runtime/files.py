"""Files that are never partly written, and folders with contents of unknown origin.

`Folder` opens everything from a handle of the folder and follows no link below it: use it for runs. `write_whole`,
`write_new_folder` and `write_text` write by a path, where the user named the path. Whatever is written has a name that
ends in `.unfinished` until it is complete and on the disk; then one rename gives it its own name, so a kill or a power
cut leaves the old file or the new one. `remove_leftovers` removes what killed writers left.
"""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from spacedkd.runtime.errors import CannotWrite, Linked, Moved

HOST = re.sub(r"\W", "-", socket.gethostname())[:32] or "here"
_UNFINISHED = re.compile(r".*\.([\w-]+)_(\d+)_[0-9a-f]+\.unfinished")
"""an unfinished name: that of the file, the machine and the process that writes it, and a random number"""
_LEFTOVER = re.compile(r".*\.unfinished|\.tmp\w{6}")
"""names of unfinished files; those without a process are of earlier versions, or of safetensors"""
ABANDONED_SECONDS = 3600.0
"""age at which another machine's unfinished file counts as abandoned; its processes cannot be seen from here"""
_BLOCK = 1 << 20


def open_ordinary(
    path: Path, flags: int = os.O_RDONLY, within: "Folder | Path | None" = None, mode: int = 0o666
) -> int:
    """Open an ordinary file and return its descriptor; folders, pipes and devices raise an OSError.

    `within` is a folder above `path` with files of unknown origin, such as a run that was downloaded: see `Folder` for
    what is refused below it.
    """
    if within is not None:
        return as_folder(within).open(path, flags, mode)
    # Without O_NONBLOCK, opening a pipe that no process writes to would wait for ever.
    return _check_ordinary(os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode), path)


def _check_ordinary(descriptor: int, path: Path) -> int:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is a pipe, a device or a folder, not an ordinary file", str(path))
    return descriptor


def read_ordinary(path: Path, most_bytes: int, within: "Folder | Path | None" = None) -> bytes:
    """Return the contents of an ordinary file of at most `most_bytes`; see `open_ordinary` for `within`."""
    with os.fdopen(open_ordinary(path, within=within), "rb") as file:
        contents = file.read(most_bytes + 1)
    if len(contents) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes:,} bytes", str(path))
    return contents


def resolve_links(path: Path) -> Path:
    """Return the absolute path without links; a link to itself is kept, where `Path.resolve` raises an error."""
    return Path(os.path.realpath(path))


class Folder:
    """A folder with files of unknown origin, such as a run that was downloaded, used by a handle of it.

    A path below the folder is looked up part by part, from the handle. No symbolic link is followed there, not even one
    that leads back into the folder: it is refused as `Linked`. Only ordinary files are opened. The folder itself may be
    reached by links.

    The handle is opened for each use, or once while the folder is `held_open`. Then nothing more is written after the
    folder was renamed or removed, and no other folder is made under its name: every use is refused as `Moved`.

    >>> import tempfile
    >>> folder = Folder(tempfile.mkdtemp())
    >>> with folder.write_whole(folder.path / "inner.json") as file:
    ...     _ = file.write(b"{}")
    >>> folder.names(), folder.exists(folder.path / "other.json")
    (['inner.json'], False)
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._descriptor: int | None = None
        self._absolute = self.path
        """absolute path of the folder when it was opened: the process may change its current folder"""

    @contextmanager
    def held_open(self) -> Iterator[None]:
        """Keep the handle open inside of the block."""
        self._descriptor, self._absolute = _open_folder(self.path), self.path.absolute()
        try:
            yield
        finally:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def check(self) -> None:
        """Refuse a folder that was renamed or removed since `held_open`; do nothing outside of that block."""
        if self._descriptor is None:
            return
        ours = os.fstat(self._descriptor)
        with suppress(FileNotFoundError, NotADirectoryError):
            if os.path.samestat(ours, self._absolute.stat()):
                return
        if ours.st_nlink == 0:
            raise Moved(f"{self.path} was removed while it was written to, with all that was saved in it.")
        new_path = _path_of(self._descriptor)
        where = "elsewhere" if new_path is None else f"to {new_path}"
        raise Moved(
            f"{self.path} was moved {where} while it was written to. What was saved before is whole there, and nothing "
            "was written since.",
            new_path,
        )

    def open(self, path: Path, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
        """Open an ordinary file and return its descriptor."""
        with self._parent_of(path) as (folder, name):
            try:
                descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode, dir_fd=folder)
            except OSError as error:
                _refuse_link(name, folder, path)
                raise OSError(error.errno, error.strerror, str(path)) from None
        return _check_ordinary(descriptor, path)

    def reading(self, path: Path) -> BinaryIO:
        """Open an ordinary file for reading."""
        return os.fdopen(self.open(path), "rb")

    @contextmanager
    def write_whole(self, path: Path, before: Path | None = None) -> Iterator[BinaryIO]:
        """Open a new file for writing, which gets its name when the block ends without an error.

        If `before` is given, the file that has the name now is kept under that one. The old file is renamed first, so
        a kill between the renames leaves it as `before` alone, and never two files of one age.
        """
        unfinished = _unfinished_name(path).name
        with write_errors(path), self._parent_of(path) as (folder, name):
            _refuse_link(name, folder, path)
            if before is not None:
                _refuse_link(before.name, folder, before)
            try:
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                with os.fdopen(os.open(unfinished, flags, 0o666, dir_fd=folder), "r+b") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                if before is not None and _mode_of(name, folder) is not None:
                    os.rename(name, before.name, src_dir_fd=folder, dst_dir_fd=folder)
                os.rename(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
                _sync(folder)
            finally:
                with suppress(OSError):
                    os.unlink(unfinished, dir_fd=folder)

    @contextmanager
    def write_folder(self, path: Path) -> Iterator[Path]:
        """Make a new folder for libraries that write by a path; when the block ends, its files move to `path`."""
        unfinished = _unfinished_name(self._absolute / path.relative_to(self.path))
        with write_errors(path), self._parent_of(path) as (folder, name):
            _refuse_link(name, folder, path)
            try:
                os.mkdir(unfinished.name, dir_fd=folder)
                yield unfinished
                self.check()
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=folder)
                with _subfolder(unfinished.name, folder, unfinished) as ours, _subfolder(name, folder, path) as target:
                    for file in sorted(os.listdir(ours)):  # noqa: PTH208, by a handle
                        _refuse_link(file, ours, unfinished / file)
                        _refuse_link(file, target, path / file)
                        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=ours), "rb") as opened:
                            os.fsync(opened.fileno())
                        os.rename(file, file, src_dir_fd=ours, dst_dir_fd=target)
                    _sync(target)
                _sync(folder)
            finally:
                shutil.rmtree(unfinished.name, ignore_errors=True, dir_fd=folder)

    @contextmanager
    def append(self, path: Path) -> Iterator[BinaryIO]:
        """Open a file for writing at its end; it is made if it does not exist."""
        with write_errors(path), os.fdopen(self.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
            yield file

    def make(self, path: Path) -> None:
        """Make a folder below this one, and those between them, so that their names survive a power cut."""
        with write_errors(path), self._walk(self._parts(path), make=True):
            pass

    def exists(self, path: Path) -> bool:
        """Return whether there is anything of this name, also a link, which is refused when it is opened."""
        try:
            with self._parent_of(path) as (folder, name):
                return _mode_of(name, folder) is not None
        except (FileNotFoundError, NotADirectoryError):
            return False

    def size(self, path: Path) -> int:
        """Return the bytes of a file; 0 where there is none."""
        try:
            with self.reading(path) as file:
                return os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return 0

    def digest(self, path: Path, most_bytes: int | None = None) -> str:
        """Return the SHA-256 of a file, or of its first bytes."""
        digest, remaining = hashlib.sha256(), sys.maxsize if most_bytes is None else most_bytes
        with self.reading(path) as file:
            while remaining > 0 and (block := file.read(min(remaining, _BLOCK))):
                digest.update(block)
                remaining -= len(block)
        return digest.hexdigest()

    def names(self, path: Path | None = None) -> list[str]:
        """Return the names in the folder, or in one below it; none where that does not exist."""
        try:
            with self._walk(() if path is None else self._parts(path)) as folder:
                return sorted(os.listdir(folder))  # noqa: PTH208, by a handle
        except (FileNotFoundError, NotADirectoryError):
            return []

    def remove(self, path: Path, durable: bool = False) -> None:
        """Remove a file, if it exists; with `durable`, so that it stays removed after a power cut."""
        with write_errors(path), suppress(FileNotFoundError), self._parent_of(path) as (folder, name):
            _refuse_link(name, folder, path)
            os.unlink(name, dir_fd=folder)
            if durable:
                _sync(folder)

    def remove_tree(self, path: Path) -> None:
        """Remove a folder with all that is in it, or a file of this name; what the system refuses to remove stays."""
        with suppress(FileNotFoundError, NotADirectoryError), self._parent_of(path) as (folder, name):
            _refuse_link(name, folder, path)
            if stat.S_ISDIR(_mode_of(name, folder) or stat.S_IFDIR):
                shutil.rmtree(name, ignore_errors=True, dir_fd=folder)
            else:  # rmtree would open a pipe, and wait for a process that writes to it
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder)

    def rename(self, path: Path, to: Path, durable: bool = True) -> None:
        """Rename a file, and replace what has the new name; with `durable`, so that it survives a power cut."""
        with write_errors(to), self._parent_of(path) as (folder, name), self._parent_of(to) as (new_folder, new_name):
            _refuse_link(name, folder, path)
            _refuse_link(new_name, new_folder, to)
            os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=new_folder)
            if durable:
                _sync(new_folder)

    def remove_leftovers(self, path: Path) -> None:
        """Remove unfinished files of killed writers in a folder that no other process writes to."""
        try:
            with self._walk(self._parts(path)) as folder:
                for name in filter(_LEFTOVER.fullmatch, os.listdir(folder)):  # noqa: PTH208, by a handle
                    mode = _mode_of(name, folder)
                    with suppress(OSError):
                        if mode is not None and stat.S_ISDIR(mode):
                            shutil.rmtree(name, dir_fd=folder)
                        else:
                            os.unlink(name, dir_fd=folder)
        except (FileNotFoundError, NotADirectoryError):
            return

    def refuse_links(self, names: Iterable[str]) -> None:
        """Refuse links among these names, or anywhere below `name/`: for libraries that open files by a path."""
        for name in names:
            path = self.path / name
            try:
                with self._parent_of(path) as (folder, last):
                    _refuse_link(last, folder, path)
                    mode = _mode_of(last, folder)
                    if name.endswith("/") and mode is not None and stat.S_ISDIR(mode):
                        with _subfolder(last, folder, path) as inner:
                            _refuse_links_below(inner, path)
            except (FileNotFoundError, NotADirectoryError):
                continue

    def _parts(self, path: Path) -> tuple[str, ...]:
        parts = path.relative_to(self.path).parts
        if ".." in parts:
            raise OSError(errno.EINVAL, f"it leads out of {self.path}", str(path))
        return parts

    @contextmanager
    def _parent_of(self, path: Path) -> Iterator[tuple[int, str]]:
        """Yield a descriptor of the folder that a path is in, and the path's name in it."""
        *folders, name = self._parts(path)
        with self._walk(folders) as folder:
            yield folder, name

    @contextmanager
    def _walk(self, parts: Sequence[str], make: bool = False) -> Iterator[int]:
        """Yield a descriptor of the folder at the end of these parts; with `make`, missing ones are made.

        Each part is opened from the descriptor of the one before it. If another process replaced a folder by a link
        meanwhile, opening it fails.
        """
        self.check()
        folder = _open_folder(self.path) if self._descriptor is None else os.dup(self._descriptor)
        try:
            path = self.path
            for part in parts:
                path /= part
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=folder)
                        _sync(folder)
                try:
                    inner = _open_folder(part, os.O_NOFOLLOW, folder)
                except OSError as error:
                    _refuse_link(part, folder, path)
                    raise OSError(error.errno, error.strerror, str(path)) from None
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)


def as_folder(within: Folder | Path) -> Folder:
    """Return a `Folder`, also of a path."""
    return within if isinstance(within, Folder) else Folder(within)


def _open_folder(path: Path | str, flags: int = 0, folder: int | None = None) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | flags, dir_fd=folder)


@contextmanager
def _subfolder(name: str, folder: int, path: Path) -> Iterator[int]:
    """Yield a descriptor of a folder inside of one that is open."""
    _refuse_link(name, folder, path)
    inner = _open_folder(name, os.O_NOFOLLOW, folder)
    try:
        yield inner
    finally:
        os.close(inner)


def _mode_of(name: str, folder: int) -> int | None:
    """Return the mode (file, folder, link ...) of a name in a folder that is open; None where nothing has the name."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


def _refuse_link(name: str, folder: int, path: Path) -> None:
    mode = _mode_of(name, folder)
    if mode is not None and stat.S_ISLNK(mode):
        raise Linked(
            f"{path} is a symbolic link, and links inside of such a folder are not followed. Remove the link, or put a "
            "copy of what it leads to in its place."
        )


def _refuse_links_below(folder: int, path: Path) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                _refuse_link(entry.name, folder, path / entry.name)
            elif entry.is_dir(follow_symlinks=False):
                with _subfolder(entry.name, folder, path / entry.name) as inner:
                    _refuse_links_below(inner, path / entry.name)


def _path_of(descriptor: int) -> Path | None:
    """Return the path that an open folder has now; None where the system does not tell."""
    try:
        return Path(f"/proc/self/fd/{descriptor}").readlink()
    except OSError:
        return None


def _sync(folder: int) -> None:
    """Make the names in an open folder survive a power cut, where the file system can."""
    with suppress(OSError):
        os.fsync(folder)


@contextmanager
def write_whole(path: Path) -> Iterator[Path]:
    """Yield an unfinished name to write to; when the block ends without an error, the file gets its own name.

    A kill leaves the old file or the new one. No other writer has the unfinished name, and when the block has ended,
    what was written survives a power cut.
    """
    unfinished = _unfinished_name(path)
    with write_errors(path):
        try:
            os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
            yield unfinished
            _sync_path(unfinished)
            unfinished.replace(path)
            sync_folder(path.parent)
        finally:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)


@contextmanager
def write_new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to write files to, which gets the name `path` by one rename when the block ends without an error.

    `path` must not exist, or be an empty folder. A kill leaves nothing under that name, or everything. Unfinished
    folders of killed writers of the same folder are removed first.
    """
    path = path.resolve()  # of a symbolic link to an empty folder, the rename is to replace the folder
    unfinished = _unfinished_name(path)
    with write_errors(path):
        _remove_unfinished(path)
        try:
            unfinished.mkdir()
            yield unfinished
            for inner in unfinished.rglob("*"):
                _sync_path(inner)
            sync_folder(unfinished)
            if path.is_dir():
                shutil.copymode(path, unfinished)
            unfinished.rename(path)  # the system refuses a folder that has got files meanwhile
            sync_folder(path.parent)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _remove_unfinished(path: Path) -> None:
    """Remove unfinished folders of ended writers of `path`, next to it, and nothing else there."""
    for sibling in path.parent.iterdir():
        writer = _UNFINISHED.fullmatch(sibling.name)
        if writer and sibling.name[: writer.start(1) - 1] == path.name and not _is_being_written(sibling):
            shutil.rmtree(sibling, ignore_errors=True)


def _sync_path(path: Path) -> None:
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


def _unfinished_name(path: Path) -> Path:
    """Return a name next to `path` that no other process or thread, on any machine, writes to."""
    return path.with_name(f"{path.name}.{HOST}_{os.getpid()}_{secrets.token_hex(4)}.unfinished")


def check_writable(folder: Path) -> None:
    """Refuse a folder in which no file can be made, by making one."""
    with write_errors(folder):
        tried = _unfinished_name(folder / "tried")
        os.close(os.open(tried, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW))
        tried.unlink()


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError in the block into `CannotWrite`: one line that names the path and the way out."""
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        raise CannotWrite(f"{path} cannot be written: {_way_out(error, path)}") from error


def _way_out(error: OSError, path: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = "the disk is full" if error.errno == errno.ENOSPC else "the quota of this disk is used up"
        return f"{what}. Free some space, then resume the run or give the command again; what was saved is whole."
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        folder = path if path.is_dir() else path.parent
        return f"{folder} is read-only for you. Give another folder, or make this one writable (chmod u+w)."
    if error.errno == errno.ELOOP:
        return "it is a symbolic link, which is not followed. Remove the link."
    return f"{error.strerror or error}."


def is_unfinished(path: Path) -> bool:
    """Return whether a name is an unfinished one, which is written to before a file gets its own."""
    return _LEFTOVER.fullmatch(path.name) is not None


def remove_leftovers(*folders: Path, alone: bool = False) -> None:
    """Remove what writers that are gone left unfinished in these folders.

    A caller that is `alone` in them, because it holds a lock, removes all of it: the number of a process that is gone
    may be that of another process by now, and then its files would stay.
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
        return time.time() - path.lstat().st_mtime < ABANDONED_SECONDS
    except FileNotFoundError:
        return False


def is_alive(process: int) -> bool:
    """Return whether this machine has a process of that number."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def write_json(path: Path, value: Any, within: Folder | Path | None = None) -> None:
    """Replace a file by this value as indented JSON; see `write_text` for `within`."""
    write_text(path, json.dumps(value, indent=2) + "\n", within)


def write_text(path: Path, text: str, within: Folder | Path | None = None) -> None:
    """Replace a file by this text; `within` is a folder above it in which links are refused, as `Folder` does."""
    if within is not None:
        with as_folder(within).write_whole(path) as file:
            file.write(text.encode())
        return
    with write_whole(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def cache_folder(*parts: str) -> Path:
    """Return a folder for files that can be made again, such as ~/.cache/spacedkd/checked; it need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "spacedkd", *parts)
