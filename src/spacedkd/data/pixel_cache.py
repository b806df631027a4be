"""Read all images with all cores: into memory where they fit, else only to see whether they can be read."""

import json
import mmap
import os
import shutil
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from filelock import FileLock, Timeout
from PIL import Image
from torch import Tensor

from spacedkd.config.spec import DataSpec
from spacedkd.data.decoding import DIGEST_BYTES, BadImage, ImageColumn, decode, digest_of_bytes, first_size
from spacedkd.data.images import Encoded, Fit, Images, to_bytes, to_image
from spacedkd.data.parallel import available_cores, can_fork, map_in_processes, map_in_threads
from spacedkd.data.raw_dataset import RawSplit
from spacedkd.data.transforms import get_augmentation
from spacedkd.runtime.documents import read_json
from spacedkd.runtime.errors import CannotRead, UserError, first_line
from spacedkd.runtime.files import cache_folder, read_ordinary, remove_leftovers, write_json, write_whole
from spacedkd.runtime.processes import print_notice

# Decoded pixels on disk: one process decodes them, and all that come later map the same memory.

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


def cached_pixels(
    stored: ImageColumn, fit: Fit | None, shape: tuple[int, int, int, int], fill: Fill
) -> tuple[Tensor, Reasons]:
    """The pixels of some images, from the disk where they are kept; else `fill` makes them, and they are kept."""
    stamp = stored.stamp() if len(stored) >= MANY else None
    if stamp is None:
        return _in_memory(shape, fill)
    decided_by = f"2 {PIL.__version__} {stamp} {fit} {shape}".encode()
    path = cache_folder("pixels") / f"{sha256(decided_by + stored.rows.numpy().tobytes()).hexdigest()[:32]}.npy"
    try:
        return _load_cached(path, shape) or _decode_once(path, shape, fill)
    except (OSError, NotImplementedError) as error:  # the latter where there are no locks
        why = getattr(error, "strerror", None) or first_line(error)
        _print_once(f"Decoded images are not kept in {path.parent} ({why}): every start reads them anew.")
        return _in_memory(shape, fill)


def _in_memory(shape: tuple[int, ...], fill: Fill) -> tuple[Tensor, Reasons]:
    pixels = np.frombuffer(mmap.mmap(-1, int(np.prod(shape))), np.uint8).reshape(shape)
    bad = fill(pixels)
    _checksum_of_cache(pixels)  # what other processes wrote counts as held by this one only when it has been read here
    return torch.from_numpy(pixels), bad


def _decode_once(path: Path, shape: tuple[int, ...], fill: Fill) -> tuple[Tensor, Reasons]:
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_suffix(".lock"))  # which a kill releases
    try:
        lock.acquire(blocking=False)
    except Timeout:
        print_notice("Another process is reading these images: waiting for it.")
        lock.acquire()
    try:
        found = _load_cached(path, shape)
        if found is None:
            _write_cache(path, shape, fill)
            found = _load_cached(path, shape)
    finally:
        lock.release()
    if found is None:
        raise OSError("what was written there reads as something else")
    return found


def _write_cache(path: Path, shape: tuple[int, ...], fill: Fill) -> None:
    needed = int(np.prod(shape))
    remove_leftovers(path.parent)
    _make_room(path.parent, needed)
    with write_whole(path) as unfinished:
        pixels = np.lib.format.open_memmap(unfinished, "w+", np.uint8, shape)
        if hasattr(os, "posix_fallocate"):  # a full disk would kill whoever writes to a map of it
            with unfinished.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, unfinished.stat().st_size)
        bad = fill(pixels)
        about = pixel_record(pixels, bad)
    write_json(path.with_suffix(".json"), about)


def pixel_record(pixels: np.ndarray, bad: Reasons | None = None) -> dict[str, Any]:
    """What is written beside pixels, last of all."""
    reasons = {str(place): reason for place, reason in (bad or {}).items()}
    return {"checksum": _checksum_of_cache(pixels), "bad": reasons, "bad_checksum": _checksum_of(reasons)}


def _checksum_of_cache(pixels: np.ndarray) -> int:
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


def _load_cached(path: Path, shape: tuple[int, ...]) -> tuple[Tensor, Reasons] | None:
    """What is on the disk, if it is whole."""
    found = load_pixels(path, shape)
    if found is None:
        return None
    with suppress(OSError):
        os.utime(path)
    pixels, reasons = found
    return torch.from_numpy(pixels), reasons


