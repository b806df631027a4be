"""Random crop, mirror and rotation of a whole batch as one look-up.

Every output pixel is copied from one input pixel (rotation takes the nearest, as the paper's code does), so the
three changes together are an integer map from output to input places. Integers have no rounding: the same draw
gives the same bits on any device, in any slice of the batch and in any number of threads.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from spacedkd.spec import AugmentSpec


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
