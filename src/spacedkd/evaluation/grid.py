"""A picture of the corruptions: one image under each of them, from the weakest severity to the strongest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from spacedkd.data.images import ImageSet, to_image
from spacedkd.errors import UserError
from spacedkd.evaluation import corruptions
from spacedkd.evaluation.plan import CORRUPTIONS, SEVERITIES, check_corruptions

TILE = 96
GAP = 6
LABEL = 20
ACROSS = 2
"""corruptions beside each other"""


def write_grid(
    path: Path, images: ImageSet, names: Sequence[str] = (), severities: Sequence[int] = (), row: int = 0
) -> None:
    """Draw image `row` of a data set as it is and under every corruption; all of them unless some are named."""
    if path.suffix.lower() != ".png":
        raise UserError(f"The grid is a PNG picture: call it {path.with_suffix('.png')}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(images, names or CORRUPTIONS, severities or SEVERITIES, row).save(path)


def draw(images: ImageSet, names: Sequence[str], severities: Sequence[int], row: int) -> Image.Image:
    """The picture itself: for each corruption its name, the clean image, and one tile for each severity."""
    check_corruptions(names, severities)
    corruptions.check_channels(images.shape[0])
    clean = images.fitted(torch.tensor([row]))[0].cpu().numpy()
    columns = 1 + len(severities)
    wide, high = columns * (TILE + GAP) + 3 * GAP, LABEL + TILE + 2 * GAP
    lines = -(-len(names) // ACROSS)
    picture = Image.new("RGB", (ACROSS * wide, lines * high + GAP), "white")
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(13)
    for place, name in enumerate(names):
        left, top = (place // lines) * wide + 2 * GAP, (place % lines) * high + GAP
        words = f"{name.replace('_', ' ')}: clean, severity {', '.join(map(str, severities))}"
        pen.text((left, top), words, fill="black", font=font)
        shown = [clean, *(corruptions.corrupt(clean, name, severity, row) for severity in severities)]
        for column, tile in enumerate(shown):
            picture.paste(_tile(tile), (left + column * (TILE + GAP), top + LABEL))
    return picture


def _tile(pixels: np.ndarray) -> Image.Image:
    """Enlarged without smoothing, so that every pixel a network sees can be seen."""
    return to_image(torch.from_numpy(np.array(pixels))).convert("RGB").resize((TILE, TILE), Image.Resampling.NEAREST)
