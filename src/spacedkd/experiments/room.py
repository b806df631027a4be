"""How many runs fit into the memory of this machine."""

from pathlib import Path

from spacedkd.data.parallel import tell

TRAINING = 2
"""times what a process holds before it trains: gradients, optimizer and activations come on top"""


def as_memory_allows(at_once: int, held: int) -> int:
    """How many runs go at once, of those that could, if each holds so many bytes before it trains.

    A rule of thumb, so one always goes; and where the system does not say how much memory there is, all do.
    """
    needed, free = TRAINING * held, sum(_numbers("/proc/meminfo", "MemAvailable"))
    if not needed or not free or at_once * needed <= free:
        return at_once
    fit = max(1, free // needed)
    tell(
        f"Only {fit} of {at_once} runs at once: each takes about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB of "
        f"memory are free. --jobs {at_once} tries all the same."
    )
    return fit


def held() -> int:
    """Bytes that belong to this process alone; pixels mapped from the disk are shared, and do not count."""
    return sum(_numbers("/proc/self/status", "RssAnon", "RssShmem"))


def _numbers(file: str, *names: str) -> list[int]:
    """Those that Linux writes as `NAME:  12345 kB`, in bytes; none on other systems."""
    try:
        lines = [line.split() for line in Path(file).read_text().splitlines()]
    except OSError:
        return []
    return [1024 * int(words[1]) for words in lines if words and words[0].removesuffix(":") in names]
