"""Where the images of one part are kept: as bytes in memory where they fit, else encoded as they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spacedkd.data.fit import Fit, to_bytes, to_image
from spacedkd.data.found import Part
from spacedkd.data.images import Encoded, Images
from spacedkd.data.reading import Reasons, cores, in_threads, into_memory, unreadable
from spacedkd.data.stored import Stored
from spacedkd.errors import UserError

MEMORY_LIMIT = 4 << 30
"""a part of more decoded bytes is decoded while training"""


@dataclass(frozen=True)
class Form:
    """In what form images are wanted."""

    classes: tuple[str, ...]
    fit: Fit | None
    """None takes the size they have"""
    fits_first: bool
    """whether the fitted size is all that is ever asked for"""
    colour: bool
    """whether one channel will not do"""
    skip_bad: bool = False
    memory_limit: int = MEMORY_LIMIT


def keep(part: Part, rows: Tensor, labels: Tensor, form: Form) -> tuple[Images | Encoded, str | None]:
    """The images at `rows` of a part, and a line on those left out; they still lack what normalises them."""
    if isinstance(part.images, np.ndarray):
        return _array(part.name, part.images[rows.numpy()], labels[rows], form), None
    read = into_memory(part.images, rows, form.fit if form.fits_first else None, form.memory_limit)
    bad = unreadable(part.images, rows) if read is None else read[1]
    note = _left_out(part.images, rows, bad, form.skip_bad)
    good = torch.tensor([place for place in range(len(rows)) if place not in bad], dtype=torch.int64)
    if len(good) == 0:
        raise UserError(f"{part.name} has no image that can be read, first {part.images.name(int(rows[0]))}.")
    chosen = rows[good]
    if read is not None:
        pixels = read[0][good] if bad else read[0]
        return Images(pixels, labels[chosen], form.classes, (), (), None if form.fits_first else form.fit), note
    assert form.fit is not None
    return Encoded(part.images, chosen, labels[chosen], form.classes, (), (), form.fit), note


def _left_out(stored: Stored, rows: Tensor, bad: Reasons, skip: bool) -> str | None:
    if not bad:
        return None
    first = min(bad)
    name = stored.name(int(rows[first]))
    if skip:
        return f"Left out {len(bad)} of {len(rows)} images that cannot be read, first: {name} {bad[first]}."
    others = f" {len(bad) - 1} more are bad too." if len(bad) > 1 else ""
    raise UserError(f"{name} {bad[first]}.{others} Mend or remove them, or leave them out with --skip-bad True.")


def _array(name: str, array: np.ndarray, labels: Tensor, form: Form) -> Images:
    pixels = torch.from_numpy(np.ascontiguousarray(array.transpose(0, 3, 1, 2)))
    channels, height, width = pixels.shape[1:]
    moves = form.fit is not None and (form.fit.size, form.fit.size) != (height, width)
    if (form.colour or moves) and channels not in (1, 3):
        raise UserError(f"The {name} images have {channels} channels: resizing and this augmentation need 1 or 3.")
    if form.colour and channels == 1:
        pixels = pixels.expand(-1, 3, -1, -1).contiguous()
    if form.fits_first and form.fit is not None and moves:
        pixels = _fitted(pixels, form.fit)
    return Images(pixels, labels, form.classes, (), (), None if form.fits_first else form.fit)


def _fitted(pixels: Tensor, fit: Fit) -> Tensor:
    fitted = torch.empty(len(pixels), pixels.shape[1], fit.size, fit.size, dtype=torch.uint8)

    def one(row: int) -> None:
        fitted[row] = to_bytes(fit(to_image(pixels[row])))

    in_threads(one, len(pixels), "Resizing images", cores())
    return fitted
