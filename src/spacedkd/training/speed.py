"""How fast a run goes, by the clock of the process that trains it; nothing of this is in the journal."""

import math
import time
from collections import Counter
from collections.abc import Mapping

MEMORY_SECONDS = 20.0
"""of learning, after which little is remembered of how fast it was before"""


class Speed:
    """Images a second of each role, and the seconds a run will still take.

    No device is waited for: where one computes beside the host, losses that are written down keep them together.
    """

    def __init__(self, left: Mapping[str, int]) -> None:
        """Of the turns that are `left` to each role."""
        self.left = Counter(left)
        self._taken: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}
        self._images: dict[str, tuple[float, float]] = {}
        self._began = self._ended = time.monotonic()

    def begin(self) -> None:
        """A turn begins."""
        self._began = time.monotonic()

    def learned(self, role: str, images: int) -> float:
        """A turn of a role has learned from so many images; gives its images a second."""
        took = time.monotonic() - self._began
        seen, seconds = self._images.get(role, (0.0, 0.0))
        keep = math.exp(-took / MEMORY_SECONDS)
        seen, seconds = seen * keep + images, seconds * keep + took
        self._images[role] = seen, seconds
        return seen / max(seconds, 1e-9)

    def ended(self, role: str) -> float:
        """A turn of a role has come to its end, with all that was done after it; gives the seconds that are left."""
        now = time.monotonic()
        self._seconds[role] = self._seconds.get(role, 0.0) + now - self._ended
        self._taken[role] += 1
        self.left[role] -= 1
        self._ended = now
        return self.seconds_left()

    def waited(self) -> None:
        """What has gone by since the last turn was no work of ours."""
        self._ended = time.monotonic()

    def seconds_left(self) -> float:
        """A role that has not learned yet is taken to be as fast as the others are."""
        usual = sum(self._seconds.values()) / max(self._taken.total(), 1)
        pace = {role: self._seconds[role] / self._taken[role] for role in self._taken}
        return sum(count * pace.get(role, usual) for role, count in self.left.items() if count > 0)
