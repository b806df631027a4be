"""Networks by name, their sizes, their seeds, and how they are saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn

from spacedkd import DataSpec, EarlyExits, Images, NetworkSpec, UserError
from spacedkd.data.sources import load
from spacedkd.models.build import available, build, save
from spacedkd.models.heads import adapter

COLOUR = Images(
    torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.tensor([0, 1]), ("?",) * 100, (0.5,) * 3, (0.2,) * 3
)


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("name", "plain", "with_exits"),
    [
        ("resnet18_small", 11_220_132, 12_283_344),
        ("resnet50_small", 23_705_252, 38_426_576),
        ("resnet101_small", 42_697_380, 57_418_704),
    ],
)
def test_sizes_are_those_of_the_papers_code(name: str, plain: int, with_exits: int) -> None:
    network = build(NetworkSpec(name), COLOUR, seed=0)
    assert parameters(network) == plain
    assert parameters(EarlyExits(network, torch.zeros(2, 3, 32, 32), align="none")) == with_exits


def test_the_adapter_has_the_papers_size() -> None:
    assert parameters(adapter(512, 512)) == 525_312
    assert [layer.out_features for layer in adapter(512, 2048) if isinstance(layer, nn.Linear)] == [1280, 2048]  # type: ignore[attr-defined]


def test_small_images_keep_their_size_through_the_stem() -> None:
    network = timm.create_model("resnet18_small", width=8)
    maps = network.forward_intermediates(torch.zeros(1, 3, 16, 16), intermediates_only=True)
    assert [tuple(m.shape[1:]) for m in maps] == [(8, 16, 16), (8, 16, 16), (16, 8, 8), (32, 4, 4), (64, 2, 2)]
    assert [info["reduction"] for info in network.feature_info] == [1, 1, 2, 4, 8]


def weights(seed: int, name: str = "resnet18_small") -> dict[str, Tensor]:
    state: dict[str, Tensor] = build(NetworkSpec(name, {"width": 4}), COLOUR, seed).state_dict()
    return state


def test_weights_are_a_function_of_the_seed_alone() -> None:
    torch.manual_seed(1)
    one, before = weights(7), torch.get_rng_state()
    other, after = weights(7), torch.get_rng_state()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(before, after)
    assert not torch.equal(one["conv1.weight"], weights(8)["conv1.weight"])


@pytest.mark.parametrize("spec", [NetworkSpec("resnet18_small", {"width": 3}), NetworkSpec("mobilenetv3_small_050")])
def test_a_saved_network_opens_in_timm(tmp_path: Path, spec: NetworkSpec) -> None:
    images = load(DataSpec("digits")).train
    network = build(spec, images, seed=0).to(memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    save(network, spec, images, tmp_path / "student")
    opened = timm.create_model(f"local-dir:{tmp_path}/student", pretrained=True).eval()
    sample = images.normalised(images.pixels[:4])
    with torch.no_grad():
        torch.testing.assert_close(opened(sample), network(sample), rtol=0, atol=1e-5)
    config = timm.data.resolve_model_data_config(opened)
    assert tuple(config["input_size"]) == (1, 8, 8)
    assert config["mean"] == pytest.approx(images.mean)


def test_ours_come_first_in_the_list() -> None:
    assert available()[0] == "resnet18_small"
    assert "vit_tiny_patch16_224" in available()
    assert available("resnet*_small") == ["resnet18_small", "resnet34_small", "resnet50_small", "resnet101_small"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (NetworkSpec("resnet18_smal"), "Did you mean 'resnet18_small'"),
        (NetworkSpec("resnet18_small", {"widht": 3}), "widht"),
        (NetworkSpec("resnet18_small", {"width": 0}), "width must be at least 1"),
        (NetworkSpec("vit_tiny_patch16_224"), "cannot be built for 3x32x32 images"),
    ],
)
def test_networks_that_cannot_be_built_are_explained(spec: NetworkSpec, message: str) -> None:
    with pytest.raises(UserError) as error:
        build(spec, COLOUR, seed=0)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_network_without_stages_cannot_have_exits() -> None:
    network = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=4, depth=2)
    with pytest.raises(UserError, match="cannot do self KD"):
        EarlyExits(network, torch.zeros(2, 3, 32, 32))
