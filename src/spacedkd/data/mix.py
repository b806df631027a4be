"""Mixup and cutmix: every image of a batch gets a partner, and a share of its pixels and of its label.

Partners are drawn over the global batch, so the slices of all ranks still join to the same bits. Products and sums
are taken one at a time: each is rounded exactly, which a fused one is not on every device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


class Mixing(NamedTuple):
    """What is mixed in one global batch of B images."""

    partner: Tensor  # [B] int64, places in the batch
    share: float
    """of the image itself; the partner has the rest"""
    box: tuple[slice, slice] | None
    """rows and columns that come from the partner (cutmix); None mixes all pixels (mixup)"""

    def images(self, own: Tensor, other: Tensor) -> Tensor:
        if self.box is None:
            return own * self.share + other * (1 - self.share)
        mixed = own.clone()
        mixed[..., self.box[0], self.box[1]] = other[..., self.box[0], self.box[1]]
        return mixed

    def labels(self, own: Tensor, other: Tensor, classes: int) -> Tensor:
        """[B, C] float32 with rows that sum to one."""
        one, two = F.one_hot(own, classes).float(), F.one_hot(other, classes).float()
        return one * self.share + two * (1 - self.share)


@dataclass(frozen=True)
class Mix:
    """The share is drawn from Beta(a, a) once a batch; where both are asked for, each batch gets one or the other.

    Mixup: https://arxiv.org/abs/1710.09412. Cutmix: https://arxiv.org/abs/1905.04899, with the share of the label
    that the box has after it was cut off at the border.
    """

    mixup: float = 0.0
    cutmix: float = 0.0

    def draw(self, size: int, height: int, width: int, seed: int) -> Mixing:
        """A pure function of the seed."""
        random = np.random.default_rng(seed)
        partner = torch.from_numpy(random.permutation(size))
        if self.cutmix == 0 or (self.mixup > 0 and random.random() < 0.5):
            return Mixing(partner, float(random.beta(self.mixup, self.mixup)), None)
        side = np.sqrt(1 - random.beta(self.cutmix, self.cutmix))
        rows = _stretch(height, side, random)
        columns = _stretch(width, side, random)
        area = (rows.stop - rows.start) * (columns.stop - columns.start)
        return Mixing(partner, 1 - area / (height * width), (rows, columns))


def _stretch(length: int, part: float, random: np.random.Generator) -> slice:
    """A stretch of about `part` of the length around a random place, cut off at the ends."""
    half, centre = int(length * part) // 2, int(random.integers(length))
    return slice(max(0, centre - half), min(length, centre + half))
