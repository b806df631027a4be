"""FitNets: METHODS.md card 3, and whole runs."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from spacedkd import Batch, Ingredients, train
from spacedkd.methods.fitnet import FitNet
from spacedkd.models.heads import Prediction
from spacedkd.models.hints import Hinted
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


def given(student: nn.Module) -> Ingredients:
    return Ingredients(lambda role, **_: deepcopy(student), torch.randn(2, 3, 16, 16))


def test_the_regressor_belongs_to_the_student_and_every_weight_learns() -> None:
    torch.manual_seed(0)
    models = FitNet().models(given(timm.create_model("resnet18_small", width=4, num_classes=3)))
    student, teacher = models["student"], models["teacher"]
    assert isinstance(student, Hinted)
    assert isinstance(teacher, Hinted)
    assert teacher.regressor is None
    images = Batch(torch.randn(2, 3, 16, 16), Y, torch.arange(2))
    total(FitNet().losses("student", models, images, START)).backward()
    assert all(weight.grad is not None for weight in student.parameters())
    assert all(weight.grad is None for weight in teacher.parameters())


def test_without_a_feature_term_there_is_no_hint() -> None:
    models = FitNet(feature_weight=0).models(given(timm.create_model("resnet18_small", width=4)))
    assert not isinstance(models["student"], Hinted)


def test_a_fixed_teacher_has_no_role() -> None:
    assert FitNet(teacher_learns=False).roles == ("student",)


@pytest.mark.parametrize("network", NETWORKS)
def test_whole_runs(tmp_path: Path, network: str) -> None:
    check_whole_run(tmp_path, tiny("spacedkd.methods.fitnet:FitNet", {}, network, schedule=SPACED))


@pytest.mark.parametrize(("teacher", "student"), [("vit", "resnet"), ("resnet", "vit")])
def test_teacher_and_student_may_differ(tmp_path: Path, teacher: str, student: str) -> None:
    spec = tiny("spacedkd.methods.fitnet:FitNet", {"curriculum": 2, "logit_weight": 0.5}, student, schedule=SPACED)
    train(replace(spec, teacher=NETWORKS[teacher], epochs=2), tmp_path / "run")
