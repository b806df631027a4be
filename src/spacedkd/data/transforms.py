"""Augmentation of training images: crops, flips, mixup and the augmentations that users know by name.

Batch-wise augmentations (`BatchWise`) draw for a whole batch at once and run on any device. The others (`ImageByImage`)
use the transforms of torchvision and timm on one image after the other; those draw from global generators, which are
seeded for each position in the global batch and restored afterwards. So both are pure functions of the seed, and a
slice of a batch has the bits of the whole one.

The file goes from parts to wholes: crop, flip and rotation of a batch; mixup and cutmix; AutoAugment and Cutout; then
the augmentations, and the table of their names, `AUGMENTATIONS`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
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
from spacedkd.data.generators import preserve_generators, seed_generators
from spacedkd.data.images import Fit, ImageSet, to_bytes
from spacedkd.data.inputs import Normalisation
from spacedkd.runtime.errors import unknown
from spacedkd.runtime.seeds import seed_for

# Crop, flip and rotation of a whole batch


class AffineDraw(NamedTuple):
    """The random crops, flips and rotations of B images."""

    shift: Tensor  # [B, 2] rows and columns, int64
    flip: Tensor  # [B] bool
    cosine: Tensor  # [B] float32, of the angle of rotation
    sine: Tensor  # [B] float32

    def rows(self, rows: slice | Tensor) -> AffineDraw:
        """Return the draw of some of the images."""
        return AffineDraw(*(values[rows] for values in self))


def draw_affine(spec: AugmentSpec, size: int, seed: int) -> AffineDraw:
    """Draw crops, flips and rotations of `size` images; a pure function of the seed."""
    generator = torch.Generator().manual_seed(seed)
    shift = torch.randint(-spec.crop, spec.crop + 1, (size, 2), generator=generator)
    flip = (torch.rand(size, generator=generator) < 0.5) & spec.flip
    angle = (torch.rand(size, generator=generator) * 2 - 1) * torch.pi / 180 * spec.rotate
    return AffineDraw(shift, flip, angle.cos(), angle.sin())


def apply_affine(images: Tensor, draw: AffineDraw) -> Tensor:
    """Crop, then flip, then rotate `images` [B, C, H, W]; pixels from outside of an image are zero.

    All three together are one look-up: for each pixel of the result, the pixel of the image that it comes from.
    """
    batch, channels, height, width = images.shape
    draw = AffineDraw(*(values.to(images.device) for values in draw))
    row, column = _rotate_grid(height, width, draw)
    inside = _inside(row, column, height, width)
    column = torch.where(draw.flip[:, None, None], width - 1 - column, column)
    row, column = row + draw.shift[:, 0, None, None], column + draw.shift[:, 1, None, None]
    inside &= _inside(row, column, height, width)
    index = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).view(batch, 1, -1)
    changed = images.flatten(2).gather(2, index.expand(-1, channels, -1)).view_as(images)
    return changed * inside[:, None]


def _rotate_grid(height: int, width: int, draw: AffineDraw) -> tuple[Tensor, Tensor]:
    """Return the row and the column that each pixel is rotated from, [B, H, W] each."""
    device = draw.cosine.device
    y = torch.arange(height, device=device)[:, None] - (height - 1) / 2
    x = torch.arange(width, device=device)[None, :] - (width - 1) / 2
    cosine, sine = draw.cosine[:, None, None], draw.sine[:, None, None]
    row = cosine * y + sine * x + (height - 1) / 2
    column = cosine * x - sine * y + (width - 1) / 2
    return row.round().long(), column.round().long()


def _inside(row: Tensor, column: Tensor, height: int, width: int) -> Tensor:
    return (row >= 0) & (row < height) & (column >= 0) & (column < width)


# Mixup and cutmix


class Mixing(NamedTuple):
    """The partners of B images in one global batch, and how images and labels are mixed with theirs."""

    partner: Tensor  # [B] int64, positions in the batch
    share: float
    """share of the image itself; the partner has the rest"""
    box: tuple[slice, slice] | None
    """rows and columns that come from the partner (cutmix); None mixes all pixels (mixup)"""

    def images(self, own: Tensor, other: Tensor) -> Tensor:
        """Return images [B, C, H, W] mixed with those of their partners."""
        if self.box is None:
            return own * self.share + other * (1 - self.share)
        mixed, box = own.clone(), (..., *self.box)
        mixed[box] = other[box]
        return mixed

    def labels(self, own: Tensor, other: Tensor, classes: int) -> Tensor:
        """Return the mixed labels, [B, C] float32 with rows that sum to one."""
        return F.one_hot(own, classes).float() * self.share + F.one_hot(other, classes).float() * (1 - self.share)


@dataclass(frozen=True)
class Mix:
    """Mixup and cutmix; with both, each batch gets one or the other.

    The share is drawn from Beta(a, a) once a batch. Mixup: https://arxiv.org/abs/1710.09412. Cutmix:
    https://arxiv.org/abs/1905.04899, where the label has the share of the box after it was cut off at the border.
    """

    mixup: float = 0.0
    cutmix: float = 0.0

    def draw(self, size: int, height: int, width: int, seed: int) -> Mixing:
        """Draw the partners and the share of a batch of `size` images; a pure function of the seed."""
        rng = np.random.default_rng(seed)
        partner = torch.from_numpy(rng.permutation(size))
        if self.cutmix == 0 or (self.mixup > 0 and rng.random() < 0.5):
            return Mixing(partner, float(rng.beta(self.mixup, self.mixup)), None)
        side = np.sqrt(1 - rng.beta(self.cutmix, self.cutmix))
        rows, columns = _random_span(height, side, rng), _random_span(width, side, rng)
        area = (rows.stop - rows.start) * (columns.stop - columns.start)
        return Mixing(partner, 1 - area / (height * width), (rows, columns))


def _random_span(length: int, part: float, rng: np.random.Generator) -> slice:
    """Return a span of about `part` of the length around a random centre, cut off at the ends."""
    half, centre = int(length * part) // 2, int(rng.integers(length))
    return slice(max(0, centre - half), min(length, centre + half))


# AutoAugment and Cutout, as in the paper's code


GRAY = (128, 128, 128)
POLICIES: list[tuple[tuple[str, float, int | None], tuple[str, float, int | None]]]
POLICIES = AutoAugment(AutoAugmentPolicy.CIFAR10).policies  # (operation, probability, level 0 to 9) twice
BICUBIC, NEAREST = Image.Resampling.BICUBIC, Image.Resampling.NEAREST


def _random_sign() -> int:
    return random.choice((-1, 1))


def _shear(image: Image.Image, *, x: float = 0.0, y: float = 0.0) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, (1, x, 0, y, 1, 0), BICUBIC, fillcolor=GRAY)


def _translate(image: Image.Image, *, x: float = 0.0, y: float = 0.0) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, (1, 0, x, 0, 1, y), NEAREST, fillcolor=GRAY)


def _enhance(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Callable[[Image.Image, float], Image.Image]:
    return lambda image, amount: kind(image).enhance(1 + amount * _random_sign())


def _levels(last: float, first: float = 0.0) -> list[float]:
    return [float(level) for level in np.linspace(first, last, 10)]


_TRANSLATIONS = _levels(150 / 331)
# Each operation with its amounts at the levels 0 to 9.
OPERATIONS: dict[str, tuple[Callable[[Image.Image, float], Image.Image], list[float]]] = {
    "ShearX": (lambda image, part: _shear(image, x=part * _random_sign()), _levels(0.3)),
    "ShearY": (lambda image, part: _shear(image, y=part * _random_sign()), _levels(0.3)),
    "TranslateX": (lambda image, part: _translate(image, x=part * image.width * _random_sign()), _TRANSLATIONS),
    "TranslateY": (lambda image, part: _translate(image, y=part * image.height * _random_sign()), _TRANSLATIONS),
    "Rotate": (lambda image, degrees: image.rotate(degrees, fillcolor=GRAY), _levels(30)),
    "Color": (_enhance(ImageEnhance.Color), _levels(0.9)),
    "Contrast": (_enhance(ImageEnhance.Contrast), _levels(0.9)),
    "Sharpness": (_enhance(ImageEnhance.Sharpness), _levels(0.9)),
    "Brightness": (_enhance(ImageEnhance.Brightness), _levels(0.9)),
    "Posterize": (lambda image, bits: ImageOps.posterize(image, int(bits)), [float(round(b)) for b in _levels(4, 8)]),
    "Solarize": (lambda image, level: ImageOps.solarize(image, int(np.ceil(level))), _levels(0, 256)),
    "AutoContrast": (lambda image, _: ImageOps.autocontrast(image), [0.0] * 10),
    "Equalize": (lambda image, _: ImageOps.equalize(image), [0.0] * 10),
    "Invert": (lambda image, _: ImageOps.invert(image), [0.0] * 10),
}


def cifar_policy(image: Image.Image) -> Image.Image:
    """Apply one of the 25 pairs of operations of AutoAugment for CIFAR-10, each with its own probability.

    Draws from Python's global generator. Differs from torchvision's as the paper's code does: gray outside, rotation
    one way only, solarize levels from 256 to 0, bicubic shears about the corner.
    """
    for name, probability, level in random.choice(POLICIES):
        if random.random() < probability:
            operation, amounts = OPERATIONS[name]
            image = operation(image, amounts[level or 0])
    return image


def cutout(pixels: Tensor, side: int = 16) -> Tensor:
    """Set a square of `pixels` [C, H, W] to zero, its centre anywhere in the image, cut off at the border.

    https://arxiv.org/abs/1708.04552; draws from torch's global generator.
    """
    height, width = pixels.shape[1:]
    row, column = int(torch.randint(height, ())), int(torch.randint(width, ()))
    half = side // 2
    changed = pixels.clone()
    changed[:, max(0, row - half) : row + half, max(0, column - half) : column + half] = 0
    return changed


# Augmentations

CIFAR100: Normalisation = ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276))
CIFAR10: Normalisation = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
IMAGENET: Normalisation = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class BatchWise:
    """Crop, flip and rotation of a whole batch as one look-up, which a GPU can do."""

    augment: AugmentSpec = AugmentSpec()

    def training_inputs(self, images: ImageSet, rows: Tensor, positions: Tensor, seed: int) -> Tensor:
        """Return the images at some `positions` of the global batch of `rows`, changed; float32 [B, C, H, W].

        The changes of an image depend on the seed and its position alone.
        """
        if self.augment == AugmentSpec():
            return images.inputs(rows[positions])
        draw = draw_affine(self.augment, len(rows), seed).rows(positions)
        return images.normalise(apply_affine(images.resized(rows[positions]), draw))


Transform = Callable[[Image.Image], Tensor]
"""makes bytes [3, H, W] of an image, or floats that are normalised already"""


@dataclass(frozen=True)
class ImageByImage:
    """A transform of single images, stored by its name so that it can be sent to another process."""

    name: str
    size: int

    def training_inputs(self, images: ImageSet, rows: Tensor, positions: Tensor, seed: int) -> Tensor:
        """Return the images at some `positions` of the global batch of `rows`, changed; float32 [B, 3, H, W]."""
        transform, augmentation = _build_transform(self.name, self.size), get_augmentation(self.name)
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in augmentation.normalisation or ())
        # One by one into one tensor: a large tensor for each image and each step takes as long as decoding.
        inputs = torch.empty(len(positions), 3, self.size, self.size)
        with preserve_generators():
            for output, position, row in zip(inputs, positions.tolist(), rows[positions].tolist(), strict=True):
                seed_generators(seed_for(seed, position), augmentation.torch_only)
                image = transform(images.open(row))
                output.copy_(image)
                if image.dtype == torch.uint8:
                    output.div_(255).sub_(mean).div_(std)  # the bits of torchvision's ToTensor and Normalize
        return inputs


Augmentation = BatchWise | ImageByImage


@lru_cache(maxsize=8)
def _build_transform(name: str, size: int) -> Transform:
    build = AUGMENTATIONS[name].transform
    assert build is not None
    return build(size)


def _imagenet(size: int) -> Transform:
    """Return torchvision's RandomResizedCrop, RandomHorizontalFlip and RandomRotation(15), with their draws and bits.

    Written out, because their own calls spend as long in Python as the flip and the rotation take.
    """
    crop = T.RandomResizedCrop(size)

    def transform(image: Image.Image) -> Tensor:
        top, start, height, width = crop.get_params(image, crop.scale, crop.ratio)
        image = image.crop((start, top, start + width, top + height)).resize((size, size), Image.Resampling.BILINEAR)
        if torch.rand(()) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return to_bytes(image.rotate(T.RandomRotation.get_params([-15.0, 15.0])))

    return transform


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
        for operation in step.ops if isinstance(step, RandAugment) else ():
            if operation.name == "PosterizeIncreasing":
                operation.aug_fn = _posterize
    return transform  # type: ignore[no-any-return]


def _posterize(image: Image.Image, bits: int, **options: object) -> Image.Image:
    """Posterize to `bits`; to 0 bits, which timm draws now and then and newer Pillow refuses, an image is black."""
    return ImageOps.posterize(image, bits) if bits > 0 else image.point(lambda level: 0)


class NamedAugmentation(NamedTuple):
    """An augmentation that users know by name; it has either batch-wise changes or a transform of single images."""

    about: str
    """description in `spacedkd list augmentations`"""
    augment: AugmentSpec | None = None
    """the batch-wise changes"""
    transform: Callable[[int], Transform] | None = None
    """builds the transform of single images for an image size"""
    normalisation: Normalisation | None = None
    """mean and standard deviation; None measures those of the training images"""
    size: int | None = None
    """default image size; None keeps that of the data"""
    shorter: float | None = 1.0
    """length of the shorter side in evaluation, before the center crop, in units of the image size; None squeezes both
    sides to the image size"""
    fits_first: bool = True
    """True if training images are resized once, before they are augmented"""
    adjustable: bool = True
    """True if --crop, --flip and --rotate may change it"""
    crops_an_eighth: bool = False
    """True if the crop is an eighth of the side of the images, once that is known"""
    torch_only: bool = False
    """True if its transform draws from torch's global generator alone"""

    def fit(self, size: int) -> Fit:
        """Return the resizing for evaluation, which batch-wise augmentations also do before their changes."""
        return Fit(size, None if self.shorter is None else round(size * self.shorter))

    @property
    def needs_colour(self) -> bool:
        """Whether images need three channels."""
        return self.transform is not None or self.normalisation is not None


