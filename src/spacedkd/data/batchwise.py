"""Changes of a whole batch: random crop, mirror and rotation as one look-up; mixup and cutmix.

Every output pixel is copied from one input pixel (rotation takes the nearest, as the paper's code does), so the
three changes together are an integer map from output to input places. Integers have no rounding: the same draw
gives the same bits on any device, in any slice of the batch and in any number of threads.

In mixup and cutmix every image of a batch gets a partner, and a share of its pixels and of its label. Partners are
drawn over the global batch, so the slices of all ranks still join to the same bits. Products and sums are taken one
at a time: each is rounded exactly, which a fused one is not on every device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from spacedkd.data_spec import AugmentSpec


class Draw(NamedTuple):
    """The random numbers of a batch of B images."""

    shift: Tensor  # [B, 2] rows and columns, int64
    flip: Tensor  # [B] bool
    cosine: Tensor  # [B] float32
    sine: Tensor  # [B] float32

    def rows(self, rows: slice | Tensor) -> Draw:
        """The draw of a part of the batch."""
        return Draw(*(part[rows] for part in self))

    def to(self, device: torch.device) -> Draw:
        return Draw(*(part.to(device) for part in self))


def draw(spec: AugmentSpec, size: int, seed: int) -> Draw:
    """Draw for `size` images; a pure function of the seed."""
    generator = torch.Generator().manual_seed(seed)
    shift = torch.randint(-spec.crop, spec.crop + 1, (size, 2), generator=generator)
    flip = (torch.rand(size, generator=generator) < 0.5) & spec.flip
    angle = (torch.rand(size, generator=generator) * 2 - 1) * torch.pi / 180 * spec.rotate
    return Draw(shift, flip, angle.cos(), angle.sin())


def apply(images: Tensor, draw: Draw) -> Tensor:
    """Crop, then mirror, then rotate `images` [B, C, H, W]; what comes from outside is zero."""
    batch, channels, height, width = images.shape
    draw = draw.to(images.device)
    row, column, inside = _rotated(height, width, draw)
    column = torch.where(draw.flip[:, None, None], width - 1 - column, column)
    row, column = row + draw.shift[:, 0, None, None], column + draw.shift[:, 1, None, None]
    inside &= (row >= 0) & (row < height) & (column >= 0) & (column < width)
    place = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).view(batch, 1, -1)
    moved = images.flatten(2).gather(2, place.expand(-1, channels, -1)).view_as(images)
    return moved * inside[:, None]


def _rotated(height: int, width: int, draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
    """For each output pixel: the row and column it is turned from, and whether that lies inside the image."""
    device = draw.cosine.device
    y = torch.arange(height, device=device)[:, None] - (height - 1) / 2
    x = torch.arange(width, device=device)[None, :] - (width - 1) / 2
    cosine, sine = draw.cosine[:, None, None], draw.sine[:, None, None]
    row = (cosine * y + sine * x + (height - 1) / 2).round().long()
    column = (cosine * x - sine * y + (width - 1) / 2).round().long()
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    return row, column, inside


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
