"""Whether an inequality between expectations was seen to hold, how often and by how much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from scipy import stats
from torch import Tensor

from spacedkd.evaluate.interval import Interval, t_interval


class Sides(NamedTuple):
    """Left and right of an inequality `left <= right`, each [times, problems, orders]."""

    left: Tensor
    right: Tensor
    unit: Literal["ratio", "part"]
    scale: Tensor | None = None  # what a difference is a part of; the right side where it is not given

    def at(self, rows: list[bool]) -> Sides:
        return Sides(self.left[rows], self.right[rows], self.unit, None if self.scale is None else self.scale[rows])

    def holds_between_means(self) -> Tensor:
        """Over orders: [times, problems]."""
        return self.left.mean(-1) <= self.right.mean(-1)


@dataclass(frozen=True)
class Verdict:
    """How often `left <= right` was seen.

    An expectation is over orders, so there is one inequality for each problem and time. It is held or broken where the
    paired 95 % interval of the difference lies on one side of zero; chance alone breaks 2.5 % of those that are equal.
    """

    held: float
    broken: float
    means: float  # part in which the mean of the left is not above the mean of the right, clearly or not
    single: float  # part of all single runs and times with left <= right
    change: Interval  # over problems: geometric mean of left / right, or mean of (left - right) / scale
    unit: str


def verdict(sides: Sides) -> Verdict:
    """Count, over problems and times."""
    differences = sides.left - sides.right
    orders = differences.shape[-1]
    mean = differences.mean(-1)
    half = float(stats.t.ppf(0.975, orders - 1)) * differences.std(-1) / orders**0.5
    return Verdict(
        held=part(mean + half < 0),
        broken=part(mean - half > 0),
        means=part(mean <= 0),
        single=part(differences <= 0),
        change=_change(sides),
        unit=sides.unit,
    )


def _change(sides: Sides) -> Interval:
    if sides.unit == "ratio":
        return t_interval((sides.left / sides.right).log().mean((0, 2)).exp().tolist())
    scale = sides.right if sides.scale is None else sides.scale
    return t_interval(((sides.left - sides.right) / scale).mean((0, 2)).tolist())


def follows(premise: Sides, conclusions: Mapping[str, Sides]) -> dict[str, float] | None:
    """Where the premise holds between means: how often each conclusion does. None if the premise never holds."""
    holds = premise.holds_between_means()
    if not bool(holds.any()):
        return None
    return {name: part(sides.holds_between_means()[holds]) for name, sides in conclusions.items()}


def part(true: Tensor) -> float:
    """The part of entries that are true."""
    return float(true.to(torch.float64).mean())
