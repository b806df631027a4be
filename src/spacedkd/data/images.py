"""Labelled images: as bytes in memory, or encoded and decoded when they are asked for.

Both give the same tensors, so which one a data set becomes is a matter of memory and speed alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

from spacedkd.data.decoding import decode


@dataclass(frozen=True)
class Fit:
    """Scale the shorter side to `shorter` and cut out the middle; without `shorter`, squeeze both sides to `size`."""

    size: int
    shorter: int | None = None

    def __call__(self, image: Image.Image) -> Image.Image:
        both = [self.size, self.size]
        if image.size == (self.size, self.size) and self.shorter in (None, self.size):
            return image
        if self.shorter is None:
            return F.resize(image, both, InterpolationMode.BILINEAR)  # type: ignore[no-any-return]
        resized = F.resize(image, [self.shorter], InterpolationMode.BILINEAR)
        return F.center_crop(resized, both)  # type: ignore[no-any-return]


def to_bytes(image: Image.Image) -> Tensor:
    """A gray or RGB image as uint8 [C, H, W].

    Pillow writes it row by row and channel by channel, so what becomes of it is copied in rows, not in single bytes.
    """
    rows = image.tobytes("raw", "RGB;L" if image.mode == "RGB" else "L")
    return torch.frombuffer(bytearray(rows), dtype=torch.uint8).view(image.height, -1, image.width).transpose(0, 1)


to_image: Callable[[Tensor], Image.Image] = F.to_pil_image
"""The inverse, for one channel (gray) or three (RGB)."""


def normalise(pixels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Bytes [..., C, H, W] to floats with mean 0 and deviation 1 per channel."""
    return (pixels - _per_channel(mean, pixels.device)) / _per_channel(std, pixels.device)


@lru_cache(maxsize=64)
def _per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Of pixels 0 .. 255; kept, so that a GPU is not kept waiting for a few numbers with every batch."""
    with torch.inference_mode(False):  # others may want gradients of what is made with them
        return 255 * torch.tensor(values, dtype=torch.float32, device=device).view(-1, 1, 1)


@dataclass(frozen=True)
class ImageSet(ABC):
    """N labelled images and how a network is shown them when nothing is left to chance."""

    pixels: Any  # a tensor, or Stored
    labels: Tensor  # [N] int64
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    """of each channel, of pixels in 0 .. 1"""
    std: tuple[float, ...]
    fit: Fit | None = None
    """brings one image to the size a network sees; None if all have it"""
    digests: np.ndarray | None = field(default=None, repr=False, compare=False)
    """of the encoded bytes of each image, [N] of 16 bytes, where they were computed on the way"""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of what a network is shown."""

    @abstractmethod
    def open(self, row: int) -> Image.Image:
        """One image as it is stored."""

    def subset(self, rows: Tensor) -> Self:
        digests = None if self.digests is None else self.digests[rows.numpy()]
        return replace(self, pixels=self.pixels[rows], labels=self.labels[rows], digests=digests)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def instant(self) -> bool:
        """Whether showing a batch is one look-up, so that workers would only cost time."""
        return self.fit is None

    def resized(self, rows: Tensor) -> Tensor:
        """uint8 [B, C, H, W] in the size a network sees."""
        assert self.fit is not None
        return torch.stack([to_bytes(self.fit(self.open(row))) for row in rows.tolist()])

    def normalise(self, pixels: Tensor) -> Tensor:
        return normalise(pixels, self.mean, self.std)

    def inputs(self, rows: Tensor) -> Tensor:
        """float32 [B, C, H, W], normalised: what a network is evaluated on."""
        return self.normalise(self.resized(rows))

    def inputs_and_labels(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """What a network is evaluated on, and the labels."""
        return self.inputs(rows), self.labels[rows.to(self.labels.device)]


class Images(ImageSet):
    """A data set in memory: images as bytes, with a `fit` only where they are evaluated in another size than varied."""

    pixels: Tensor  # [N, C, H, W] uint8

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.pixels.shape[1:]
        return (channels, height, width) if self.fit is None else (channels, self.fit.size, self.fit.size)

    def open(self, row: int) -> Image.Image:
        return to_image(self.pixels[row].cpu())

    def resized(self, rows: Tensor) -> Tensor:
        return self.pixels[rows.to(self.pixels.device)] if self.fit is None else super().resized(rows)

    def to(self, device: torch.device) -> Self:
        return replace(self, pixels=self.pixels.to(device), labels=self.labels.to(device))


class Encoded(ImageSet):
    """A data set too large or too uneven for memory: files or table cells, decoded when asked for."""

    @property
    def shape(self) -> tuple[int, int, int]:
        assert self.fit is not None
        return 3, self.fit.size, self.fit.size

    def open(self, row: int) -> Image.Image:
        return decode(self.pixels.read(row))
