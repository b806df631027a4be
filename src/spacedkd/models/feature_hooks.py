"""Inner features of a timm network, read on the way through it; and a middle layer as a hint (FitNets).

`find_feature_hooks` finds a way to read a network: timm's `forward_intermediates` where it has that, else forward hooks
on its blocks or stages. Early exits and shadow heads sit on what it reads.

A hint is the features behind one stage or block. A regressor carries a student's hint to the shape of its teacher's:

maps [B, C, H, W]    a convolution that also brings H and W to the teacher's, BatchNorm, and ReLU where the teacher's
                     maps are nowhere negative
tokens [B, D]        Linear, LayerNorm; where only one side has tokens, the other's maps are pooled
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from spacedkd.data.inputs import Inputs, call
from spacedkd.models.classifier import Prediction, classify, eval_mode, is_timm, is_timm_part, record_calls
from spacedkd.models.preprocessing import preprocess
from spacedkd.runtime.errors import UserError

STAGES = 4
"""the number of stages that are used at most, the deepest ones"""


class InnerFeatures(NamedTuple):
    """The features of one pass through a network, inner and last."""

    last: Any
    """the input of the network's own head"""
    inner: list[Tensor]
    """features from shallow to deep, [B, C, H, W] or [B, D]; the network's own head reads the deepest"""


FeatureHooks = Callable[[Any, Tensor], InnerFeatures]
"""runs the body of a network and returns its features; knows the network's modules by name only, so that a copy of the
network is read and not the original"""


def intermediates(network: Any, images: Tensor) -> InnerFeatures:
    """Return the maps after every stage or block, as timm's `forward_intermediates` gives them."""
    return InnerFeatures(*network.forward_intermediates(images))


def class_tokens(network: Any, images: Tensor) -> InnerFeatures:
    """Return the class token after every block, for a network whose classifier reads that token."""
    last, inner = network.forward_intermediates(images, return_prefix_tokens=True, output_fmt="NLC")
    return InnerFeatures(last, [prefix[:, 0] for _, prefix in inner])


@dataclass(frozen=True)
class ModuleHooks:
    """Forward hooks on modules, by name; token sequences become their class token or their mean."""

    names: tuple[str, ...]
    class_token: bool = False
    """take the first token of a sequence instead of the mean of all"""
    channels: tuple[int, ...] | None = None
    """number of channels of each module's maps, if known: distinguishes [B, C, H, W] from [B, H, W, C]"""

    def __call__(self, network: Any, images: Tensor) -> InnerFeatures:
        """Run the network's body and return the outputs of the modules."""
        modules = [network.get_submodule(name) for name in self.names]
        with record_calls(modules) as calls:
            last = network.forward_features(images)
        outputs = {layer_call.module: layer_call.output for layer_call in calls}
        channels = self.channels or (None,) * len(modules)
        inner = [self._arrange(outputs[module], width) for module, width in zip(modules, channels, strict=True)]
        return InnerFeatures(last, inner)

    def _arrange(self, output: Tensor, channels: int | None) -> Tensor:
        """Return tokens as [B, D] and maps as [B, C, H, W]."""
        if output.ndim == 3:
            return output[:, 0] if self.class_token else output.mean(1)
        if channels is not None and output.shape[1] != channels:
            return output.permute(0, 3, 1, 2)
        return output


def find_feature_hooks(
    network: nn.Module, image: Inputs, purpose: str = "self KD"
) -> tuple[FeatureHooks, InnerFeatures]:
    """Return the best hooks for a network, with the features they read from an example image.

    Hooks are accepted only if the network's head, on the features they return, gives the network's own logits. A
    network without such hooks is refused; `purpose` names the method in the message.
    """
    image = preprocess(network, image)
    with eval_mode(network):
        own = call(network, image)
        for hooks in _candidate_hooks(network):
            try:
                features = hooks(network, cast(Tensor, image))  # timm's networks take images
                logits = classify(network, features.last).logits
            except (AttributeError, AssertionError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError):
                continue  # this network cannot be read in this way
            readable = all(isinstance(level, Tensor) and level.ndim in (2, 4) for level in features.inner)
            if torch.allclose(logits, own, rtol=1e-3, atol=1e-5) and readable and len(features.inner) > 1:
                return hooks, features
    raise UserError(
        f"{type(network).__name__} does not show two or more of its blocks or stages, so it cannot do {purpose}. "
        "Use --method kd, or another network."
    )


def _candidate_hooks(network: nn.Module) -> Iterator[FeatureHooks]:
    """Yield ways to read a network, the most informative first."""
    if not is_timm(network):
        return
    if is_timm_part(network, "timm.models.pit", "PoolingVisionTransformer"):
        # Between stages the class token changes its width, so it is taken inside them.
        stages: Any = network.transformers
        depths = [len(stage.blocks) for stage in stages]
        blocks = (f"transformers.{stage}.blocks.{b}" for stage, depth in enumerate(depths) for b in range(depth))
        yield ModuleHooks(tuple(blocks), class_token=True)
    if getattr(network, "global_pool", None) == "token" and getattr(network, "num_prefix_tokens", 0):
        yield class_tokens
    yield intermediates
    stages = [info for info in getattr(network, "feature_info", []) if info["module"]]
    yield ModuleHooks(tuple(info["module"] for info in stages), channels=tuple(info["num_chs"] for info in stages))
    yield ModuleHooks(tuple(f"blocks.{b}" for b, _ in enumerate(getattr(network, "blocks", []))))


