"""How training images are varied, by name: as in the paper's code, and plainer ones.

Batch-wise augmentations draw for a whole batch at once and run on any device. The others work image by image with the
transforms everybody uses; those draw from global generators, which are seeded for each place of the global batch and
put back afterwards. So both are pure functions of the seed, and a slice of a batch has the bits of the whole one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from timm.data import create_transform
from timm.data.auto_augment import RandAugment
from torch import Tensor
from torch.nn import functional as F
from torchvision import transforms as T
from torchvision.transforms import AutoAugment, AutoAugmentPolicy

from spacedkd.config.spec import AugmentSpec
from spacedkd.data.images import Fit, ImageSet, to_bytes
from spacedkd.data.inputs import Normalisation
from spacedkd.runtime.errors import unknown
from spacedkd.runtime.seeds import seed_for

# Random changes of images: of a whole batch as one look-up, mixup and cutmix, AutoAugment and Cutout.


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


# How training images are varied, by name: as in the paper's code, and plainer ones.

CIFAR100: Normalisation = ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276))
CIFAR10: Normalisation = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
IMAGENET: Normalisation = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class BatchWise:
    """Shifted crop, mirror and rotation of a whole batch as one look-up, which a GPU can do."""

    augment: AugmentSpec = AugmentSpec()

    def train(self, images: ImageSet, rows: Tensor, places: Tensor, seed: int) -> Tensor:
        """The images at some `places` of the global batch that consists of `rows`; float32 [B, C, H, W].

        What a place gets depends on the seed and the place alone.
        """
        changes = draw(self.augment, len(rows), seed).rows(places)
        return images.normalise(apply(images.resized(rows[places]), changes))


Transform = Callable[[Image.Image], Tensor]
"""one image to bytes [3, H, W], or to floats that are normalised already"""


@dataclass(frozen=True)
class ImageByImage:
    """A transform of single images, named so that it can be sent to another process."""

    name: str
    size: int

    def train(self, images: ImageSet, rows: Tensor, places: Tensor, seed: int) -> Tensor:
        transform = _transform(self.name, self.size)
        constants, torch_alone = get_augmentation(self.name).constants, get_augmentation(self.name).torch_alone
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in constants or ())
        # One by one into where they belong: a large tensor for each image and each step takes as long as decoding.
        varied = torch.empty(len(places), 3, self.size, self.size)
        with preserve_generators():
            for into, place, row in zip(varied, places.tolist(), rows[places].tolist(), strict=True):
                seed_generators(seed_for(seed, place), torch_alone)
                image = transform(images.open(row))
                into.copy_(image)
                if image.dtype == torch.uint8:
                    into.div_(255).sub_(mean).div_(std)  # the bits of torchvision's ToTensor and Normalize
        return varied


Augmentation = BatchWise | ImageByImage


@lru_cache(maxsize=8)
def _transform(name: str, size: int) -> Transform:
    make = AUGMENTATIONS[name].transform
    assert make is not None
    return make(size)


def seed_generators(seed: int, torch_alone: bool = False) -> None:
    """Seed all global generators that transforms draw from; those of GPUs are left alone."""
    if not torch_alone:
        random.seed(seed)
        np.random.seed([seed >> 32, seed & 0xFFFFFFFF])
    torch.default_generator.manual_seed(seed)


@contextmanager
def preserve_generators() -> Iterator[None]:
    """Whatever is drawn inside, everybody else's random numbers stay what they would have been."""
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def _imagenet(size: int) -> Transform:
    """The draws and the bits of torchvision's RandomResizedCrop, RandomHorizontalFlip and RandomRotation(15).

    Between a draw and Pillow they spend as long in Python as the flip and the rotation take.
    """
    crop = T.RandomResizedCrop(size)

    def vary(image: Image.Image) -> Tensor:
        top, left, height, width = crop.get_params(image, crop.scale, crop.ratio)
        image = image.crop((left, top, left + width, top + height)).resize((size, size), Image.Resampling.BILINEAR)
        if torch.rand(()) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return to_bytes(image.rotate(T.RandomRotation.get_params([-15.0, 15.0])))

    return vary


def _self_cifar(size: int) -> Transform:
    steps = [Fit(size, size), T.RandomCrop(size, 4, fill=GRAY), T.RandomHorizontalFlip(), cifar_policy]
    return T.Compose([*steps, to_bytes, cutout])  # type: ignore[no-any-return]


