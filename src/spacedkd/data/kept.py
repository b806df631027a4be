"""Decoded pixels on disk: one process decodes them, and all that come later map the same memory.

    ~/.cache/spacedkd/pixels/KEY.npy      uint8 [N, 3, H, W]
    ~/.cache/spacedkd/pixels/KEY.json     written last: its checksum, and which images cannot be read

The key is of the files' paths, sizes and times, of the rows and of the size asked for. What is not whole is made anew.
Corrupted images are kept in the same form.
"""

import json
import mmap
import os
import shutil
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from spacedkd.data.images import Fit
from spacedkd.data.parallel import tell
from spacedkd.data.stored import Stored
from spacedkd.documents import read_json
from spacedkd.errors import CannotRead, first_line
from spacedkd.files import cache_folder, remove_leftovers, write_json, write_whole

MANY = 2000
"""fewer images are read at every start: it takes a second"""
LIMIT = 32 << 30
"""bytes; the pixels that were not used for the longest make room"""
SPARE = 2
"""times what is written must be free on the disk"""

Reasons = dict[int, str]
"""place among the rows asked for -> why the image cannot be read"""
Fill = Callable[[np.ndarray], Reasons]
"""puts images into an array of zeros that other processes can write to as well"""


def filled(stored: Stored, fit: Fit | None, shape: tuple[int, int, int, int], fill: Fill) -> tuple[Tensor, Reasons]:
    """The pixels of some images, from the disk where they are kept; else `fill` makes them, and they are kept."""
    stamp = stored.stamp() if len(stored) >= MANY else None
    if stamp is None:
        return _in_memory(shape, fill)
    decided_by = f"2 {PIL.__version__} {stamp} {fit} {shape}".encode()
    path = cache_folder("pixels") / f"{sha256(decided_by + stored.rows.numpy().tobytes()).hexdigest()[:32]}.npy"
    try:
        return _kept(path, shape) or _kept_by_one(path, shape, fill)
    except (OSError, NotImplementedError) as error:  # the latter where there are no locks
        why = getattr(error, "strerror", None) or first_line(error)
        _say_once(f"Decoded images are not kept in {path.parent} ({why}): every start reads them anew.")
        return _in_memory(shape, fill)


def _in_memory(shape: tuple[int, ...], fill: Fill) -> tuple[Tensor, Reasons]:
    pixels = np.frombuffer(mmap.mmap(-1, int(np.prod(shape))), np.uint8).reshape(shape)
    bad = fill(pixels)
    _checksum(pixels)  # what other processes wrote counts as held by this one only when it has been read here
    return torch.from_numpy(pixels), bad


def _kept_by_one(path: Path, shape: tuple[int, ...], fill: Fill) -> tuple[Tensor, Reasons]:
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_suffix(".lock"))  # which a kill releases
    try:
        lock.acquire(blocking=False)
    except Timeout:
        tell("Another process is reading these images: waiting for it.")
        lock.acquire()
    try:
        found = _kept(path, shape)
        if found is None:
            _make(path, shape, fill)
            found = _kept(path, shape)
    finally:
        lock.release()
    if found is None:
        raise OSError("what was written there reads as something else")
    return found


def _make(path: Path, shape: tuple[int, ...], fill: Fill) -> None:
    needed = int(np.prod(shape))
    remove_leftovers(path.parent)
    _make_room(path.parent, needed)
    with write_whole(path) as unfinished:
        pixels = np.lib.format.open_memmap(unfinished, "w+", np.uint8, shape)
        if hasattr(os, "posix_fallocate"):  # a full disk would kill whoever writes to a map of it
            with unfinished.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, unfinished.stat().st_size)
        bad = fill(pixels)
        about = record_of(pixels, bad)
    write_json(path.with_suffix(".json"), about)


def record_of(pixels: np.ndarray, bad: Reasons | None = None) -> dict[str, Any]:
    """What is written beside pixels, last of all."""
    reasons = {str(place): reason for place, reason in (bad or {}).items()}
    return {"checksum": _checksum(pixels), "bad": reasons, "bad_checksum": _checksum_of(reasons)}


def _checksum(pixels: np.ndarray) -> int:
    return zlib.crc32(pixels.reshape(-1).data)


def _checksum_of(reasons: dict[str, str]) -> int:
    return zlib.crc32(json.dumps(reasons, sort_keys=True).encode())


def _make_room(folder: Path, needed: int) -> None:
    """Remove what was not used for long; an error if it does not fit then."""
    files = sorted(folder.glob("*.npy"), key=lambda path: path.stat().st_mtime)
    taken = sum(path.stat().st_size for path in files)
    while files and taken + needed > LIMIT:
        oldest = files.pop(0)
        taken -= oldest.stat().st_size
        for path in (oldest.with_suffix(".json"), oldest):  # whoever has it mapped keeps it
            path.unlink(missing_ok=True)
    free = shutil.disk_usage(folder).free
    if SPARE * needed > free:
        raise OSError(f"they need {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free")


def _kept(path: Path, shape: tuple[int, ...]) -> tuple[Tensor, Reasons] | None:
    """What is on the disk, if it is whole."""
    found = whole(path, shape)
    if found is None:
        return None
    with suppress(OSError):
        os.utime(path)
    pixels, reasons = found
    return torch.from_numpy(pixels), reasons


def whole(path: Path, shape: tuple[int, ...]) -> tuple[np.ndarray, Reasons] | None:
    """Pixels that were recorded, mapped; None, and a line, if they are damaged, or if there are none."""
    record = path.with_suffix(".json")
    if not (path.is_file() and record.is_file()):
        return None
    try:
        about = read_json(record)
        pixels: np.ndarray = np.load(path, mmap_mode="c")  # copy on write: nobody can change what others see
        if pixels.shape == shape and pixels.dtype == np.uint8 and about == record_of(pixels, reasons := about["bad"]):
            return pixels, {int(place): str(reason) for place, reason in reasons.items()}
    except (PermissionError, CannotRead):
        raise
    except Exception:  # whatever is wrong with it: numpy and json have many kinds of errors for that
        pass
    tell(f"{path} is damaged: it is made anew.")
    return None


@cache
def _say_once(line: str) -> None:
    tell(line)
