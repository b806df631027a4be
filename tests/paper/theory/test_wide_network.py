"""Derivatives written as formulas against autograd, for each activation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spacedkd.paper.theory.simulation import ACTIVATIONS, Networks, curvatures, descended, drawn, linearised, outputs

INPUTS, WIDTH, SAMPLES = 3, 5, 7
DRAW = torch.Generator().manual_seed(0)
X = torch.randn(SAMPLES, INPUTS, generator=DRAW, dtype=torch.float64)
TARGET = torch.randn(SAMPLES, generator=DRAW, dtype=torch.float64)


def network() -> Networks:
    """Not where networks begin: the biases are not zero."""
    start = drawn(INPUTS, WIDTH, torch.Generator().manual_seed(1))
    return Networks(*(part + torch.full_like(part, 0.1) for part in start))


def flat(networks: Networks) -> Tensor:
    return torch.cat([part.reshape(-1) for part in networks])


def unflat(vector: Tensor) -> Networks:
    w, b, a, c = vector.split([WIDTH * INPUTS, WIDTH, WIDTH, 1])
    return Networks(w.view(WIDTH, INPUTS), b, a, c[0])


def by_hand(vector: Tensor, x: Tensor, activation: str) -> Tensor:
    """The network once more, with torch's own activations."""
    w, b, a, c = unflat(vector)
    act = {"tanh": torch.tanh, "gelu": torch.nn.functional.gelu}[activation]
    return act(x @ w.T + b) @ a + c


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_outputs(activation: str) -> None:
    assert torch.allclose(outputs(network(), X, activation), by_hand(flat(network()), X, activation), atol=1e-14)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_step_is_gradient_descent_on_half_the_mean_square(activation: str) -> None:
    vector = flat(network()).requires_grad_()
    loss = (by_hand(vector, X, activation) - TARGET).square().mean() / 2
    (gradient,) = torch.autograd.grad(loss, vector)
    found = flat(descended(network(), X, TARGET, 0.3, activation))
    assert torch.allclose(found, vector.detach() - 0.3 * gradient, atol=1e-14)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_slope_and_bend_are_those_of_dense_hessians(activation: str) -> None:
    found = curvatures(network(), X, activation)
    for i, x in enumerate(X):
        gradient = torch.autograd.functional.jacobian(lambda v, x=x: by_hand(v, x, activation), flat(network()))
        hessian = torch.autograd.functional.hessian(lambda v, x=x: by_hand(v, x, activation), flat(network()))
        assert float(found.slope[i]) == pytest.approx(float(gradient.square().sum()), rel=1e-12)
        assert float(found.bend[i]) == pytest.approx(float(hessian.trace()), rel=1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_linearised_change_is_the_directional_derivative(activation: str) -> None:
    change = torch.randn(flat(network()).shape, generator=DRAW, dtype=torch.float64)
    expected = torch.func.jvp(lambda v: by_hand(v, X, activation), (flat(network()),), (change,))[1]
    assert torch.allclose(linearised(network(), unflat(change), X, activation), expected, atol=1e-13)


def test_many_networks_are_each_what_one_is() -> None:
    one, other = network(), drawn(INPUTS, WIDTH, torch.Generator().manual_seed(2))
    both = Networks(*(torch.stack(pair) for pair in zip(one, other, strict=True)))
    points = torch.stack([X, -X])
    stepped = descended(both, points, torch.stack([TARGET, TARGET]), 0.1, "tanh")
    alone = descended(other, -X, TARGET, 0.1, "tanh")
    assert torch.allclose(flat(Networks(*(part[1] for part in stepped))), flat(alone), atol=1e-15)
