"""The small-image ResNets: their sizes, their widths, and how their weights begin."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

from spacedkd import EarlyExits, UserError
from spacedkd.models.small_resnet import NAMES


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
    network = timm.create_model(name, num_classes=100)
    assert parameters(network) == plain
    assert parameters(EarlyExits(network, torch.zeros(2, 3, 32, 32), align="none")) == with_exits


@pytest.mark.parametrize(
    ("name", "count"), [("resnet18_small", 11_271_432), ("resnet50_small", 23_910_152), ("resnet101_small", 42_902_280)]
)
def test_sizes_at_200_classes(name: str, count: int) -> None:
    with torch.device("meta"):
        assert parameters(timm.create_model(name, num_classes=200)) == count


def resnet18_parameters(channels: tuple[int, ...], classes: int) -> int:
    """Counted by hand: stem, two blocks of two 3x3 convolutions a stage, 1x1 shortcuts, classifier."""
    count, above = 3 * 9 * channels[0] + 2 * channels[0], channels[0]
    for own in channels:
        count += 9 * (above * own + 3 * own * own) + 4 * 2 * own
        count += above * own + 2 * own if above != own else 0
        above = own
    return count + above * classes + classes


@pytest.mark.parametrize(
    ("name", "channels", "times"),
    [
        ("resnet18_small", (64, 128, 256, 512), 1.0),
        ("resnet18x2", (90, 181, 362, 724), 2.00),
        ("resnet18x4", (128, 256, 512, 1024), 3.99),
        ("resnet18x8", (181, 362, 724, 1448), 7.97),
        ("resnet18_small_w128", (128, 256, 512, 1024), 3.99),
        ("resnet18_small_w256", (256, 512, 1024, 2048), 15.93),
        ("resnet18_small_w512", (512, 1024, 2048, 4096), 63.69),
    ],
)
def test_x_multiplies_parameters_and_w_names_channels(name: str, channels: tuple[int, ...], times: float) -> None:
    with torch.device("meta"):
        network = timm.create_model(name, num_classes=100)
    assert tuple(info["num_chs"] for info in network.feature_info[1:]) == channels
    assert parameters(network) == resnet18_parameters(channels, 100)
    assert round(parameters(network) / 11_220_132, 2) == times


def test_the_width_option_wins_over_the_name() -> None:
    assert timm.create_model("resnet18x2", width=4).conv1.out_channels == 4
    assert timm.create_model("resnet18_small", width=5.5).num_features == 44


def test_small_images_keep_their_size_through_the_stem() -> None:
    network = timm.create_model("resnet18_small", width=8)
    maps = network.forward_intermediates(torch.zeros(1, 3, 16, 16), intermediates_only=True)
    assert [tuple(m.shape[1:]) for m in maps] == [(8, 16, 16), (8, 16, 16), (16, 8, 8), (32, 4, 4), (64, 2, 2)]
    assert [info["reduction"] for info in network.feature_info] == [1, 1, 2, 4, 8]


@pytest.mark.parametrize(
    ("init", "deviation"), [("kaiming", (2 / (9 * 256)) ** 0.5), ("torch", (1 / (9 * 128 * 3)) ** 0.5)]
)
def test_weights_begin_as_in_the_two_codes(init: str, deviation: float) -> None:
    """Kaiming: normal, variance 2 / fan_out. PyTorch: uniform within 1 / sqrt(fan_in), so variance 1 / (3 fan_in)."""
    torch.manual_seed(0)
    network = timm.create_model("resnet18_small", init=init)
    first = network.layer3[0].conv1.weight  # 128 -> 256 channels
    assert first.std().item() == pytest.approx(deviation, rel=0.01)
    is_uniform = bool(first.abs().max() <= (9 * 128) ** -0.5)
    assert is_uniform == (init == "torch")
    assert all((m.weight == 1).all() for m in network.modules() if isinstance(m, nn.BatchNorm2d))


def test_all_are_known_to_timm() -> None:
    assert all(timm.is_model(name) for name in NAMES)
    with pytest.raises(UserError, match="Unknown init 'kaming'. Did you mean 'kaiming'"):
        timm.create_model("resnet18_small", init="kaming")
