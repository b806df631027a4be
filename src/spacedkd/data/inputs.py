"""Inputs of a network: one tensor, several, or named ones, with B rows each."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spacedkd.task import CLASSIFICATION, Task

Inputs = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]
"""a batch of B rows: one tensor, the network's arguments, or its keyword arguments"""

Normalisation = tuple[tuple[float, ...], tuple[float, ...]]
"""mean and standard deviation of each channel, of pixels in 0 .. 1"""


class DataInfo(NamedTuple):
    """Facts that a network is built from: two inputs, the names of the classes, and the normalisation of images."""

    sample: Inputs
    """two inputs, as a network is evaluated on them"""
    classes: tuple[str, ...]
    """names of the classes, or of the numbers that are predicted; empty where the dataset has none"""
    normalisation: Normalisation | None = None
    """mean and standard deviation of images; None for other data"""
    task: Task = CLASSIFICATION


def tensors(inputs: Inputs) -> Iterable[Tensor]:
    """Return the tensors of the inputs, in their order."""
    if isinstance(inputs, Tensor):
        return (inputs,)
    return inputs.values() if isinstance(inputs, Mapping) else inputs


def row_count(inputs: Inputs) -> int:
    """Return the number of rows, B.

    >>> row_count({"tokens": torch.zeros(3, 7), "mask": torch.ones(3, 7)})
    3
    """
    return len(next(iter(tensors(inputs))))


def first_not_finite(inputs: Inputs) -> int | None:
    """Return the first row that holds NaN or infinity; None if there is none.

    A tensor whose finite numbers are all 0 is taken for an additive mask, in which -inf has its place.

    >>> first_not_finite((torch.ones(3, 2), torch.tensor([[1.0], [float("nan")], [2.0]])))
    1
    >>> first_not_finite({"x": torch.ones(3, 2), "mask": torch.full((3, 1), float("-inf"))})
    """
    rows = []
    for tensor in tensors(inputs):
        finite = tensor.isfinite()
        is_mask = not tensor.isnan().any() and not tensor[finite].any()
        if tensor.ndim and not finite.all() and not is_mask:
            rows.append(int((~finite).reshape(len(tensor), -1).any(1).nonzero()[0]))
    return min(rows, default=None)


def map_tensors(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """Return inputs of the same form with `change` applied to every tensor."""
    if isinstance(inputs, Tensor):
        return change(inputs)
    if isinstance(inputs, Mapping):
        return {name: change(tensor) for name, tensor in inputs.items()}
    return tuple(change(tensor) for tensor in inputs)


def to_device(inputs: Inputs, device: torch.device, channels_last: bool = False) -> Inputs:
    """Move all tensors to a device; `channels_last` changes the layout of images, floating-point [B, C, H, W], only."""

    def move(tensor: Tensor) -> Tensor:
        image = tensor.ndim == 4 and tensor.is_floating_point()
        layout = torch.channels_last if channels_last and image else torch.contiguous_format
        return tensor.to(device, memory_format=layout, non_blocking=True)

    return map_tensors(inputs, move)


def cast_floats(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """Cast floating-point tensors to another precision; whole numbers, such as tokens, are not changed."""
    return map_tensors(inputs, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


def call(network: nn.Module, inputs: Inputs) -> Any:
    """Call a network: several tensors are its arguments, named ones its keyword arguments."""
    if isinstance(inputs, Tensor):
        return network(inputs)
    return network(**inputs) if isinstance(inputs, Mapping) else network(*inputs)
