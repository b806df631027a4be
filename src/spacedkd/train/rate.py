"""The learning rate as a function of the step."""

from __future__ import annotations

import math
from collections.abc import Callable

from spacedkd.spec import OptimizerSpec, RateSpec


def learning_rate(optimizer: OptimizerSpec, rate: RateSpec, total: int) -> Callable[[int], float]:
    """lr(step) for a run of `total` steps; `rate` must be in steps (see `schedule.in_steps`).

    constant   lr
    cosine     lr (floor + (1 - floor) (1 + cos(pi u)) / 2), u from 0 after the warm-up to 1 at the end

    >>> from spacedkd.duration import Duration
    >>> lr = learning_rate(OptimizerSpec(lr=1.0), RateSpec("cosine", warmup=Duration(2, "st")), total=6)
    >>> [round(lr(step), 3) for step in range(6)]
    [0.5, 1.0, 1.0, 0.854, 0.5, 0.146]
    """
    warmup = int(rate.warmup.amount)

    def lr(step: int) -> float:
        if step < warmup:
            return optimizer.lr * (step + 1) / warmup
        if rate.shape == "constant":
            return optimizer.lr
        done = (step - warmup) / max(total - warmup, 1)
        return optimizer.lr * (rate.floor + (1 - rate.floor) * (1 + math.cos(math.pi * done)) / 2)

    return lr
