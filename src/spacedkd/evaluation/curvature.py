"""How curved the loss is around a network: trace and largest eigenvalue of the Hessian of its mean loss.

Small curvature is what is called a flat minimum. The network is measured in eval mode, so BatchNorm uses its running
statistics, on the images as they are given, without any that are drawn anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from spacedkd.errors import UserError, unknown
from spacedkd.evaluation.eigenvalue import Eigenvalue, largest_eigenvalue
from spacedkd.evaluation.held_still import Batches, Logits, Loss, cross_entropy, in_eval_mode
from spacedkd.evaluation.hessian import AT_ONCE, Hessian
from spacedkd.evaluation.plan import MOST_PRODUCTS
from spacedkd.evaluation.trace import Callback as Count
from spacedkd.evaluation.trace import Trace, hutch_plus_plus, hutchinson, hutchinson_by_part

Callback = Callable[[str, int, int], None]
"""told what is being estimated, how many products of Hessian and vector are done, and how many there may be"""

Estimator = Callable[[Hessian, Tensor, float, int, int, Count], Trace]
ESTIMATORS: dict[str, Estimator] = {
    "hutchinson": hutchinson,
    "hutchinson by part": hutchinson_by_part,
    "hutch++": hutch_plus_plus,
}
USED = ("hutchinson by part", "hutch++")


@dataclass(frozen=True)
class Curvature:
    """What the Hessian of the mean loss over `images` images looks like."""

    images: int
    parameters: int
    loss: float
    traces: dict[str, Trace]  # by estimator
    largest: Eigenvalue
    error: float  # what was asked for, relative
    most_products: int  # of the Hessian with a vector, for each estimate
    seed: int
    batchnorm: str = "running statistics (eval mode)"

    @property
    def trace(self) -> Trace:
        """The last estimator's; to choose the one that looks surest would make it look surer than it is."""
        return [*self.traces.values()][-1]


def curvature(
    model: nn.Module,
    batches: Batches,
    *,
    predict: Logits | None = None,
    loss: Loss = cross_entropy,
    estimators: tuple[str, ...] = USED,
    error: float = 0.05,
    most_products: int = MOST_PRODUCTS,
    at_once: int = AT_ONCE,
    seed: int = 0,
    callback: Callback | None = None,
) -> Curvature:
    """The trace by each estimator and the largest eigenvalue, each until its relative error is at most `error`.

    None takes more than `most_products` products; what stopped it is in its result. `predict` gives the logits to be
    judged; left out, the model itself does. One graph holds `at_once` images.
    """
    _check(estimators, error, most_products, at_once)
    with in_eval_mode(model):
        hessian = Hessian(model, batches, predict, loss, at_once)
        if not math.isfinite(hessian.loss):
            raise UserError(f"The loss of this network is {hessian.loss}, so it has no curvature to measure.")
        like = next(model.parameters()).detach()
        traces = {
            name: ESTIMATORS[name](hessian, like, error, most_products, seed, _told(callback, f"trace, {name}"))
            for name in estimators
        }
        told = _told(callback, "largest eigenvalue")
        largest = largest_eigenvalue(hessian, like, error, most_products, seed, told)
    return Curvature(hessian.images, hessian.size, hessian.loss, traces, largest, error, most_products, seed)


def _told(callback: Callback | None, what: str) -> Count:
    def tell(done: int, most: int) -> None:
        if callback is not None:
            callback(what, done, most)

    return tell


def _check(estimators: tuple[str, ...], error: float, most_products: int, at_once: int) -> None:
    for name in estimators:
        if name not in ESTIMATORS:
            raise unknown("estimator of the trace", name, ESTIMATORS)
    if not 0 < error < 1:
        raise UserError(f"The relative error of the curvature must lie between 0 and 1, got {error}. Try 0.05.")
    if most_products < 8:
        raise UserError(f"The curvature needs at least 8 products of Hessian and vector, got {most_products}.")
    if at_once < 1:
        raise UserError(f"At least one image must be looked at at once, got {at_once}.")
