"""The Hessian of a network's mean loss as something that multiplies vectors; it is never written out.

    H v = grad_w ( grad_w L(w) . v )          two backward passes instead of n x n numbers

The gradient's graph of a few images is built once and multiplied with several vectors, then thrown away: memory does
not grow with the number of images. Measured against curvlinops' HessianLinearOperator this is the faster way
(`benchmarks/curvature_speed.py`), because that builds the graph once for each vector.

BatchNorm counts as in eval mode: its running statistics are constants and not functions of the weights. With the
statistics of a batch the loss would be another function, whose Hessian changes with the batch size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from spacedkd.errors import UserError
from spacedkd.evaluation.held_still import Batches, Logits, Loss, cross_entropy

AT_ONCE = 25
"""images in one graph; more would be hardly faster, and fewer parts for `hutchinson_by_part` to average over"""


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
        loss: Loss = cross_entropy,
        at_once: int = AT_ONCE,
    ) -> None:
        self._parameters = [one for one in model.parameters() if one.requires_grad]
        if not self._parameters:
            raise UserError("This network has no parameters that can be trained, so its loss has no Hessian.")
        self._shapes = [one.shape for one in self._parameters]
        self._predict, self._loss, self._batches, self._at_once = predict or model, loss, batches, at_once
        self.size = sum(one.numel() for one in self._parameters)
        self.images, self.loss, self.portions = self._counted()

    def _counted(self) -> tuple[int, float, int]:
        """Images, their mean loss and how many portions they come in."""
        images, losses, portions = 0, 0.0, 0
        with torch.no_grad():
            for shown, labels in self._portioned():
                images, portions = images + len(shown), portions + 1
                losses += len(shown) * float(self._loss(self._predict(shown), labels))
        if not images:
            raise UserError("There are no images to measure on: the data's training part is empty.")
        return images, losses / images, portions

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

    def parts(self) -> Iterator[tuple[float, PortionHessian]]:
        """The Hessians of a few images each, with their share: H is the sum of share times part."""
        for images, labels in self._portioned():
            with sdpa_kernel(SDPBackend.MATH), _TwiceDifferentiable():  # fused attention has a first derivative only
                loss = self._loss(self._predict(images), labels)
            gradient = torch.autograd.grad(loss, self._parameters, create_graph=True, materialize_grads=True)
            yield len(images) / self.images, PortionHessian(gradient, self._parameters, self._shapes)


class _TwiceDifferentiable(TorchFunctionMode):
    """Torch knows the first derivative of a hard sigmoid only; the same function can be had with both."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.hardsigmoid:
            return F.relu6(args[0] + 3) / 6
        return func(*args, **(kwargs or {}))


class PortionHessian:
    """The Hessian of the mean loss of a few images."""

    def __init__(self, gradient: Sequence[Tensor], parameters: list[nn.Parameter], shapes: list[torch.Size]) -> None:
        # A gradient that depends on no parameter (a last bias under squared error of nothing else) has no second one.
        used = [place for place, one in enumerate(gradient) if one.requires_grad]
        self._gradient = [gradient[place] for place in used]
        self._used, self._parameters, self._shapes = used, parameters, shapes

    def __call__(self, vector: Tensor) -> Tensor:
        """This Hessian times a vector of n numbers."""
        if not self._used:
            return torch.zeros_like(vector)
        pieces = vector.split([shape.numel() for shape in self._shapes])
        weights = [pieces[place].view(self._shapes[place]) for place in self._used]
        try:
            second = torch.autograd.grad(
                self._gradient, self._parameters, weights, retain_graph=True, materialize_grads=True
            )
        except RuntimeError as error:
            if "is not implemented" not in str(error):
                raise
            raise UserError(f"This network's curvature cannot be measured, torch says: {error}.") from None
        return torch.cat([one.reshape(-1) for one in second])
