"""What a network is shown: a tensor, several of them, or several by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

Inputs = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]
Normalisation = tuple[tuple[float, ...], tuple[float, ...]]
"""mean and deviation of each channel"""


def count(inputs: Inputs) -> int:
    """How many items there are: the length of every tensor.

    >>> import torch
    >>> count(torch.zeros(3, 2)), count({"tokens": torch.zeros(5, 7)})
    (3, 5)
    """
    if isinstance(inputs, Tensor):
        return len(inputs)
    return len(next(iter(inputs.values() if isinstance(inputs, Mapping) else inputs)))


def call(network: Callable[..., Any], inputs: Inputs) -> Any:
    """A network's answer: network(x), network(*x) of a tuple, network(**x) of a mapping."""
    if isinstance(inputs, Tensor):
        return network(inputs)
    return network(**inputs) if isinstance(inputs, Mapping) else network(*inputs)


class Shown(NamedTuple):
    """What the data shows to a network, for networks that size themselves and are tried."""

    sample: Inputs
    """two items of it"""
    classes: tuple[str, ...] = ()
    """their names, where the data says them"""
    normalisation: Normalisation | None = None
    """of image tensors"""
