"""Read all images of a data set with all cores: into memory, or only to see whether they can be read."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spacedkd.data.fit import Fit
from spacedkd.data.news import tell
from spacedkd.data.stored import BadImage, Stored, decode

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
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spacedkd" / "checked"
    return cache / f"{sha256(stamp.encode() + rows.numpy().tobytes()).hexdigest()[:32]}.json"


def _remember(memory: Path, bad: Reasons) -> None:
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        unfinished = memory.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(bad))
        unfinished.replace(memory)
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
