"""Labelled images of a split: as bytes in memory (`Images`), or encoded and decoded at each use (`Encoded`).

Both give the same tensors, so which one a split becomes is a matter of memory and speed alone.
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
    """Resizing of an image: scale its shorter side to `shorter` and cut out the middle, or squeeze both sides."""

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
    """Return a gray or RGB image as uint8 [C, H, W]."""
    # Pillow writes rows of single channels, so that later copies move whole rows and not single bytes.
    rows = image.tobytes("raw", "RGB;L" if image.mode == "RGB" else "L")
    return torch.frombuffer(bytearray(rows), dtype=torch.uint8).view(image.height, -1, image.width).transpose(0, 1)


to_image: Callable[[Tensor], Image.Image] = F.to_pil_image
"""the inverse of `to_bytes`, for one channel (gray) or three (RGB)"""


def normalise(pixels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Return bytes [..., C, H, W] as floats with mean 0 and standard deviation 1 per channel."""
    return (pixels - _per_channel(mean, pixels.device)) / _per_channel(std, pixels.device)


@lru_cache(maxsize=64)
def _per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return values for pixels 0 .. 255, [C, 1, 1]; cached, so that no batch waits for their copy to a GPU."""
    with torch.inference_mode(False):  # a cached inference tensor could not be used where gradients are computed
        return 255 * torch.tensor(values, dtype=torch.float32, device=device).view(-1, 1, 1)


@dataclass(frozen=True)
class ImageSet(ABC):
    """N labelled images, and how they become the inputs of a network without random changes."""

    pixels: Any  # a tensor, or an ImageColumn
    labels: Tensor  # [N] int64
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    """mean of each channel, of pixels in 0 .. 1"""
    std: tuple[float, ...]
    fit: Fit | None = None
    """brings one image to the size of the network's input; None if all have it"""
    digests: np.ndarray | None = field(default=None, repr=False, compare=False)
    """a digest of the encoded bytes of each image, [N] of 16 bytes, where they were computed on the way"""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the network's input."""

    @abstractmethod
    def open(self, row: int) -> Image.Image:
        """Return one image in its stored size."""

    def subset(self, rows: Tensor) -> Self:
        """Return the images at `rows`."""
        digests = None if self.digests is None else self.digests[rows.numpy()]
        return replace(self, pixels=self.pixels[rows], labels=self.labels[rows], digests=digests)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def instant(self) -> bool:
        """Whether a batch is one look-up in memory, so that workers would only cost time."""
        return self.fit is None

    def resized(self, rows: Tensor) -> Tensor:
        """Return images as uint8 [B, C, H, W] in the size of the network's input."""
        assert self.fit is not None
        return torch.stack([to_bytes(self.fit(self.open(row))) for row in rows.tolist()])

    def normalise(self, pixels: Tensor) -> Tensor:
        """Return uint8 [B, C, H, W] as float32 with the mean and standard deviation of this dataset taken out."""
        return normalise(pixels, self.mean, self.std)

    def inputs(self, rows: Tensor) -> Tensor:
        """Return the inputs on which a network is evaluated: float32 [B, C, H, W], normalised."""
        return self.normalise(self.resized(rows))

    def inputs_and_labels(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs on which a network is evaluated, and the labels."""
        return self.inputs(rows), self.labels[rows.to(self.labels.device)]


class Images(ImageSet):
    """Images in memory as bytes; `fit` is set only where evaluation wants another size than training."""

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
        """Return the images on a device."""
        return replace(self, pixels=self.pixels.to(device), labels=self.labels.to(device))


class Encoded(ImageSet):
    """Images that stay encoded, in files or table cells: too many for memory, or of different sizes."""

    @property
    def shape(self) -> tuple[int, int, int]:
        assert self.fit is not None
        return 3, self.fit.size, self.fit.size

    def open(self, row: int) -> Image.Image:
        return decode(self.pixels.read(row))
