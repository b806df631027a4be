"""FitNets: METHODS.md card 3, and whole runs."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from spacedkd.data import Batch
from spacedkd.methods import Ingredients
from spacedkd.methods.fitnet import FitNet
from spacedkd.models.classifier import Prediction
from spacedkd.models.feature_hooks import WithHint
from tests.methods import by_hand
from tests.methods.fakes import shown, total
from tests.methods.vectors import FS, FT, START, TE, S, Y, close, gradient
from tests.methods.whole_runs import NETWORKS, SPACED, check_whole_run, tiny


def fakes(logits: Tensor, hint: Tensor) -> Any:
    return {
        "student": lambda images: (Prediction(logits, hint),),
        "teacher": lambda images, adapted=True: (Prediction(TE, FT),),
    }


def loss(logits: Tensor, hint: Tensor, **options: Any) -> Tensor:
    return total(FitNet(**options).losses("student", fakes(logits, hint), shown(), START))


def test_the_students_loss_is_the_cards() -> None:
    assert FitNet().losses("student", fakes(S, FS), shown(), START)["feature"].item() == close(26)
    assert loss(S, FS).item() == close(0.7702599809 + 26)


def test_gradients() -> None:
    """200 (F_s - F_t) / 8 of the hint, (softmax - one hot) / 2 of the logits."""
    torch.testing.assert_close(gradient(lambda hint: loss(S, hint), FS), 25 * (FS - FT))
    one_hot = torch.eye(3, dtype=torch.float64)[Y]
    torch.testing.assert_close(gradient(lambda logits: loss(logits, FS), S), (S.softmax(1) - one_hot) / 2)


@pytest.mark.parametrize(
    ("name", "value"),
    [("norm", 1.4422205102), ("mse", 0.26), ("square-sum", 2.08), ("cross-entropy", 3.2606718797)],
)
def test_other_distances(name: str, value: float) -> None:
    assert loss(S, FS, feature_loss=name, feature_weight=1.0).item() == close(0.7702599809 + value)


def test_kd_can_be_added() -> None:
    assert loss(S, FS, logit_weight=0.5).item() == close(0.7702599809 + 26 + 0.5 * 0.0385252820)


def test_the_teacher_learns_from_the_labels() -> None:
    losses = FitNet().losses("teacher", fakes(S, FS), shown(), START)
    assert {name: value.item() for name, value in losses.items()} == {"label": close(0.2829793541)}


def ingredients_for(student: nn.Module) -> Ingredients:
    return Ingredients(lambda role, **_: deepcopy(student), torch.randn(2, 3, 16, 16))


def test_the_regressor_belongs_to_the_student_and_every_weight_learns() -> None:
    torch.manual_seed(0)
    models = FitNet().models(ingredients_for(timm.create_model("resnet18_small", width=4, num_classes=3)))
    student, teacher = models["student"], models["teacher"]
    assert isinstance(student, WithHint)
    assert isinstance(teacher, WithHint)
    assert teacher.regressor is None
    images = Batch(torch.randn(2, 3, 16, 16), Y, torch.arange(2))
    total(FitNet().losses("student", models, images, START)).backward()
    assert all(weight.grad is not None for weight in student.parameters())
    assert all(weight.grad is None for weight in teacher.parameters())


def test_without_a_feature_term_there_is_no_hint() -> None:
    models = FitNet(feature_weight=0).models(ingredients_for(timm.create_model("resnet18_small", width=4)))
    assert not isinstance(models["student"], WithHint)


def test_a_fixed_teacher_has_no_role() -> None:
    assert FitNet(teacher_learns=False).roles == ("student",)


@pytest.mark.parametrize("network", NETWORKS)
def test_whole_runs(tmp_path: Path, network: str) -> None:
    check_whole_run(tmp_path, tiny("fitnet", {}, network, schedule=SPACED))


def read_by_hand(network: nn.Module, kind: str, images: Tensor) -> tuple[Tensor, Tensor]:
    """Logits, and what a hook sees behind the middle layer: the pooled maps of stage 2, the class token of block 2."""
    seen: list[Tensor] = []
    with network.get_submodule({"resnet": "layer2", "vit": "blocks.1"}[kind]).register_forward_hook(
        lambda _, __, output: seen.append(output)
    ):
        logits = network(images)
    return logits, seen[0].mean((2, 3)) if kind == "resnet" else seen[0][:, 0]


@pytest.mark.parametrize(("teacher", "student"), [("vit", "resnet"), ("resnet", "vit")])
def test_teacher_and_student_may_differ(teacher: str, student: str) -> None:
    """Maps meet tokens where both are pooled, through Linear and LayerNorm; logits at the learned temperature."""
    kinds = {"teacher": teacher, "student": student}

    def network(role: str, **_: Any) -> nn.Module:
        spec = NETWORKS[kinds[role]]
        return timm.create_model(spec.name, **spec.options, in_chans=1, num_classes=3)

    torch.manual_seed(0)
    method = FitNet(curriculum=2, logit_weight=0.5)
    built = method.models(Ingredients(network, torch.randn(2, 1, 8, 8)))
    models: dict[str, Any] = {name: model.double().eval() for name, model in built.items()}
    images, labels = torch.randn(4, 1, 8, 8).double(), torch.tensor([0, 2, 1, 0])
    terms = method.losses("student", models, Batch(images, labels, torch.arange(4)), START)
    total(terms).backward()
    assert all(weight.grad is not None for weight in models["student"].model.regressor.parameters())
    with torch.no_grad():
        z_t, hint_t = read_by_hand(models["teacher"].network, teacher, images)
        z_s, hint_s = read_by_hand(models["student"].network, student, images)
        linear, norm = models["student"].model.regressor
        mapped = hint_s @ linear.weight.T + linear.bias
        mapped = (mapped - mapped.mean(1, keepdim=True)) / (mapped.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
        mapped = mapped * norm.weight + norm.bias
    assert {name: value.item() for name, value in terms.items()} == {
        "label": close(by_hand.label(z_s, labels)),
        "logit": close(0.5 * by_hand.kl(z_s, z_t, by_hand.LEARNED)),
        "feature": close(100 * (mapped - hint_t).square().mean().item()),
    }
