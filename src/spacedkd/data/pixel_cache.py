"""Cache of images on disk: pixels decoded into one array if they fit into memory, else the result of a check.

`load_images` makes the images of a split. Decoded pixels are cached in ~/.cache/spacedkd/pixels, where all processes
map the same file; the results of `check_images` in ~/.cache/spacedkd/checked. Both caches are keyed by the names, sizes
and times of the files, and hold checksums, so that a damaged file is made again.
"""

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
from spacedkd.data.images import (
    DIGEST_BYTES,
    BadImage,
    Encoded,
    Fit,
    ImageColumn,
    Images,
    Signals,
    decode,
    digest_of_bytes,
    first_size,
    to_bytes,
    to_image,
)
from spacedkd.data.launch_cache import is_shared
from spacedkd.data.reader import RawSplit
from spacedkd.data.transforms import get_augmentation
from spacedkd.runtime.documents import read_json
from spacedkd.runtime.errors import CannotRead, UserError, first_line
from spacedkd.runtime.files import cache_folder, read_ordinary, remove_leftovers, write_json, write_whole
from spacedkd.runtime.processes import available_cores, can_fork, map_in_processes, map_in_threads, print_notice

MEMORY_LIMIT = 4 << 30
"""a split of more decoded bytes is decoded while training"""
MANY_IMAGES = 2000
"""fewer images are not cached: reading them takes a second"""
CACHE_BYTES = 32 << 30
"""largest size of the cache; pixels that were not used for the longest time are removed"""
FREE_SPACE_FACTOR = 2
"""free disk space that is needed, as a multiple of the bytes to be written"""

Reasons = dict[int, str]
"""index of an image -> why it cannot be read"""
Fill = Callable[[np.ndarray], Reasons]
"""writes images into an array of zeros, which other processes can write to as well"""


# The images of a split


def load_images(
    split: RawSplit, rows: Tensor, labels: Tensor, spec: DataSpec, memory_limit: int
) -> tuple[Images | Encoded, str | None]:
    """Return the images at `rows` of a split as a resolved spec wants them, and a sentence on those left out.

    Signals are left as they are.

    They still lack the names of the classes and the normalisation. Refuses images that cannot be read, unless the spec
    says skip_bad.
    """
    if isinstance(split.images, np.ndarray) and split.images.dtype == np.float32:
        signals = torch.from_numpy(np.ascontiguousarray(split.images[rows.numpy()].transpose(0, 3, 1, 2)))
        return Signals(signals, labels[rows], (), (), (), rows=rows), None
    augmentation = get_augmentation(spec.augmentation or "")
    fit = None if spec.image_size is None else augmentation.fit(spec.image_size)
    fit_now, fit_later = (fit, None) if augmentation.fits_first else (None, fit)
    if isinstance(split.images, np.ndarray):
        pixels = _pixels_of_array(split.name, split.images[rows.numpy()], augmentation.needs_colour, fit, fit_now)
        return Images(pixels, labels[rows], (), (), (), fit_later, rows=rows), None
    images = split.images[rows]
    decoded = decode_into_memory(images, fit_now, memory_limit)
    bad, digests = check_images(images) if decoded is None else (decoded[1], None)
    note = _note_bad_images(images, bad, spec.skip_bad)
    good = torch.tensor([index for index in range(len(rows)) if index not in bad], dtype=torch.int64)
    if len(good) == 0:
        raise UserError(f"{split.name} has no image that can be read, first {images.name(0)}.")
    if decoded is None:
        good_digests = None if digests is None else digests[good.numpy()]
        return Encoded(images[good], labels[rows[good]], (), (), (), fit, good_digests, rows[good]), note
    pixels = decoded[0][good] if bad else decoded[0]
    return Images(pixels, labels[rows[good]], (), (), (), fit_later, rows=rows[good]), note


def add_digests(images: Images | Encoded, split: RawSplit, rows: Tensor) -> Images | Encoded:
    """Return the images that `load_images` made of `rows` with a digest of the encoded bytes of each."""
    if isinstance(images, Encoded) or isinstance(split.images, np.ndarray):
        return images
    bad, digests = check_images(split.images[rows])
    good = [index for index in range(len(rows)) if index not in bad]
    return images if digests is None or len(good) != len(images) else replace(images, digests=digests[good])


