"""Labelled images: as bytes in memory, or encoded and decoded when they are asked for.

Both give the same tensors, so which one a data set becomes is a matter of memory and speed alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import torch
from PIL import Image
from torch import Tensor

from spacedkd.data.fit import Fit, to_bytes, to_image
from spacedkd.data.stored import Stored, decode

Constants = tuple[tuple[float, ...], tuple[float, ...]]


class ImageSet(Protocol):
    """N labelled images and how a network is shown them when nothing is left to chance."""

    @property
    def labels(self) -> Tensor:
        """[N] int64"""

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def mean(self) -> tuple[float, ...]:
        """of each channel, of pixels in 0 .. 1"""

    @property
    def std(self) -> tuple[float, ...]: ...

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of what a network is shown."""

    @property
    def instant(self) -> bool:
        """Whether showing a batch is one look-up, so that workers would only cost time."""

    def open(self, row: int) -> Image.Image:
        """One image as it is stored."""

    def fitted(self, rows: Tensor) -> Tensor:
        """uint8 [B, C, H, W] in the size a network sees."""

    def shown(self, rows: Tensor) -> Tensor:
        """float32 [B, C, H, W], normalised: what a network is evaluated on."""

    def normalised(self, pixels: Tensor) -> Tensor: ...

    def subset(self, rows: Tensor) -> ImageSet: ...


def normalise(pixels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Bytes [..., C, H, W] to floats with mean 0 and deviation 1 per channel."""
    return (pixels - _per_channel(mean, pixels.device)) / _per_channel(std, pixels.device)


@lru_cache(maxsize=64)
def _per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Of pixels 0 .. 255; kept, so that a GPU is not kept waiting for a few numbers with every batch."""
    with torch.inference_mode(False):  # others may want gradients of what is made with them
        return 255 * torch.tensor(values, dtype=torch.float32, device=device).view(-1, 1, 1)


@dataclass(frozen=True)
class Images:
    """A data set in memory: N images as bytes, with what normalises them."""

    pixels: Tensor  # [N, C, H, W] uint8
    labels: Tensor  # [N] int64
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fit: Fit | None = None
    """for recipes that want the stored size in training and another one in evaluation"""

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.pixels.shape[1:]
        return (channels, height, width) if self.fit is None else (channels, self.fit.size, self.fit.size)

    @property
    def instant(self) -> bool:
        return self.fit is None

    def open(self, row: int) -> Image.Image:
        return to_image(self.pixels[row])

    def fitted(self, rows: Tensor) -> Tensor:
        if self.fit is None:
            return self.pixels[rows.to(self.pixels.device)]
        return torch.stack([to_bytes(self.fit(self.open(row))) for row in rows.tolist()])

    def shown(self, rows: Tensor) -> Tensor:
        return self.normalised(self.fitted(rows))

    def normalised(self, pixels: Tensor) -> Tensor:
        return normalise(pixels, self.mean, self.std)

    def to(self, device: torch.device) -> Images:
        return replace(self, pixels=self.pixels.to(device), labels=self.labels.to(device))

    def subset(self, rows: Tensor) -> Images:
        return replace(self, pixels=self.pixels[rows], labels=self.labels[rows])


@dataclass(frozen=True)
class Encoded:
    """A data set too large or too uneven for memory: files or table cells, decoded when asked for."""

    stored: Stored
    rows: Tensor  # [N] int64, the places in `stored`
    labels: Tensor  # [N] int64
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fit: Fit

    @property
    def shape(self) -> tuple[int, int, int]:
        return 3, self.fit.size, self.fit.size

    @property
    def instant(self) -> bool:
        return False

    def open(self, row: int) -> Image.Image:
        return decode(self.stored.read(int(self.rows[row])))

    def fitted(self, rows: Tensor) -> Tensor:
        return torch.stack([to_bytes(self.fit(self.open(row))) for row in rows.tolist()])

    def shown(self, rows: Tensor) -> Tensor:
        return self.normalised(self.fitted(rows))

    def normalised(self, pixels: Tensor) -> Tensor:
        return normalise(pixels, self.mean, self.std)

    def subset(self, rows: Tensor) -> Encoded:
        return replace(self, rows=self.rows[rows], labels=self.labels[rows])
