"""Where the inner features of a network can be read, for exits to sit on; a middle layer as a hint (FitNets).

Through timm's `forward_intermediates` where a network has it, else by watching its blocks or stages at work.

A regressor carries a student's hint to its teacher's:

maps [B, C, H, W]    a convolution that also brings H and W to the teacher's, BatchNorm, and ReLU where the teacher's
                     maps are nowhere negative
tokens [B, D]        Linear, LayerNorm; where only one side has tokens, the other's maps are pooled
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from timm.models.pit import PoolingVisionTransformer
from torch import Tensor, nn

from spacedkd.data.inputs import Inputs, call
from spacedkd.models.classifier import Prediction, classify, eval_mode, is_timm, record_calls
from spacedkd.models.preprocessing import preprocess
from spacedkd.runtime.errors import UserError

STAGES = 4
"""the most that are read, the last ones"""


class InnerFeatures(NamedTuple):
    """What one pass through a network shows."""

    last: Any
    """what the network's own head takes"""
    inner: list[Tensor]
    """from shallow to deep, [B, C, H, W] or [B, D]; the deepest is read by the network's own head"""


FeatureHooks = Callable[[Any, Tensor], InnerFeatures]
"""Runs the body of a network and reads it on the way. Knows the network by names only, so copies stay apart."""


def intermediates(network: Any, images: Tensor) -> InnerFeatures:
    """Maps after every stage or block, as timm gives them."""
    return InnerFeatures(*network.forward_intermediates(images))


def class_tokens(network: Any, images: Tensor) -> InnerFeatures:
    """The class token after every block, of a network whose classifier reads that token."""
    last, inner = network.forward_intermediates(images, return_prefix_tokens=True, output_fmt="NLC")
    return InnerFeatures(last, [prefix[:, 0] for _, prefix in inner])


@dataclass(frozen=True)
class ModuleHooks:
    """What modules of these names give out; of sequences of tokens the first one, the class token, or their mean."""

    names: tuple[str, ...]
    class_token: bool = False
    channels: tuple[int, ...] | None = None
    """of each module's maps, where they are known: tells [B, C, H, W] from [B, H, W, C]"""

    def __call__(self, network: Any, images: Tensor) -> InnerFeatures:
        modules = [network.get_submodule(name) for name in self.names]
        with record_calls(modules) as seen:
            last = network.forward_features(images)
        left = {one.module: one.left for one in seen}
        channels = self.channels or (None,) * len(modules)
        return InnerFeatures(last, [self._arranged(left[one], c) for one, c in zip(modules, channels, strict=True)])

    def _arranged(self, output: Tensor, channels: int | None) -> Tensor:
        if output.ndim == 3:
            return output[:, 0] if self.class_token else output.mean(1)
        if channels is not None and output.shape[1] != channels:
            return output.permute(0, 3, 1, 2)
        return output


def find_feature_hooks(network: nn.Module, image: Inputs, what: str = "self KD") -> tuple[FeatureHooks, InnerFeatures]:
    """The best taps a network has, with what they read from an example image; `what` it is for, should it have none."""
    image = preprocess(network, image)
    with eval_mode(network):
        own = call(network, image)
        for taps in _candidates(network):
            try:
                reading = taps(network, cast(Tensor, image))  # timm's networks look at images
                found = classify(network, reading.last).logits
            except (AttributeError, AssertionError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError):
                continue  # this network cannot be read in this way
            readable = all(isinstance(one, Tensor) and one.ndim in (2, 4) for one in reading.inner)
            if torch.allclose(found, own, rtol=1e-3, atol=1e-5) and readable and len(reading.inner) > 1:
                return taps, reading
    raise UserError(
        f"{type(network).__name__} does not show two or more of its blocks or stages, so it cannot do {what}. "
        "Use --method kd, or another network."
    )


def _candidates(network: nn.Module) -> Iterator[FeatureHooks]:
    if not is_timm(network):
        return
    if isinstance(network, PoolingVisionTransformer):
        # Between stages the class token changes its width, so it is taken inside them.
        depths = [len(stage.blocks) for stage in network.transformers]
        blocks = (f"transformers.{stage}.blocks.{b}" for stage, depth in enumerate(depths) for b in range(depth))
        yield ModuleHooks(tuple(blocks), class_token=True)
    if getattr(network, "global_pool", None) == "token" and getattr(network, "num_prefix_tokens", 0):
        yield class_tokens
    yield intermediates
    stages = [info for info in getattr(network, "feature_info", []) if info["module"]]
    yield ModuleHooks(tuple(i["module"] for i in stages), channels=tuple(i["num_chs"] for i in stages))
    yield ModuleHooks(tuple(f"blocks.{b}" for b, _ in enumerate(getattr(network, "blocks", []))))


