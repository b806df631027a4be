"""Augmentations against the transforms they stand for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats
from torch import Tensor
from torchvision import transforms as T
from torchvision.transforms import functional as F
from torchvision.transforms import v2

from spacedkd import AugmentSpec
from spacedkd.data import Images, transforms
from spacedkd.data.generators import preserve_generators, seed_generators
from spacedkd.data.images import to_bytes, to_image
from spacedkd.data.transforms import (
    AUGMENTATIONS,
    ImageByImage,
    apply_affine,
    draw_affine,
)
from spacedkd.runtime.seeds import seed_for
from tests.data.on_disk import picture

CIFAR100 = T.Normalize((0.507, 0.487, 0.441), (0.267, 0.256, 0.276))
CIFAR10 = T.Normalize((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
IMAGENET = T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def kept(name: str, size: int, images: list[Image.Image]) -> Images:
    """Images as a dataset with this augmentation keeps them."""
    chosen = AUGMENTATIONS[name]
    fit = chosen.fit(size)
    fitted = [fit(image) if chosen.fits_first else image for image in images]
    pixels = torch.stack([F.pil_to_tensor(image) for image in fitted])
    mean, std = chosen.normalisation or ((0.5,) * 3, (0.25,) * 3)
    return Images(pixels, torch.arange(len(images)), ("a", "b"), mean, std, None if chosen.fits_first else fit)


def varied(name: str, size: int, images: list[Image.Image], seed: int = 5) -> Tensor:
    augmentation = transforms.build_augmentation(name, AUGMENTATIONS[name].augment, size)
    rows = torch.arange(len(images))
    return augmentation.training_inputs(kept(name, size, images), rows, rows, seed)


@pytest.mark.parametrize(
    ("name", "size", "stored", "transform"),
    [
        ("cifar", 32, (32, 32), [T.ToTensor(), CIFAR100]),
        ("self-cifar", 32, (32, 32), [T.ToTensor(), CIFAR10]),
        ("tiny-imagenet", 64, (64, 64), [T.Resize(64), T.ToTensor(), IMAGENET]),
        ("tiny-imagenet", 64, (90, 90), [T.Resize(64), T.ToTensor(), IMAGENET]),
        ("imagenet", 224, (300, 280), [T.Resize(256), T.CenterCrop(224), T.ToTensor(), IMAGENET]),
        ("imagenet", 224, (100, 130), [T.Resize(256), T.CenterCrop(224), T.ToTensor(), IMAGENET]),
        ("vit", 224, (32, 32), [T.Resize((224, 224)), T.ToTensor(), IMAGENET]),
        ("vit", 224, (64, 90), [T.Resize((224, 224)), T.ToTensor(), IMAGENET]),
    ],
)
def test_evaluation_is_the_one_of_the_papers_code(
    name: str, size: int, stored: tuple[int, int], transform: list[Callable[..., Tensor]]
) -> None:
    images = [picture(number, *stored) for number in range(3)]
    expected = torch.stack([T.Compose(transform)(image) for image in images])
    got = kept(name, size, images).inputs(torch.arange(3))
    assert got.dtype == torch.float32
    assert torch.allclose(got, expected, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "augment"), [("cifar", AugmentSpec(4, True, 15)), ("tiny-imagenet", AugmentSpec(4, True))]
)
def test_batch_wise_ones_have_the_listed_changes(name: str, augment: AugmentSpec) -> None:
    images = [picture(number, 64) for number in range(6)]
    whole = kept(name, 64, images)
    expected = whole.normalise(apply_affine(whole.pixels, draw_affine(augment, 6, 5)))
    assert torch.equal(varied(name, 64, images), expected)


def test_a_crop_and_a_mirror_are_exactly_torchvisions() -> None:
    pixels = torch.randint(0, 256, (64, 3, 16, 12), dtype=torch.uint8)
    changes = draw_affine(AugmentSpec(crop=4, flip=True), 64, 0)
    for image, got, shift, flip in zip(pixels, apply_affine(pixels, changes), changes.shift, changes.flip, strict=True):
        moved = F.crop(F.pad(image, [4] * 4), *(shift + 4).tolist(), 16, 12)
        assert torch.equal(got, F.hflip(moved) if flip else moved)


def test_a_rotation_is_torchvisions_up_to_ties() -> None:
    pixels = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8)
    changes = draw_affine(AugmentSpec(rotate=15), 64, 0)
    degrees = torch.atan2(changes.sine, changes.cosine) * 180 / torch.pi
    theirs = [F.pil_to_tensor(F.to_pil_image(p).rotate(float(d))) for p, d in zip(pixels, degrees, strict=True)]
    assert (apply_affine(pixels, changes) != torch.stack(theirs)).float().mean() < 0.01


@pytest.mark.parametrize(("crop", "rotate"), [(4, 15), (4, 0), (0, 15)])
def test_both_ways_of_computing_have_one_distribution(crop: int, rotate: float) -> None:
    """Every pixel says where it comes from; how often each place ends up somewhere must not differ."""
    side, count = 12, 3000
    image = (torch.arange(side * side, dtype=torch.uint8) + 1).view(1, side, side)
    ours = apply_affine(image.expand(count, 1, side, side), draw_affine(AugmentSpec(crop, True, rotate), count, 1))
    steps = [v2.RandomCrop(side, crop or None), v2.RandomHorizontalFlip(), v2.RandomRotation(rotate)]
    chain = v2.Compose(steps)
    with preserve_generators():
        seed_generators(2)
        theirs = torch.stack([chain(image) for _ in range(count)])
    for row, column in ((0, 0), (5, 5), (6, 11), (11, 3), (2, 8)):
        seen = [batch[:, 0, row, column].long().bincount(minlength=256) for batch in (ours, theirs)]
        often = sum(seen) >= 20
        table = np.stack([part[often].numpy() for part in seen])
        assert stats.chi2_contingency(table).pvalue > 1e-4, (row, column)


def image_by_image(transform: Callable[[Image.Image], Tensor], images: list[Image.Image], seed: int = 5) -> Tensor:
    results = []
    with preserve_generators():
        for place, image in enumerate(images):
            seed_generators(seed_for(seed, place))
            results.append(transform(image))
    return torch.stack(results)


def test_imagenet_is_the_listed_chain() -> None:
    chain = [T.RandomResizedCrop(48), T.RandomHorizontalFlip(), T.RandomRotation(15), T.ToTensor(), IMAGENET]
    images = [picture(number, 60) for number in range(8)]
    assert torch.equal(varied("imagenet", 48, images), image_by_image(T.Compose(chain), images))


def test_self_cifar_pads_with_gray_and_cuts_out_before_normalising(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transforms, "cifar_policy", lambda image: image)
    transforms._build_transform.cache_clear()
    white = [Image.new("RGB", (32, 32), "white")] * 200
    got = varied("self-cifar", 32, white)
    transforms._build_transform.cache_clear()
    levels = (got * torch.tensor(CIFAR10.std).view(3, 1, 1) + torch.tensor(CIFAR10.mean).view(3, 1, 1)) * 255
    hole, gray, whole = ((levels - level).abs() < 0.01 for level in (0, 128, 255))
    assert (hole | gray | whole).all()
    assert (hole[:, 0].sum((1, 2)) >= 64).all()
    assert hole[:, 0].sum((1, 2)).max() == 256
    # A shift by (r, c) pixels leaves 1024 - (32 - |r|)(32 - |c|) gray ones, 209.2 of them on average with 4 either way.
    no_hole = ~hole[:, 0]
    assert gray[:, 0].sum() / no_hole.sum() == pytest.approx(1 - (32 - 20 / 9) ** 2 / 1024, abs=0.02)


def test_vit_is_timms_chain_as_the_paper_uses_it() -> None:
    crop, flip, random_augment, _, normalise, erase = transforms._build_transform("vit", 224).transforms  # type: ignore[attr-defined]
    assert (crop.size, crop.scale, crop.ratio) == ((224, 224), (0.08, 1.0), (3 / 4, 4 / 3))
    assert "bicubic" in str(crop)
    assert flip.p == 0.5
    assert random_augment.num_layers == 2
    assert len(random_augment.ops) == 15
    assert all(op.magnitude == 9 and op.magnitude_std == 0.5 and op.prob == 0.5 for op in random_augment.ops)
    assert {"PosterizeIncreasing", "SolarizeIncreasing", "ColorIncreasing"} <= {op.name for op in random_augment.ops}
    assert torch.equal(normalise.mean, torch.tensor(IMAGENET.mean))
    assert (erase.probability, erase.per_pixel, erase.max_count) == (0.25, True, 1)


def test_vit_never_stumbles_over_the_strongest_posterize() -> None:
    assert np.array(transforms._posterize(picture(0), 0)).max() == 0
    got = varied("vit", 24, [picture(number, 24) for number in range(300)])
    assert got.shape == (300, 3, 24, 24)
    assert got.isfinite().all()


def test_a_place_has_its_own_draw_whatever_else_is_asked() -> None:
    images = kept("vit", 24, [picture(0, 24)] * 6)
    vit, rows = ImageByImage("vit", 24), torch.arange(6)
    whole = vit.training_inputs(images, rows, rows, 1)
    assert torch.equal(vit.training_inputs(images, rows, torch.tensor([4, 1]), 1), whole[[4, 1]])
    assert len({part.numpy().tobytes() for part in whole}) == 6
    assert not torch.equal(vit.training_inputs(images, rows, rows, 2), whole)


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_bytes_are_those_of_torchvision(mode: str) -> None:
    image = picture(3, 23, 17).convert(mode)
    assert torch.equal(to_bytes(image), F.pil_to_tensor(image))
    assert torch.equal(to_bytes(to_image(to_bytes(image))), F.pil_to_tensor(image))
