"""A classifier is its network, and shows the features that enter the network's own classifier."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import timm
import torch
from torch import nn

from spacedkd import UserError
from spacedkd.models import Classifier
from spacedkd.models.classifier import eval_mode, feature_width, make_adapter

IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
TINY = {"img_size": 32, "embed_dim": 24, "depth": 2}


def test_a_classifier_is_its_network_and_adapts_only_the_features() -> None:
    network = timm.create_model("resnet18_small", width=4).eval()
    ((plain_logits, plain_features, _),) = Classifier(network)(IMAGES)
    ((logits, features, _),) = Classifier(network, make_adapter(32, 10))(IMAGES)
    assert torch.equal(logits, network(IMAGES))
    assert torch.equal(logits, plain_logits)
    assert plain_features.shape == (4, 32)
    assert features.shape == (4, 10)


def test_the_adapter_has_the_papers_size() -> None:
    assert sum(p.numel() for p in make_adapter(512, 512).parameters()) == 525_312
    assert [layer.out_features for layer in make_adapter(512, 2048) if isinstance(layer, nn.Linear)] == [1280, 2048]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "options", "width"),
    [
        ("resnet18_small", {"width": 4}, 32),
        ("mobilenetv3_small_050", {}, 1024),  # a layer between pooling and classifier
        ("resnetv2_18", {}, 512),  # a convolution as classifier
        ("vit_tiny_patch16_224", TINY, 24),
        ("deit_tiny_distilled_patch16_224", TINY, 24),  # two classifiers
        ("pit_ti_distilled_224", {"img_size": 32}, 256),
        ("samvit_base_patch16_224", {**TINY, "num_heads": 2, "global_attn_indexes": ()}, 24),  # a head as classifier
        ("efficientvim_m1", {}, 960),  # four classifiers of different widths
    ],
)
def test_features_are_what_timm_calls_them(name: str, options: dict[str, Any], width: int) -> None:
    network = timm.create_model(name, num_classes=7, **options).eval()
    with torch.no_grad():
        ((logits, features, _),) = Classifier(network)(IMAGES)
        torch.testing.assert_close(logits, network(IMAGES))
        torch.testing.assert_close(
            features, network.forward_head(network.forward_features(IMAGES), pre_logits=True).flatten(1)
        )
    assert feature_width(network, IMAGES[:2]) == features.shape[1] == width


def test_logits_of_two_classifiers_are_their_mean() -> None:
    network = timm.create_model("deit_tiny_distilled_patch16_224", num_classes=7, **TINY).eval()
    nn.init.normal_(network.head.weight)
    nn.init.normal_(network.head_dist.weight)
    ((logits, features, _),) = Classifier(network)(IMAGES)
    tokens = network.forward_features(IMAGES)
    torch.testing.assert_close(logits, (network.head(tokens[:, 0]) + network.head_dist(tokens[:, 1])) / 2)
    torch.testing.assert_close(features, tokens[:, :2].mean(1))


def test_a_copy_does_not_watch_the_original() -> None:
    model = Classifier(timm.create_model("resnet18_small", width=4)).eval()
    copy = deepcopy(model)
    expected = copy(IMAGES)[0].features
    with torch.no_grad():
        model.network.conv1.weight.mul_(2)  # type: ignore[union-attr, operator]
    assert not torch.equal(model(IMAGES)[0].features, expected)
    assert torch.equal(copy(IMAGES)[0].features, expected)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_look_leaves_the_model_as_it_was() -> None:
    network = timm.create_model("resnet18_small", width=4).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    feature_width(network, IMAGES[:2])
    assert network.training
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    with pytest.raises(RuntimeError), eval_mode(network):
        raise RuntimeError
    assert network.training


def test_a_network_that_hides_its_features_says_so() -> None:
    network = timm.create_model("resnet18_small", width=4)
    network.get_classifier = lambda: nn.Identity()
    with pytest.raises(UserError, match="SmallResNet does not show the features before its classifier"):
        Classifier(network)(IMAGES)