def _note_bad_images(images: ImageColumn, bad: Reasons, skip: bool) -> str | None:
    if not bad:
        return None
    first = min(bad)
    name = images.name(first)
    if skip:
        return f"Left out {len(bad)} of {len(images)} images that cannot be read, first: {name} {bad[first]}."
    others = f" {len(bad) - 1} more are bad too." if len(bad) > 1 else ""
    raise UserError(f"{name} {bad[first]}.{others} Repair or remove them, or leave them out with --skip-bad.")


def _pixels_of_array(name: str, array: np.ndarray, needs_colour: bool, fit: Fit | None, fit_now: Fit | None) -> Tensor:
    """Return uint8 [N, C, H, W] of an array [N, H, W, C], resized by `fit_now`."""
    pixels = torch.from_numpy(np.ascontiguousarray(array.transpose(0, 3, 1, 2)))
    channels, height, width = pixels.shape[1:]
    resizes = fit is not None and (fit.size, fit.size) != (height, width)
    if (needs_colour or resizes) and channels not in (1, 3):
        raise UserError(
            f"The {name} images have {channels} channels: resizing and this augmentation need 1 or 3: "
            "leave out --image-size, and give --augment small, plain or none."
        )
    if needs_colour and channels == 1:
        pixels = pixels.expand(-1, 3, -1, -1).contiguous()
    if fit_now is None or not resizes:
        return pixels
    resized = torch.empty(len(pixels), pixels.shape[1], fit_now.size, fit_now.size, dtype=torch.uint8)

    def resize(rows: range) -> Reasons:
        for row in rows:
            resized[row] = to_bytes(fit_now(to_image(pixels[row])))
        return {}

    map_in_threads(resize, len(pixels), "Resizing images", available_cores())
    return resized


# Decoding all images of a column


class MixedSizesError(Exception):
    """The images have different sizes, and do not fit into one array."""


def decode_into_memory(images: ImageColumn, fit: Fit | None, limit: int) -> tuple[Tensor, Reasons] | None:
    """Return uint8 [N, 3, H, W], with zeros for images that cannot be read, and why those cannot be.

    Returns None if they would take more than `limit` bytes, or if their sizes differ.
    """
    width, height = (fit.size, fit.size) if fit is not None else first_size(images) or (1, 1)
    if len(images) * 3 * height * width > limit:
        return None

    def fill(pixels: np.ndarray) -> Reasons:
        def store(index: int, data: bytes, image: Image.Image) -> None:
            image = image if fit is None else fit(image)
            if image.size != (width, height):
                raise MixedSizesError
            pixels[index] = to_bytes(image).numpy()

        return _decode_all(images, "Reading images, once", store)

    try:
        return _cached_pixels(images, fit, (len(images), 3, height, width), fill)
    except MixedSizesError:
        return None


SMALL_IMAGE_BYTES = 8192


def _decode_all(
    images: ImageColumn, title: str, use: Callable[[int, bytes, Image.Image], None], smaller: bool = False
) -> Reasons:
    """Call `use` with the index, the bytes and the image of every row; return why the others cannot be read."""

    def decode_some(indices: range) -> Reasons:
        bad: Reasons = {}
        for index in indices:
            try:
                data = images.read(index)
                image = decode(data, smaller=smaller)
            except BadImage as reason:
                bad[index] = str(reason)
            else:
                use(index, data, image)
        return bad

    if len(images) >= MANY_IMAGES and available_cores() > 1 and can_fork():
        return map_in_processes(decode_some, len(images), title, available_cores())
    return map_in_threads(decode_some, len(images), title, _thread_count(images))


def _thread_count(images: ImageColumn) -> int:
    """Return 1 for small images: they spend their time in Python, where threads only wait for each other."""
    for index in range(len(images)):
        with suppress(BadImage):
            return available_cores() if len(images.read(index)) > SMALL_IMAGE_BYTES else 1
    return 1


# Pixels on disk: one process decodes them, and all that come later map the same memory


