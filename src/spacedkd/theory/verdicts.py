"""Whether an inequality between expectations was seen to hold, how often and by how much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from spacedkd.evaluation.confidence import ConfidenceInterval, confidence_interval, half_width


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
    problems_held: float  # part of problems, by the change averaged over all times; surer, as there is more to average
    problems_broken: float
    change: ConfidenceInterval  # over problems: geometric mean of left / right, or mean of (left - right) / scale
    unit: str


def verdict(sides: Sides) -> Verdict:
    """Count, over problems and times."""
    held, broken = _clear(sides.left - sides.right)
    change = _change(sides).mean(0)  # [problems, orders]
    problems_held, problems_broken = _clear(change)
    per_problem = change.mean(-1)
    return Verdict(
        held=part(held),
        broken=part(broken),
        means=part(sides.holds_between_means()),
        single=part(sides.left <= sides.right),
        problems_held=part(problems_held),
        problems_broken=part(problems_broken),
        change=confidence_interval((per_problem.exp() if sides.unit == "ratio" else per_problem).tolist()),
        unit=sides.unit,
    )


def _clear(differences: Tensor) -> tuple[Tensor, Tensor]:
    """Where the mean over orders, the last dimension, is clearly below and clearly above zero."""
    orders = differences.shape[-1]
    mean = differences.mean(-1)
    half = half_width(1.0, orders) * differences.std(-1) / orders**0.5
    return mean + half < 0, mean - half > 0


def _change(sides: Sides) -> Tensor:
    """log(left / right), or (left - right) / scale."""
    if sides.unit == "ratio":
        return (sides.left / sides.right).log()
    return (sides.left - sides.right) / (sides.right if sides.scale is None else sides.scale)


def follows(premise: Sides, conclusions: Mapping[str, Sides]) -> dict[str, float] | None:
    """Where the premise holds between means: how often each conclusion does. None if the premise never holds."""
    holds = premise.holds_between_means()
    if not bool(holds.any()):
        return None
    return {name: part(sides.holds_between_means()[holds]) for name, sides in conclusions.items()}


def part(true: Tensor) -> float:
    """The part of entries that are true."""
    return float(true.to(torch.float64).mean())
