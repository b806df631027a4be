"""What reads a network: its own classifier, and early exits behind its stages.

Every model of a run is called with images and answers with one `Prediction` for each of its heads, the deepest
first.
"""

from __future__ import annotations

import itertools
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spacedkd.errors import UserError


class Prediction(NamedTuple):
    """What one head says of B images."""

    logits: Tensor  # [B, C]
    features: Tensor  # [B, D] pooled, before the classifier


class Classifier(nn.Module):
    """A timm network with its one head, and an adapter on its features if they are to meet a teacher's."""

    head_names: tuple[str, ...] = ("final",)

    def __init__(self, network: nn.Module, adapter: nn.Module | None = None) -> None:
        super().__init__()
        self.network = network
        self.adapter = adapter

    def forward(self, images: Tensor) -> tuple[Prediction, ...]:
        prediction = _final(self.network, self.network.forward_features(images))  # type: ignore[operator]
        if self.adapter is None:
            return (prediction,)
        return (prediction._replace(features=self.adapter(prediction.features)),)


def _final(network: nn.Module, maps: Tensor) -> Prediction:
    features = network.forward_head(maps, pre_logits=True)  # type: ignore[operator]
    return Prediction(network.get_classifier()(features), features)  # type: ignore[operator]


def feature_width(network: nn.Module) -> int:
    """How many numbers a network's pooled features have."""
    return int(network.head_hidden_size)  # type: ignore[arg-type]


def adapter(student: int, teacher: int) -> nn.Module:
    """The paper code's adapter from student to teacher features: Linear, ReLU, Linear with the mean width between."""
    hidden = (student + teacher) // 2
    return nn.Sequential(nn.Linear(student, hidden), nn.ReLU(), nn.Linear(hidden, teacher))


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


Align = Literal["all", "all-but-deepest", "none"]


class EarlyExits(nn.Module):
    """A network of stages with an early exit behind each stage but the last.

    All heads answer unless told otherwise. Without `shallow` the exits stay untouched, down to their BatchNorm
    statistics; without `deepest` the network's classifier stays untouched. `align` says which exits' features
    pass an alignment layer towards the deepest ones.
    """

    def __init__(self, network: nn.Module, image: Tensor, align: Align = "all") -> None:
        super().__init__()
        self.network = network
        channels = _stage_channels(network, image)
        stages = range(len(channels) - 1, 0, -1)
        self.head_names = ("final", *(f"stage{stage}" for stage in stages))
        aligned = {"all": self.head_names[1:], "all-but-deepest": self.head_names[2:], "none": ()}[align]
        width, classes = feature_width(network), int(network.num_classes)  # type: ignore[arg-type]
        self.exits = nn.ModuleDict(
            {f"stage{s}": EarlyExit(channels[s - 1 :], width, classes, f"stage{s}" in aligned) for s in stages}
        )

    def forward(self, images: Tensor, deepest: bool = True, shallow: bool = True) -> tuple[Prediction, ...]:
        if not shallow:
            return (_final(self.network, self.network.forward_features(images)),)  # type: ignore[operator]
        last, maps = self.network.forward_intermediates(images, indices=STAGES)  # type: ignore[operator]
        shallow_maps = reversed(maps[:-1])
        exits = [head(stage) for head, stage in zip(self.exits.values(), shallow_maps, strict=True)]
        return (_final(self.network, last), *exits) if deepest else (*exits,)


STAGES = 4


def _stage_channels(network: nn.Module, image: Tensor) -> tuple[int, ...]:
    try:
        with torch.no_grad():
            maps = network.eval().forward_intermediates(image, indices=STAGES, intermediates_only=True)  # type: ignore[operator]
    except (AttributeError, AssertionError, ValueError):
        maps = []
    network.train()
    sizes = [tuple(m.shape[-2:]) for m in maps if m.ndim == 4]
    if len(sizes) < STAGES or any(below >= above for above, below in itertools.pairwise(sizes)):
        name = type(network).__name__
        raise UserError(
            f"{name} does not have {STAGES} stages of falling size on these images, so it cannot do self KD."
        )
    return tuple(m.shape[1] for m in maps)
