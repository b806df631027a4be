"""How long actions take beside each other."""

from __future__ import annotations

import time
from collections.abc import Callable


def fastest(*actions: Callable[[], object], repeats: int) -> list[float]:
    """The seconds of each action's fastest turn; they take turns, so that what else the machine does hits all alike."""
    times: list[list[float]] = [[] for _ in actions]
    for turn in range(repeats + 1):
        for action, found in zip(actions, times, strict=True):
            start = time.perf_counter()
            action()
            if turn:  # the first ones warm up
                found.append(time.perf_counter() - start)
    return [min(found) for found in times]
