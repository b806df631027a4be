"""Preprocessing that belongs to a network: scaling to its `input_size`, its own normalisation, its floating-point type.

`add_preprocessing` attaches a step to a network when it is built. Callers of the network pass its inputs through
`preprocess` first.
"""

import inspect
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spacedkd.data.inputs import Inputs, Normalisation, call, cast_floats, tensors
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.processes import check_pixels

AnyInputs = TypeVar("AnyInputs", bound=Inputs)
Size = tuple[int, int]


@dataclass(frozen=True)
class Resize:
    """A step that scales images [B, C, H, W] to the size a network was built for; bicubic, as timm prepares images."""

    size: Size

    def __call__(self, images: Tensor) -> Tensor:
        """Return the images at the size of the network."""
        if tuple(images.shape[-2:]) == self.size:
            return images
        with torch.autocast(images.device.type, enabled=False):  # there is no bicubic in bfloat16
            scaled = F.interpolate(images.float(), self.size, mode="bicubic", antialias=True, align_corners=False)
        return scaled.to(images.dtype)


class Renormalise:
    """A step from images normalised by the data's mean and deviation to those of a network's own training."""

    def __init__(self, data: Normalisation, own: Normalisation) -> None:
        (mean, std), (own_mean, own_std) = (torch.tensor(pair)[:, :, None, None] for pair in (data, own))
        self.scale: Tensor = std / own_std
        self.shift: Tensor = (mean - own_mean) / own_std

    def __call__(self, images: Tensor) -> Tensor:
        """Return the images in the network's normalisation."""
        return images * self.scale.to(images) + self.shift.to(images)


class CastToWeights:
    """A step that casts floating-point inputs to the type of the network's weights at the time of the call."""

    def __call__(self, inputs: AnyInputs, network: nn.Module) -> AnyInputs:
        """Return the inputs in the type of the network's weights."""
        return cast_floats(inputs, _weight_dtype(network))  # type: ignore[return-value]


def _weight_dtype(network: nn.Module) -> torch.dtype:
    return next((weight.dtype for weight in network.parameters() if weight.is_floating_point()), torch.float32)


def cast_where_needed(network: nn.Module, sample: Inputs) -> None:
    """Add `CastToWeights` to a network that fails on inputs in their own type, such as data in float64."""
    if any(isinstance(step, CastToWeights) for step in getattr(network, "_spacedkd_preprocessing", ())):
        return
    dtypes = {tensor.dtype for tensor in tensors(sample) if tensor.is_floating_point()}
    if dtypes <= {_weight_dtype(network)}:
        return
    was_training = network.training
    network.eval()
    try:
        with torch.no_grad():
            call(network, preprocess(network, sample))
    except Exception:  # any other mistake shows when the network is checked with the new type
        add_preprocessing(network, CastToWeights())
    finally:
        network.train(was_training)


def add_preprocessing(network: nn.Module, step: Resize | Renormalise | CastToWeights) -> None:
    """Add a step to the preprocessing of a network.

    The step is an attribute, under a name no network has, and not a submodule: some run all the modules they hold.
    """
    network._spacedkd_preprocessing = (*getattr(network, "_spacedkd_preprocessing", ()), step)  # type: ignore[assignment]


def preprocess(network: nn.Module, inputs: AnyInputs) -> AnyInputs:
    """Return the inputs after the network's own preprocessing; most networks have none."""
    for step in getattr(network, "_spacedkd_preprocessing", ()):
        inputs = step(inputs, network) if isinstance(step, CastToWeights) else step(inputs)
    return inputs


def parse_size(option: Any) -> Size:
    """Return height and width from the option `input_size`: one number for squares, or both.

    >>> parse_size(64), parse_size([64, 48])
    ((64, 64), (64, 48))
    """
    sides = [option, option] if isinstance(option, int) else option
    if not (isinstance(sides, list | tuple) and len(sides) == 2 and all(type(s) is int and s > 0 for s in sides)):
        raise UserError(f"input_size must be a number of pixels, or [height, width], got {option!r}.")
    check_pixels("input_size", *sides)
    return sides[0], sides[1]


def patch_misfit(network: nn.Module, size: Size) -> str:
    """Return why patches do not tile images of this size, with the way out; "" where they do.

    timm would drop the margin of such images silently.
    """
    from timm.layers import PatchEmbed

    embed = next((module for module in network.modules() if isinstance(module, PatchEmbed)), None)
    if embed is None or embed.dynamic_img_pad or not any(s % p for s, p in zip(size, embed.patch_size, strict=True)):
        return ""
    larger = [-(-side // piece) * piece for side, piece in zip(size, embed.patch_size, strict=True)]
    scaled = str(larger[0]) if larger[0] == larger[1] else f"[{larger[0]},{larger[1]}]"
    ways = [f"let it scale them: --set network.input_size={scaled}"]
    if "patch_size" in inspect.signature(type(network)).parameters:
        ways.insert(0, f"use --set network.patch_size={_patch_that_tiles(size)}")
    return (
        f"its patches of {embed.patch_size[0]} pixels do not tile them; {', or '.join(ways)} "
        "(teacher. if it is the teacher)."
    )


def _patch_that_tiles(size: Size) -> int:
    """Return the patch that tiles the image and is nearest to one eighth of it: 4 for CIFAR, 8 for Tiny-ImageNet."""
    sizes = [patch for patch in range(1, min(size) + 1) if all(side % patch == 0 for side in size)]
    return min(sizes, key=lambda patch: abs(patch - min(size) / 8))
