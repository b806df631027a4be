"""How many runs fit into the memory of this machine."""

from spacedkd.data.parallel import tell
from spacedkd.machine import free_memory, numbers_of

TRAINING = 2
"""times what a process holds before it trains: gradients, optimizer and activations come on top"""


def as_memory_allows(at_once: int, held: int) -> int:
    """How many runs go at once, of those that could, if each holds so many bytes before it trains.

    A rule of thumb, so one always goes; and where the system does not say how much memory there is, all do.
    """
    needed, free = TRAINING * held, free_memory()
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
    return sum(numbers_of("/proc/self/status", "RssAnon", "RssShmem"))
