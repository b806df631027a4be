"""Many wide networks with one hidden layer and one output at once, with every derivative written out.

    f(x) = sum_j a_j act(w_j . x + b_j) + c

Tensors begin with any number of dimensions that say which network; a network of width H for D inputs has H (D + 2) + 1
parameters. Derivatives are formulas and not automatic, so that thousands of networks are trained and their exact
Hessian traces taken in seconds; the tests compare them with autograd.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Activation = tuple[Tensor, Tensor, Tensor]
"""the values of a function, of its first and of its second derivative"""


def _tanh(z: Tensor) -> Activation:
    t = z.tanh()
    return t, 1 - t * t, -2 * t * (1 - t * t)


def _gelu(z: Tensor) -> Activation:
    """z Phi(z): smooth, and close to the ReLU."""
    below = (1 + torch.erf(z / math.sqrt(2))) / 2
    density = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return z * below, below + z * density, density * (2 - z * z)


ACTIVATIONS: dict[str, Callable[[Tensor], Activation]] = {"tanh": _tanh, "gelu": _gelu}


class Networks(NamedTuple):
    """Parameters of many networks."""

    w: Tensor  # [..., H, D]
    b: Tensor  # [..., H]
    a: Tensor  # [..., H]
    c: Tensor  # [...]


class Curvatures(NamedTuple):
    """What the trace of a squared error's Hessian is made of, exactly, at N points."""

    output: Tensor  # f(x_i), [..., N]
    slope: Tensor  # |grad f(x_i)|^2, [..., N]
    bend: Tensor  # tr grad^2 f(x_i), [..., N]


def drawn(inputs: int, width: int, draw: torch.Generator) -> Networks:
    """One network with random weights of the usual size; its biases begin at zero."""
    w = torch.randn(width, inputs, generator=draw, dtype=torch.float64) / math.sqrt(inputs)
    a = torch.randn(width, generator=draw, dtype=torch.float64) / math.sqrt(width)
    return Networks(w, torch.zeros_like(a), a, torch.zeros((), dtype=torch.float64))


def _hidden(networks: Networks, x: Tensor, activation: str) -> Activation:
    """[..., N, H]"""
    return ACTIVATIONS[activation](x @ networks.w.transpose(-1, -2) + networks.b[..., None, :])


def _read(networks: Networks, hidden: Tensor) -> Tensor:
    return (hidden @ networks.a[..., None])[..., 0] + networks.c[..., None]


def outputs(networks: Networks, x: Tensor, activation: str) -> Tensor:
    """f at the points x, [..., N, D] to [..., N]."""
    return _read(networks, _hidden(networks, x, activation)[0])


def descended(networks: Networks, x: Tensor, target: Tensor, rate: float, activation: str) -> Networks:
    """After one step of gradient descent on the mean of (f(x) - target)^2 / 2 over a batch."""
    value, slope, _ = _hidden(networks, x, activation)
    miss = (_read(networks, value) - target) / target.shape[-1]
    back = miss[..., None] * slope * networks.a[..., None, :]
    return Networks(
        networks.w - rate * back.transpose(-1, -2) @ x,
        networks.b - rate * back.sum(-2),
        networks.a - rate * (miss[..., None] * value).sum(-2),
        networks.c - rate * miss.sum(-1),
    )


def linearised(at: Networks, change: Networks, x: Tensor, activation: str) -> Tensor:
    """change . grad f(x_i), the gradient taken at the networks `at`: [..., N]."""
    value, slope, _ = _hidden(at, x, activation)
    moved = x @ change.w.transpose(-1, -2) + change.b[..., None, :]
    inner = (slope * at.a[..., None, :] * moved).sum(-1)
    return inner + (value @ change.a[..., None])[..., 0] + change.c[..., None]


def curvatures(networks: Networks, x: Tensor, activation: str) -> Curvatures:
    """|grad f|^2 = sum act^2 + sum (a act')^2 (|x|^2 + 1) + 1 and tr grad^2 f = sum a act'' (|x|^2 + 1)."""
    value, first, second = _hidden(networks, x, activation)
    reach = x.square().sum(-1) + 1
    a = networks.a[..., None, :]
    slope = value.square().sum(-1) + (a * first).square().sum(-1) * reach + 1
    return Curvatures(_read(networks, value), slope, (a * second).sum(-1) * reach)
