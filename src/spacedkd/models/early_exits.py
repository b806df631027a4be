"""Heads behind the inner stages or blocks of a timm network: the early exits of self KD, and the shadow of SHAKE.

Early exits are classifiers of their own:

four stages of falling size   the heads of BYOT (Zhang et al. 2019) behind the first three: ResNets and most others
blocks of one width (ViTs)    a head on the class token, or on the pooled tokens where the network pools, behind
                              every block but the last: eleven for a twelve-block ViT, and for a PiT
other stages                  a head on the pooled maps behind every stage but the last, of the last four

A shadow head is a small second head on the last three stages or blocks:

    u = D1(f1) + L2(f2),   v = D2(u) + L3(f3),   w = E(v)

D brings maps to the next stage's size and channels with a 3x3 convolution, L is a 1x1 one, E a 3x3 one to the width the
network's own classifier takes; all with BatchNorm and ReLU. w, pooled, goes through that classifier, whose weights get
no gradient from the shadow. Where the network shows class tokens, all of them are Linear, LayerNorm, ReLU. The last
ReLU is left out where the network's own features are negative somewhere.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spacedkd.data.inputs import Inputs
from spacedkd.models.classifier import Prediction, classify, eval_mode
from spacedkd.models.feature_hooks import STAGES, count_levels, find_feature_hooks
from spacedkd.models.preprocessing import preprocess
from spacedkd.runtime.errors import UserError


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

    channels    of this stage and of the deeper ones
    features    the width that the network's own classifier takes
    classes     the number of logits
    aligned     whether features pass a linear layer before they are compared with the deepest ones
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
        """Return the prediction for the stage's maps [B, C, H, W]."""
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
        """Return the prediction for maps [B, C, H, W] or vectors [B, C]."""
        features = self.alignment(self.norm(inner.mean((2, 3)) if inner.ndim == 4 else inner))
        return Prediction(self.classifier(features), features)


Align = Literal["all", "all-but-deepest", "none"]
"""the BYOT exits that have an alignment layer"""


class EarlyExits(nn.Module):
    """A timm network with an early exit behind each stage or block but the last.

    network    the timm network; one that does not show its stages or blocks is refused
    image      an example batch, from which the exits take their sizes
    align      the BYOT exits whose features pass an alignment layer towards the deepest ones; other exits always have
               one, before their classifier

    Called with images it returns a prediction of each head in `head_names`: the network's own, then its exits from deep
    to shallow, ("final", "stage3", "stage2", "stage1") for a ResNet:

        model = EarlyExits(timm.create_model("resnet18_small"), torch.zeros(2, 3, 32, 32))
        deepest, *exits = model(images)
    """

    def __init__(self, network: nn.Module, image: Inputs, align: Align = "all") -> None:
        super().__init__()
        self.network = network
        self._hooks, (last, inner) = find_feature_hooks(network, image)
        with eval_mode(network):
            deepest = classify(network, last)
        self._levels, kind = count_levels(inner)
        levels = inner[-self._levels :]
        numbers = range(len(levels) - 1, 0, -1)
        self.head_names = ("final", *(f"{kind}{number}" for number in numbers))
        aligned = {"all": self.head_names[1:], "all-but-deepest": self.head_names[2:], "none": ()}[align]
        width, classes = deepest.features.shape[1], deepest.logits.shape[1]
        channels = tuple(level.shape[1] for level in levels)
        sizes = pairwise(level.shape[2:] for level in levels)
        falling = len(levels) == STAGES and all(tuple(above) > tuple(below) for above, below in sizes)
        self.exits = nn.ModuleDict()
        for number, name in zip(numbers, self.head_names[1:], strict=True):
            self.exits[name] = (
                EarlyExit(channels[number - 1 :], width, classes, name in aligned)
                if falling
                else PooledExit(channels[number - 1], width, classes)
            )

    def forward(
        self, images: Tensor, deepest: bool = True, shallow: bool = True, along: bool = False
    ) -> tuple[Prediction, ...]:
        """Return the predictions of all heads, or of some.

        deepest    False leaves out the network's own head, which is not run then
        shallow    False leaves out the exits, which are not run then, so that their BatchNorm statistics stay
        along      without `shallow`, run the exits without gradients: their BatchNorm statistics alone change
        """
        images = preprocess(self.network, images)
        if not shallow and not along:
            return (classify(self.network, self.network.forward_features(images)),)  # type: ignore[operator]
        last, inner = self._hooks(self.network, images)
        deep_to_shallow = reversed(inner[-self._levels : -1])
        with torch.set_grad_enabled(torch.is_grad_enabled() and shallow):
            exits = [head(level) for head, level in zip(self.exits.values(), deep_to_shallow, strict=True)]
        return (*([classify(self.network, last)] if deepest else []), *(exits if shallow else []))


