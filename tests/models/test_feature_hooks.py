"""Hints are read where they are said to be, and regressors bring any shape to any other."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from spacedkd import UserError
from spacedkd.models.feature_hooks import find_hint, make_hinted_pair, make_regressor

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
VIT: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "num_heads": 2}


def resnet(**options: Any) -> nn.Module:
    return timm.create_model("resnet18_small", **{"width": 4, "num_classes": 3, **options})  # type: ignore[no-any-return]


def output_of(network: nn.Module, name: str) -> Tensor:
    outputs: list[Tensor] = []
    handle = network.get_submodule(name).register_forward_hook(lambda _, __, out: outputs.append(out))
    with torch.no_grad():
        network.eval()(IMAGES)
    handle.remove()
    return outputs[0]


def test_the_middle_of_a_resnet_is_its_second_stage() -> None:
    network = resnet()
    assert torch.equal(find_hint(network, IMAGES).features, output_of(network, "layer2"))
    assert torch.equal(find_hint(network, IMAGES, 3).features, output_of(network, "layer3"))


def test_the_middle_of_a_vit_is_its_sixth_block() -> None:
    network = timm.create_model("deit_tiny_patch16_224", **VIT)
    assert torch.equal(find_hint(network, IMAGES).features, output_of(network, "blocks.5")[:, 0])
    assert torch.equal(find_hint(network, IMAGES, 12).features, output_of(network, "blocks.11")[:, 0])


@pytest.mark.parametrize("number", [0, 5, -1])
def test_a_layer_that_is_not_there_is_said_so(number: int) -> None:
    with pytest.raises(UserError, match=f"hint must be from 1 to 4, the stages of SmallResNet, got {number}."):
        find_hint(resnet(), IMAGES, number)


def test_a_network_that_shows_nothing_is_said_so() -> None:
    with pytest.raises(UserError, match="cannot do feature distillation of a middle layer") as error:
        find_hint(timm.create_model("vit_tiny_patch16_224", depth=1, **VIT), IMAGES)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("student", "teacher", "kind", "kernel", "stride"),
    [
        ((4, 8, 8), (6, 4, 4), nn.Conv2d, (3, 3), (2, 2)),
        ((4, 7, 7), (6, 4, 4), nn.Conv2d, (4, 4), (1, 1)),
        ((4, 8, 8), (6, 8, 8), nn.Conv2d, (1, 1), (1, 1)),
        ((4, 16, 16), (6, 4, 4), nn.Conv2d, (3, 3), (4, 4)),
        ((4, 4, 4), (6, 8, 8), nn.ConvTranspose2d, (4, 4), (2, 2)),
        ((4, 4, 2), (6, 12, 6), nn.ConvTranspose2d, (5, 5), (3, 3)),
        ((4, 4, 4), (6, 7, 7), nn.ConvTranspose2d, (4, 4), (1, 1)),
        ((4, 8, 5), (6, 4, 4), nn.Conv2d, (5, 2), (1, 1)),
    ],
)
def test_the_convolution_follows_the_sizes(
    student: tuple[int, ...], teacher: tuple[int, ...], kind: type[nn.Module], kernel: object, stride: object
) -> None:
    regressor = make_regressor(torch.zeros(2, *student), torch.zeros(2, *teacher))
    assert isinstance(regressor, nn.Sequential)
    assert [type(layer) for layer in regressor] == [kind, nn.BatchNorm2d, nn.ReLU]
    assert (regressor[0].kernel_size, regressor[0].stride) == (kernel, stride)
    assert regressor(torch.randn(2, *student)).shape == (2, *teacher)


def test_negative_targets_can_be_reached() -> None:
    regressor = make_regressor(torch.zeros(2, 4, 8, 8), -torch.ones(2, 6, 8, 8))
    assert isinstance(regressor, nn.Sequential)
    assert not isinstance(regressor[-1], nn.ReLU)


def test_tokens_get_linear_and_layernorm() -> None:
    regressor = make_regressor(torch.zeros(2, 5), torch.zeros(2, 7))
    assert isinstance(regressor, nn.Sequential)
    assert [type(layer) for layer in regressor] == [nn.Linear, nn.LayerNorm]
    assert regressor(torch.randn(2, 5)).shape == (2, 7)


def test_sizes_that_cross_are_said_so() -> None:
    with pytest.raises(UserError, match="8x2 and the teacher's of 4x4"):
        make_regressor(torch.zeros(2, 4, 8, 2), torch.zeros(2, 6, 4, 4))


def test_maps_meet_tokens_pooled() -> None:
    networks = resnet(), timm.create_model("deit_tiny_patch16_224", depth=4, **VIT)
    for teacher, student in (networks, networks[::-1]):
        pair = make_hinted_pair(teacher, find_hint(teacher, IMAGES), student, find_hint(student, IMAGES))
        (ahead,), (behind,) = (model.eval()(IMAGES) for model in pair)
        (own,) = pair[1](IMAGES, adapted=False)
        width = {True: 8, False: 24}
        assert ahead.features.shape == behind.features.shape == (2, width[teacher is networks[0]])
        assert own.features.shape == (2, width[student is networks[0]])
        torch.testing.assert_close(ahead.logits, teacher(IMAGES))
    torch.testing.assert_close(own.features, output_of(networks[0], "layer2").mean((2, 3)))