def _vit(size: int) -> Transform:
    transform = create_transform(
        size,
        is_training=True,
        color_jitter=0.4,  # timm leaves it out when RandAugment is on; so did the paper's code
        auto_augment="rand-m9-mstd0.5-inc1",
        interpolation="bicubic",
        re_prob=0.25,
        re_mode="pixel",
        re_count=1,
        mean=IMAGENET[0],
        std=IMAGENET[1],
    )
    for step in transform.transforms:
        for change in step.ops if isinstance(step, RandAugment) else ():
            if change.name == "PosterizeIncreasing":
                change.aug_fn = _posterize
    return transform  # type: ignore[no-any-return]


def _posterize(image: Image.Image, bits: int, **options: object) -> Image.Image:
    """With no bits left an image is black: timm draws that now and then, and newer Pillow refuses it."""
    return ImageOps.posterize(image, bits) if bits > 0 else image.point(lambda level: 0)


class NamedAugmentation(NamedTuple):
    """An augmentation by name; it has either batch-wise changes or a transform of single images."""

    about: str
    augment: AugmentSpec | None = None
    transform: Callable[[int], Transform] | None = None
    constants: Normalisation | None = None
    """mean and deviation; None measures those of the training images"""
    size: int | None = None
    """what the network sees unless asked otherwise; None is what the data has"""
    shorter: float | None = 1.0
    """how long the shorter side is made, for each pixel of the middle that is seen then; None squeezes both sides"""
    fits_first: bool = True
    """whether training images may be kept in the fitted size"""
    varies: bool = True
    """whether --crop, --flip and --rotate may change it"""
    crops_an_eighth: bool = False
    """of the side images have, so that the crop is decided when that is known"""

    torch_alone: bool = False
    """whether a transform draws from no other global generator than torch's"""

    def fit(self, size: int) -> Fit:
        """For evaluation, and before the changes of batch-wise augmentations."""
        return Fit(size, None if self.shorter is None else round(size * self.shorter))

    @property
    def colour(self) -> bool:
        """Whether one channel will not do."""
        return self.transform is not None or self.constants is not None


_PHOTOGRAPHS = NamedAugmentation("of 224 px", constants=IMAGENET, size=224, fits_first=False, varies=False)
AUGMENTATIONS = {
    "plain": NamedAugmentation("--crop, --flip and --rotate as asked, and nothing else", AugmentSpec()),
    "none": NamedAugmentation("images as they are", AugmentSpec(), varies=False),
    "small": NamedAugmentation("crop by an eighth of the side, mirror", AugmentSpec(flip=True), crops_an_eighth=True),
    "digits": NamedAugmentation("crop by 1, rotate by 10", AugmentSpec(crop=1, rotate=10)),
    "cifar": NamedAugmentation("crop by 4, mirror, rotate by 15", AugmentSpec(4, True, 15), constants=CIFAR100),
    "tiny-imagenet": NamedAugmentation("64 px, crop by 4, mirror", AugmentSpec(4, True), constants=IMAGENET, size=64),
    "imagenet": _PHOTOGRAPHS._replace(
        about="224 px, random resized crop, mirror, rotate by 15; evaluated on the middle of 256",
        transform=_imagenet,
        shorter=256 / 224,
        torch_alone=True,
    ),
    "self-cifar": NamedAugmentation(
        "crop by 4 with gray, mirror, AutoAugment, Cutout 16", transform=_self_cifar, constants=CIFAR10, varies=False
    ),
    "vit": _PHOTOGRAPHS._replace(
        about="224 px, random resized crop, mirror, RandAugment, random erasing; evaluated on the whole image",
        transform=_vit,
        shorter=None,
    ),
}


DATA_DEPENDENT = {
    "paper": "what the paper's code has for the data: cifar for photographs of 32 px, tiny-imagenet of 64, imagenet",
    "paper-self": "what its self KD has: self-cifar in place of cifar, else the same",
}
"""names that stand for others; which one is decided when the data is known"""
PAPER_SIZES = {(32, 32): "cifar", (64, 64): "tiny-imagenet"}
"""the paper's small photographs, which a file or a folder is known by"""


def resolve_paper_name(name: str | None, suits: str) -> str | None:
    """The augmentation that a name of `BY_DATA` stands for where the data is of the kind of `suits`; else the name."""
    if name not in DATA_DEPENDENT:
        return name
    return "self-cifar" if name == "paper-self" and suits == "cifar" else suits


def get_augmentation(name: str) -> NamedAugmentation:
    """The augmentation of that name."""
    if name not in AUGMENTATIONS:
        raise unknown("augmentation", name, [*AUGMENTATIONS, *DATA_DEPENDENT])
    return AUGMENTATIONS[name]


def build_augmentation(name: str, augment: AugmentSpec | None, size: int) -> Augmentation:
    """An augmentation that makes images of this size."""
    if get_augmentation(name).transform is not None:
        return ImageByImage(name, size)
    return BatchWise(augment or AugmentSpec())