def _cached_pixels(
    images: ImageColumn, fit: Fit | None, shape: tuple[int, int, int, int], fill: Fill
) -> tuple[Tensor, Reasons]:
    """Return the pixels of some images from the cache; where they are missing, `fill` makes them for it."""
    stamp = images.stamp() if len(images) >= MANY_IMAGES or is_shared() else None
    if stamp is None:
        return _fill_memory(shape, fill)
    # All that decides which pixels come out; another version of Pillow may decode a JPEG to other bits.
    key = f"2 {PIL.__version__} {stamp} {fit} {shape}".encode() + images.rows.numpy().tobytes()
    path = cache_folder("pixels") / f"{sha256(key).hexdigest()[:32]}.npy"
    try:
        return _load_cached(path, shape) or _fill_cache(path, shape, fill)
    except (OSError, NotImplementedError) as error:  # the latter where there are no locks
        why = getattr(error, "strerror", None) or first_line(error)
        _print_once(f"Decoded images are not cached in {path.parent} ({why}): every start reads them again.")
        return _fill_memory(shape, fill)


def _fill_memory(shape: tuple[int, ...], fill: Fill) -> tuple[Tensor, Reasons]:
    pixels = np.frombuffer(mmap.mmap(-1, int(np.prod(shape))), np.uint8).reshape(shape)
    bad = fill(pixels)
    _checksum_pixels(pixels)  # memory that other processes wrote counts as this one's only after it was read here
    return torch.from_numpy(pixels), bad


def _fill_cache(path: Path, shape: tuple[int, ...], fill: Fill) -> tuple[Tensor, Reasons]:
    """Let one of several processes fill the cache while the others wait, and return its contents."""
    lock = _acquire(path, "reading")
    try:
        cached = _load_cached(path, shape)
        if cached is None:
            _write_cache(path, shape, fill)
            cached = _load_cached(path, shape)
    finally:
        lock.release()
    if cached is None:
        raise OSError("what was written there reads as something else")
    return cached


