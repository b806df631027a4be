"""Networks see images in the size they can take: told, scaled, or refused with the way out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from spacedkd import NetworkSpec, UserError
from spacedkd.data.inputs import DataInfo
from spacedkd.models import Classifier, EarlyExits
from spacedkd.models.factory import build_network
from spacedkd.models.preprocessing import Resize, parse_size, preprocess

TINY = {"embed_dim": 24, "depth": 3}


def noise(height: int, width: int) -> DataInfo:
    pixels = torch.rand(2, 3, height, width, generator=torch.Generator().manual_seed(0))
    return DataInfo((pixels - 0.5) / 0.25, ("a", "b"), ((0.5,) * 3, (0.25,) * 3))


def looked_at(height: int, width: int) -> Tensor:
    sample = noise(height, width).sample
    assert isinstance(sample, Tensor)
    return sample


@pytest.mark.parametrize(
    ("name", "size", "tokens"),
    [
        ("vit_tiny_patch16_224", (64, 64), 17),
        ("vit_tiny_patch16_224", (32, 48), 7),
        ("deit_tiny_patch16_224", (224, 224), 197),
    ],
)
def test_a_transformer_is_told_the_size_of_the_images(name: str, size: tuple[int, int], tokens: int) -> None:
    network = build_network(NetworkSpec(name, TINY), noise(*size), seed=0)
    assert network.pos_embed.shape[1] == tokens
    assert preprocess(network, shown := looked_at(*size)) is shown


@pytest.mark.parametrize(
    ("size", "patch", "scaled"), [((28, 28), 4, "32"), ((8, 8), 1, "16"), ((40, 56), 4, "[48,64]"), ((31, 31), 1, "32")]
)
def test_patches_that_do_not_tile_the_images_are_refused(size: tuple[int, int], patch: int, scaled: str) -> None:
    with pytest.raises(UserError) as error:
        build_network(NetworkSpec("vit_tiny_patch16_224", TINY), noise(*size), seed=0)
    assert str(error.value) == (
        f"Network vit_tiny_patch16_224 cannot be built for 3x{size[0]}x{size[1]} images: its patches of 16 pixels do "
        f"not tile them; use network.patch_size={patch}, or let it scale them: network.input_size={scaled} "
        "(teacher. if it is the teacher)."
    )
    mended = build_network(NetworkSpec("vit_tiny_patch16_224", {**TINY, "patch_size": patch}), noise(*size), seed=0)
    assert mended.patch_embed.num_patches == size[0] * size[1] // patch**2


def test_a_network_with_a_size_of_its_own_scales_the_images() -> None:
    shown = looked_at(32, 32)
    network = build_network(
        NetworkSpec("deit_tiny_patch16_224", {**TINY, "input_size": 64}), noise(32, 32), seed=0
    ).eval()
    assert network.pos_embed.shape[1] == 1 + 4 * 4
    expected = network(F.interpolate(shown, (64, 64), mode="bicubic", antialias=True))
    assert torch.equal(Classifier(network)(shown)[0].logits, expected)
    exits = EarlyExits(network, shown).eval()
    assert torch.equal(exits(shown)[0].logits, expected)
    assert torch.equal(exits(shown, shallow=False)[0].logits, expected)
    assert len(exits(shown, deepest=False)) == 2


def test_images_of_the_right_size_pass_untouched() -> None:
    shown = looked_at(32, 32)
    network = build_network(NetworkSpec("resnet18", {"input_size": [32, 32]}), noise(32, 32), seed=0)
    assert preprocess(network, shown) is shown
    assert Resize((32, 32))(shown) is shown
    flat = torch.full((1, 3, 8, 8), 0.7)
    torch.testing.assert_close(Resize((20, 12))(flat), torch.full((1, 3, 20, 12), 0.7))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_images_are_scaled_in_full_precision(kind: torch.dtype) -> None:
    shown = looked_at(8, 8).to(kind)
    expected = F.interpolate(shown.float(), (16, 16), mode="bicubic", antialias=True).to(kind)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(Resize((16, 16))(shown), expected)


@pytest.mark.parametrize("asked", [0, -4, True, 3.5, "64", [64], [64, 64, 3], [64, "64"], None])
def test_sizes_that_are_none_are_refused(asked: object) -> None:
    with pytest.raises(UserError, match="input_size must be"):
        parse_size(asked)
