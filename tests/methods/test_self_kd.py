"""Self KD with any number of students: METHODS.md card 6, and who gets gradients."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch

from spacedkd import UserError
from spacedkd.data import Batch
from spacedkd.methods import Ingredients, Progress, SelfKD
from spacedkd.models.classifier import Prediction
from tests.methods.vectors import FS, O2, TE, S, Y

NOW = Progress(0, 1, 1)
DEEPEST = 0.2829793541
STUDENTS = (0.3 * 1.0732519201 + 0.7 * 0.7702599809, 0.3 * 1.0662052626 + 0.7 * 0.7682698098)


@pytest.mark.parametrize(("reduction", "value"), [("sum", 2.0017873624), ("mean", DEEPEST + sum(STUDENTS) / 2)])
def test_two_students(reduction: Any, value: float) -> None:
    heads = (Prediction(TE, FS), Prediction(S, FS), Prediction(O2, FS))
    method = SelfKD(feature_weight=0, student_reduction=reduction)
    batch = Batch(torch.zeros(2, 1, 1, 1), Y, torch.arange(2))
    losses = method.losses("student", {"network": lambda images: heads}, batch, NOW)  # type: ignore[dict-item]
    assert sum(loss.item() for loss in losses.values()) == pytest.approx(value, abs=1e-9)


def test_distillation_leaves_the_teachers_side_alone() -> None:
    """Without its label loss the classifier of a ViT, and the norm before it, get no gradient; its blocks do."""
    torch.manual_seed(0)
    images = torch.randn(2, 3, 32, 32)
    network = timm.create_model("deit_tiny_patch16_224", img_size=32, embed_dim=24, depth=4, num_classes=3)
    method = SelfKD(deepest_weight=0)
    models = method.models(Ingredients(lambda role: network, images))
    losses = method.losses("student", models, Batch(images, Y, torch.arange(2)), NOW)
    torch.stack([*losses.values()]).sum().backward()
    assert losses["exit feature"] > 0
    for weight in (network.head.weight, network.norm.weight, network.blocks[3].mlp.fc1.weight):
        assert not weight.grad.any()
    assert network.blocks[2].mlp.fc1.weight.grad.any()
    assert network.cls_token.grad.any()


def test_an_unknown_reduction_is_explained() -> None:
    with pytest.raises(UserError, match="Did you mean 'mean'"):
        SelfKD(student_reduction="meen")  # type: ignore[arg-type]
