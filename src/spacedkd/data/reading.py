"""Read all images with all cores: into memory where they fit, else only to see whether they can be read."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spacedkd.data.found import Part
from spacedkd.data.images import Encoded, Fit, Images, to_bytes, to_image
from spacedkd.data.stored import BadImage, Stored, decode
from spacedkd.errors import UserError
from spacedkd.files import cache_folder, write_json

CHUNK = 64
NEWS_SECONDS = 10.0
SMALL_BYTES = 8192

Reasons = dict[int, str]
"""place among the rows asked for -> why the image cannot be read"""


class SizesDiffer(Exception):
    """The images do not fit into one array."""


def into_memory(stored: Stored, rows: Tensor, fit: Fit | None, limit: int) -> tuple[Tensor, Reasons] | None:
    """uint8 [N, 3, H, W], zeros where an image cannot be read; None if there are too many or their sizes differ."""
    chosen = rows.tolist()
    width, height = (fit.size, fit.size) if fit is not None else _first_size(stored, chosen)
    if len(chosen) * 3 * height * width > limit:
        return None
    pixels = np.zeros((len(chosen), 3, height, width), dtype=np.uint8)
    bad: Reasons = {}

    def read(place: int) -> None:
        try:
            image = decode(stored.read(chosen[place]))
        except BadImage as reason:
            bad[place] = str(reason)
            return
        image = image if fit is None else fit(image)
        if image.size != (width, height):
            raise SizesDiffer
        pixels[place] = np.asarray(image).transpose(2, 0, 1)

    try:
        in_threads(read, len(chosen), "Reading images", _threads(stored, chosen))
    except SizesDiffer:
        return None
    return torch.from_numpy(pixels), bad


def _first_size(stored: Stored, rows: list[int]) -> tuple[int, int]:
    for row in rows:
        try:
            return decode(stored.read(row)).size
        except BadImage:
            continue
    return 1, 1


def unreadable(stored: Stored, rows: Tensor) -> Reasons:
    """Which images cannot be read. The verdict is remembered until a file changes."""
    memory = _memory(stored, rows)
    if memory is not None and memory.is_file():
        return {int(place): reason for place, reason in json.loads(memory.read_text()).items()}
    chosen = rows.tolist()
    bad: Reasons = {}

    def read(place: int) -> None:
        try:
            decode(stored.read(chosen[place]), smaller=True)
        except BadImage as reason:
            bad[place] = str(reason)

    in_threads(read, len(chosen), "Checking images, once", _threads(stored, chosen))
    if memory is not None:
        _remember(memory, bad)
    return bad


def _memory(stored: Stored, rows: Tensor) -> Path | None:
    stamp = stored.stamp()
    if stamp is None:
        return None
    return cache_folder("checked") / f"{sha256(stamp.encode() + rows.numpy().tobytes()).hexdigest()[:32]}.json"


def _remember(memory: Path, bad: Reasons) -> None:
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_json(memory, bad)
    except OSError:
        pass  # a home that cannot be written to costs the check again, nothing else


def in_threads(work: Callable[[int], None], count: int, title: str, threads: int) -> None:
    """Do `work` for 0 .. count-1, with a line of news now and then; the first exception ends it."""
    started = told = time.monotonic()

    def chunk(start: int) -> None:
        for place in range(start, min(start + CHUNK, count)):
            work(place)

    with warnings.catch_warnings(), ThreadPoolExecutor(threads) as pool:
        warnings.simplefilter("ignore")  # odd metadata does not make an image unreadable
        waiting = {pool.submit(chunk, start) for start in range(0, count, CHUNK)}
        try:
            while waiting:
                done, waiting = wait(waiting, NEWS_SECONDS, FIRST_EXCEPTION)
                for finished in done:
                    finished.result()
                if waiting and time.monotonic() - told >= NEWS_SECONDS:
                    told = time.monotonic()
                    tell(f"{title}: {max(0, count - len(waiting) * CHUNK)} of {count}, {told - started:.0f} s")
        finally:
            pool.shutdown(cancel_futures=True)


def _threads(stored: Stored, rows: list[int]) -> int:
    """One for small images: they spend their time in Python, where threads only wait for each other."""
    for row in rows:
        try:
            return cores() if len(stored.read(row)) > SMALL_BYTES else 1
        except BadImage:
            continue
    return 1


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


MEMORY_LIMIT = 4 << 30
"""a part of more decoded bytes is decoded while training"""


@dataclass(frozen=True)
class Form:
    """In what form images are wanted."""

    classes: tuple[str, ...]
    fit: Fit | None
    """None takes the size they have"""
    fits_first: bool
    """whether the fitted size is all that is ever asked for"""
    colour: bool
    """whether one channel will not do"""
    skip_bad: bool = False
    memory_limit: int = MEMORY_LIMIT


def keep(part: Part, rows: Tensor, labels: Tensor, form: Form) -> tuple[Images | Encoded, str | None]:
    """The images at `rows` of a part, and a line on those left out; they still lack what normalises them."""
    if isinstance(part.images, np.ndarray):
        return _array(part.name, part.images[rows.numpy()], labels[rows], form), None
    read = into_memory(part.images, rows, form.fit if form.fits_first else None, form.memory_limit)
    bad = unreadable(part.images, rows) if read is None else read[1]
    note = _left_out(part.images, rows, bad, form.skip_bad)
    good = torch.tensor([place for place in range(len(rows)) if place not in bad], dtype=torch.int64)
    if len(good) == 0:
        raise UserError(f"{part.name} has no image that can be read, first {part.images.name(int(rows[0]))}.")
    chosen = rows[good]
    if read is not None:
        pixels = read[0][good] if bad else read[0]
        return Images(pixels, labels[chosen], form.classes, (), (), None if form.fits_first else form.fit), note
    assert form.fit is not None
    return Encoded(part.images, chosen, labels[chosen], form.classes, (), (), form.fit), note


def _left_out(stored: Stored, rows: Tensor, bad: Reasons, skip: bool) -> str | None:
    if not bad:
        return None
    first = min(bad)
    name = stored.name(int(rows[first]))
    if skip:
        return f"Left out {len(bad)} of {len(rows)} images that cannot be read, first: {name} {bad[first]}."
    others = f" {len(bad) - 1} more are bad too." if len(bad) > 1 else ""
    raise UserError(f"{name} {bad[first]}.{others} Mend or remove them, or leave them out with --skip-bad True.")


def _array(name: str, array: np.ndarray, labels: Tensor, form: Form) -> Images:
    pixels = torch.from_numpy(np.ascontiguousarray(array.transpose(0, 3, 1, 2)))
    channels, height, width = pixels.shape[1:]
    moves = form.fit is not None and (form.fit.size, form.fit.size) != (height, width)
    if (form.colour or moves) and channels not in (1, 3):
        raise UserError(f"The {name} images have {channels} channels: resizing and this augmentation need 1 or 3.")
    if form.colour and channels == 1:
        pixels = pixels.expand(-1, 3, -1, -1).contiguous()
    if form.fits_first and form.fit is not None and moves:
        pixels = _fitted(pixels, form.fit)
    return Images(pixels, labels, form.classes, (), (), None if form.fits_first else form.fit)


def _fitted(pixels: Tensor, fit: Fit) -> Tensor:
    fitted = torch.empty(len(pixels), pixels.shape[1], fit.size, fit.size, dtype=torch.uint8)

    def one(row: int) -> None:
        fitted[row] = to_bytes(fit(to_image(pixels[row])))

    in_threads(one, len(pixels), "Resizing images", cores())
    return fitted


def tell(line: str) -> None:
    """One line on the terminal; of several processes on a machine, one speaks for all, and helpers are silent."""
    if os.environ.get("LOCAL_RANK", "0") == "0" and multiprocessing.parent_process() is None:
        print(line, file=sys.stderr, flush=True)