def count_levels(inner: list[Tensor]) -> tuple[int, str]:
    """Return how many of the deepest features are used, and whether each is behind a "block" or a "stage".

    Features of one shape are those of equal blocks, and all are used; of stages the last four are.
    """
    is_blocks = inner[0].ndim == 2 or len({level.shape for level in inner}) == 1
    return (len(inner), "block") if is_blocks else (min(len(inner), STAGES), "stage")


class Hint(NamedTuple):
    """A middle layer of a network, and its features for an example."""

    hooks: FeatureHooks
    level: int
    """the position of the layer among the inner features"""
    features: Tensor  # [B, C, H, W] or [B, D]


def find_hint(network: nn.Module, image: Inputs, number: int | None = None) -> Hint:
    """Return the hint behind a stage or block, counted from 1; without a number the one in the middle.

    That is the second of four stages and the sixth of twelve blocks. Of more than four stages the last four count.
    """
    hooks, (_, inner) = find_feature_hooks(network, image, "feature distillation of a middle layer")
    levels, kind = count_levels(inner)
    number = max(levels // 2, 1) if number is None else number
    if not 1 <= number <= levels:
        raise UserError(f"hint must be from 1 to {levels}, the {kind}s of {type(network).__name__}, got {number}.")
    level = len(inner) - levels + number - 1
    return Hint(hooks, level, inner[level])


class WithHint(nn.Module):
    """A network whose `features` are its hint; a student's hint passes a regressor towards the teacher's.

    network      the timm network
    hint         the layer to read
    pooled       whether maps are averaged to vectors
    regressor    the student's; a teacher has none
    """

    head_names: tuple[str, ...] = ("final",)

    def __init__(self, network: nn.Module, hint: Hint, pooled: bool, regressor: nn.Module | None = None) -> None:
        super().__init__()
        self.network = network
        self.regressor = regressor
        self._hooks, self._level, self._pooled = hint.hooks, hint.level, pooled
        self.features_name = f"{'pooled ' if pooled else ''}hint {hint.level}"
        """what the features of a prediction are, for targets that are cached"""

    def forward(self, images: Tensor, adapted: bool = True) -> tuple[Prediction, ...]:
        """Return the network's prediction with the hint as its features; not `adapted`, without the regressor."""
        last, inner = self._hooks(self.network, preprocess(self.network, images))
        hint = _pool(inner[self._level]) if self._pooled else inner[self._level]
        if self.regressor is not None and adapted:
            hint = self.regressor(hint)
        return (classify(self.network, last)._replace(features=hint),)


def make_hinted_pair(
    teacher: nn.Module, teacher_hint: Hint, student: nn.Module, student_hint: Hint
) -> tuple[WithHint, WithHint]:
    """Return teacher and student with hints of one shape; the student gets a new regressor."""
    pooled = teacher_hint.features.ndim != student_hint.features.ndim
    target, own = (_pool(hint.features) if pooled else hint.features for hint in (teacher_hint, student_hint))
    regressor = make_regressor(own, target)
    return WithHint(teacher, teacher_hint, pooled), WithHint(student, student_hint, pooled, regressor)


def make_regressor(student: Tensor, teacher: Tensor) -> nn.Module:
    """Return a new regressor from a student's hint to a teacher's; both are examples of the features."""
    width, target = student.shape[1], teacher.shape[1]
    if student.ndim == 2:
        return nn.Sequential(nn.Linear(width, target), nn.LayerNorm(target))
    layers = [_resizing_layer(student, teacher), nn.BatchNorm2d(target)]
    return nn.Sequential(*layers, *([nn.ReLU()] if torch.all(teacher >= 0) else []))


def _resizing_layer(student: Tensor, teacher: Tensor) -> nn.Module:
    """Return the convolution that brings the student's maps to the channels and size of the teacher's.

    These are mdistiller's convolutions for half, twice and other sizes, with its stride of 2 taken to other whole
    ratios.
    """
    channels, out = student.shape[1], teacher.shape[1]
    (h, w), (height, width) = student.shape[2:], teacher.shape[2:]
    if h > height and (h % height, w) == (0, width * (h // height)):
        return nn.Conv2d(channels, out, 3, stride=h // height, padding=1)
    if height > h and (height % h, width) == (0, w * (height // h)):
        times = height // h
        return nn.ConvTranspose2d(channels, out, times + 2 * (times // 2), stride=times, padding=times // 2)
    if h >= height and w >= width:
        return nn.Conv2d(channels, out, (1 + h - height, 1 + w - width))
    if h <= height and w <= width:
        return nn.ConvTranspose2d(channels, out, (1 + height - h, 1 + width - w))
    raise UserError(
        f"The student's hint has maps of {h}x{w} and the teacher's of {height}x{width}: one must fit into the other. "
        "Choose other layers: --set method.hint=1 --set method.teacher_hint=1."
    )


def _pool(hint: Tensor) -> Tensor:
    return hint.mean((2, 3)) if hint.ndim == 4 else hint
