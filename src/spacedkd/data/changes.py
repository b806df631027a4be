"""Random changes of images: of a whole batch as one look-up, mixup and cutmix, AutoAugment and Cutout.

Crop, mirror and rotation copy every output pixel from one input pixel (rotation takes the nearest, as the paper's code
does), so together they are an integer map from output to input places. Integers have no rounding: the same draw gives
the same bits on any device, in any slice of the batch and in any number of threads.

In mixup and cutmix every image of a batch gets a partner, and a share of its pixels and of its label. Partners are
drawn over the global batch, so the slices of all ranks still join to the same bits. Products and sums are taken one
at a time: each is rounded exactly, which a fused one is not on every device.

AutoAugment's CIFAR-10 policy and Cutout are those of the paper's self-KD code. The 25 pairs of changes are published
(https://arxiv.org/abs/1805.09501), and torchvision has them. How they are carried out differs from torchvision: what
comes from outside is gray, an image is only ever turned one way, solarize levels go from 256 to 0, and shears are
bicubic about the corner.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms import AutoAugment, AutoAugmentPolicy

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
    draw = Draw(*(part.to(images.device) for part in draw))
    row, column = _rotated(height, width, draw)
    inside = _inside(row, column, height, width)
    column = torch.where(draw.flip[:, None, None], width - 1 - column, column)
    row, column = row + draw.shift[:, 0, None, None], column + draw.shift[:, 1, None, None]
    inside &= _inside(row, column, height, width)
    place = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).view(batch, 1, -1)
    moved = images.flatten(2).gather(2, place.expand(-1, channels, -1)).view_as(images)
    return moved * inside[:, None]


def _rotated(height: int, width: int, draw: Draw) -> tuple[Tensor, Tensor]:
    """The row and column each output pixel is turned from."""
    device = draw.cosine.device
    y = torch.arange(height, device=device)[:, None] - (height - 1) / 2
    x = torch.arange(width, device=device)[None, :] - (width - 1) / 2
    cosine, sine = draw.cosine[:, None, None], draw.sine[:, None, None]
    row = cosine * y + sine * x + (height - 1) / 2
    column = cosine * x - sine * y + (width - 1) / 2
    return row.round().long(), column.round().long()


def _inside(row: Tensor, column: Tensor, height: int, width: int) -> Tensor:
    return (row >= 0) & (row < height) & (column >= 0) & (column < width)


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
        mixed, box = own.clone(), (..., *self.box)
        mixed[box] = other[box]
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
        chance = np.random.default_rng(seed)
        partner = torch.from_numpy(chance.permutation(size))
        if self.cutmix == 0 or (self.mixup > 0 and chance.random() < 0.5):
            return Mixing(partner, float(chance.beta(self.mixup, self.mixup)), None)
        side = np.sqrt(1 - chance.beta(self.cutmix, self.cutmix))
        rows, columns = _stretch(height, side, chance), _stretch(width, side, chance)
        area = (rows.stop - rows.start) * (columns.stop - columns.start)
        return Mixing(partner, 1 - area / (height * width), (rows, columns))


def _stretch(length: int, part: float, chance: np.random.Generator) -> slice:
    """A stretch of about `part` of the length around a random place, cut off at the ends."""
    half, centre = int(length * part) // 2, int(chance.integers(length))
    return slice(max(0, centre - half), min(length, centre + half))


GRAY = (128, 128, 128)
PAIRS: list[tuple[tuple[str, float, int | None], tuple[str, float, int | None]]]
PAIRS = AutoAugment(AutoAugmentPolicy.CIFAR10).policies  # (change, probability, level) twice; levels go from 0 to 9
BICUBIC, NEAREST = Image.Resampling.BICUBIC, Image.Resampling.NEAREST


def _sign() -> int:
    return random.choice((-1, 1))


def _moved(image: Image.Image, matrix: tuple[float, ...], how: Image.Resampling) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, how, fillcolor=GRAY)


def _enhanced(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Callable[[Image.Image, float], Image.Image]:
    return lambda image, amount: kind(image).enhance(1 + amount * _sign())


def _levels(last: float, first: float = 0.0) -> list[float]:
    return [float(level) for level in np.linspace(first, last, 10)]


_FAR = _levels(150 / 331)
# Each change with its amounts at the levels 0 to 9.
CHANGES: dict[str, tuple[Callable[[Image.Image, float], Image.Image], list[float]]] = {
    "ShearX": (lambda image, part: _moved(image, (1, part * _sign(), 0, 0, 1, 0), BICUBIC), _levels(0.3)),
    "ShearY": (lambda image, part: _moved(image, (1, 0, 0, part * _sign(), 1, 0), BICUBIC), _levels(0.3)),
    "TranslateX": (lambda image, part: _moved(image, (1, 0, part * image.width * _sign(), 0, 1, 0), NEAREST), _FAR),
    "TranslateY": (lambda image, part: _moved(image, (1, 0, 0, 0, 1, part * image.height * _sign()), NEAREST), _FAR),
    "Rotate": (lambda image, degrees: image.rotate(degrees, fillcolor=GRAY), _levels(30)),
    "Color": (_enhanced(ImageEnhance.Color), _levels(0.9)),
    "Contrast": (_enhanced(ImageEnhance.Contrast), _levels(0.9)),
    "Sharpness": (_enhanced(ImageEnhance.Sharpness), _levels(0.9)),
    "Brightness": (_enhanced(ImageEnhance.Brightness), _levels(0.9)),
    "Posterize": (lambda image, bits: ImageOps.posterize(image, int(bits)), [float(round(b)) for b in _levels(4, 8)]),
    "Solarize": (lambda image, level: ImageOps.solarize(image, int(np.ceil(level))), _levels(0, 256)),
    "AutoContrast": (lambda image, _: ImageOps.autocontrast(image), [0.0] * 10),
    "Equalize": (lambda image, _: ImageOps.equalize(image), [0.0] * 10),
    "Invert": (lambda image, _: ImageOps.invert(image), [0.0] * 10),
}


def cifar_policy(image: Image.Image) -> Image.Image:
    """One of the 25 pairs, each of its changes with its own probability; draws from Python's global generator."""
    for name, probability, level in random.choice(PAIRS):
        if random.random() < probability:
            change, amounts = CHANGES[name]
            image = change(image, amounts[level or 0])
    return image


def cutout(pixels: Tensor, side: int = 16) -> Tensor:
    """A square hole of zeros in `pixels` [C, H, W], its centre anywhere in the image, cut off at the border.

    https://arxiv.org/abs/1708.04552; draws from torch's global generator.
    """
    height, width = pixels.shape[1:]
    row, column = int(torch.randint(height, ())), int(torch.randint(width, ()))
    half = side // 2
    holed = pixels.clone()
    holed[:, max(0, row - half) : row + half, max(0, column - half) : column + half] = 0
    return holed
