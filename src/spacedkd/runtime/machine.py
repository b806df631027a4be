"""Memory and cores of this machine, and refusals of what does not fit into them."""

import os
from pathlib import Path

from spacedkd.runtime.errors import UserError

BYTES_PER_PIXEL = 2048
"""of a forward pass, at least: four maps of 64 channels of four bytes, for each of two images"""


def numbers_of(file: str, *names: str) -> list[int]:
    """Return in bytes the numbers that a file of Linux has as `NAME:  12345 kB`; none on other systems."""
    try:
        lines = [line.split() for line in Path(file).read_text().splitlines()]
    except OSError:
        return []
    return [1024 * int(words[1]) for words in lines if words and words[0].removesuffix(":") in names]


def free_memory() -> int:
    """Return the free memory in bytes; 0 where the system does not tell."""
    return sum(numbers_of("/proc/meminfo", "MemAvailable"))


def check_count(name: str, count: int | None, least: int) -> None:
    """Refuse far more threads or processes than this machine has cores; `least` are allowed anywhere."""
    most = max(least, 4 * (os.cpu_count() or 1))
    if count is not None and not 0 <= count <= most:
        raise UserError(
            f"{name} must be at most {most} on this machine, which has {os.cpu_count()} cores; got {count}."
        )


def check_threads(count: int | None) -> None:
    """Refuse far more threads than this machine has cores."""
    check_count("threads", count, least=256)


def check_pixels(what: str, height: int, width: int) -> None:
    """Refuse images so large that a forward pass of two of them does not fit into this machine's memory."""
    needed, free = BYTES_PER_PIXEL * height * width, free_memory()
    if free and needed > free:
        raise UserError(
            f"{what} {height}x{width} is too large: a forward pass of two such images takes about "
            f"{needed / 1e9:.3g} GB, and {free / 1e9:.3g} GB of memory are free. Choose a smaller one."
        )
