"""The shadow head is its formula, borrows the classifier, and leaves its network alone."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from spacedkd import UserError
from spacedkd.models.early_exits import ShadowHead, WithShadow
from spacedkd.models.feature_hooks import find_feature_hooks

IMAGES = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
VIT: dict[str, Any] = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "num_heads": 2, "depth": 4, "num_classes": 5}


def network(name: str = "resnet18_small", **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model(name, **({"width": 4, "num_classes": 5} if name == "resnet18_small" else options))


def conv(layer: Any, maps: Tensor, stride: int = 1) -> Tensor:
    """Convolution, BatchNorm in evaluation mode and ReLU, written out."""
    weight, norm = layer[0].weight, layer[1]
    convolved = torch.nn.functional.conv2d(maps, weight, stride=stride, padding=weight.shape[-1] // 2)
    scaled = (convolved - norm.running_mean[:, None, None]) / (norm.running_var[:, None, None] + norm.eps).sqrt()
    return (scaled * norm.weight[:, None, None] + norm.bias[:, None, None]).relu()


def test_a_shadow_of_a_resnet_is_the_cards_formula() -> None:
    model = WithShadow(network(), IMAGES[:2])
    for _ in range(3):
        model.train()(IMAGES)  # so that the running statistics are some
    model.eval()
    inner = find_feature_hooks(model.network, IMAGES)[1].inner
    f1, f2, f3 = inner[-3:]
    head: Any = model.shadow
    u = conv(head.downs[0], f1, 2) + conv(head.laterals[0], f2)
    v = conv(head.downs[1], u, 2) + conv(head.laterals[1], f3)
    w = conv(head.last, v).mean((2, 3))
    own, shadow = model(IMAGES)
    fc: Any = model.network.fc
    torch.testing.assert_close(shadow.features, w)
    torch.testing.assert_close(shadow.logits, w @ fc.weight.T + fc.bias)
    torch.testing.assert_close(own.logits, model.network(IMAGES))
    assert [layer[0].weight.shape for layer in (*head.downs, *head.laterals, head.last)] == [
        (16, 8, 3, 3),
        (32, 16, 3, 3),
        (16, 16, 1, 1),
        (32, 32, 1, 1),
        (32, 32, 3, 3),
    ]


def test_a_shadow_of_a_vit_reads_its_last_three_class_tokens() -> None:
    model = WithShadow(network("deit_tiny_patch16_224", **VIT), IMAGES[:2]).eval()
    tokens: list[Tensor] = []
    for block in model.network.blocks[1:]:  # type: ignore[index, union-attr]
        block.register_forward_hook(lambda _, __, out: tokens.append(out[:, 0]))
    _, shadow = model(IMAGES)
    torch.testing.assert_close(shadow.features, model.shadow(tokens))
    kinds = [[type(part) for part in layer] for layer in (*model.shadow.downs, model.shadow.last)]  # type: ignore[arg-type, attr-defined]
    assert kinds == [[nn.Linear, nn.LayerNorm, nn.ReLU]] * 2 + [[nn.Linear, nn.LayerNorm]]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("deit_tiny_distilled_patch16_224", VIT),
        ("vit_tiny_patch16_224", {**VIT, "global_pool": "avg"}),
        ("resnet18", {"num_classes": 5}),
        ("resnetv2_18", {"num_classes": 5}),
        ("convnext_atto", {"num_classes": 5}),
    ],
)
def test_shadows_of_other_networks_learn_with_every_weight(name: str, options: dict[str, Any]) -> None:
    images = torch.randn(4, 3, options.get("img_size", 32), options.get("img_size", 32))
    model = WithShadow(network(name, **options), images[:2]).train()
    own, shadow = model(images)
    assert own.logits.shape == shadow.logits.shape == (4, 5)
    (own.logits.sum() + (shadow.logits**2).sum()).backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_odd_sizes_are_fitted() -> None:
    maps = [torch.randn(2, 4, 15, 15), torch.randn(2, 6, 7, 7), torch.randn(2, 8, 4, 4)]
    assert ShadowHead(maps, torch.zeros(2, 10))(maps).shape == (2, 10)


def test_a_fixed_network_stays_in_evaluation_mode_and_has_no_gradients() -> None:
    model = WithShadow(network(), IMAGES[:2], frozen=True).train()
    before = {name: value.clone() for name, value in model.network.state_dict().items()}
    own, shadow = model(IMAGES)
    assert not own.logits.requires_grad
    (shadow.logits**2).sum().backward()
    learning = {name for name, weight in model.named_parameters() if weight.grad is not None}
    assert learning == {f"shadow.{name}" for name, _ in model.shadow.named_parameters()}
    assert (model.training, model.shadow.training, model.network.training) == (True, True, False)
    assert all(torch.equal(before[name], value) for name, value in model.network.state_dict().items())


def test_what_cannot_have_a_shadow_says_so() -> None:
    with pytest.raises(UserError, match="cannot do SHAKE"):
        WithShadow(timm.create_model("hrnet_w18_small"), torch.randn(2, 3, 32, 32))
    with pytest.raises(UserError, match="three stages or blocks"):
        WithShadow(timm.create_model("vit_tiny_patch16_224", **{**VIT, "depth": 2}), IMAGES[:2])
    with pytest.raises(UserError, match="no linear classifier"):
        WithShadow(timm.create_model("levit_128s", img_size=32), torch.randn(2, 3, 32, 32))
