"""A moving average of weights."""

from __future__ import annotations

import torch
from torch import nn


@torch.no_grad()
def ema_update(average: nn.Module, module: nn.Module, decay: float, step: int) -> None:
    """average <- d average + (1 - d) module, with d = min(decay, (1 + step) / (10 + step)); buffers are copied.

    The smaller d of the first steps keeps the random weights of the beginning from lingering.
    """
    weight = 1 - min(decay, (1 + step) / (10 + step))
    for mine, theirs in zip(average.parameters(), module.parameters(), strict=True):
        mine.lerp_(theirs.to(mine.dtype), weight)
    for kept, current in zip(average.buffers(), module.buffers(), strict=True):
        kept.copy_(current)
