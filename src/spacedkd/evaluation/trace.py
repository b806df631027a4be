"""The trace of a symmetric matrix that can only be multiplied with vectors, and how sure the estimate is.

Unbiased estimates with random signs w (Rademacher vectors), for which E[w' A w] = tr A:

- `hutchinson` (Hutchinson 1989): the mean of w' A w. Its variance is 2 (|A|_F^2 - sum a_ii^2) for one vector.
- `hutchinson_by_part`: for a sum of parts (the images of a mean loss), each part gets vectors of its own. The errors
  of the parts are then independent and average out, where one vector for all lets them add up.
- `hutch_plus_plus` (Meyer, Musco, Musco and Woodruff 2021): a few products span a space that holds most of a matrix
  with few large eigenvalues. There the trace is exact, and only the rest is estimated, part by part.

XTrace (Epperly, Tropp and Webber 2024) uses its vectors for both and needs fewer. Here the vectors that estimate the
rest are independent of the space, so that their spread is an honest standard error, also when it decides when to stop.

Each goes on until the standard error is at most `error` times the estimate, or until it has used up its products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from spacedkd.evaluation.confidence import standard_error
from spacedkd.seeds import seed_for

Stopped = Literal["error reached", "most products", "whole space"]
Callback = Callable[[int, int], None]
"""told how many products with a vector are done, and how many there may be"""

BLOCK = 2
LEAST = 8
"""forms w' A w before a standard error is believed"""
LEAST_OF_A_PART = 6
"""and of each part: parts may be very unequal, and a few forms of the largest one say little about its variance"""
SKETCH = 8
"""vectors whose products span the space of hutch_plus_plus"""


class Matrix(Protocol):
    """A symmetric n x n matrix that multiplies the rows of a [K, n] tensor."""

    size: int

    def __matmul__(self, vectors: Tensor, /) -> Tensor: ...


class Sum(Protocol):
    """A symmetric matrix that is a sum of shares of parts, always the same ones in the same order."""

    size: int

    def parts(self) -> Iterable[tuple[float, Callable[[Tensor], Tensor]]]: ...


class Whole(Matrix, Sum, Protocol):
    """Both: the sum as a matrix and its parts."""


@dataclass(frozen=True)
class Trace:
    """An estimate of a trace."""

    method: str
    value: float
    standard_error: float
    products: int  # of the whole matrix with a vector
    stopped: Stopped


def signs(size: int, seed: int, like: Tensor) -> Tensor:
    """A vector of random signs; the same on every device."""
    drawn = torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(seed), dtype=torch.int8)
    return (2 * drawn - 1).to(like)


def hutchinson(matrix: Matrix, like: Tensor, error: float, most: int, seed: int, callback: Callback) -> Trace:
    """tr A = mean of w' A w."""
    found: list[float] = []
    while True:
        vectors = _several(matrix, like, BLOCK, seed, "hutchinson", len(found))
        found += map(dot, vectors, matrix @ vectors)
        callback(len(found), most)
        value, sure = math.fsum(found) / len(found), standard_error(found)
        stopped = stop(value, sure, len(found) >= LEAST, len(found), error, most)
        if stopped:
            return Trace("hutchinson", value, sure, len(found), stopped)


def hutchinson_by_part(matrix: Sum, like: Tensor, error: float, most: int, seed: int, callback: Callback) -> Trace:
    """tr A = sum over parts of share * mean of w' A_part w, every part with its own w.

    Standard error: sqrt(sum over parts of share^2 s^2 / m), s^2 the variance of the part's m forms.
    """
    found = _by_part(matrix, like, _Known(0.0, 0), error, most, seed, callback)
    return Trace("hutchinson by part", *found)


