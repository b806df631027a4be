"""The moving average of a network."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def _as_it_is(value: Tensor) -> Tensor:
    return value


@torch.no_grad()
def ema_update(
    average: nn.Module, module: nn.Module, decay: float, share: Callable[[Tensor], Tensor] = _as_it_is
) -> None:
    """average <- d average + (1 - d) module, weights and statistics such as BatchNorm's; whole numbers are copied.

    Processes have statistics of their own; `share` makes one of them everybody's.
    """
    for mine, theirs in zip(average.parameters(), module.parameters(), strict=True):
        mine.lerp_(theirs.to(mine.dtype), 1 - decay)
    for kept, current in zip(average.buffers(), module.buffers(), strict=True):
        if kept.is_floating_point():
            kept.lerp_(share(current).to(kept.dtype), 1 - decay)
        else:
            kept.copy_(current)
