"""The Hessian of a network's mean loss: products with vectors, and estimates of its trace and largest eigenvalue.

The Hessian is never written out, it only multiplies vectors:

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from spacedkd.evaluation.curvature import MOST_PRODUCTS
from spacedkd.evaluation.instrument import Advance
from spacedkd.evaluation.statistics import standard_error
from spacedkd.evaluation.subject import Batches, Logits, Loss, in_eval_mode
from spacedkd.runtime.errors import UserError, unknown
from spacedkd.runtime.seeds import seed_for

AT_ONCE = 25
"""images in one graph; more would be hardly faster, and fewer parts for `hutchinson_by_part` to average over"""

Stopped = Literal["error reached", "most products", "whole space"]
Product = Callable[[Tensor], Tensor]
"""a matrix times a vector of n numbers"""

BLOCK = 2
LEAST = 8
"""forms w' A w before a standard error is believed"""
LEAST_OF_A_PART = 6
"""and of each part: parts may be very unequal, and a few forms of the largest one say little about its variance"""
SKETCH = 8
"""vectors whose products span the space of hutch_plus_plus"""
LEAST_OF_LANCZOS = 4
"""products before a residual is believed"""


class Matrix(Protocol):
    """A symmetric n x n matrix that multiplies the rows of a [K, n] tensor.

    It is a sum of shares of parts, always the same ones in the same order.
    """

    size: int

    def __matmul__(self, vectors: Tensor, /) -> Tensor: ...

    def parts(self) -> Iterable[tuple[float, Product]]: ...


@dataclass(frozen=True)
class Trace:
    """An estimate of a trace."""

    method: str
    value: float
    standard_error: float
    products: int  # of the whole matrix with a vector
    stopped: Stopped


@dataclass(frozen=True)
class Eigenvalue:
    """The largest eigenvalue found: the matrix has one within `residual` of `value`, and none was seen above it."""

    value: float
    residual: float
    products: int  # of the whole matrix with a vector
    stopped: Stopped


def _signs(size: int, seed: int, like: Tensor) -> Tensor:
    """Return a vector of random signs; the same on every device."""
    bits = torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(seed), dtype=torch.int8)
    return (2 * bits - 1).to(like)


def hutchinson(matrix: Matrix, like: Tensor, *, error: float, most: int, seed: int, advance: Advance) -> Trace:
    """Estimate tr A as the mean of w' A w, w vectors of random signs."""
    forms: list[float] = []
    while True:
        vectors = _random_signs(matrix, like, BLOCK, seed, "hutchinson", first=len(forms))
        forms += map(_dot, vectors, matrix @ vectors)
        advance(BLOCK)
        value, deviation = math.fsum(forms) / len(forms), standard_error(forms)
        enough = len(forms) >= LEAST
        stopped = _why_stop(value, deviation, enough, products=len(forms), error=error, most=most)
        if stopped:
            return Trace("hutchinson", value, deviation, len(forms), stopped)


def hutchinson_by_part(matrix: Matrix, like: Tensor, *, error: float, most: int, seed: int, advance: Advance) -> Trace:
    """Estimate tr A as the sum over parts of share * mean of w' A_part w, every part with its own w.

    Standard error: sqrt(sum over parts of share^2 s^2 / m), s^2 the variance of the part's m forms.
    """
    return _trace_by_part(matrix, like, "hutchinson by part", error=error, most=most, seed=seed, advance=advance)


