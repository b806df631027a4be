"""A temperature that learns to make distillation hard (CTKD, Li et al. 2023).

    T = 1 + 20 sigmoid(theta),   theta <- theta + |lambda_e| lr dL/dtheta,   lambda_e = (cos(pi min(e, E)/E) + 1)/2 - 1

theta belongs to the student's weights and its optimizer. The gradient is turned round on its way to it, so that it
climbs the loss the student descends; e counts epochs from 1, and the climb steepens over the first E of them.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spacedkd.models.heads import Prediction

COLDEST, RANGE = 1.0, 20.0


class WithTemperature(nn.Module):
    """A model that also says how soft it wants to be compared: every head's `heat` is the learned theta."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.heat = nn.Parameter(torch.ones(1))

    @property
    def network(self) -> nn.Module:
        return self.model.network  # type: ignore[return-value]

    @property
    def head_names(self) -> Sequence[str]:
        return self.model.head_names  # type: ignore[return-value]

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Prediction, ...]:
        heat = self.heat.clone()  # weights that are spread over devices are gone after the pass
        return tuple(prediction._replace(heat=heat) for prediction in self.model(*args, **kwargs))


def curriculum(epoch: int, epochs: float) -> float:
    """lambda_e of epoch e, counted from 1: from 0 down to -1, which it reaches with the last of `epochs`.

    >>> [round(curriculum(epoch, 10), 3) for epoch in (0, 1, 5, 10, 11)]
    [0.0, -0.024, -0.5, -1.0, -1.0]
    """
    return (math.cos(math.pi * min(epoch, epochs) / epochs) + 1) / 2 - 1


def learned_temperature(heat: Tensor, strength: float) -> Tensor:
    """T of theta; the gradient that reaches theta is multiplied by `strength`, which is negative."""
    value = heat.detach()
    return COLDEST + RANGE * torch.sigmoid(value + strength * (heat - value))[0]
