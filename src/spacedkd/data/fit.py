"""How an image of any size is brought to the size a network sees, without chance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F


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
    """An image as uint8 [C, H, W]."""
    array = np.array(image)
    array = array[..., None] if array.ndim == 2 else array
    return torch.from_numpy(array).permute(2, 0, 1)


def to_image(pixels: Tensor) -> Image.Image:
    """The inverse of `to_bytes`, for one channel (gray) or three (RGB)."""
    array = pixels.cpu().permute(1, 2, 0).numpy()
    return Image.fromarray(array[..., 0] if array.shape[2] == 1 else np.ascontiguousarray(array))
