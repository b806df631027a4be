"""Learning rates as functions of the step, and functions that compose them.

A warm-up followed by a cosine is a join of two functions:

>>> lr = join(linear(0.0, 1.0, steps=2), cosine(1.0, steps=4), at=2)
>>> [round(lr(step), 3) for step in range(6)]
[0.0, 0.5, 1.0, 0.854, 0.5, 0.146]
"""

import math
from collections.abc import Callable, Sequence

from spacedkd.config.optimizer import OptimizerSpec, RateSpec
from spacedkd.schedule import in_steps, steps_of

LearningRate = Callable[[int], float]
"""the learning rate of a step"""


def constant(lr: float) -> LearningRate:
    """Return a learning rate that is the same at every step."""
    return lambda step: lr


def linear(start: float, end: float, steps: int) -> LearningRate:
    """Return a line from `start` to `end`, reached at step `steps`: start + (end - start) step / steps."""
    return lambda step: start + (end - start) * step / steps


def cosine(lr: float, steps: int, floor: float = 0.0) -> LearningRate:
    """Return half a cosine: lr (floor + (1 - floor) (1 + cos(pi step / steps)) / 2)."""
    return lambda step: lr * (floor + (1 - floor) * (1 + math.cos(math.pi * (step / max(steps, 1)))) / 2)


def multistep(lr: float, milestones: Sequence[int], factor: float = 0.1) -> LearningRate:
    """Return lr factor^n after the n-th milestone.

    >>> [multistep(1.0, [2, 3], 0.5)(step) for step in range(4)]
    [1.0, 1.0, 0.5, 0.25]
    """
    return lambda step: lr * factor ** sum(step >= milestone for milestone in milestones)


def join(first: LearningRate, then: LearningRate, at: int, restart: bool = True) -> LearningRate:
    """Return `first` until step `at` and `then` from there on, which counts from 0 again unless `restart` is False."""
    begin = at if restart else 0
    return lambda step: first(step) if step < at else then(step - begin)


def per_epoch(lr: LearningRate, steps_per_epoch: int) -> LearningRate:
    """Return the learning rate that changes only where an epoch begins.

    >>> [per_epoch(linear(0.0, 1.0, 4), 2)(step) for step in range(4)]
    [0.0, 0.0, 0.5, 0.5]
    """
    return lambda step: lr(step - step % steps_per_epoch)


def from_spec(optimizer: OptimizerSpec, rate: RateSpec, steps_per_epoch: int, total: int) -> LearningRate:
    """Return the learning rate of a spec in a run of `total` steps; epochs and percent become steps here."""
    rate = in_steps(rate, steps_per_epoch, total)
    peak, warmup = optimizer.lr, steps_of(rate.warmup)
    restart = rate.shape == "cosine" and rate.restart_after_warmup
    if rate.shape == "cosine":
        lr = cosine(peak, total - warmup if restart else total, rate.floor)
    elif rate.shape == "multistep":
        lr = multistep(peak, [steps_of(milestone) for milestone in rate.milestones], rate.factor)
    else:
        lr = constant(peak)
    if warmup:
        share = linear(rate.warmup_start, 1.0, warmup)
        lr = join(lambda step: peak * share(step), lr, at=warmup, restart=restart)
    return per_epoch(lr, steps_per_epoch) if rate.per_epoch else lr