def count_levels(inner: list[Tensor]) -> tuple[int, str]:
    """How many of the deepest count, and what they are: all where one block repeats (vectors, or maps of one shape)."""
    is_blocks = inner[0].ndim == 2 or len({found.shape for found in inner}) == 1
    return (len(inner), "block") if is_blocks else (min(len(inner), STAGES), "stage")


class Hint(NamedTuple):
    """Where a network is read, and what is there for an example."""

    taps: FeatureHooks
    place: int
    found: Tensor  # [B, C, H, W] or [B, D]


def find_hint(network: nn.Module, image: Inputs, number: int | None = None) -> Hint:
    """The hint behind a stage or block, counted from 1; without a number the one in the middle.

    That is the second of four stages and the sixth of twelve blocks. Of more than four stages the last four count.
    """
    taps, (_, inner) = find_feature_hooks(network, image, "feature distillation of a middle layer")
    several, kind = count_levels(inner)
    number = max(several // 2, 1) if number is None else number
    if not 1 <= number <= several:
        raise UserError(f"hint must be from 1 to {several}, the {kind}s of {type(network).__name__}, got {number}.")
    place = len(inner) - several + number - 1
    return Hint(taps, place, inner[place])


class WithHint(nn.Module):
    """A network whose features are its hint; a student's comes through its regressor, towards the teacher's."""

    head_names: tuple[str, ...] = ("final",)

    def __init__(self, network: nn.Module, hint: Hint, pooled: bool, regressor: nn.Module | None = None) -> None:
        super().__init__()
        self.network = network
        self.regressor = regressor
        self._taps, self._place, self._pooled = hint.taps, hint.place, pooled

    def forward(self, images: Tensor, adapted: bool = True) -> tuple[Prediction, ...]:
        """Not `adapted`, the hint is the network's own."""
        last, inner = self._taps(self.network, preprocess(self.network, images))
        hint = _pool(inner[self._place]) if self._pooled else inner[self._place]
        if self.regressor is not None and adapted:
            hint = self.regressor(hint)
        return (classify(self.network, last)._replace(features=hint),)


def make_hinted_pair(teacher: nn.Module, student: nn.Module, hints: tuple[Hint, Hint]) -> tuple[WithHint, WithHint]:
    """Teacher and student with hints of one shape."""
    of_teacher, of_student = hints
    pooled = of_teacher.found.ndim != of_student.found.ndim
    ahead, behind = (_pool(hint.found) if pooled else hint.found for hint in hints)
    return WithHint(teacher, of_teacher, pooled), WithHint(student, of_student, pooled, make_regressor(behind, ahead))


def make_regressor(student: Tensor, teacher: Tensor) -> nn.Module:
    """A new regressor between hints like these."""
    width, target = student.shape[1], teacher.shape[1]
    if student.ndim == 2:
        return nn.Sequential(nn.Linear(width, target), nn.LayerNorm(target))
    layers = [_resizing_layer(student, teacher), nn.BatchNorm2d(target)]
    return nn.Sequential(*layers, *([nn.ReLU()] if torch.all(teacher >= 0) else []))


def _resizing_layer(student: Tensor, teacher: Tensor) -> nn.Module:
    """mdistiller's convolutions for half, twice and other sizes, with its stride of 2 taken to other whole ratios."""
    channels = (student.shape[1], teacher.shape[1])
    (h, w), (height, width) = student.shape[2:], teacher.shape[2:]
    if h > height and (h % height, w) == (0, width * (h // height)):
        return nn.Conv2d(*channels, 3, stride=h // height, padding=1)
    if height > h and (height % h, width) == (0, w * (height // h)):
        times = height // h
        return nn.ConvTranspose2d(*channels, times + 2 * (times // 2), stride=times, padding=times // 2)
    if h >= height and w >= width:
        return nn.Conv2d(*channels, (1 + h - height, 1 + w - width))
    if h <= height and w <= width:
        return nn.ConvTranspose2d(*channels, (1 + height - h, 1 + width - w))
    raise UserError(
        f"The student's hint has maps of {h}x{w} and the teacher's of {height}x{width}: one must fit into the other. "
        "Choose other layers: --set method.hint=1 --set method.teacher_hint=1."
    )


def _pool(hint: Tensor) -> Tensor:
    return hint.mean((2, 3)) if hint.ndim == 4 else hint
