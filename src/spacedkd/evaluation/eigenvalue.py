"""The largest eigenvalue of a symmetric matrix that can only be multiplied with vectors (Lanczos 1950).

k products from one random vector span a space in which the matrix is a k x k tridiagonal T. The largest eigenvalue of
T grows towards that of the matrix, from below, much faster than power iteration would.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spacedkd.evaluation.trace import Callback, Matrix, Stopped, dot, outside, signs
from spacedkd.seeds import seed_for

LEAST = 4
"""products before a residual is believed"""


@dataclass(frozen=True)
class Eigenvalue:
    """The largest eigenvalue found: the matrix has one within `residual` of `value`, and none was seen above it."""

    value: float
    residual: float
    products: int  # of the whole matrix with a vector
    stopped: Stopped


def largest_eigenvalue(
    matrix: Matrix, like: Tensor, error: float, most: int, seed: int, callback: Callback
) -> Eigenvalue:
    """Until the residual |A x - value x| is at most `error` times the value, or the products are used up.

    Keeps one vector of n numbers for each product: all are made orthogonal to each other, because rounding would
    otherwise bring large eigenvalues in twice.
    """
    first = signs(matrix.size, seed_for(seed, "lanczos"), like)
    basis = [first / first.norm()]
    diagonal: list[float] = []
    beside: list[float] = []
    while True:
        image = (matrix @ basis[-1][None])[0]
        diagonal.append(dot(basis[-1], image))
        image = outside(image, basis)
        beside.append(float(image.norm()))
        value, residual = _largest_of_tridiagonal(diagonal, beside)
        done = len(diagonal)
        callback(done, most)
        scale = max(abs(one) for one in (*diagonal, *beside))
        if done == matrix.size or beside[-1] <= 100 * torch.finfo(like.dtype).eps * scale:
            return Eigenvalue(value, residual, done, "whole space")
        if done >= LEAST and residual <= error * abs(value):
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
