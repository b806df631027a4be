"""Estimators of traces and eigenvalues against matrices that are written out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from spacedkd.evaluation.hessian import Trace, hutch_plus_plus, hutchinson, hutchinson_by_part, largest_eigenvalue

DRAW = torch.Generator().manual_seed(3)


class Known:
    """A matrix that is written out."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.size = matrix, len(matrix)

    def __matmul__(self, vectors: Tensor) -> Tensor:
        return vectors @ self.matrix

    def parts(self) -> Iterator[tuple[float, Callable[[Tensor], Tensor]]]:
        """One, which is all of it."""
        yield 1.0, lambda vector: self.matrix @ vector


def silent(more: int) -> None:
    return


def test_the_eigenvalue_is_the_largest_and_not_the_one_of_largest_size() -> None:
    matrix = torch.diag(torch.tensor([-9.0, 2.0, 1.0, 0.5, 0.1, 0.0], dtype=torch.float64))
    found = largest_eigenvalue(Known(matrix), matrix[0], error=1e-9, most=20, seed=0, advance=silent)
    assert found.value == pytest.approx(2)
    assert found.stopped == "whole space"


@pytest.mark.parametrize("estimator", [hutchinson, hutch_plus_plus])
def test_an_estimate_is_unbiased_and_its_error_honest(estimator: Callable[..., Trace]) -> None:
    values = 10 * 0.7 ** torch.arange(50, dtype=torch.float64) - 0.05
    turn, _ = torch.linalg.qr(torch.randn(50, 50, generator=DRAW, dtype=torch.float64))
    matrix = turn @ torch.diag(values) @ turn.T
    found = [estimator(Known(matrix), matrix[0], error=1e-9, most=30, seed=seed, advance=silent) for seed in range(200)]
    errors = torch.tensor([one.value - float(values.sum()) for one in found])
    claimed = torch.tensor([one.standard_error for one in found]).square().mean().sqrt()
    assert abs(float(errors.mean())) < 3 * float(errors.std()) / math.sqrt(200)
    assert float(errors.square().mean().sqrt() / claimed) == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("estimator", [hutchinson_by_part, hutch_plus_plus])
@pytest.mark.parametrize("spread", [0.5, 2.0])
def test_the_error_is_honest_where_it_decides_when_to_stop(estimator: Callable[..., Trace], spread: float) -> None:
    """Ten parts, at the larger spread so unequal that one of them is most of the matrix."""
    draw = torch.Generator().manual_seed(0)
    pieces = []
    for _ in range(10):
        turn, _ = torch.linalg.qr(torch.randn(40, 40, generator=draw, dtype=torch.float64))
        size = math.exp(spread * float(torch.randn((), generator=draw)))
        pieces.append(size * turn @ torch.diag(0.6 ** torch.arange(40, dtype=torch.float64)) @ turn.T)

    class Parts(Known):
        def parts(self) -> Iterator[tuple[float, Callable[[Tensor], Tensor]]]:
            return ((0.1, partial(torch.mv, piece)) for piece in pieces)

    matrix = Parts(torch.stack(pieces).mean(0))
    found = [estimator(matrix, matrix.matrix[0], error=0.05, most=60, seed=seed, advance=silent) for seed in range(200)]
    assert sum(one.stopped == "error reached" for one in found) > 10
    true = float(matrix.matrix.trace())
    ratios = torch.tensor([(one.value - true) / one.standard_error for one in found])
    assert float(ratios.square().mean().sqrt()) < 1.2
    assert float((ratios.abs() > 2).double().mean()) < 0.1


def test_few_large_eigenvalues_make_hutch_plus_plus_the_surer_one() -> None:
    values = 10 * 0.5 ** torch.arange(60, dtype=torch.float64)
    turn, _ = torch.linalg.qr(torch.randn(60, 60, generator=DRAW, dtype=torch.float64))
    matrix = Known(turn @ torch.diag(values) @ turn.T)
    plain, better = (
        one(matrix, turn[0], error=1e-9, most=30, seed=0, advance=silent) for one in (hutchinson, hutch_plus_plus)
    )
    assert better.standard_error < plain.standard_error / 20
    assert better.products == plain.products == 30


def test_own_vectors_for_each_part_are_surer_than_one_for_all() -> None:
    """Ten equal parts: what one vector says ten times over, ten vectors say with a tenth of the variance."""
    matrix = torch.randn(40, 40, generator=DRAW, dtype=torch.float64)
    matrix = matrix + matrix.T + 3 * torch.eye(40)

    class Parts(Known):
        def parts(self) -> Iterator[tuple[float, Callable[[Tensor], Tensor]]]:
            return ((0.1, lambda vector: self.matrix @ vector) for _ in range(10))

    by_part = hutchinson_by_part(Parts(matrix), matrix[0], error=1e-9, most=60, seed=0, advance=silent)
    for_all = hutchinson(Known(matrix), matrix[0], error=1e-9, most=60, seed=0, advance=silent)
    assert by_part.standard_error == pytest.approx(for_all.standard_error / math.sqrt(10), rel=0.25)
    assert abs(by_part.value - float(matrix.trace())) < 3 * by_part.standard_error
