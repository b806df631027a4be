"""What this machine has, and what is refused because no machine like it could do it."""

import os
from pathlib import Path

from spacedkd.runtime.errors import UserError

BYTES_PER_PIXEL = 2048
"""of an image that a network looks at: four times 64 channels of four bytes, for each of two images"""


def numbers_of(file: str, *names: str) -> list[int]:
    """Those that Linux writes as `NAME:  12345 kB`, in bytes; none on other systems."""
    try:
        lines = [line.split() for line in Path(file).read_text().splitlines()]
    except OSError:
        return []
    return [1024 * int(words[1]) for words in lines if words and words[0].removesuffix(":") in names]


def free_memory() -> int:
    """Bytes; 0 where the system does not say."""
    return sum(numbers_of("/proc/meminfo", "MemAvailable"))


def check_count(name: str, count: int | None, least: int) -> None:
    """Refuse far more threads or processes than this machine has cores; `least` are allowed anywhere."""
    most = max(least, 4 * (os.cpu_count() or 1))
    if count is not None and not 0 <= count <= most:
        raise UserError(
            f"{name} must be at most {most} on this machine, which has {os.cpu_count()} cores; got {count}."
        )


def check_threads(count: int | None) -> None:
    check_count("threads", count, least=256)


def check_pixels(what: str, height: int, width: int) -> None:
    """Refuse images so large that a network could not even look at two of them here."""
    needed, free = BYTES_PER_PIXEL * height * width, free_memory()
    if free and needed > free:
        raise UserError(
            f"{what} {height}x{width} is too large: for a network to look at two such images takes about "
            f"{needed / 1e9:.3g} GB, and {free / 1e9:.3g} GB of memory are free. Choose a smaller one."
        )
