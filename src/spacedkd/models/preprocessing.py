"""How a network sees inputs: at their own size or at the `input_size` it asks for, normalised as it was trained, and in
the floating-point type of its weights."""

import inspect
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from timm.layers import PatchEmbed
from torch import Tensor, nn
from torch.nn import functional as F

from spacedkd.data.inputs import Inputs, Normalisation, call, cast_floats, tensors
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.machine import check_pixels

AnyInputs = TypeVar("AnyInputs", bound=Inputs)
Size = tuple[int, int]


@dataclass(frozen=True)
class Resize:
    """Scales images [B, C, H, W] to the size a network was built for; bicubic, as timm prepares images."""

    size: Size

    def __call__(self, images: Tensor) -> Tensor:
        if tuple(images.shape[-2:]) == self.size:
            return images
        with torch.autocast(images.device.type, enabled=False):  # there is no bicubic in bfloat16
            scaled = F.interpolate(images.float(), self.size, mode="bicubic", antialias=True, align_corners=False)
        return scaled.to(images.dtype)


class Renormalise:
    """Images normalised by one mean and deviation, shown as another pair would have them: a network's own."""

    def __init__(self, shown: Normalisation, own: Normalisation) -> None:
        (mean, std), (own_mean, own_std) = (torch.tensor(pair)[:, :, None, None] for pair in (shown, own))
        self.scale: Tensor = std / own_std
        self.shift: Tensor = (mean - own_mean) / own_std

    def __call__(self, images: Tensor) -> Tensor:
        return images * self.scale.to(images) + self.shift.to(images)


class CastToWeights:
    """Floating-point inputs in the type of the network's weights, whichever that is when it is called."""

    def __call__(self, inputs: AnyInputs, network: nn.Module) -> AnyInputs:
        return cast_floats(inputs, _weight_dtype(network))  # type: ignore[return-value]  # which has the same form


def _weight_dtype(network: nn.Module) -> torch.dtype:
    return next((one.dtype for one in network.parameters() if one.is_floating_point()), torch.float32)


def cast_where_needed(network: nn.Module, sample: Inputs) -> None:
    """Let a network see inputs in the type of its weights, where it fails on them as they are: data in float64, say.

    A network that takes them as they are goes on to.
    """
    if any(isinstance(change, CastToWeights) for change in getattr(network, "_preprocessing", ())):
        return
    types = {one.dtype for one in tensors(sample) if one.is_floating_point()}
    if types <= {_weight_dtype(network)}:
        return
    was_training = network.training
    network.eval()
    try:
        with torch.no_grad():
            call(network, preprocess(network, sample))
    except Exception:  # whatever else is wrong shows when it is tried with the other type
        add_preprocessing(network, CastToWeights())
    finally:
        network.train(was_training)


def add_preprocessing(network: nn.Module, change: Resize | Renormalise | CastToWeights) -> None:
    """Let a network see images only after this change.

    It is no module of the network: some networks run all the modules they hold.
    """
    network._preprocessing = (*getattr(network, "_preprocessing", ()), change)  # type: ignore[assignment]


def preprocess(network: nn.Module, inputs: AnyInputs) -> AnyInputs:
    """The inputs as this network wants them: renormalised, scaled or of another type if it was built so."""
    for change in getattr(network, "_preprocessing", ()):
        inputs = change(inputs, network) if isinstance(change, CastToWeights) else change(inputs)
    return inputs


def parse_size(asked: Any) -> Size:
    """A size from an option: one number for squares, or height and width.

    >>> parse_size(64), parse_size([64, 48])
    ((64, 64), (64, 48))
    """
    sides = [asked, asked] if isinstance(asked, int) else asked
    if not (isinstance(sides, list | tuple) and len(sides) == 2 and all(type(s) is int and s > 0 for s in sides)):
        raise UserError(f"input_size must be a number of pixels, or [height, width], got {asked!r}.")
    check_pixels("input_size", *sides)
    return sides[0], sides[1]


def patch_misfit(network: nn.Module, size: Size) -> str:
    """What is wrong with patches that would drop the images' margin without a word, and the way out; else nothing."""
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
    """A patch that tiles the image, as near as there is to one eighth of it: 4 for CIFAR, 8 for Tiny-ImageNet."""
    whole = [patch for patch in range(1, min(size) + 1) if all(side % patch == 0 for side in size)]
    return min(whole, key=lambda patch: abs(patch - min(size) / 8))