def load_pixels(path: Path, shape: tuple[int, ...]) -> tuple[np.ndarray, Reasons] | None:
    """Pixels that were recorded, mapped; None, and a line, if they are damaged, or if there are none."""
    record = path.with_suffix(".json")
    if not (path.is_file() and record.is_file()):
        return None
    try:
        about = read_json(record)
        pixels: np.ndarray = np.load(path, mmap_mode="c")  # copy on write: nobody can change what others see
        if (
            pixels.shape == shape
            and pixels.dtype == np.uint8
            and about == pixel_record(pixels, reasons := about["bad"])
        ):
            return pixels, {int(place): str(reason) for place, reason in reasons.items()}
    except (PermissionError, CannotRead):
        raise
    except Exception:  # whatever is wrong with it: numpy and json have many kinds of errors for that
        pass
    print_notice(f"{path} is damaged: it is made anew.")
    return None


@cache
def _print_once(line: str) -> None:
    print_notice(line)


# Read all images with all cores: into memory where they fit, else only to see whether they can be read.

SMALL_BYTES = 8192


class MixedSizesError(Exception):
    """The images do not fit into one array."""


def decode_into_memory(stored: ImageColumn, fit: Fit | None, limit: int) -> tuple[Tensor, Reasons] | None:
    """uint8 [N, 3, H, W], zeros where an image cannot be read; None if there are too many or their sizes differ."""
    width, height = (fit.size, fit.size) if fit is not None else first_size(stored) or (1, 1)
    if len(stored) * 3 * height * width > limit:
        return None

    def fill(pixels: np.ndarray) -> Reasons:
        def put(place: int, data: bytes, image: Image.Image) -> None:
            image = image if fit is None else fit(image)
            if image.size != (width, height):
                raise MixedSizesError
            pixels[place] = to_bytes(image).numpy()

        return _decode_all(stored, "Reading images, once", put)

    try:
        return cached_pixels(stored, fit, (len(stored), 3, height, width), fill)
    except MixedSizesError:
        return None


def check_images(stored: ImageColumn) -> tuple[Reasons, np.ndarray | None]:
    """Which images cannot be read, and a digest of the bytes of each. Both are remembered until a file changes.

    A verdict that was remembered before there were digests has none.
    """
    stamp = stored.stamp()
    key = "" if stamp is None else sha256(f"2 {stamp}".encode() + stored.rows.numpy().tobytes()).hexdigest()[:32]
    memory = cache_folder("checked") / f"{key}.json"
    remembered = _remembered(memory, key, len(stored)) if key else None
    if remembered is not None:
        return remembered
    shared = np.frombuffer(mmap.mmap(-1, DIGEST_BYTES * len(stored)), f"V{DIGEST_BYTES}")  # processes fill it

    def note(place: int, data: bytes, image: Image.Image) -> None:
        shared[place] = digest_of_bytes(data)

    bad = _decode_all(stored, "Checking images, once", note, smaller=True)
    if key:
        with suppress(OSError):  # a home that cannot be written to costs the check again, nothing else
            memory.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(memory.parent)
            reasons = {str(place): reason for place, reason in bad.items()}
            with write_whole(memory.with_suffix(".digests")) as unfinished:
                unfinished.write_bytes(shared.tobytes())
            sums = {"checksum": _checksum(key, reasons), "digests": zlib.crc32(shared.tobytes())}
            write_json(memory, {"bad": reasons, **sums})
    return bad, shared


def _remembered(memory: Path, key: str, count: int) -> tuple[Reasons, np.ndarray | None] | None:
    if not memory.is_file():
        return None
    try:
        held = read_json(memory)
        if held["checksum"] == _checksum(key, held["bad"]):
            reasons = {int(place): reason for place, reason in held["bad"].items()}
            if "digests" not in held:
                return reasons, None
            digests = read_ordinary(memory.with_suffix(".digests"), most_bytes=DIGEST_BYTES * count)
            if len(digests) == DIGEST_BYTES * count and zlib.crc32(digests) == held["digests"]:
                return reasons, np.frombuffer(digests, f"V{DIGEST_BYTES}")
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass
    print_notice(f"{memory} is damaged: images are checked anew.")
    return None


def _checksum(key: str, reasons: Mapping[str, str]) -> str:
    return sha256(f"{key} {json.dumps(reasons, sort_keys=True)}".encode()).hexdigest()[:16]