def hutch_plus_plus(matrix: Matrix, like: Tensor, *, error: float, most: int, seed: int, advance: Advance) -> Trace:
    """Estimate tr A = tr(Q' A Q) + tr(R A R), with Q an orthonormal basis of A times a few vectors and R = 1 - QQ'.

    The second trace is estimated by part. Two products for each vector of Q, one for each w. Keeps as many vectors of
    n numbers as Q has.
    """
    sketch = min(SKETCH, most // 4)
    basis = _span(matrix @ _random_signs(matrix, like, sketch, seed, "sketch"))
    advance(sketch)
    inside = math.fsum(map(_dot, basis, matrix @ basis))
    products = sketch + len(basis)
    advance(len(basis))
    if len(basis) < sketch:
        return Trace("hutch++", inside, 0.0, products, "whole space")
    return _trace_by_part(
        matrix,
        like,
        "hutch++",
        project=lambda vector: vector - basis.T @ (basis @ vector),
        trace_outside=inside,
        products=products,
        error=error,
        most=most,
        seed=seed,
        advance=advance,
    )


def _trace_by_part(
    matrix: Matrix,
    like: Tensor,
    method: str,
    *,
    project: Product = lambda vector: vector,
    trace_outside: float = 0.0,
    products: int = 0,
    error: float,
    most: int,
    seed: int,
    advance: Advance,
) -> Trace:
    """Estimate the trace of P A P by part, and add what is known of the rest, which took this number of `products`."""
    parts: list[tuple[float, list[float]]] = []  # the share of each part, and its forms
    draws = 0
    while True:
        for index, (share, multiply) in enumerate(matrix.parts()):
            if draws == 0:
                parts.append((share, []))
            for draw in range(draws, draws + BLOCK):
                vector = _signs(matrix.size, seed_for(seed, "by part", index, draw), like)
                parts[index][1].append(_dot(vector, project(multiply(project(vector)))))
        draws += BLOCK
        advance(BLOCK)
        value = trace_outside + math.fsum(share * math.fsum(forms) / draws for share, forms in parts)
        deviation = math.sqrt(math.fsum((share * standard_error(forms)) ** 2 for share, forms in parts))
        enough = draws >= LEAST_OF_A_PART and draws * len(parts) >= LEAST
        stopped = _why_stop(value, deviation, enough, products=products + draws, error=error, most=most)
        if stopped:
            return Trace(method, value, deviation, products + draws, stopped)


def _dot(a: Tensor, b: Tensor) -> float:
    """Return the scalar product, summed in double precision, which Apple's GPUs do not have."""
    product = a * b
    return float((product.cpu() if product.device.type == "mps" else product).sum(dtype=torch.float64))


def largest_eigenvalue(
    matrix: Matrix, like: Tensor, *, error: float, most: int, seed: int, advance: Advance
) -> Eigenvalue:
    """Find the largest eigenvalue (Lanczos) until the residual |A x - value x| is at most `error` times the value.

    It stops as well when the products are used up.

    Keeps one vector of n numbers for each product: all are made orthogonal to each other, because rounding would
    otherwise bring large eigenvalues in twice.
    """
    first = _signs(matrix.size, seed_for(seed, "lanczos"), like)
    basis = [first / first.norm()]
    diagonal: list[float] = []
    beside: list[float] = []
    while True:
        image = (matrix @ basis[-1][None])[0]
        diagonal.append(_dot(basis[-1], image))
        image = _outside(image, basis)
        beside.append(float(image.norm()))
        value, residual = _largest_of_tridiagonal(diagonal, beside)
        done = len(diagonal)
        advance(1)
        scale = max(map(abs, (*diagonal, *beside)))
        if done == matrix.size or beside[-1] <= 100 * torch.finfo(like.dtype).eps * scale:
            return Eigenvalue(value, residual, done, "whole space")
        if done >= LEAST_OF_LANCZOS and residual <= error * abs(value):
            return Eigenvalue(value, residual, done, "error reached")
        if done >= most:
            return Eigenvalue(value, residual, done, "most products")
        basis.append(image / image.norm())


def _largest_of_tridiagonal(diagonal: list[float], beside: list[float]) -> tuple[float, float]:
    """Return the largest eigenvalue of T and the residual of its vector in the whole space: |last entry| x the next."""
    off = torch.tensor(beside[:-1], dtype=torch.float64)
    values, vectors = torch.linalg.eigh(
        torch.diag(torch.tensor(diagonal, dtype=torch.float64)) + torch.diag(off, 1) + torch.diag(off, -1)
    )
    return float(values[-1]), abs(float(vectors[-1, -1])) * beside[-1]


def _random_signs(matrix: Matrix, like: Tensor, count: int, seed: int, purpose: str, *, first: int = 0) -> Tensor:
    """Return `count` vectors of random signs, [count, n]; each depends on its number, the seed and the purpose."""
    return torch.stack([_signs(matrix.size, seed_for(seed, purpose, first + k), like) for k in range(count)])


def _span(vectors: Tensor) -> Tensor:
    """Return orthonormal rows that span the given ones; fewer, where those are not independent."""
    basis: list[Tensor] = []
    for vector in vectors:
        rest = _outside(vector, basis)
        if float(rest.norm()) > 100 * torch.finfo(rest.dtype).eps * float(vector.norm()):
            basis.append(rest / rest.norm())
    return torch.stack(basis) if basis else vectors[:0]


def _outside(vector: Tensor, basis: Sequence[Tensor]) -> Tensor:
    """Return the part of a vector that is orthogonal to orthonormal ones."""
    for _ in range(2):  # once is not enough in floating point
        for unit in basis:
            vector = torch.addcmul(vector, unit, unit @ vector, value=-1)
    return vector


def _why_stop(
    value: float, deviation: float, enough: bool, *, products: int, error: float, most: int
) -> Stopped | None:
    """Return why an estimate is good enough, or may not continue; None while it continues."""
    if enough and deviation <= error * abs(value):
        return "error reached"
    return "most products" if products + BLOCK > most else None


ESTIMATORS: dict[str, Callable[..., Trace]] = {
    "hutchinson": hutchinson,
    "hutchinson by part": hutchinson_by_part,
    "hutch++": hutch_plus_plus,
}
USED = ("hutchinson by part", "hutch++")
"""the estimators of `--hessian`; the last one is the trace in tables and reports"""


@dataclass(frozen=True)
class CurvatureResult:
    """Trace and largest eigenvalue of the Hessian of the mean loss over `images` images."""

    images: int
    parameters: int
    loss: float
    traces: dict[str, Trace]  # by estimator
    largest: Eigenvalue
    error: float  # the relative one that was requested
    most_products: int  # of the Hessian with a vector, for each estimate
    seed: int
    batchnorm: str = "running statistics (eval mode)"

    @property
    def trace(self) -> Trace:
        """The last estimator's trace; to choose the one with the least error would make it look surer than it is."""
        return [*self.traces.values()][-1]


def measure_curvature(
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
) -> CurvatureResult:
    """Return the trace by each estimator and the largest eigenvalue, each until its relative error is at most `error`.

    Each takes at most `most_products` products; what stopped it is in its result. `predict` gives the logits that are
    judged; left out, the model itself does. One graph holds `at_once` images. `advance` is called after products.
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
        like = next(model.parameters()).detach()
        limits: Any = {"error": error, "most": most_products, "seed": seed, "advance": advance}
        traces = {name: ESTIMATORS[name](hessian, like, **limits) for name in estimators}
        largest = largest_eigenvalue(hessian, like, **limits)
    return CurvatureResult(
        images=hessian.images,
        parameters=hessian.size,
        loss=hessian.loss,
        traces=traces,
        largest=largest,
        error=error,
        most_products=most_products,
        seed=seed,
    )


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
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not self._parameters:
            raise UserError("This network has no parameters that can be trained, so its loss has no Hessian.")
        if at_once < 1:
            raise UserError(f"A graph must hold at least one image, got {at_once}.")
        self._predict, self._loss, self._batches, self._at_once = predict or model, loss, batches, at_once
        self._sizes = [parameter.numel() for parameter in self._parameters]
        self.size = sum(self._sizes)
        self.images, self.loss = self._mean_loss()

    def _mean_loss(self) -> tuple[int, float]:
        """Return how many images there are, and their mean loss."""
        images, losses = 0, 0.0
        with torch.no_grad():
            for inputs, labels in self._small_batches():
                images += len(inputs)
                losses += len(inputs) * float(self._loss(self._predict(inputs), labels))
        if not images:
            raise UserError("There are no images to measure on: the data's training part is empty.")
        return images, losses / images

    def _small_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in self._batches():
            yield from zip(images.split(self._at_once), labels.split(self._at_once), strict=True)

    def __matmul__(self, vectors: Tensor) -> Tensor:
        """Return H times every row: [K, n] to [K, n]."""
        product = torch.zeros_like(vectors)
        for share, multiply in self.parts():
            for row, vector in enumerate(vectors):
                product[row].add_(multiply(vector), alpha=share)
        return product

    def parts(self) -> Iterator[tuple[float, Product]]:
        """Yield the Hessians of a few images each, with their share: H is the sum of share times part."""
        for images, labels in self._small_batches():
            with sdpa_kernel(SDPBackend.MATH), _TwiceDifferentiable():  # fused attention has a first derivative only
                loss = self._loss(self._predict(images), labels)
            gradient = torch.autograd.grad(loss, self._parameters, create_graph=True, materialize_grads=True)
            yield len(images) / self.images, partial(self._multiply, gradient)

    def _multiply(self, gradient: Sequence[Tensor], vector: Tensor) -> Tensor:
        """Return the Hessian of a few images, whose gradient this is, times a vector."""
        pieces = zip(gradient, vector.split(self._sizes), strict=True)
        # A gradient that depends on no parameter (a last bias under squared error of nothing else) has no second one.
        used = [(part, piece.view_as(part)) for part, piece in pieces if part.requires_grad]
        if not used:
            return torch.zeros_like(vector)
        first, weights = zip(*used, strict=True)
        try:
            second = torch.autograd.grad(first, self._parameters, weights, retain_graph=True, materialize_grads=True)
        except RuntimeError as error:
            if "is not implemented" not in str(error):
                raise
            raise UserError(f"This network's curvature cannot be measured, torch says: {error}.") from None
        return torch.cat([part.reshape(-1) for part in second])


class _TwiceDifferentiable(TorchFunctionMode):
    """A hard sigmoid with two derivatives: torch implements only the first one of its own."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.hardsigmoid:
            return F.relu6(args[0] + 3) / 6
        return func(*args, **(kwargs or {}))
