"""How curved the loss is around a network: trace and largest eigenvalue of the Hessian of its mean loss.

Small curvature is what is called a flat minimum. The Hessian is never written out, it only multiplies vectors:

    H v = grad_w ( grad_w L(w) . v )          two backward passes instead of n x n numbers

The gradient's graph of a few images is built once and multiplied with several vectors, then thrown away: memory does
not grow with the number of images. Measured against curvlinops' HessianLinearOperator this is the faster way
(`benchmarks/curvature_speed.py`), because that builds the graph once for each vector.

The network is measured on the images as they are given, in eval mode: BatchNorm's running statistics are constants and
not functions of the weights. With the statistics of a batch the loss would be another function, whose Hessian changes
with the batch size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from spacedkd.errors import UserError, unknown
from spacedkd.evaluation import estimators as by
from spacedkd.evaluation.estimators import Eigenvalue, Product, Trace, largest_eigenvalue
from spacedkd.evaluation.held_still import Advance, Batches, Logits, Loss, in_eval_mode
from spacedkd.evaluation.plan import MOST_PRODUCTS

AT_ONCE = 25
"""images in one graph; more would be hardly faster, and fewer parts for `hutchinson_by_part` to average over"""

ESTIMATORS: dict[str, Callable[[Hessian, Tensor, float, int, int, Advance], Trace]] = {
    "hutchinson": by.hutchinson,
    "hutchinson by part": by.hutchinson_by_part,
    "hutch++": by.hutch_plus_plus,
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
    loss: Loss = F.cross_entropy,
    estimators: Sequence[str] = USED,
    error: float = 0.05,
    most_products: int = MOST_PRODUCTS,
    at_once: int = AT_ONCE,
    seed: int = 0,
    advance: Advance = lambda _: None,
) -> Curvature:
    """The trace by each estimator and the largest eigenvalue, each until its relative error is at most `error`.

    None takes more than `most_products` products; what stopped it is in its result. `predict` gives the logits to be
    judged; left out, the model itself does. One graph holds `at_once` images. `advance` is told of products.
    """
    for name in estimators:
        if name not in ESTIMATORS:
            raise unknown("estimator of the trace", name, ESTIMATORS)
    if not 0 < error < 1:
        raise UserError(f"The relative error of the curvature must lie between 0 and 1, got {error}. Try 0.05.")
    if most_products < 8:
        raise UserError(f"The curvature needs at least 8 products of Hessian and vector, got {most_products}.")
    with in_eval_mode(model):
        hessian = Hessian(model, batches, predict, loss, at_once)
        if not math.isfinite(hessian.loss):
            raise UserError(f"The loss of this network is {hessian.loss}, so it has no curvature to measure.")
        given = hessian, next(model.parameters()).detach(), error, most_products, seed, advance
        traces = {name: ESTIMATORS[name](*given) for name in estimators}
        largest = largest_eigenvalue(*given)
    return Curvature(hessian.images, hessian.size, hessian.loss, traces, largest, error, most_products, seed)


class Hessian:
    """The Hessian of `loss` averaged over all images, with respect to the model's n parameters.

    Put the model into eval mode first (`in_eval_mode`). Vectors are rows of [K, n] tensors, in the order of
    `model.parameters()`.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        predict: Logits | None = None,
        loss: Loss = F.cross_entropy,
        at_once: int = AT_ONCE,
    ) -> None:
        self._parameters = [one for one in model.parameters() if one.requires_grad]
        if not self._parameters:
            raise UserError("This network has no parameters that can be trained, so its loss has no Hessian.")
        if at_once < 1:
            raise UserError(f"At least one image must be looked at at once, got {at_once}.")
        self._predict, self._loss, self._batches, self._at_once = predict or model, loss, batches, at_once
        self._sizes = [one.numel() for one in self._parameters]
        self.size = sum(self._sizes)
        self.images, self.loss = self._measured()

    def _measured(self) -> tuple[int, float]:
        """How many images there are, and their mean loss."""
        images, losses = 0, 0.0
        with torch.no_grad():
            for shown, labels in self._portioned():
                images += len(shown)
                losses += len(shown) * float(self._loss(self._predict(shown), labels))
        if not images:
            raise UserError("There are no images to measure on: the data's training part is empty.")
        return images, losses / images

    def _portioned(self) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in self._batches():
            yield from zip(images.split(self._at_once), labels.split(self._at_once), strict=True)

    def __matmul__(self, vectors: Tensor) -> Tensor:
        """H times every row: [K, n] to [K, n]."""
        product = torch.zeros_like(vectors)
        for share, multiply in self.parts():
            for row, vector in enumerate(vectors):
                product[row].add_(multiply(vector), alpha=share)
        return product

    def parts(self) -> Iterator[tuple[float, Product]]:
        """The Hessians of a few images each, with their share: H is the sum of share times part."""
        for images, labels in self._portioned():
            with sdpa_kernel(SDPBackend.MATH), _TwiceDifferentiable():  # fused attention has a first derivative only
                loss = self._loss(self._predict(images), labels)
            gradient = torch.autograd.grad(loss, self._parameters, create_graph=True, materialize_grads=True)
            yield len(images) / self.images, partial(self._times, gradient)

    def _times(self, gradient: Sequence[Tensor], vector: Tensor) -> Tensor:
        """The Hessian of a few images, whose gradient this is, times a vector."""
        pieces = zip(gradient, vector.split(self._sizes), strict=True)
        # A gradient that depends on no parameter (a last bias under squared error of nothing else) has no second one.
        used = [(one, piece.view_as(one)) for one, piece in pieces if one.requires_grad]
        if not used:
            return torch.zeros_like(vector)
        first, weights = zip(*used, strict=True)
        try:
            second = torch.autograd.grad(first, self._parameters, weights, retain_graph=True, materialize_grads=True)
        except RuntimeError as error:
            if "is not implemented" not in str(error):
                raise
            raise UserError(f"This network's curvature cannot be measured, torch says: {error}.") from None
        return torch.cat([one.reshape(-1) for one in second])


class _TwiceDifferentiable(TorchFunctionMode):
    """Torch knows the first derivative of a hard sigmoid only; the same function can be had with both."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.hardsigmoid:
            return F.relu6(args[0] + 3) / 6
        return func(*args, **(kwargs or {}))