SHADOW_LEVELS = 3
"""the number of stages or blocks that a shadow head reads, the deepest ones"""


class ShadowHead(nn.Module):
    """A head from three maps [B, C, H, W] or tokens [B, C], shallow to deep, to features [B, D].

    Its sizes are those of `maps` and `features`, examples of its input and output.
    """

    def __init__(self, maps: Sequence[Tensor], features: Tensor) -> None:
        super().__init__()
        c1, c2, c3 = (level.shape[1] for level in maps)
        is_map = maps[0].ndim == 4
        strides = [-(-above.shape[-1] // below.shape[-1]) if is_map else 1 for above, below in pairwise(maps)]
        self.downs = nn.ModuleList([_layer(is_map, c1, c2, 3, strides[0]), _layer(is_map, c2, c3, 3, strides[1])])
        self.laterals = nn.ModuleList([_layer(is_map, c2, c2, 1), _layer(is_map, c3, c3, 1)])
        self.last = _layer(is_map, c3, features.shape[1], 3, clipped=bool(torch.all(features >= 0)))

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Return features [B, D] of the three maps."""
        merged, *deeper = maps
        for down, lateral, level in zip(self.downs, self.laterals, deeper, strict=True):
            merged = _pool_to_size(down(merged), level) + lateral(level)
        features: Tensor = self.last(merged)
        return features.mean((2, 3)) if features.ndim == 4 else features


def _layer(is_map: bool, width: int, out: int, kernel: int, stride: int = 1, clipped: bool = True) -> nn.Module:
    """Return Convolution, BatchNorm, ReLU for maps; Linear, LayerNorm, ReLU for tokens; no ReLU if not `clipped`."""
    relu = [nn.ReLU()] if clipped else []
    if not is_map:
        return nn.Sequential(nn.Linear(width, out), nn.LayerNorm(out), *relu)
    conv = nn.Conv2d(width, out, kernel, stride=stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(conv, nn.BatchNorm2d(out), *relu)


def _pool_to_size(maps: Tensor, like: Tensor) -> Tensor:
    """Return maps at the size of others; only odd sizes need it."""
    return maps if maps.shape[2:] == like.shape[2:] else F.adaptive_avg_pool2d(maps, (like.shape[2], like.shape[3]))


class WithShadow(nn.Module):
    """A timm network and its shadow head, which learns at the same time: no gradient of the shadow reaches the network.

    network    the timm network
    image      an example batch, from which the shadow takes its sizes
    frozen     keep the network in eval mode and without gradients, also while the shadow learns
    """

    head_names: tuple[str, ...] = ("final", "shadow")

    def __init__(self, network: nn.Module, image: Inputs, frozen: bool = False) -> None:
        super().__init__()
        self.network = network.requires_grad_(not frozen)
        self._frozen = frozen
        self._hooks, (last, inner) = find_feature_hooks(network, image, "SHAKE")
        with eval_mode(network):
            features = classify(network, last).features
        if len(inner) < SHADOW_LEVELS:
            raise UserError(f"{type(network).__name__} does not show three stages or blocks that a shadow could read.")
        self.shadow = ShadowHead(inner[-SHADOW_LEVELS:], features)
        self._shadow_logits(features)  # refuses now a classifier that the shadow cannot use

    def train(self, mode: bool = True) -> Self:
        """Set train or eval mode; a frozen network stays in eval mode."""
        super().train(mode)
        if self._frozen:
            self.network.eval()
        return self

    def forward(self, images: Tensor) -> tuple[Prediction, ...]:
        """Return the network's own prediction, and its shadow's."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self._frozen):
            last, inner = self._hooks(self.network, preprocess(self.network, images))
            own = classify(self.network, last)
        features = self.shadow([level.detach() for level in inner[-SHADOW_LEVELS:]])
        return own, Prediction(self._shadow_logits(features), features)

    def _shadow_logits(self, features: Tensor) -> Tensor:
        """Return the logits of the network's own classifier for features, without gradients of its weights."""
        classifier: Any = self.network.get_classifier()  # type: ignore[operator]
        layers: list[Any] = [classifier] if isinstance(classifier, nn.Module) else [*classifier]
        linear = all(isinstance(layer, nn.Linear | nn.Conv2d) for layer in layers)
        if not linear or any(layer.weight[0].numel() != features.shape[1] for layer in layers):
            raise UserError(f"{type(self.network).__name__} has no linear classifier that a shadow could borrow.")
        return torch.stack([_linear_without_gradient(layer, features) for layer in layers]).mean(0)


def _linear_without_gradient(layer: nn.Linear | nn.Conv2d, features: Tensor) -> Tensor:
    """Apply a linear layer, or a 1x1 convolution, to vectors [B, D] without gradients of its weights."""
    return F.linear(features, layer.weight.detach().flatten(1), None if layer.bias is None else layer.bias.detach())
