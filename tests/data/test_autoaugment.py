"""AutoAugment and Cutout against the formulas of the paper's self-KD code."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from scipy import stats

from spacedkd.data import transforms as policy
from spacedkd.data.transforms import OPERATIONS, POLICIES, cifar_policy, cutout
from tests.data.on_disk import picture

GRAY = (128, 128, 128)
IMAGE = picture(3, 32)


def affine(matrix: tuple[float, ...], how: Image.Resampling) -> Image.Image:
    return IMAGE.transform(IMAGE.size, Image.Transform.AFFINE, matrix, how, fillcolor=GRAY)


def turned(degrees: float) -> Image.Image:
    """As the code does it: turned with transparent corners, then laid on gray."""
    whole = IMAGE.convert("RGBA").rotate(degrees)
    return Image.composite(whole, Image.new("RGBA", whole.size, (128,) * 4), whole).convert("RGB")


def expected(name: str, level: int, sign: int) -> Image.Image:
    part, bicubic, nearest = level / 9, Image.Resampling.BICUBIC, Image.Resampling.NEAREST
    shear, shift, factor = sign * part * 0.3, sign * part * 150 / 331 * 32, 1 + sign * part * 0.9
    if name in ("Color", "Contrast", "Sharpness", "Brightness"):
        return getattr(ImageEnhance, name)(IMAGE).enhance(factor)
    if name == "Solarize":
        levels = np.array(IMAGE)
        return Image.fromarray(np.where(levels < 256 - 256 * part, levels, 255 - levels).astype(np.uint8))
    return {
        "ShearX": lambda: affine((1, shear, 0, 0, 1, 0), bicubic),
        "ShearY": lambda: affine((1, 0, 0, shear, 1, 0), bicubic),
        "TranslateX": lambda: affine((1, 0, shift, 0, 1, 0), nearest),
        "TranslateY": lambda: affine((1, 0, 0, 0, 1, shift), nearest),
        "Rotate": lambda: turned(30 * part),
        "Posterize": lambda: ImageOps.posterize(IMAGE, [8, 8, 7, 7, 6, 6, 5, 5, 4, 4][level]),
        "AutoContrast": lambda: ImageOps.autocontrast(IMAGE),
        "Equalize": lambda: ImageOps.equalize(IMAGE),
        "Invert": lambda: ImageOps.invert(IMAGE),
    }[name]()


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_change_at_every_level(name: str, sign: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "_random_sign", lambda: sign)
    change, amounts = OPERATIONS[name]
    for level in range(10):
        got = np.array(change(IMAGE, amounts[level]))
        assert np.array_equal(got, np.array(expected(name, level, sign))), level


# (change, probability, level) twice, as published.
PUBLISHED = (
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


def test_the_pairs_are_the_published_ones() -> None:
    assert tuple(POLICIES) == PUBLISHED


def test_pairs_are_drawn_evenly_and_changes_with_their_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, float]] = []

    def spy(name: str) -> Callable[[Image.Image, float], Image.Image]:
        def change(image: Image.Image, amount: float) -> Image.Image:
            seen.append((name, amount))
            return image

        return change

    spies = {name: (spy(name), amounts) for name, (_, amounts) in OPERATIONS.items()}
    monkeypatch.setattr(policy, "OPERATIONS", spies)
    random.seed(0)
    count = 20_000
    for _ in range(count):
        cifar_policy(IMAGE)
    wanted: dict[tuple[str, float], float] = {}
    for pair in POLICIES:
        for name, probability, level in pair:
            key = (name, OPERATIONS[name][1][level or 0])
            wanted[key] = wanted.get(key, 0) + probability * count / 25
    assert {key for key, often in wanted.items() if often} == {*seen}
    for key, often in wanted.items():
        assert abs(seen.count(key) - often) < 5 * max(1, often) ** 0.5, key


def test_signs_are_even() -> None:
    random.seed(0)
    assert abs(sum(policy._random_sign() for _ in range(10_000))) < 500


def test_the_hole_is_centred_anywhere_and_cut_off_at_the_border() -> None:
    torch.manual_seed(0)
    holes = torch.stack([cutout(torch.ones(3, 32, 32)) == 0 for _ in range(4000)])
    assert (holes[:, 0] == holes[:, 2]).all()
    rows, columns = holes[:, 0].any(2).sum(1), holes[:, 0].any(1).sum(1)
    assert ((rows * columns) == holes[:, 0].sum((1, 2))).all()  # always a rectangle
    # Around centre y it has min(y + 8, 32) - max(y - 8, 0) rows: 8 to 15 at the ends, else 16.
    lengths = torch.tensor([min(y + 8, 32) - max(y - 8, 0) for y in range(32)]).bincount(minlength=17)[8:]
    for counted in (rows, columns):
        often = counted.bincount(minlength=17)[8:]
        assert stats.chisquare(often.numpy(), lengths.numpy() * 4000 / 32).pvalue > 1e-4


def test_pixels_outside_the_hole_stay() -> None:
    torch.manual_seed(1)
    pixels = torch.rand(3, 20, 20) + 0.1
    holed = cutout(pixels, 6)
    assert torch.equal(torch.where(holed == 0, pixels, holed), pixels)
    assert (holed == 0).any()
