"""Collaborative learning and its targets: METHODS.md card 19."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn import functional as F

from spacedkd import UserError
from spacedkd.data import Batch
from spacedkd.data.stream import View
from spacedkd.methods import kdcl
from spacedkd.methods.kdcl import KDCL
from spacedkd.models.classifier import Prediction
from tests.methods.fakes import says, shown, total
from tests.methods.vectors import FS, START, TE, P, S, U, Y, close, close_to

CE_TE = 0.2829793541


def kdcl_models(**logits: Tensor) -> Any:
    """Networks that answer only their own view, which carries their place as a mark."""

    def make(number: int, z: Tensor) -> Any:
        def model(images: Tensor) -> tuple[Prediction, ...]:
            assert (images == number).all(), "a network was shown another one's view"
            return (Prediction(z, FS),)

        return model

    return {name.replace("_", " "): make(number, z) for number, (name, z) in enumerate(logits.items())}


def views(method: KDCL, role: str) -> Batch:
    """What a stream would show: every view marked by its number."""
    first, *others = (shown(float(look.view)) for look in method.views(role, 3))
    return first._replace(others=tuple(others))


def test_collaborative_learning_from_the_mean_of_all_logits() -> None:
    method, models = KDCL(), kdcl_models(teacher=TE, student=S)
    result = total(method.losses("student", models, views(method, "student"), START))
    assert result.item() == close(0.4276467402)


@pytest.mark.parametrize("target", kdcl.TARGETS)
@pytest.mark.parametrize("role", ["teacher", "peer 2", "student"])
def test_gradient_of_collaborative_learning(target: Any, role: str) -> None:
    """(p - y) / 2B + T (p_T - q_T) / 2B: the target holds still though a network's own logits are in it."""
    method = KDCL(peers=3, target=target)
    logits = {"teacher": TE, "peer 2": U, "student": S}
    own = logits[role].clone().requires_grad_()
    models = kdcl_models(**{**logits, role: own})
    total(method.losses(role, models, views(method, role), START)).backward()
    order = [role, *(other for other in logits if other != role)]
    aim = kdcl.TARGETS[target](torch.stack([logits[name] for name in order]), Y)
    z = own.detach()
    labels = (z.softmax(1) - F.one_hot(Y, 3)) / 4
    torch.testing.assert_close(own.grad, labels + 4 * ((z / 4).softmax(1) - (aim / 4).softmax(1)) / 4)


def test_every_network_has_a_view_of_its_own() -> None:
    method = KDCL(peers=3)
    assert [*method.views("teacher", 7)] == [View(7, 0), View(7, 1), View(7, 2)]
    assert [*method.views("student", 7)] == [View(7, 2), View(7, 0), View(7, 1)]
    assert [*KDCL(own_views=False).views("student", 7)] == [View(7)]
    with pytest.raises(UserError, match="shows each of 2 networks its own view, and this batch has 1"):
        KDCL().losses("student", {"teacher": says(TE), "student": says(S)}, shown(), START)


def test_or_all_see_the_same() -> None:
    models = {"teacher": says(TE), "student": says(S)}
    assert total(KDCL(own_views=False).losses("student", models, shown(), START)).item() == close(0.4276467402)


def test_min_logit_target() -> None:
    target = kdcl.min_logit_target(torch.stack([S, TE]), Y)
    assert target.numpy() == close_to([[0, -1.0, -1.9], [-3.0, -4.0, 0]])
    assert F.cross_entropy(target, Y).item() == close(0.2414569600)


def test_min_logit_is_better_than_everybody_for_every_image() -> None:
    logits, labels = 3 * torch.randn(4, 50, 7, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 7
    each = torch.stack([F.cross_entropy(z, labels, reduction="none") for z in logits])
    result = F.cross_entropy(kdcl.min_logit_target(logits, labels), labels, reduction="none")
    assert (result <= each.amin(0) + 1e-6).all()


def test_naive_target() -> None:
    assert torch.equal(kdcl.naive_target(torch.stack([S, TE]), Y), torch.stack([TE[0], S[1]]))


def test_linear_target() -> None:
    """Card 19: all weight on Te."""
    assert kdcl.linear_weights(torch.stack([S, TE]), Y).tolist() == [0, 1]
    assert F.cross_entropy(kdcl.linear_target(torch.stack([S, TE]), Y), Y).item() == close(CE_TE)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("networks", [2, 3, 5])
def test_linear_weights_are_those_a_general_solver_finds(networks: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(5, (64,), generator=generator)
    logits = torch.randn(networks, 64, 5, generator=generator, dtype=torch.float64)
    logits += torch.linspace(0.5, 1.5, networks)[:, None, None] * F.one_hot(labels, 5)

    def loss(w: Any) -> float:
        return F.cross_entropy(torch.tensordot(torch.tensor(w), logits, dims=1), labels).item()

    simplex = {"type": "eq", "fun": lambda w: w.sum() - 1}
    start = [1 / networks] * networks
    best = minimize(loss, start, bounds=[(0, 1)] * networks, constraints=simplex, tol=1e-12)
    weights = kdcl.linear_weights(logits, labels)
    assert weights.sum().item() == close(1.0)
    assert weights.min() >= 0
    assert loss(weights.numpy()) <= best.fun + 1e-9
    assert weights.tolist() == pytest.approx(best.x, abs=1e-3)


@pytest.mark.parametrize("target", kdcl.TARGETS.values(), ids=kdcl.TARGETS)
def test_targets_take_soft_labels_and_pass_no_gradient(target: Any) -> None:
    logits = torch.stack([S, TE, U, P]).requires_grad_()
    assert torch.equal(target(logits, Y), target(logits, F.one_hot(Y, 3).double()))
    assert not target(logits, Y).requires_grad