_PHOTOGRAPHS = NamedAugmentation("of 224 px", normalisation=IMAGENET, size=224, fits_first=False, adjustable=False)
AUGMENTATIONS = {
    "plain": NamedAugmentation("--crop, --flip and --rotate as set, and nothing else", AugmentSpec()),
    "none": NamedAugmentation("images as they are", AugmentSpec(), adjustable=False),
    "small": NamedAugmentation("crop by an eighth of the side, mirror", AugmentSpec(flip=True), crops_an_eighth=True),
    "digits": NamedAugmentation("crop by 1, rotate by 10", AugmentSpec(crop=1, rotate=10)),
    "cifar": NamedAugmentation("crop by 4, mirror, rotate by 15", AugmentSpec(4, True, 15), normalisation=CIFAR100),
    "tiny-imagenet": NamedAugmentation(
        "64 px, crop by 4, mirror", AugmentSpec(4, True), normalisation=IMAGENET, size=64
    ),
    "imagenet": _PHOTOGRAPHS._replace(
        about="224 px, random resized crop, mirror, rotate by 15; evaluated on the middle of 256",
        transform=_imagenet,
        shorter=256 / 224,
        torch_only=True,
    ),
    "self-cifar": NamedAugmentation(
        "crop by 4 with gray, mirror, AutoAugment, Cutout 16",
        transform=_self_cifar,
        normalisation=CIFAR10,
        adjustable=False,
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
"""names of augmentations that are chosen by the data -> description"""
PAPER_SIZES = {(32, 32): "cifar", (64, 64): "tiny-imagenet"}
"""the augmentation of the paper's small photographs, by width and height"""


def resolve_paper_name(name: str | None, suitable: str) -> str | None:
    """Return the augmentation that a name of `DATA_DEPENDENT` means where `suitable` suits the data; else the name."""
    if name not in DATA_DEPENDENT:
        return name
    return "self-cifar" if name == "paper-self" and suitable == "cifar" else suitable


def get_augmentation(name: str) -> NamedAugmentation:
    """Return the augmentation of a name; refuse an unknown one."""
    if name not in AUGMENTATIONS:
        raise unknown("augmentation", name, [*AUGMENTATIONS, *DATA_DEPENDENT])
    return AUGMENTATIONS[name]


def build_augmentation(name: str, augment: AugmentSpec | None, size: int) -> Augmentation:
    """Return the augmentation of a name for images of a size; `augment` are its batch-wise changes."""
    if get_augmentation(name).transform is not None:
        return ImageByImage(name, size)
    return BatchWise(augment or AugmentSpec())
