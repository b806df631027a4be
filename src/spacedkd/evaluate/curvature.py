"""How curved the loss is around a network: trace and largest eigenvalue of the Hessian of its mean loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import nn

from spacedkd.evaluate.held_still import Batches, Logits, Loss, cross_entropy

Stopped = Literal["error reached", "most products", "whole space"]
Watch = Callable[[str, int, int], None]
"""told what is being estimated, how many products of Hessian and vector it took so far, and how many it may take"""


@dataclass(frozen=True)
class Trace:
    """An estimate of the trace."""

    method: str
    value: float
    standard_error: float
    products: int  # of the Hessian with a vector
    stopped: Stopped


@dataclass(frozen=True)
class Eigenvalue:
    """The largest eigenvalue: one lies within `residual` of `value`."""

    value: float
    residual: float
    products: int
    stopped: Stopped


@dataclass(frozen=True)
class Curvature:
    """What the Hessian of the mean loss over `images` images looks like."""

    images: int
    parameters: int
    loss: float
    hutchinson: Trace
    xtrace: Trace
    largest: Eigenvalue
    seed: int
    batchnorm: str = "running statistics (eval mode)"


def curvature(
    model: nn.Module,
    batches: Batches,
    *,
    predict: Logits | None = None,
    loss: Loss = cross_entropy,
    error: float = 0.05,
    most_products: int = 100,
    seed: int = 0,
    watch: Watch | None = None,
) -> Curvature:
    """Trace (twice, by Hutchinson and by XTrace) and largest eigenvalue, each to a relative error of `error`."""
    raise NotImplementedError
