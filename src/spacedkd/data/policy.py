"""AutoAugment's CIFAR-10 policy and Cutout as the paper's self-KD code has them.

The 25 pairs of changes are the published ones (https://arxiv.org/abs/1805.09501) and torchvision's. How they are
carried out differs from torchvision: what comes from outside is gray, an image is only ever turned one way, solarize
levels go from 256 to 0, and shears are bicubic about the corner.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

GRAY = (128, 128, 128)
Affine = tuple[float, float, float, float, float, float]

# (change, probability, level) twice; levels go from 0 to 9.
PAIRS: tuple[tuple[tuple[str, float, int | None], tuple[str, float, int | None]], ...] = (
    (("Invert", 0.1, None), ("Contrast", 0.2, 6)),
    (("Rotate", 0.7, 2), ("TranslateX", 0.3, 9)),
    (("Sharpness", 0.8, 1), ("Sharpness", 0.9, 3)),
    (("ShearY", 0.5, 8), ("TranslateY", 0.7, 9)),
    (("AutoContrast", 0.5, None), ("Equalize", 0.9, None)),
    (("ShearY", 0.2, 7), ("Posterize", 0.3, 7)),
    (("Color", 0.4, 3), ("Brightness", 0.6, 7)),
    (("Sharpness", 0.3, 9), ("Brightness", 0.7, 9)),
    (("Equalize", 0.6, None), ("Equalize", 0.5, None)),
    (("Contrast", 0.6, 7), ("Sharpness", 0.6, 5)),
    (("Color", 0.7, 7), ("TranslateX", 0.5, 8)),
    (("Equalize", 0.3, None), ("AutoContrast", 0.4, None)),
    (("TranslateY", 0.4, 3), ("Sharpness", 0.2, 6)),
    (("Brightness", 0.9, 6), ("Color", 0.2, 8)),
    (("Solarize", 0.5, 2), ("Invert", 0.0, None)),
    (("Equalize", 0.2, None), ("AutoContrast", 0.6, None)),
    (("Equalize", 0.2, None), ("Equalize", 0.6, None)),
    (("Color", 0.9, 9), ("Equalize", 0.6, None)),
    (("AutoContrast", 0.8, None), ("Solarize", 0.2, 8)),
    (("Brightness", 0.1, 3), ("Color", 0.7, 0)),
    (("Solarize", 0.4, 5), ("AutoContrast", 0.9, None)),
    (("TranslateY", 0.9, 9), ("TranslateY", 0.7, 9)),
    (("AutoContrast", 0.9, None), ("Solarize", 0.8, 3)),
    (("Equalize", 0.8, None), ("Invert", 0.1, None)),
    (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, None)),
)


def _sign() -> int:
    return random.choice((-1, 1))


def _moved(image: Image.Image, matrix: Affine, how: Image.Resampling) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, how, fillcolor=GRAY)


def _shear_x(image: Image.Image, amount: float) -> Image.Image:
    return _moved(image, (1, amount * _sign(), 0, 0, 1, 0), Image.Resampling.BICUBIC)


def _shear_y(image: Image.Image, amount: float) -> Image.Image:
    return _moved(image, (1, 0, 0, amount * _sign(), 1, 0), Image.Resampling.BICUBIC)


def _translate_x(image: Image.Image, amount: float) -> Image.Image:
    return _moved(image, (1, 0, amount * image.size[0] * _sign(), 0, 1, 0), Image.Resampling.NEAREST)


def _translate_y(image: Image.Image, amount: float) -> Image.Image:
    return _moved(image, (1, 0, 0, 0, 1, amount * image.size[1] * _sign()), Image.Resampling.NEAREST)


def _rotate(image: Image.Image, degrees: float) -> Image.Image:
    return image.rotate(degrees, fillcolor=GRAY)


def _enhanced(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Callable[[Image.Image, float], Image.Image]:
    return lambda image, amount: kind(image).enhance(1 + amount * _sign())


def _levels(last: float, first: float = 0.0) -> list[float]:
    return [float(level) for level in np.linspace(first, last, 10)]


# Each change with its amounts at the levels 0 to 9.
CHANGES: dict[str, tuple[Callable[[Image.Image, float], Image.Image], list[float]]] = {
    "ShearX": (_shear_x, _levels(0.3)),
    "ShearY": (_shear_y, _levels(0.3)),
    "TranslateX": (_translate_x, _levels(150 / 331)),
    "TranslateY": (_translate_y, _levels(150 / 331)),
    "Rotate": (_rotate, _levels(30)),
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