def _acquire(path: Path, doing: str) -> FileLock:
    """Return the lock of a cached file, which a kill releases, when no other process holds it any more."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_suffix(".lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        print_notice(f"Another process is {doing} these images: waiting for it.")
        lock.acquire()
    return lock


def _write_cache(path: Path, shape: tuple[int, ...], fill: Fill) -> None:
    remove_leftovers(path.parent)
    _make_room(path.parent, int(np.prod(shape)))
    with write_whole(path) as unfinished:
        pixels = np.lib.format.open_memmap(unfinished, "w+", np.uint8, shape)
        if hasattr(os, "posix_fallocate"):  # else a full disk would kill the process that writes to the map
            with unfinished.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, unfinished.stat().st_size)
        bad = fill(pixels)
        record = pixel_record(pixels, bad)
    write_json(path.with_suffix(".json"), record)


def _make_room(folder: Path, needed: int) -> None:
    """Remove the pixels that were not used for the longest; raise an OSError if the disk has no room even then."""
    files = sorted(folder.glob("*.npy"), key=lambda path: path.stat().st_mtime)
    taken = sum(path.stat().st_size for path in files)
    while files and taken + needed > CACHE_BYTES:
        oldest = files.pop(0)
        taken -= oldest.stat().st_size
        for path in (oldest.with_suffix(".json"), oldest):  # a process that has it mapped can still read it
            path.unlink(missing_ok=True)
    free = shutil.disk_usage(folder).free
    if FREE_SPACE_FACTOR * needed > free:
        raise OSError(f"they need {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free")


def _load_cached(path: Path, shape: tuple[int, ...]) -> tuple[Tensor, Reasons] | None:
    cached = load_pixels(path, shape)
    if cached is None:
        return None
    with suppress(OSError):
        os.utime(path)  # `_make_room` removes what was not used for the longest
    pixels, bad = cached
    return torch.from_numpy(pixels), bad


def load_pixels(path: Path, shape: tuple[int, ...]) -> tuple[np.ndarray, Reasons] | None:
    """Return cached pixels, mapped, and why some are missing; None where there are none, or damaged ones (a notice)."""
    record_path = path.with_suffix(".json")
    if not (path.is_file() and record_path.is_file()):
        return None
    try:
        record = read_json(record_path)
        pixels: np.ndarray = np.load(path, mmap_mode="c")  # copy on write: no process can change the pixels of others
        bad = record["bad"]
        if pixels.shape == shape and pixels.dtype == np.uint8 and record == pixel_record(pixels, bad):
            return pixels, {int(index): str(reason) for index, reason in bad.items()}
    except (PermissionError, CannotRead):
        raise
    except Exception:  # numpy and json have many kinds of errors for damaged files
        pass
    print_notice(f"{path} is damaged: it is made again.")
    return None


def pixel_record(pixels: np.ndarray, bad: Mapping[Any, str] | None = None) -> dict[str, Any]:
    """Return the record of cached pixels, written after them: checksums, and the reasons for missing images."""
    reasons = {str(index): reason for index, reason in (bad or {}).items()}
    bad_checksum = zlib.crc32(json.dumps(reasons, sort_keys=True).encode())
    return {"checksum": _checksum_pixels(pixels), "bad": reasons, "bad_checksum": bad_checksum}


def _checksum_pixels(pixels: np.ndarray) -> int:
    return zlib.crc32(pixels.reshape(-1).data)


@cache
def _print_once(line: str) -> None:
    print_notice(line)


# Checks of images that stay encoded


def check_images(images: ImageColumn) -> tuple[Reasons, np.ndarray | None]:
    """Return why some images cannot be read, and a digest of the bytes of each; cached until a file changes.

    Results that were cached by versions without digests have None in their place.
    """
    stamp = images.stamp()
    if stamp is None:
        return _check_all(images)
    key = sha256(f"2 {stamp}".encode() + images.rows.numpy().tobytes()).hexdigest()[:32]
    path = cache_folder("checked") / f"{key}.json"
    try:
        lock = _acquire(path, "checking")
    except (OSError, NotImplementedError):  # a home that cannot be written to costs another check, nothing else
        return _load_check(path, key, len(images)) or _check_all(images)
    try:
        cached = _load_check(path, key, len(images))
        if cached is None:
            cached = _check_all(images)
            _save_check(path, key, cached)
        return cached
    finally:
        lock.release()


def _check_all(images: ImageColumn) -> tuple[Reasons, np.ndarray]:
    """Decode every image, and return why some cannot be read, and a digest of the bytes of each."""
    digests = np.frombuffer(mmap.mmap(-1, DIGEST_BYTES * len(images)), f"V{DIGEST_BYTES}")  # shared with processes

    def digest(index: int, data: bytes, image: Image.Image) -> None:
        digests[index] = digest_of_bytes(data)

    return _decode_all(images, "Checking images, once", digest, smaller=True), digests


def _save_check(path: Path, key: str, check: tuple[Reasons, np.ndarray]) -> None:
    bad, digests = check
    with suppress(OSError):  # a home that cannot be written to costs another check, nothing else
        remove_leftovers(path.parent)
        reasons = {str(index): reason for index, reason in bad.items()}
        with write_whole(path.with_suffix(".digests")) as unfinished:
            unfinished.write_bytes(digests.tobytes())
        checksums = {"checksum": _checksum_check(key, reasons), "digests": zlib.crc32(digests.tobytes())}
        write_json(path, {"bad": reasons, **checksums})


def _load_check(path: Path, key: str, count: int) -> tuple[Reasons, np.ndarray | None] | None:
    if not path.is_file():
        return None
    try:
        record = read_json(path)
        if record["checksum"] == _checksum_check(key, record["bad"]):
            bad = {int(index): reason for index, reason in record["bad"].items()}
            if "digests" not in record:
                return bad, None
            digests = read_ordinary(path.with_suffix(".digests"), most_bytes=DIGEST_BYTES * count)
            if len(digests) == DIGEST_BYTES * count and zlib.crc32(digests) == record["digests"]:
                return bad, np.frombuffer(digests, f"V{DIGEST_BYTES}")
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass
    print_notice(f"{path} is damaged: images are checked again.")
    return None


def _checksum_check(key: str, reasons: Mapping[str, str]) -> str:
    return sha256(f"{key} {json.dumps(reasons, sort_keys=True)}".encode()).hexdigest()[:16]
