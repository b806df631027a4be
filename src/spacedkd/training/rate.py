"""The learning rate as a function of the step."""

from __future__ import annotations

import math
from collections.abc import Callable

from spacedkd.spec import OptimizerSpec, RateSpec


def learning_rate(optimizer: OptimizerSpec, rate: RateSpec, steps_per_epoch: int, total: int) -> Callable[[int], float]:
    """lr(step) for a run of `total` steps; `rate` must be in steps (see `duration.in_steps`).

    constant    lr
    multistep   lr factor^n after the n-th milestone
    cosine      lr (floor + (1 - floor) (1 + cos(pi u)) / 2), u from 0 to 1
    warm-up     lr (start + (1 - start) step / warmup) before all of these

    >>> from spacedkd.duration import Duration
    >>> warm_cosine = RateSpec("cosine", warmup=Duration(2, "st"), warmup_start=0.5)
    >>> lr = learning_rate(OptimizerSpec(lr=1.0), warm_cosine, steps_per_epoch=6, total=6)
    >>> [round(lr(step), 3) for step in range(6)]
    [0.5, 0.75, 1.0, 0.854, 0.5, 0.146]
    """
    warmup = int(rate.warmup.amount)
    milestones = [int(milestone.amount) for milestone in rate.milestones]

    def shape(step: int) -> float:
        if rate.shape == "constant":
            return 1.0
        if rate.shape == "multistep":
            return rate.factor ** sum(step >= milestone for milestone in milestones)
        begin = warmup if rate.restart_after_warmup else 0
        done = (step - begin) / max(total - begin, 1)
        return rate.floor + (1 - rate.floor) * (1 + math.cos(math.pi * done)) / 2

    def lr(step: int) -> float:
        if rate.per_epoch:
            step -= step % steps_per_epoch
        if step < warmup:
            return optimizer.lr * (rate.warmup_start + (1 - rate.warmup_start) * step / warmup)
        return optimizer.lr * shape(step)

    return lr
