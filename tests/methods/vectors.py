"""The tensors METHODS.md computes its vectors with, in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from spacedkd.methods import Progress


def tensor(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


S = tensor([[1.0, 2.0, 0.5], [0.2, -1.0, 3.0]])
TE = tensor([[2.0, 1.0, 0.1], [-0.5, 0.3, 2.5]])
U = tensor([[0.0, 1.0, -1.0], [2.0, 0.0, 1.0]])
P = tensor([[1.0, 0.0, -0.5], [0.0, 1.0, 1.5]])
O2 = tensor([[0.3, 0.1, -0.2], [0.0, 0.4, 1.0]])
O1 = tensor([[0.1, 0.0, 0.2], [0.3, 0.2, 0.1]])
FS = tensor([[0.5, 1.0, 0.0, 2.0], [1.5, 0.0, 0.3, 0.7]])
FT = tensor([[0.0, 1.2, 0.4, 1.0], [1.0, 0.5, 0.0, 0.9]])
Y = torch.tensor([0, 2])
START = Progress(step=0, steps_per_epoch=1, total_steps=300)


def at_epoch(epoch: int) -> Progress:
    """The beginning of an epoch, counted from 0, of a run of 300."""
    return START._replace(step=epoch)


def close(value: float) -> object:
    return pytest.approx(value, abs=1e-9)


def close_to(rows: list[list[float]]) -> object:
    """For gradients, which the cards give to eight places or more."""
    return pytest.approx(torch.tensor(rows, dtype=torch.float64).numpy(), abs=1e-7)


def gradient(loss: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """The gradient, checked against finite differences on the way."""
    at = at.clone().requires_grad_()
    assert torch.autograd.gradcheck(loss, at)
    (result,) = torch.autograd.grad(loss(at), at)
    return result
