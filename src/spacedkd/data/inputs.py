"""What a network is shown: one tensor, several, or named ones."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

Inputs = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]
"""of B rows"""


Normalisation = tuple[tuple[float, ...], tuple[float, ...]]
"""mean and deviation of each channel, of pixels in 0 .. 1"""


class DataInfo(NamedTuple):
    """What a network is built for."""

    sample: Inputs
    """two inputs, as they are shown in evaluation"""
    classes: tuple[str, ...]
    """empty where the data does not say"""
    normalisation: Normalisation | None = None
    """where images are normalised"""


def tensors(inputs: Inputs) -> Iterable[Tensor]:
    if isinstance(inputs, Tensor):
        return (inputs,)
    return inputs.values() if isinstance(inputs, Mapping) else inputs


def row_count(inputs: Inputs) -> int:
    """How many rows there are.

    >>> count({"tokens": torch.zeros(3, 7), "mask": torch.ones(3, 7)})
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
    """The same inputs with every tensor changed."""
    if isinstance(inputs, Tensor):
        return change(inputs)
    if isinstance(inputs, Mapping):
        return {name: change(tensor) for name, tensor in inputs.items()}
    return tuple(change(tensor) for tensor in inputs)


def to_device(inputs: Inputs, device: torch.device, channels_last: bool = False) -> Inputs:
    """Everything on a device; `channels_last` is for images, so for floating-point tensors [B, C, H, W] alone."""

    def moved(tensor: Tensor) -> Tensor:
        image = tensor.ndim == 4 and tensor.is_floating_point()
        layout = torch.channels_last if channels_last and image else torch.contiguous_format
        return tensor.to(device, memory_format=layout, non_blocking=True)

    return map_tensors(inputs, moved)


def cast_floats(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """Floating-point tensors in another precision; whole numbers, such as tokens, stay what they are."""
    return map_tensors(inputs, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


def call(network: nn.Module, inputs: Inputs) -> Any:
    """What a network says: several tensors are its arguments, named ones its keyword arguments."""
    if isinstance(inputs, Tensor):
        return network(inputs)
    return network(**inputs) if isinstance(inputs, Mapping) else network(*inputs)
