"""Early exits answer from the right stages, and only those asked."""

from __future__ import annotations

import timm
import torch

from spacedkd import Classifier, EarlyExits
from spacedkd.models.heads import adapter

IMAGES = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def exits() -> EarlyExits:
    torch.manual_seed(0)
    return EarlyExits(timm.create_model("resnet18_small", width=4, num_classes=7), IMAGES[:2])


def test_the_deepest_head_is_the_network_itself() -> None:
    model = exits().eval()
    first, *rest = model(IMAGES)
    assert model.head_names == ("final", "stage3", "stage2", "stage1")
    assert torch.equal(first.logits, model.network(IMAGES))
    assert [tuple(head.logits.shape) for head in (first, *rest)] == [(4, 7)] * 4
    assert [tuple(head.features.shape) for head in (first, *rest)] == [(4, 32)] * 4


def test_an_exit_reads_its_own_stage_and_nothing_deeper() -> None:
    model = exits().eval()
    before = dict(zip(model.head_names, model(IMAGES), strict=True))
    with torch.no_grad():
        model.network.layer3[0].conv1.weight.add_(0.1)  # type: ignore[union-attr, index, operator]
    after = dict(zip(model.head_names, model(IMAGES), strict=True))
    changed = {name for name in before if not torch.equal(before[name].logits, after[name].logits)}
    assert changed == {"final", "stage3"}


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


def test_a_classifier_is_its_network_and_adapts_only_the_features() -> None:
    network = timm.create_model("resnet18_small", width=4).eval()
    ((plain_logits, plain_features),) = Classifier(network)(IMAGES)
    ((logits, features),) = Classifier(network, adapter(32, 10))(IMAGES)
    assert torch.equal(logits, network(IMAGES))
    assert torch.equal(logits, plain_logits)
    assert plain_features.shape == (4, 32)
    assert features.shape == (4, 10)
