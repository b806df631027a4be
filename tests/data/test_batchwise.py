"""The one look-up against crop, mirror and rotation done one after the other."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from spacedkd import AugmentSpec
from spacedkd.data.transforms import AffineDraw, apply_affine, draw_affine

PIXELS = torch.randint(1, 256, (64, 3, 9, 12), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


def one_after_the_other(image: Tensor, row: int, column: int, flip: bool, cosine: float, sine: float) -> Tensor:
    """Pad and crop, mirror, then look every output pixel up in the rotated image."""
    _, height, width = image.shape
    padded = F.pad(image, (8, 8, 8, 8))
    image = padded[:, 8 + row : 8 + row + height, 8 + column : 8 + column + width]
    image = image.flip(2) if flip else image
    out = torch.zeros_like(image)
    for i in range(height):
        for j in range(width):
            y, x = i - (height - 1) / 2, j - (width - 1) / 2
            source_row = round(cosine * y + sine * x + (height - 1) / 2)
            source_column = round(cosine * x - sine * y + (width - 1) / 2)
            if 0 <= source_row < height and 0 <= source_column < width:
                out[:, i, j] = image[:, source_row, source_column]
    return out


def test_crop_mirror_and_rotation_are_done_in_that_order() -> None:
    changes = draw_affine(AugmentSpec(crop=3, flip=True, rotate=20), 64, seed=1)
    moved = apply_affine(PIXELS, changes)
    for image, got, shift, flip, cosine, sine in zip(PIXELS, moved, *changes, strict=True):
        row, column = shift.tolist()
        expected = one_after_the_other(image, row, column, bool(flip), float(cosine), float(sine))
        # float32 and float64 may round a coordinate that lies half-way between two pixels to either of them.
        assert (expected != got).float().mean() < 0.02


def test_without_rotation_it_is_exact() -> None:
    changes = draw_affine(AugmentSpec(crop=3, flip=True), 64, seed=1)
    for image, got, shift, flip, *_ in zip(PIXELS, apply_affine(PIXELS, changes), *changes, strict=True):
        row, column = shift.tolist()
        assert torch.equal(one_after_the_other(image, row, column, bool(flip), 1.0, 0.0), got)


def test_nothing_asked_changes_nothing() -> None:
    assert torch.equal(apply_affine(PIXELS, draw_affine(AugmentSpec(), 64, seed=5)), PIXELS)


def test_a_quarter_turn_is_a_quarter_turn() -> None:
    square = PIXELS[:1, :, :9, :9]
    quarter = AffineDraw(torch.zeros(1, 2, dtype=torch.long), torch.tensor([False]), torch.zeros(1), torch.ones(1))
    assert torch.equal(apply_affine(square, quarter), square.rot90(1, (2, 3)))


def test_a_part_of_the_batch_gets_the_same_bits() -> None:
    changes = draw_affine(AugmentSpec(crop=2, flip=True, rotate=15), 64, seed=2)
    whole = apply_affine(PIXELS, changes)
    for rows in (slice(0, 1), slice(5, 22), slice(60, 64)):
        assert torch.equal(apply_affine(PIXELS[rows], changes.rows(rows)), whole[rows])


def test_draws_have_the_distribution_they_are_said_to_have() -> None:
    changes = draw_affine(AugmentSpec(crop=4, flip=True, rotate=15), 90_000, seed=0)
    counts = torch.bincount((changes.shift[:, 0] + 4) * 9 + changes.shift[:, 1] + 4, minlength=81)
    expected = 90_000 / 81
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 80 + 5 * math.sqrt(2 * 80)
    assert changes.flip.float().mean() == pytest.approx(0.5, abs=0.01)
    degrees = torch.atan2(changes.sine, changes.cosine) * 180 / math.pi
    assert degrees.min() == pytest.approx(-15, abs=0.01)
    assert degrees.max() == pytest.approx(15, abs=0.01)
    assert degrees.std() == pytest.approx(30 / math.sqrt(12), abs=0.1)
