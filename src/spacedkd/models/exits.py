"""Early exits: classifiers behind the inner stages or blocks of a network, for self KD on any timm network.

four stages of falling size   the heads of BYOT (Zhang et al. 2019) behind the first three: ResNets and most others
blocks of one width (ViTs)    a head on the class token, or on the pooled tokens where the network pools, behind
                              every block but the last: eleven for a twelve-block ViT, and for a PiT
other stages                  a head on the pooled maps behind every stage but the last, of the last four
"""

from __future__ import annotations

import itertools
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from spacedkd.data.inputs import Inputs
from spacedkd.models.heads import Prediction, final, looking
from spacedkd.models.input_size import at_own_size
from spacedkd.models.taps import find_taps


class SeparableConv(nn.Sequential):
    """Two depthwise-separable 3x3 convolutions, the first of which halves the size."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__(
            nn.Conv2d(channels, channels, 3, stride=2, padding=1, groups=channels, bias=False),
            nn.Conv2d(channels, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False),
            nn.Conv2d(channels, out, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
        )


class EarlyExit(nn.Module):
    """A BYOT head behind one stage: attention, then separable convolutions down to the last stage, then a classifier.

    `channels` are those of this stage and of the ones below it.
    """

    def __init__(self, channels: tuple[int, ...], features: int, classes: int, aligned: bool) -> None:
        super().__init__()
        self.attention = nn.Sequential(SeparableConv(channels[0], channels[0]), nn.BatchNorm2d(channels[0]), nn.ReLU())
        targets = (*channels[1:-1], features)
        self.descent = nn.Sequential(*(SeparableConv(a, b) for a, b in zip(channels, targets, strict=False)))
        self.classifier = nn.Linear(features, classes)
        self.alignment = nn.Linear(features, features) if aligned else nn.Identity()
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, maps: Tensor) -> Prediction:
        attention = F.interpolate(self.attention(maps), maps.shape[-2:], mode="bilinear", align_corners=False)
        features = self.descent(maps * attention.sigmoid()).mean((2, 3))
        return Prediction(self.classifier(features), self.alignment(features))


class PooledExit(nn.Module):
    """A head on one vector h, a class token or pooled maps: features a = W LN(h), logits V a."""

    def __init__(self, channels: int, features: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.alignment = nn.Linear(channels, features)
        self.classifier = nn.Linear(features, classes)

    def forward(self, inner: Tensor) -> Prediction:
        features = self.alignment(self.norm(inner.mean((2, 3)) if inner.ndim == 4 else inner))
        return Prediction(self.classifier(features), features)


Align = Literal["all", "all-but-deepest", "none"]
STAGES = 4


class EarlyExits(nn.Module):
    """A network with an early exit behind each inner stage or block but the last.

    All heads answer unless told otherwise. Without `shallow` the exits stay untouched, down to their BatchNorm
    statistics; without `deepest` the network's classifier stays untouched. `align` says which BYOT exits' features
    pass an alignment layer towards the deepest ones; other exits have theirs before the classifier, always.
    """

    def __init__(self, network: nn.Module, image: Inputs, align: Align = "all") -> None:
        super().__init__()
        self.network = network
        image = at_own_size(network, image)
        self._taps, (last, inner) = find_taps(network, image)
        with looking(network):
            deepest = final(network, last)
        kind = "block" if is_blocks(inner) else "stage"
        self._kept = len(inner) if kind == "block" else min(len(inner), STAGES)
        kept = inner[-self._kept :]
        places = range(len(kept) - 1, 0, -1)
        self.head_names = ("final", *(f"{kind}{place}" for place in places))
        aligned = {"all": self.head_names[1:], "all-but-deepest": self.head_names[2:], "none": ()}[align]
        width, classes = deepest.features.shape[1], deepest.logits.shape[1]
        channels, falling = tuple(found.shape[1] for found in kept), _falls(kept)
        self.exits = nn.ModuleDict()
        for place, name in zip(places, self.head_names[1:], strict=True):
            self.exits[name] = (
                EarlyExit(channels[place - 1 :], width, classes, name in aligned)
                if falling
                else PooledExit(channels[place - 1], width, classes)
            )

    def forward(self, images: Tensor, deepest: bool = True, shallow: bool = True) -> tuple[Prediction, ...]:
        images = at_own_size(self.network, images)
        if not shallow:
            return (final(self.network, self.network.forward_features(images)),)  # type: ignore[operator]
        last, inner = self._taps(self.network, images)
        below = reversed(inner[-self._kept : -1])
        exits = [head(found) for head, found in zip(self.exits.values(), below, strict=True)]
        return (final(self.network, last), *exits) if deepest else (*exits,)


def is_blocks(inner: list[Tensor]) -> bool:
    """Whether a network repeats one block: what it shows are vectors, or maps of one shape throughout."""
    return inner[0].ndim == 2 or len({found.shape for found in inner}) == 1


def _falls(kept: list[Tensor]) -> bool:
    """Whether there are four stages, each with smaller maps than the one above."""
    sizes = [tuple(found.shape[2:]) for found in kept]
    return len(sizes) == STAGES and all(above > below for above, below in itertools.pairwise(sizes))
