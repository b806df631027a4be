"""A moving average of a model's weights."""

from __future__ import annotations

from torch import nn

from spacedkd.models.weights import ema_update


def update_average(average: nn.Module, module: nn.Module, decay: float, step: int) -> None:
    """average <- d average + (1 - d) module, with d = min(decay, (1 + step) / (10 + step)).

    The smaller d of the first steps keeps the random weights of the beginning from lingering. BatchNorm's statistics
    are averaged like the weights they belong to.
    """
    ema_update(average, module, min(decay, (1 + step) / (10 + step)))
