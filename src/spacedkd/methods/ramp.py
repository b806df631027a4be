"""How a soft loss grows in the first epochs, while predictions are not worth listening to."""

from __future__ import annotations

import math


def ramp_up(epoch: int, epochs: float) -> float:
    """exp(-5 (1 - e/E)^2) for epoch e, counted from 0, until E; from then on 1.

    >>> [round(ramp_up(epoch, 80), 8) for epoch in (0, 10, 40, 80, 200)]
    [0.00673795, 0.02175036, 0.2865048, 1.0, 1.0]
    """
    return math.exp(-5 * (1 - epoch / epochs) ** 2) if epoch < epochs else 1.0
