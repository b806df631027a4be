"""SHAKE: METHODS.md card 9, who moves whom, and whole runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

from spacedkd import OptimizerSpec, UserError, train
from spacedkd.data import Batch
from spacedkd.methods import Ingredients
from spacedkd.methods.shake import SHAKE, normalise_logits
from spacedkd.models.classifier import Prediction
from tests.methods import by_hand
from tests.methods.fakes import says, shown, total
from tests.methods.vectors import FS, START, TE, P, S, Y, close, close_to, gradient
from tests.methods.whole_runs import NETWORKS, SPACED, check_whole_run, tiny, turns
from tests.training.stepping import ready

METHOD = "shake"
OFFLINE = SHAKE(teacher_learns=False)


def losses(role: str, s: Tensor = S, t: Tensor = TE, p: Tensor = P, method: SHAKE = OFFLINE) -> dict[str, Tensor]:
    both = (Prediction(t, FS), Prediction(p, FS))
    models: Any = {"student": says(s), "teacher": lambda images: both}
    return dict(method.losses(role, models, shown(), START))


def values(role: str, **changes: Any) -> dict[str, float]:
    return {name: value.item() for name, value in losses(role, **changes).items()}


def test_normalised_logits() -> None:
    expected = [[-0.8396010835, 4.1980054176, -3.3584043341], [-0.9996972655, -3.2490161129, 4.2487133784]]
    assert normalise_logits(Prediction(S, FS)).logits.numpy() == close_to(expected)


def test_the_cards_terms() -> None:
    assert values("student") == {"label": close(2.5251937172), "logit": close(6.4153146246)}
    assert values("teacher") == {
        "shadow logit": close(6.1765750499),
        "shadow mse": close(1.1223890883),
        "shadow label": close(0.0424734412),
    }
    assert sum(values("student").values()) + sum(values("teacher").values()) == close(16.2819459212)


def test_the_students_term_from_the_teacher_itself() -> None:
    assert values("student", method=SHAKE(teacher_weight=0.5))["teacher logit"] == close(0.5 * 4.6131943678)


def test_the_shadow_without_labels() -> None:
    without = values("teacher", method=SHAKE(teacher_learns=False, shadow_label=False))
    assert without == {"shadow logit": close(6.1765750499), "shadow mse": close(1.1223890883)}


def test_a_learning_teacher_has_its_own_label_loss() -> None:
    expected = torch.nn.functional.cross_entropy(normalise_logits(Prediction(TE, FS)).logits, Y).item()
    assert values("teacher", method=SHAKE())["label"] == close(expected)
    assert sum(values("teacher", method=SHAKE()).values()) == close(expected + 7.3414375794)


def test_gradients() -> None:
    of_student = gradient(lambda s: total(losses("student", s=s)), S)
    expected = [[-6.45522984, 2.15174457, 4.30348527], [0.50859061, -0.35601344, -0.15257716]]
    assert of_student.numpy() == close_to(expected)
    of_shadow = gradient(lambda p: total(losses("teacher", p=p)), P)
    expected = [[1.82052573, -5.46157455, 3.64104882], [-1.81526538, 5.44579545, -3.63053007]]
    assert of_shadow.numpy() == close_to(expected)
    for result in (of_student, of_shadow):
        assert result.sum(1).numpy() == pytest.approx([0, 0], abs=1e-9)


def test_the_other_sides_get_no_gradient() -> None:
    s, t, p = (logits.clone().requires_grad_() for logits in (S, TE, P))
    total(losses("student", s, t, p, SHAKE(teacher_weight=1.0))).backward()
    assert (s.grad is None, t.grad is None, p.grad is None) == (False, True, True)
    s, t, p = (logits.clone().requires_grad_() for logits in (S, TE, P))
    total(losses("teacher", s, t, p)).backward()
    assert (s.grad is None, t.grad is None, p.grad is None) == (True, True, False)


def make_ingredients() -> Ingredients:
    def network(role: str, **_: Any) -> torch.nn.Module:
        torch.manual_seed(0)
        return timm.create_model("resnet18_small", width=4, num_classes=3)

    return Ingredients(network, torch.randn(2, 3, 16, 16))


def test_the_shadows_losses_do_not_move_the_teacher_and_its_label_loss_not_the_shadow() -> None:
    method = SHAKE()
    models = method.models(make_ingredients())
    result = method.losses("teacher", models, Batch(torch.randn(4, 3, 16, 16), Y.repeat(2), torch.arange(4)), START)
    teacher = models["teacher"]
    names = [name for name, _ in teacher.named_parameters()]

    def reached(loss: Tensor) -> set[str]:
        grads = torch.autograd.grad(loss, [*teacher.parameters()], retain_graph=True, allow_unused=True)
        return {name for name, grad in zip(names, grads, strict=True) if grad is not None}

    network = {name for name in names if name.startswith("network.")}
    shadow = {name for name in names if name.startswith("shadow.")}
    assert reached(result["label"]) == network
    for name in ("shadow logit", "shadow mse", "shadow label"):
        assert reached(result[name]) == shadow


@pytest.mark.parametrize(
    ("options", "message"),
    [({"logit_weight": 0.0}, "the shadow would not learn"), ({"teacher_weight": -1.0}, "teacher_weight must be")],
)
def test_bad_options_are_explained(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        SHAKE(**options)


@pytest.mark.parametrize("network", NETWORKS)
def test_whole_runs(tmp_path: Path, network: str) -> None:
    check_whole_run(tmp_path, tiny(METHOD, {}, network, schedule=SPACED))


@pytest.mark.parametrize("network", NETWORKS)
def test_whole_runs_with_a_trained_teacher(tmp_path: Path, network: str) -> None:
    train(tiny("none", {}, network, epochs=1), tmp_path / "teacher")
    spec = tiny(METHOD, {"teacher_learns": False}, network, schedule=SPACED)
    trained = replace(NETWORKS[network], weights=str(tmp_path / "teacher"))
    check_whole_run(tmp_path, replace(spec, teacher=trained))


@pytest.mark.parametrize("optimizer", [OptimizerSpec(lr=0.02), OptimizerSpec("adamw", 1e-3, weight_decay=0.05)])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_trained_teacher_does_not_move_by_a_bit(tmp_path: Path, network: str, optimizer: OptimizerSpec) -> None:
    train(tiny("none", {}, network, epochs=1), tmp_path / "teacher")
    spec = tiny(METHOD, {"teacher_learns": False}, network, schedule=SPACED, optimizer=optimizer)
    trained = replace(NETWORKS[network], weights=str(tmp_path / "teacher"))
    setup = ready(replace(spec, teacher=trained))
    for role, _, now in turns(setup):
        assert now
        assert all(name.startswith({"teacher": "teacher/shadow.", "student": "student/"}[role]) for name in now)
        if network == "resnet":
            assert any(name.endswith("running_mean") for name in now)
    assert setup.learners["teacher"].module.network.training is False  # type: ignore[union-attr]


def test_other_ways_to_compare_logits_compose() -> None:
    """n(z) of both, standardised, decoupled at the learned temperature; features through the adapter."""
    method = SHAKE(standardise=True, curriculum=2, logit_loss="decoupled", feature_weight=0.03)
    models = {name: model.double().eval() for name, model in method.models(make_ingredients()).items()}
    labels = torch.tensor([0, 2, 1, 0])
    images = torch.randn(4, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    result = method.losses("student", models, Batch(images, labels, torch.arange(4)), START)
    with torch.no_grad():
        (own,), (teacher, shadow) = models["student"](images), models["teacher"](images)
    s, p = (
        3.1415 * by_hand.standard(logits.logits) * (3 / 2) ** 0.5 for logits in (own, shadow)
    )  # n has no Bessel's 2
    divergence = by_hand.decoupled(by_hand.standard(s), by_hand.standard(p), labels, by_hand.LEARNED)
    assert {name: value.item() for name, value in result.items()} == {
        "label": pytest.approx(by_hand.label(s, labels), rel=1e-4),  # n adds 1e-7 to the variance
        "logit": pytest.approx(by_hand.LEARNED**2 * divergence, rel=1e-4),
        "feature": close(0.03 * by_hand.distance(own.features, teacher.features)),
    }