def hutch_plus_plus(matrix: Whole, like: Tensor, error: float, most: int, seed: int, callback: Callback) -> Trace:
    """tr A = tr(Q' A Q) + tr(R A R), with Q an orthonormal basis of A times a few vectors and R = 1 - QQ'.

    The second trace is estimated by part. Two products for each vector of Q, one for each w. Keeps as many vectors of
    n numbers as Q has.
    """
    sketch = min(SKETCH, most // 4)
    basis = _span(matrix @ _several(matrix, like, sketch, seed, "sketch", 0))
    callback(sketch, most)
    inside = math.fsum(map(dot, basis, matrix @ basis))
    products = sketch + len(basis)
    callback(products, most)
    if len(basis) < sketch:
        return Trace("hutch++", inside, 0.0, products, "whole space")
    rest = _Rest(matrix, basis)
    return Trace("hutch++", *_by_part(rest, like, _Known(inside, products), error, most, seed, callback))


class _Known(NamedTuple):
    """A piece of the trace that is known already, and the products that took."""

    value: float
    products: int


class _Rest:
    """R A R: what a sum of parts is outside the space of a basis."""

    def __init__(self, matrix: Sum, basis: Tensor) -> None:
        self.size, self._matrix, self._basis = matrix.size, matrix, basis

    def parts(self) -> Iterator[tuple[float, Callable[[Tensor], Tensor]]]:
        for share, multiply in self._matrix.parts():
            yield share, partial(self._outside_of, multiply)

    def _outside_of(self, multiply: Callable[[Tensor], Tensor], vector: Tensor) -> Tensor:
        return self._outside(multiply(self._outside(vector)))

    def _outside(self, vector: Tensor) -> Tensor:
        return vector - self._basis.T @ (self._basis @ vector)


def _by_part(
    matrix: Sum, like: Tensor, known: _Known, error: float, most: int, seed: int, callback: Callback
) -> tuple[float, float, int, Stopped]:
    """Value, standard error, products and why it stopped."""
    shares: list[float] = []
    forms: list[list[float]] = []
    done = 0
    while True:
        for place, (share, multiply) in enumerate(matrix.parts()):
            if done == 0:
                shares.append(share)
                forms.append([])
            for draw in range(done, done + BLOCK):
                vector = signs(matrix.size, seed_for(seed, "by part", place, draw), like)
                forms[place].append(dot(vector, multiply(vector)))
        done += BLOCK
        products = known.products + done
        callback(products, most)
        value = known.value + math.fsum(share * math.fsum(f) / done for share, f in zip(shares, forms, strict=True))
        errors = (share * standard_error(f) for share, f in zip(shares, forms, strict=True))
        sure = math.sqrt(math.fsum(one**2 for one in errors))
        enough = done >= LEAST_OF_A_PART and done * len(forms) >= LEAST
        stopped = stop(value, sure, enough, products, error, most)
        if stopped:
            return value, sure, products, stopped


def dot(one: Tensor, other: Tensor) -> float:
    """The scalar product, summed in double precision, which Apple's GPUs do not have."""
    product = one * other
    return float((product.cpu() if product.device.type == "mps" else product).sum(dtype=torch.float64))


def _several(matrix: Matrix, like: Tensor, count: int, seed: int, what: str, first: int) -> Tensor:
    return torch.stack([signs(matrix.size, seed_for(seed, what, first + k), like) for k in range(count)])


def _span(vectors: Tensor) -> Tensor:
    """Orthonormal rows that span the given ones; fewer, where those are not independent."""
    basis: list[Tensor] = []
    for vector in vectors:
        rest = outside(vector, basis)
        if float(rest.norm()) > 100 * torch.finfo(rest.dtype).eps * float(vector.norm()):
            basis.append(rest / rest.norm())
    return torch.stack(basis) if basis else vectors[:0]


def outside(vector: Tensor, basis: Sequence[Tensor]) -> Tensor:
    """What is left of a vector that is made orthogonal to orthonormal ones."""
    for _ in range(2):  # once is not enough in floating point
        for one in basis:
            vector = torch.addcmul(vector, one, one @ vector, value=-1)
    return vector


def stop(value: float, sure: float, enough: bool, products: int, error: float, most: int) -> Stopped | None:
    """Why an estimate is good enough, or may not go on; None while it goes on."""
    if enough and sure <= error * abs(value):
        return "error reached"
    return "most products" if products + BLOCK > most else None
