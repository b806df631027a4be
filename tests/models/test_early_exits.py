"""Early exits read the right places of any network, and only those asked answer."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from spacedkd import UserError
from spacedkd.models import EarlyExits
from spacedkd.models.early_exits import EarlyExit, PooledExit

IMAGES = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
LARGER = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
SMALL_VIT = {"img_size": 32, "embed_dim": 24, "num_classes": 7}


def exits() -> EarlyExits:
    torch.manual_seed(0)
    return EarlyExits(timm.create_model("resnet18_small", width=4, num_classes=7), IMAGES[:2])


def of(name: str, **options: Any) -> EarlyExits:
    """Exits on a network whose every weight is random, zero-initialised classifiers too."""
    torch.manual_seed(0)
    network = timm.create_model(name, **options)
    for parameter in network.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.1)
    return EarlyExits(network, LARGER[:2]).eval()


def predict_logits(model: EarlyExits, images: Tensor) -> dict[str, Tensor]:
    with torch.no_grad():
        return {name: head.logits for name, head in zip(model.head_names, model(images), strict=True)}


def heads_changed_by(model: EarlyExits, images: Tensor, module: str) -> set[str]:
    """The heads that answer differently once the weights of one part are disturbed."""
    before = predict_logits(model, images)
    with torch.no_grad():
        for weight in model.network.get_submodule(module).parameters():
            weight.add_(0.1)
    after = predict_logits(model, images)
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_the_deepest_head_is_the_network_itself() -> None:
    model = exits().eval()
    first, *rest = model(IMAGES)
    assert model.head_names == ("final", "stage3", "stage2", "stage1")
    assert torch.equal(first.logits, model.network(IMAGES))
    assert [tuple(head.logits.shape) for head in (first, *rest)] == [(4, 7)] * 4
    assert [tuple(head.features.shape) for head in (first, *rest)] == [(4, 32)] * 4


@pytest.mark.parametrize(
    ("stage", "heads"),
    [
        ("layer1", {"final", "stage3", "stage2", "stage1"}),
        ("layer2", {"final", "stage3", "stage2"}),
        ("layer3", {"final", "stage3"}),
        ("layer4", {"final"}),
    ],
)
def test_an_exit_reads_its_own_stage_and_nothing_deeper(stage: str, heads: set[str]) -> None:
    assert heads_changed_by(exits().eval(), IMAGES, stage) == heads


def test_heads_that_are_not_asked_are_not_touched() -> None:
    model = exits().train()
    before = {name: value.clone() for name, value in model.exits.state_dict().items()}
    (deepest,) = model(IMAGES, shallow=False)
    deepest.logits.sum().backward()
    assert all(torch.equal(before[name], value) for name, value in model.exits.state_dict().items())
    assert all(parameter.grad is None for parameter in model.exits.parameters())
    model.zero_grad()
    shallow = model(IMAGES, deepest=False)
    assert len(shallow) == 3
    torch.stack([head.logits.sum() for head in shallow]).sum().backward()
    assert model.network.fc.weight.grad is None  # type: ignore[union-attr]
    assert model.network.layer4[0].conv1.weight.grad is None  # type: ignore[union-attr, index]
    assert model.network.layer3[0].conv1.weight.grad is not None  # type: ignore[union-attr, index]


def test_odd_sizes_work() -> None:
    model = EarlyExits(timm.create_model("resnet18_small", width=4), torch.zeros(2, 3, 27, 27)).train()
    assert len(model(torch.zeros(2, 3, 27, 27))) == 4
    assert isinstance(model.exits["stage1"], EarlyExit)


def test_stages_that_run_out_of_size_get_pooled_exits() -> None:
    model = EarlyExits(timm.create_model("resnet18", num_classes=7), torch.zeros(2, 3, 16, 16))
    assert model.head_names == ("final", "stage3", "stage2", "stage1")
    assert [exit.norm.normalized_shape for exit in model.exits.values()] == [(256,), (128,), (64,)]  # type: ignore[union-attr]


def test_a_vit_of_twelve_blocks_has_eleven_exits_on_its_class_token() -> None:
    model = of("deit_tiny_patch16_224", **SMALL_VIT)
    assert model.head_names == ("final", *(f"block{k}" for k in range(11, 0, -1)))
    tokens: dict[str, Tensor] = {}
    for number, block in enumerate(model.network.blocks, start=1):  # type: ignore[arg-type]
        block.register_forward_hook(lambda _, __, out, number=number: tokens.update({f"block{number}": out[:, 0]}))
    for name, head in zip(model.head_names[1:], model(LARGER)[1:], strict=True):
        alone = model.exits[name](tokens[name])
        assert torch.equal(head.logits, alone.logits)
        assert torch.equal(head.features, alone.features)


def test_a_pit_has_eleven_exits_inside_its_stages() -> None:
    model = of("pit_ti_224", img_size=32, num_classes=7)
    assert model.head_names == ("final", *(f"block{k}" for k in range(11, 0, -1)))
    assert [model.exits[f"block{k}"].norm.normalized_shape[0] for k in range(1, 12)] == [64] * 2 + [128] * 6 + [256] * 3
    tokens: list[Tensor] = []
    for stage in model.network.transformers:  # type: ignore[union-attr]
        for block in stage.blocks:
            block.register_forward_hook(lambda _, __, out: tokens.append(out[:, 0]))
    heads = model(LARGER)[1:]
    for number in range(1, 12):
        assert torch.equal(heads[-number].logits, model.exits[f"block{number}"](tokens[number - 1]).logits)


def test_a_vit_that_pools_has_exits_on_pooled_tokens() -> None:
    model = of("vit_tiny_patch16_224", global_pool="avg", depth=3, patch_size=8, **SMALL_VIT)
    tokens: list[Tensor] = []
    for block in model.network.blocks:  # type: ignore[union-attr]
        block.register_forward_hook(lambda _, __, out: tokens.append(out[:, 1:].mean(1)))
    heads = model(LARGER)
    torch.testing.assert_close(heads[1].logits, model.exits["block2"](tokens[1]).logits)
    torch.testing.assert_close(heads[2].logits, model.exits["block1"](tokens[0]).logits)


@pytest.mark.parametrize("block", [0, 4, 10, 11])
def test_an_exit_reads_its_own_block_and_nothing_deeper(block: int) -> None:
    model = of("deit_tiny_patch16_224", **SMALL_VIT)
    assert heads_changed_by(model, LARGER, f"blocks.{block}") == {"final", *(f"block{k}" for k in range(block + 1, 12))}


@pytest.mark.parametrize(
    ("name", "module", "heads"),
    [
        ("swin_tiny_patch4_window7_224", "layers.2", {"final", "stage3"}),
        ("densenet121", "features.denseblock2", {"final", "stage3", "stage2"}),
        ("vgg11", "features.11", {"final", "stage3", "stage2"}),
        ("levit_128s", "stages.1", {"final", "stage2"}),
        ("efficientvim_m1", "stages.0", {"final", "stage2", "stage1"}),
    ],
)
def test_other_networks_are_read_in_the_right_order(name: str, module: str, heads: set[str]) -> None:
    small: dict[str, dict[str, Any]] = {
        "swin_tiny_patch4_window7_224": {"img_size": 32, "embed_dim": 16, "depths": (1,) * 4, "num_heads": (1,) * 4},
        "densenet121": {"block_config": (1, 1, 1, 1)},
        "vgg11": {"mlp_ratio": 0.01},
        "levit_128s": {"img_size": 32},
    }
    assert heads_changed_by(of(name, num_classes=7, **small.get(name, {})), LARGER, module) == heads


def test_maps_with_channels_last_are_turned() -> None:
    model = of("sequencer2d_s", img_size=32, num_classes=7, layers=[1, 1, 1, 1])
    widths = [exit.norm.normalized_shape[0] for exit in model.exits.values()]  # type: ignore[union-attr]
    assert widths == [384, 384, 192]


def test_a_pooled_exit_is_its_formula() -> None:
    """a = W LN(h), z = V a."""
    torch.manual_seed(0)
    exit = PooledExit(6, 5, 3).double()
    h = torch.randn(4, 6, dtype=torch.float64)
    normed = (h - h.mean(1, keepdim=True)) / (h.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    features = normed @ exit.alignment.weight.T + exit.alignment.bias
    torch.testing.assert_close(exit(h).features, features)
    torch.testing.assert_close(exit(h).logits, features @ exit.classifier.weight.T + exit.classifier.bias)
    torch.testing.assert_close(exit(h[:, :, None, None].expand(4, 6, 2, 3)).logits, exit(h).logits)


def test_a_copy_is_read_apart_from_the_original() -> None:
    model = of("pit_ti_224", img_size=32, num_classes=7)
    copy = deepcopy(model)
    expected = predict_logits(copy, LARGER)
    assert "block1" in heads_changed_by(model, LARGER, "transformers.0")
    assert all(torch.equal(expected[name], logits) for name, logits in predict_logits(copy, LARGER).items())


@pytest.mark.parametrize(
    ("name", "options"), [("hrnet_w18_small", {}), ("vit_tiny_patch16_224", {**SMALL_VIT, "depth": 1})]
)
def test_a_network_with_nothing_to_read_cannot_have_exits(name: str, options: dict[str, Any]) -> None:
    network = timm.create_model(name, **options)
    with pytest.raises(UserError, match="cannot do self KD") as error:
        EarlyExits(network, LARGER[:2])
    assert "\n" not in str(error.value)
    assert network.training
