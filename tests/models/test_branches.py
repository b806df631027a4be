"""Branches are whole networks on one trunk, which is computed once; the joint heads are their formulas."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from spacedkd import UserError
from spacedkd.models.branches import Branches, Fusion, Gate, JointSizes, find_fork
from spacedkd.models.classifier import Prediction
from tests.methods.vectors import FS, TE, S, U, close_to, tensor

IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
VIT: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "num_heads": 2, "num_classes": 5}
NETWORKS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "small resnet": ("resnet18_small", {"width": 4, "num_classes": 5}, ("layer4", "fc")),
    "resnet": ("resnet18", {"num_classes": 5}, ("layer4", "fc")),
    "vit of 12": ("vit_tiny_patch16_224", VIT, ("blocks.9", "blocks.10", "blocks.11", "norm", "head")),
    "deit of 4": ("deit_tiny_patch16_224", {**VIT, "depth": 4}, ("blocks.3", "norm", "head")),
    "pooling vit": ("vit_tiny_patch16_224", {**VIT, "depth": 2, "global_pool": "avg"}, ("blocks.1", "fc_norm", "head")),
    "mobilenet": ("mobilenetv2_035", {"num_classes": 5}, ("blocks.5", "blocks.6", "conv_head", "bn2", "classifier")),
    "swin": (
        "swin_tiny_patch4_window7_224",
        {"img_size": 32, "embed_dim": 16, "depths": [1] * 4, "num_heads": [1] * 4, "num_classes": 5},
        ("layers.3", "norm", "head"),
    ),
    "resmlp": (
        "resmlp_12_224",
        {"img_size": 32, "num_classes": 5},
        ("blocks.9", "blocks.10", "blocks.11", "norm", "head"),
    ),
}


def new(name: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    network = timm.create_model(NETWORKS[name][0], **NETWORKS[name][1])
    for parameter in network.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.1)
    return network  # type: ignore[no-any-return]


def branches(name: str = "small resnet", join: type[Gate | Fusion] = Gate) -> Branches:
    return Branches(new(name, 0), [new(name, 1), new(name, 2)], IMAGES[:2], join)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_branch_is_a_whole_network_with_the_shared_trunk(name: str) -> None:
    model = branches(name).eval()
    assert model.head_names == ("final", "branch2", "branch3", "gated")
    own = NETWORKS[name][2]
    with torch.no_grad():
        predictions = model(IMAGES)
        torch.testing.assert_close(predictions[0].logits, model.network(IMAGES))
        for seed in (1, 2):
            whole = new(name, seed).eval()
            trunk = {
                k: v for k, v in model.network.state_dict().items() if not k.startswith(tuple(f"{o}." for o in own))
            }
            whole.load_state_dict(trunk, strict=False)
            torch.testing.assert_close(predictions[seed].logits, whole(IMAGES))
    kept = {key.removeprefix("network.") for key, _ in model.branches[0].named_parameters()}
    assert kept == {k for k, _ in model.network.named_parameters() if k.startswith(tuple(f"{o}." for o in own))}


def test_a_norm_that_does_nothing_yet_is_part_of_a_branch() -> None:
    network = timm.create_model("resmlp_12_224", img_size=32)
    x = torch.randn(2, 4, 384)
    assert torch.equal(network.norm(x), x)
    assert find_fork(network, IMAGES[:2]).tail == ("blocks.9", "blocks.10", "blocks.11", "norm")


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("join", [Gate, Fusion])
def test_every_weight_learns(name: str, join: type[Gate | Fusion]) -> None:
    model = branches(name, join).train()
    predictions = model(IMAGES)
    torch.stack([(head.logits**2).sum() for head in predictions]).sum().backward()
    missed = [name for name, weight in model.named_parameters() if weight.grad is None]
    assert not missed, "distributed training would wait for these for ever"


@pytest.mark.parametrize(
    ("name", "trunk", "stage"), [("resnet", "layer3", "layer4"), ("deit of 4", "blocks.2", "blocks.3")]
)
def test_the_trunk_is_computed_once(name: str, trunk: str, stage: str) -> None:
    model = branches(name)
    passes: list[str] = []
    for part, module in (("trunk", model.network.get_submodule(trunk)), ("stage", model.network.get_submodule(stage))):
        module.register_forward_hook(lambda *_, part=part: passes.append(part))
    for branch in model.branches:
        branch.network.get_submodule(stage).register_forward_hook(lambda *_: passes.append("branch"))
    model(IMAGES)
    assert passes == ["trunk", "stage", "branch", "branch"]


def test_the_joint_head_is_not_touched_unless_asked() -> None:
    model = branches().train()
    before = {name: value.clone() for name, value in model.joint.state_dict().items()}
    assert len(model(IMAGES, joined=False)) == 3
    assert all(torch.equal(before[name], value) for name, value in model.joint.state_dict().items())
    assert len(model(IMAGES)) == 4
    assert not torch.equal(before["norm.running_mean"], model.joint.norm.running_mean)  # type: ignore[union-attr]


def test_each_branch_can_have_its_own_view() -> None:
    model = branches(join=Fusion).eval()
    views = [IMAGES, IMAGES.flip(3), IMAGES.roll(3, 2)]
    with torch.no_grad():
        *branches_alone, fused = model(*views)
        for number, view in enumerate(views):
            torch.testing.assert_close(branches_alone[number].logits, model(view)[number].logits)
        features = torch.cat([head.features for head in branches_alone], 1)
        torch.testing.assert_close(fused.logits, model.joint.classifier(features))  # type: ignore[operator]


def test_the_gate_is_the_cards() -> None:
    """METHODS.md card 18."""
    gate = Gate(JointSizes(branches=3, shared=3, features=4, classes=3)).double()
    nn.init.eye_(gate.linear.weight)
    nn.init.zeros_(gate.linear.bias)
    gate.norm = nn.Identity()  # type: ignore[assignment]
    scores = tensor([[0.5, 0, 1], [2, 0.3, 0]])
    expected = [[0.6798433322, 1.3071958857, -0.3342500759], [0.2878022699, -0.7171331225, 2.7253359918]]
    with torch.no_grad():
        prediction = gate(scores, [Prediction(z, FS) for z in (S, TE, U)])
        assert prediction.logits.numpy() == close_to(expected)
        torch.testing.assert_close(prediction.features, FS)
        weights = gate(scores, [Prediction(torch.eye(3).double()[[k, k]], FS) for k in range(3)]).logits
    expected = [[0.3071958857, 0.1863237232, 0.5064803911], [0.7587145149, 0.1386046413, 0.1026808438]]
    assert weights.numpy() == close_to(expected)


def test_the_gate_clips_and_normalises() -> None:
    gate = Gate(JointSizes(branches=2, shared=5, features=4, classes=3)).double().train()
    shared = torch.randn(6, 5, dtype=torch.float64)
    scores = shared @ gate.linear.weight.T + gate.linear.bias
    normed = (scores - scores.mean(0)) / (scores.var(0, unbiased=False) + 1e-5).sqrt()
    weights = normed.clamp(min=0).softmax(1)
    first, second = torch.randn(2, 6, 3, dtype=torch.float64)
    prediction = gate(shared, [Prediction(first, first), Prediction(second, second)])
    torch.testing.assert_close(prediction.logits, weights[:, :1] * first + weights[:, 1:] * second)


@pytest.mark.parametrize(
    ("name", "reads"),
    [("small resnet", "map"), ("swin", "channels last"), ("deit of 4", "token"), ("pooling vit", "mean")],
)
def test_the_gate_looks_at_the_pooled_trunk(name: str, reads: str) -> None:
    model = branches(name).eval()
    seen: list[Tensor] = []
    first = model.network.get_submodule(NETWORKS[name][2][0])
    first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    looked: list[Tensor] = []
    model.joint.register_forward_pre_hook(lambda _, inputs: looked.append(inputs[0]))
    model(IMAGES)
    pooled = {
        "map": lambda x: x.mean((2, 3)),
        "channels last": lambda x: x.mean((1, 2)),
        "token": lambda x: x[:, 0],
        "mean": lambda x: x.mean(1),
    }
    torch.testing.assert_close(looked[0], pooled[reads](seen[0]))


def test_a_gate_in_a_batch_of_one_says_so() -> None:
    model = branches().train()
    with pytest.raises(UserError, match="two images or more in a batch"):
        model(IMAGES[:1])
    assert len(model.eval()(IMAGES[:1])) == 4


def test_branches_with_the_networks_own_weights_get_new_classifiers() -> None:
    network = new("small resnet", 0)
    model = Branches(network, [deepcopy(network), deepcopy(network)], IMAGES[:2], Gate).eval()
    first, second, third, _ = (head.logits for head in model(IMAGES))
    assert not torch.allclose(first, second)
    assert not torch.allclose(second, third)


def test_a_copy_is_divided_apart_from_the_original() -> None:
    model = branches("deit of 4").eval()
    copy = deepcopy(model)
    with torch.no_grad():
        expected = copy(IMAGES)[3].logits
        for weight in model.parameters():
            weight.add_(0.1)
        assert torch.equal(copy(IMAGES)[3].logits, expected)
        assert not torch.equal(model(IMAGES)[3].logits, expected)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("eva02_tiny_patch14_224", {**VIT, "depth": 3}),
        ("hrnet_w18_small", {}),
        ("vit_tiny_patch16_224", {**VIT, "depth": 1}),
        ("pit_ti_224", {"img_size": 32}),
    ],
)
def test_what_cannot_be_divided_says_so(name: str, options: dict[str, Any]) -> None:
    network = timm.create_model(name, **options)
    with pytest.raises(UserError, match="cannot be divided into branches") as error:
        Branches(network, [deepcopy(network)], IMAGES[:2], Gate)
    assert type(network).__name__ in str(error.value)
    assert "\n" not in str(error.value)
    assert network.training