def _decode_all(
    stored: ImageColumn, title: str, use: Callable[[int, bytes, Image.Image], None], smaller: bool = False
) -> Reasons:
    """Every image is used, with its place and its bytes; those that cannot be read are given back with the reason."""

    def read(places: range) -> Reasons:
        bad: Reasons = {}
        for place in places:
            try:
                data = stored.read(place)
                image = decode(data, smaller=smaller)
            except BadImage as reason:
                bad[place] = str(reason)
            else:
                use(place, data, image)
        return bad

    if len(stored) >= MANY and available_cores() > 1 and can_fork():
        return map_in_processes(read, len(stored), title, available_cores())
    return map_in_threads(read, len(stored), title, _few_threads(stored))


def _few_threads(stored: ImageColumn) -> int:
    """One for small images: they spend their time in Python, where threads only wait for each other."""
    for place in range(len(stored)):
        with suppress(BadImage):
            return available_cores() if len(stored.read(place)) > SMALL_BYTES else 1
    return 1


MEMORY_LIMIT = 4 << 30
"""a part of more decoded bytes is decoded while training"""


def load_images(
    part: RawSplit, rows: Tensor, labels: Tensor, spec: DataSpec, memory_limit: int
) -> tuple[Images | Encoded, str | None]:
    """The images at `rows` of a part in the form a filled-in spec wants, and a line on those left out.

    They still lack the names of the classes, and what normalises them.
    """
    chosen = get_augmentation(spec.augmentation or "")
    fit = None if spec.image_size is None else chosen.fit(spec.image_size)
    first, later = (fit, None) if chosen.fits_first else (None, fit)
    if isinstance(part.images, np.ndarray):
        pixels = _pixels(part.name, part.images[rows.numpy()], chosen.colour, fit, chosen.fits_first)
        return Images(pixels, labels[rows], (), (), (), later), None
    stored = part.images[rows]
    read = decode_into_memory(stored, first, memory_limit)
    bad, digests = check_images(stored) if read is None else (read[1], None)
    note = _left_out(stored, bad, spec.skip_bad)
    good = torch.tensor([place for place in range(len(rows)) if place not in bad], dtype=torch.int64)
    if len(good) == 0:
        raise UserError(f"{part.name} has no image that can be read, first {stored.name(0)}.")
    if read is None:
        kept = None if digests is None else digests[good.numpy()]
        return Encoded(stored[good], labels[rows[good]], (), (), (), fit, kept), note
    return Images(read[0][good] if bad else read[0], labels[rows[good]], (), (), (), later), note


def add_digests(images: Images | Encoded, part: RawSplit, rows: Tensor) -> Images | Encoded:
    """Return what `keep` gave for `rows` with a digest of the bytes of each image, also where it is in memory."""
    if isinstance(images, Encoded) or isinstance(part.images, np.ndarray):
        return images
    bad, digests = check_images(part.images[rows])
    good = [place for place in range(len(rows)) if place not in bad]
    return images if digests is None or len(good) != len(images) else replace(images, digests=digests[good])


def _left_out(stored: ImageColumn, bad: Reasons, skip: bool) -> str | None:
    if not bad:
        return None
    first = min(bad)
    name = stored.name(first)
    if skip:
        return f"Left out {len(bad)} of {len(stored)} images that cannot be read, first: {name} {bad[first]}."
    others = f" {len(bad) - 1} more are bad too." if len(bad) > 1 else ""
    raise UserError(f"{name} {bad[first]}.{others} Mend or remove them, or leave them out with --skip-bad True.")


def _pixels(name: str, array: np.ndarray, colour: bool, fit: Fit | None, fits_first: bool) -> Tensor:
    pixels = torch.from_numpy(np.ascontiguousarray(array.transpose(0, 3, 1, 2)))
    channels, height, width = pixels.shape[1:]
    moves = fit is not None and (fit.size, fit.size) != (height, width)
    if (colour or moves) and channels not in (1, 3):
        raise UserError(
            f"The {name} images have {channels} channels: resizing and this augmentation need 1 or 3: "
            "leave out --image-size, and give --augment small, plain or none."
        )
    if colour and channels == 1:
        pixels = pixels.expand(-1, 3, -1, -1).contiguous()
    if fit is None or not (moves and fits_first):
        return pixels
    fitted = torch.empty(len(pixels), pixels.shape[1], fit.size, fit.size, dtype=torch.uint8)

    def some(rows: range) -> Reasons:
        for row in rows:
            fitted[row] = to_bytes(fit(to_image(pixels[row])))
        return {}

    map_in_threads(some, len(pixels), "Resizing images", available_cores())
    return fitted
