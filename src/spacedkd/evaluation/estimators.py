"""Trace and largest eigenvalue of a symmetric matrix that can only be multiplied with vectors, and how sure they are.

Unbiased estimates of the trace with random signs w (Rademacher vectors), for which E[w' A w] = tr A:

- `hutchinson` (Hutchinson 1989): the mean of w' A w. Its variance is 2 (|A|_F^2 - sum a_ii^2) for one vector.
- `hutchinson_by_part`: for a sum of parts (the images of a mean loss), each part gets vectors of its own. The errors
  of the parts are then independent and average out, where one vector for all lets them add up.
- `hutch_plus_plus` (Meyer, Musco, Musco and Woodruff 2021): a few products span a space that holds most of a matrix
  with few large eigenvalues. There the trace is exact, and only the rest is estimated, part by part.

XTrace (Epperly, Tropp and Webber 2024) uses its vectors for both and needs fewer. Here the vectors that estimate the
rest are independent of the space, so that their spread is an honest standard error, also when it decides when to stop.

Each goes on until the standard error is at most `error` times the estimate, or until it has used up its `most` products
with a vector, of which `advance` is told.

`largest_eigenvalue` (Lanczos 1950): k products from one random vector span a space in which the matrix is a k x k
tridiagonal T. The largest eigenvalue of T grows towards that of the matrix, from below, much faster than power
iteration would.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from spacedkd.evaluation.confidence import standard_error
from spacedkd.evaluation.held_still import Advance
from spacedkd.seeds import seed_for

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
    """A vector of random signs; the same on every device."""
    drawn = torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(seed), dtype=torch.int8)
    return (2 * drawn - 1).to(like)


def hutchinson(matrix: Matrix, like: Tensor, error: float, most: int, seed: int, advance: Advance) -> Trace:
    """tr A = mean of w' A w."""
    found: list[float] = []
    while True:
        vectors = _several(matrix, like, BLOCK, seed, "hutchinson", len(found))
        found += map(_dot, vectors, matrix @ vectors)
        advance(BLOCK)
        value, sure = math.fsum(found) / len(found), standard_error(found)
        stopped = _stop(value, sure, len(found) >= LEAST, len(found), error, most)
        if stopped:
            return Trace("hutchinson", value, sure, len(found), stopped)


def hutchinson_by_part(matrix: Matrix, like: Tensor, error: float, most: int, seed: int, advance: Advance) -> Trace:
    """tr A = sum over parts of share * mean of w' A_part w, every part with its own w.

    Standard error: sqrt(sum over parts of share^2 s^2 / m), s^2 the variance of the part's m forms.
    """
    return _by_part("hutchinson by part", matrix, lambda vector: vector, 0.0, 0, like, error, most, seed, advance)


def hutch_plus_plus(matrix: Matrix, like: Tensor, error: float, most: int, seed: int, advance: Advance) -> Trace:
    """tr A = tr(Q' A Q) + tr(R A R), with Q an orthonormal basis of A times a few vectors and R = 1 - QQ'.

    The second trace is estimated by part. Two products for each vector of Q, one for each w. Keeps as many vectors of
    n numbers as Q has.
    """
    sketch = min(SKETCH, most // 4)
    basis = _span(matrix @ _several(matrix, like, sketch, seed, "sketch", 0))
    advance(sketch)
    inside = math.fsum(map(_dot, basis, matrix @ basis))
    products = sketch + len(basis)
    advance(len(basis))
    if len(basis) < sketch:
        return Trace("hutch++", inside, 0.0, products, "whole space")
    given = inside, products, like, error, most, seed, advance
    return _by_part("hutch++", matrix, lambda vector: vector - basis.T @ (basis @ vector), *given)


def _by_part(
    method: str,
    matrix: Matrix,
    project: Product,
    known: float,
    products: int,
    like: Tensor,
    error: float,
    most: int,
    seed: int,
    advance: Advance,
) -> Trace:
    """The trace of P A P, with `known` added to it, which took `products`."""
    found: list[tuple[float, list[float]]] = []  # of each part its share and its forms
    done = 0
    while True:
        for place, (share, multiply) in enumerate(matrix.parts()):
            if done == 0:
                found.append((share, []))
            for draw in range(done, done + BLOCK):
                vector = _signs(matrix.size, seed_for(seed, "by part", place, draw), like)
                found[place][1].append(_dot(vector, project(multiply(project(vector)))))
        done += BLOCK
        advance(BLOCK)
        value = known + math.fsum(share * math.fsum(forms) / done for share, forms in found)
        sure = math.sqrt(math.fsum((share * standard_error(forms)) ** 2 for share, forms in found))
        enough = done >= LEAST_OF_A_PART and done * len(found) >= LEAST
        stopped = _stop(value, sure, enough, products + done, error, most)
        if stopped:
            return Trace(method, value, sure, products + done, stopped)


def _dot(one: Tensor, other: Tensor) -> float:
    """The scalar product, summed in double precision, which Apple's GPUs do not have."""
    product = one * other
    return float((product.cpu() if product.device.type == "mps" else product).sum(dtype=torch.float64))


def largest_eigenvalue(
    matrix: Matrix, like: Tensor, error: float, most: int, seed: int, advance: Advance
) -> Eigenvalue:
    """Until the residual |A x - value x| is at most `error` times the value, or the products are used up.

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
        scale = max(abs(one) for one in (*diagonal, *beside))
        if done == matrix.size or beside[-1] <= 100 * torch.finfo(like.dtype).eps * scale:
            return Eigenvalue(value, residual, done, "whole space")
        if done >= LEAST_OF_LANCZOS and residual <= error * abs(value):
            return Eigenvalue(value, residual, done, "error reached")
        if done >= most:
            return Eigenvalue(value, residual, done, "most products")
        basis.append(image / image.norm())


def _largest_of_tridiagonal(diagonal: list[float], beside: list[float]) -> tuple[float, float]:
    """The largest eigenvalue of T and the residual of its vector in the whole space: |last entry| times the next."""
    off = torch.tensor(beside[:-1], dtype=torch.float64)
    values, vectors = torch.linalg.eigh(
        torch.diag(torch.tensor(diagonal, dtype=torch.float64)) + torch.diag(off, 1) + torch.diag(off, -1)
    )
    return float(values[-1]), abs(float(vectors[-1, -1])) * beside[-1]


def _several(matrix: Matrix, like: Tensor, count: int, seed: int, what: str, first: int) -> Tensor:
    return torch.stack([_signs(matrix.size, seed_for(seed, what, first + k), like) for k in range(count)])


def _span(vectors: Tensor) -> Tensor:
    """Orthonormal rows that span the given ones; fewer, where those are not independent."""
    basis: list[Tensor] = []
    for vector in vectors:
        rest = _outside(vector, basis)
        if float(rest.norm()) > 100 * torch.finfo(rest.dtype).eps * float(vector.norm()):
            basis.append(rest / rest.norm())
    return torch.stack(basis) if basis else vectors[:0]


def _outside(vector: Tensor, basis: Sequence[Tensor]) -> Tensor:
    """What is left of a vector that is made orthogonal to orthonormal ones."""
    for _ in range(2):  # once is not enough in floating point
        for one in basis:
            vector = torch.addcmul(vector, one, one @ vector, value=-1)
    return vector


def _stop(value: float, sure: float, enough: bool, products: int, error: float, most: int) -> Stopped | None:
    """Why an estimate is good enough, or may not go on; None while it goes on."""
    if enough and sure <= error * abs(value):
        return "error reached"
    return "most products" if products + BLOCK > most else None
