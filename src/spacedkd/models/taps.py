"""Where the inner features of a network can be read, for exits to sit on.

Through timm's `forward_intermediates` where a network has it, else by watching its blocks or stages at work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import torch
from timm.models.pit import PoolingVisionTransformer
from torch import Tensor, nn

from spacedkd.data.inputs import Inputs, call
from spacedkd.errors import UserError
from spacedkd.models.heads import final, is_timm, looking
from spacedkd.models.watching import watching


class Reading(NamedTuple):
    """What one pass through a network shows."""

    last: Any
    """what the network's own head takes"""
    inner: list[Tensor]
    """from shallow to deep, [B, C, H, W] or [B, D]; the deepest is read by the network's own head"""


class Taps(Protocol):
    """Runs the body of a network and reads it on the way. Knows the network by names only, so copies stay apart."""

    def __call__(self, network: Any, images: Tensor) -> Reading: ...


@dataclass(frozen=True)
class Intermediates:
    """Maps after every stage or block, as timm gives them."""

    def __call__(self, network: Any, images: Tensor) -> Reading:
        return Reading(*network.forward_intermediates(images))


@dataclass(frozen=True)
class ClassTokens:
    """The class token after every block, of a network whose classifier reads that token."""

    def __call__(self, network: Any, images: Tensor) -> Reading:
        last, inner = network.forward_intermediates(images, return_prefix_tokens=True, output_fmt="NLC")
        return Reading(last, [prefix[:, 0] for _, prefix in inner])


@dataclass(frozen=True)
class Watched:
    """What modules of these names give out; of sequences of tokens the first one, the class token, or their mean."""

    names: tuple[str, ...]
    class_token: bool = False
    channels: tuple[int, ...] | None = None
    """of each module's maps, where they are known: tells [B, C, H, W] from [B, H, W, C]"""

    def __call__(self, network: Any, images: Tensor) -> Reading:
        modules = [network.get_submodule(name) for name in self.names]
        with watching(modules) as seen:
            last = network.forward_features(images)
        left = {one.module: one.left for one in seen}
        channels = self.channels or (None,) * len(modules)
        return Reading(last, [self._arranged(left[one], c) for one, c in zip(modules, channels, strict=True)])

    def _arranged(self, output: Tensor, channels: int | None) -> Tensor:
        if output.ndim == 3:
            return output[:, 0] if self.class_token else output.mean(1)
        if channels is not None and output.shape[1] != channels:
            return output.permute(0, 3, 1, 2)
        return output


def find_taps(network: nn.Module, image: Inputs, what: str = "self KD") -> tuple[Taps, Reading]:
    """The best taps a network has, with what they read from an example image; `what` it is for, should it have none."""
    with looking(network):
        own = call(network, image)
        for taps in _candidates(network):
            try:
                reading = taps(network, cast(Tensor, image))  # timm's networks look at images
                found = final(network, reading.last).logits
            except (AttributeError, AssertionError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError):
                continue  # this network cannot be read in this way
            if torch.allclose(found, own, rtol=1e-3, atol=1e-5) and _readable(reading.inner):
                return taps, reading
    raise UserError(
        f"{type(network).__name__} does not show two or more of its blocks or stages, so it cannot do {what}. "
        "Use --method kd, or another network."
    )


def _candidates(network: nn.Module) -> Iterator[Taps]:
    if not is_timm(network):
        return
    if isinstance(network, PoolingVisionTransformer):
        # Between stages the class token changes its width, so it is taken inside them.
        blocks = [
            f"transformers.{s}.blocks.{b}" for s, t in enumerate(network.transformers) for b in range(len(t.blocks))
        ]
        yield Watched(tuple(blocks), class_token=True)
    if getattr(network, "global_pool", None) == "token" and getattr(network, "num_prefix_tokens", 0):
        yield ClassTokens()
    yield Intermediates()
    stages = [info for info in getattr(network, "feature_info", []) if info["module"]]
    yield Watched(tuple(i["module"] for i in stages), channels=tuple(i["num_chs"] for i in stages))
    yield Watched(tuple(f"blocks.{b}" for b, _ in enumerate(getattr(network, "blocks", []))))


def _readable(inner: list[Tensor]) -> bool:
    return len(inner) > 1 and all(isinstance(found, Tensor) and found.ndim in (2, 4) for found in inner)
