"""A shadow head on a network: a small second reading of its last three stages or blocks (SHAKE).

    u = D1(f1) + L2(f2),   v = D2(u) + L3(f3),   w = E(v)

D brings maps to the next stage's size and channels with a 3x3 convolution, L is a 1x1 one, E a 3x3 one to the width the
network's own classifier takes; all with BatchNorm and ReLU. w, pooled, goes through that classifier, whose weights the
shadow does not move. Where the network shows class tokens, all of them are Linear, LayerNorm, ReLU. The last ReLU is
left out where the network's own features are negative somewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spacedkd.data.inputs import Inputs
from spacedkd.errors import UserError
from spacedkd.models.heads import Prediction, final, looking
from spacedkd.models.input_size import at_own_size
from spacedkd.models.taps import find_taps

READ = 3


class ShadowHead(nn.Module):
    """From three maps [B, C, H, W] or tokens [B, C], shallow to deep, to `features` [B, D]."""

    def __init__(self, maps: Sequence[Tensor], features: Tensor) -> None:
        super().__init__()
        c1, c2, c3 = (found.shape[1] for found in maps)
        strides = [_stride(above, below) for above, below in pairwise(maps)]
        is_map = maps[0].ndim == 4
        self.downs = nn.ModuleList([_layer(is_map, c1, c2, 3, strides[0]), _layer(is_map, c2, c3, 3, strides[1])])
        self.laterals = nn.ModuleList([_layer(is_map, c2, c2, 1), _layer(is_map, c3, c3, 1)])
        self.last = _layer(is_map, c3, features.shape[1], 3, clipped=bool(torch.all(features >= 0)))

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        first, *rest = maps
        for down, lateral, found in zip(self.downs, self.laterals, rest, strict=True):
            first = _fitted(down(first), found) + lateral(found)
        read: Tensor = self.last(first)
        return read.mean((2, 3)) if read.ndim == 4 else read


def _layer(is_map: bool, width: int, out: int, kernel: int, stride: int = 1, clipped: bool = True) -> nn.Module:
    """Convolution, BatchNorm, ReLU for maps; Linear, LayerNorm, ReLU for tokens; without the ReLU if not `clipped`."""
    relu = [nn.ReLU()] if clipped else []
    if not is_map:
        return nn.Sequential(nn.Linear(width, out), nn.LayerNorm(out), *relu)
    conv = nn.Conv2d(width, out, kernel, stride=stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(conv, nn.BatchNorm2d(out), *relu)


def _stride(above: Tensor, below: Tensor) -> int:
    return -(-above.shape[-1] // below.shape[-1]) if above.ndim == 4 else 1


def _fitted(maps: Tensor, like: Tensor) -> Tensor:
    """Maps at the size of others; only odd sizes need it."""
    return maps if maps.shape[2:] == like.shape[2:] else F.adaptive_avg_pool2d(maps, (like.shape[2], like.shape[3]))


class WithShadow(nn.Module):
    """A network and its shadow head, which learns beside it: no gradient of the shadow reaches the network.

    A `fixed` network stays as it is, in evaluation mode and without gradients, also while the shadow learns.
    """

    head_names: tuple[str, ...] = ("final", "shadow")

    def __init__(self, network: nn.Module, image: Inputs, fixed: bool = False) -> None:
        super().__init__()
        self.network = network.requires_grad_(not fixed)
        self._fixed = fixed
        self._taps, (last, inner) = find_taps(network, at_own_size(network, image), "SHAKE")
        with looking(network):
            features = final(network, last).features
        if len(inner) < READ:
            raise UserError(f"{type(network).__name__} does not show three stages or blocks that a shadow could read.")
        self.shadow = ShadowHead(inner[-READ:], features)
        self._classified(features)  # says so now if the classifier cannot be borrowed

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self._fixed:
            self.network.eval()
        return self

    def forward(self, images: Tensor) -> tuple[Prediction, ...]:
        """The network's own prediction, and its shadow's."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self._fixed):
            last, inner = self._taps(self.network, at_own_size(self.network, images))
            own = final(self.network, last)
        features = self.shadow([found.detach() for found in inner[-READ:]])
        return own, Prediction(self._classified(features), features)

    def _classified(self, features: Tensor) -> Tensor:
        """What the network's classifier says of features; it does not learn from it."""
        found: Any = self.network.get_classifier()  # type: ignore[operator]
        layers: list[Any] = [found] if isinstance(found, nn.Module) else [*found]
        if not all(isinstance(layer, nn.Linear | nn.Conv2d) for layer in layers) or any(
            layer.weight[0].numel() != features.shape[1] for layer in layers
        ):
            raise UserError(f"{type(self.network).__name__} has no linear classifier that a shadow could borrow.")
        return torch.stack([_unmoved(layer, features) for layer in layers]).mean(0)


def _unmoved(layer: nn.Linear | nn.Conv2d, features: Tensor) -> Tensor:
    """Some classifiers are 1x1 convolutions on pooled maps."""
    return F.linear(features, layer.weight.detach().flatten(1), None if layer.bias is None else layer.bias.detach())
