"""ONE: METHODS.md card 18, who learns from what, and whole runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

from spacedkd import UserError
from spacedkd.data import Batch
from spacedkd.methods import Ingredients, Progress
from spacedkd.methods.distillation import ramp_up
from spacedkd.methods.losses import cross_entropy
from spacedkd.methods.one import ONE
from spacedkd.models.classifier import Prediction
from tests.methods import by_hand
from tests.methods.fakes import shown, total
from tests.methods.vectors import FS, START, TE, S, U, Y, at_epoch, close, gradient, tensor
from tests.methods.whole_runs import NETWORKS, SPACED, check_whole_run, tiny, turns
from tests.training.stepping import ready

METHOD = "one"
GATE = tensor([[0.5, 0, 1], [2, 0.3, 0]]).relu().softmax(1)
ZE = GATE[:, :1] * S + GATE[:, 1:2] * TE + GATE[:, 2:] * U
ALL_CE, ALL_KL = 3.1042973944, 0.8533872469


def losses(
    method: ONE, role: str = "student", now: Progress = START, s: Tensor = S, joint: Tensor = ZE
) -> dict[str, Tensor]:
    heads = tuple(Prediction(z, FS) for z in (s, TE, U, joint))
    models: Any = {
        "network": lambda images, joined=True: heads if joined else heads[:3],
        "snapshot": lambda images: heads,
    }
    return dict(method.losses(role, models, shown(), now))


def test_the_ramp() -> None:
    assert [ramp_up(epoch, 80) for epoch in (0, 10, 40, 80, 200)] == pytest.approx(
        [0.00673795, 0.02175036, 0.28650480, 1, 1], abs=1e-8
    )
    assert ramp_up(0, 0) == 1


def test_the_cards_terms() -> None:
    result = {name: value.item() for name, value in losses(ONE(), now=at_epoch(80)).items()}
    assert result["label"] + result["ensemble label"] == close(ALL_CE)
    assert result["logit"] == close(ALL_KL)
    assert total(losses(ONE(), now=at_epoch(40))).item() == close(3.3487969342)


def test_the_ramp_follows_epochs_and_not_steps() -> None:
    first, last = (losses(ONE(), now=Progress(step, 5, 500))["logit"] for step in (0, 4))
    assert first == last
    assert losses(ONE(), now=Progress(5, 5, 500))["logit"] > last


def test_the_roles_of_a_spaced_run() -> None:
    leading = losses(ONE(variant="live"), "teacher", at_epoch(80))
    assert total(leading).item() == close(ALL_CE)
    assert total(losses(ONE(variant="live"), "student", at_epoch(80))).item() == close(ALL_CE + ALL_KL)
    assert total(losses(ONE(variant="snapshot"), "teacher", at_epoch(80))).item() == close(ALL_CE)
    replayed = losses(ONE(variant="snapshot"), "student", at_epoch(80))
    assert total(replayed).item() == close(ALL_CE - cross_entropy(ZE, Y).item() + ALL_KL)
    replayed = losses(ONE(variant="snapshot", replay_label=False), "student", at_epoch(80))
    assert {name: value.item() for name, value in replayed.items()} == {"logit": close(ALL_KL)}


def test_the_gradient_of_a_branch() -> None:
    """(softmax(z) - y)/B + r T (p sum(q) - q)/B."""
    result = gradient(lambda s: total(losses(ONE(), now=at_epoch(40), s=s)), S)
    q = (ZE / 3).softmax(1) + 1e-7
    label = (S.softmax(1) - torch.eye(3).double()[Y]) / 2
    soft = 3 * ((S / 3).softmax(1) * q.sum(1, keepdim=True) - q) / 2
    torch.testing.assert_close(result, label + math.exp(-5 / 4) * soft, atol=1e-12, rtol=0)


def test_the_ensemble_learns_from_the_labels_alone() -> None:
    joint = ZE.clone().requires_grad_()
    total(losses(ONE(), now=at_epoch(80), joint=joint)).backward()
    torch.testing.assert_close(joint.grad, (ZE.softmax(1) - torch.eye(3).double()[Y]) / 2, atol=1e-12, rtol=0)


def test_without_padding_it_is_the_kl() -> None:
    exact = losses(ONE(padding=0.0), now=at_epoch(80))["logit"].item()
    assert exact == pytest.approx(ALL_KL, abs=1e-4)
    assert exact != close(ALL_KL)


@pytest.mark.parametrize("standardise", [False, True])
def test_padding_composes_with_standardisation(standardise: bool) -> None:
    padded, plain = (ONE(padding=p, standardise=standardise) for p in (1e-12, 0.0))
    assert losses(padded, now=at_epoch(80))["logit"].item() == close(losses(plain, now=at_epoch(80))["logit"].item())


def make_ingredients() -> Ingredients:
    def network(role: str, fresh: bool = False, like: str | None = None) -> torch.nn.Module:
        torch.manual_seed(len(role) * fresh)
        return timm.create_model("resnet18_small", width=4, num_classes=3)

    return Ingredients(network, torch.randn(2, 3, 16, 16))


def test_the_gate_learns_from_the_ensembles_label_loss_alone() -> None:
    method = ONE()
    models = method.models(make_ingredients())
    result = method.losses(
        "student", models, Batch(torch.randn(4, 3, 16, 16), Y.repeat(2), torch.arange(4)), at_epoch(80)
    )
    model: Any = models["network"]
    gate = [*model.joint.parameters()]

    def reached(loss: Tensor, weights: Any) -> bool:
        grads = torch.autograd.grad(loss, [*weights], retain_graph=True, allow_unused=True)
        return any(grad is not None and grad.any() for grad in grads)

    assert {name for name, loss in result.items() if reached(loss, gate)} == {"ensemble label"}
    for branch in (model.network.layer4, *model.branches):
        assert all(reached(loss, branch.parameters()) for loss in result.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"branches": 1}, "two branches or more"),
        ({"ramp": -1.0}, "ramp must be at least 0"),
        ({"variant": "alive"}, "Did you mean 'live'"),
        ({"variant": "snapshot", "logit_weight": 0.0, "replay_label": False}, "has no other loss"),
    ],
)
def test_bad_options_are_explained(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ONE(**options)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("variant", ["plain", "live", "snapshot"])
def test_whole_runs(tmp_path: Path, network: str, variant: str) -> None:
    changes = {} if variant == "plain" else {"schedule": SPACED}
    check_whole_run(tmp_path, tiny(METHOD, {"variant": variant, "ramp": 2}, network, **changes))


def test_what_a_snapshots_replay_moves() -> None:
    setup, before = ready(tiny(METHOD, {"variant": "snapshot", "ramp": 0}, schedule=SPACED)), "teacher"
    for role, _, now in turns(setup):
        assert {"network/network.fc.weight", "network/branches.1.network.layer4.0.conv1.weight"} <= now
        assert ("network/joint.linear.weight" in now) == (role == "teacher")
        assert ("network/joint.norm.running_mean" in now) == (role == "teacher")
        begins = (before, role) == ("teacher", "student")  # the copy is made then, and never moves else
        assert any(name.startswith("snapshot/") for name in now) == begins
        before = role


@pytest.mark.parametrize("logit_loss", ["kl", "decoupled"])
def test_other_ways_to_compare_logits_compose(logit_loss: str) -> None:
    """Standardised logits at the learned temperature, decoupled or not, and features, summed over the branches."""
    method = ONE(standardise=True, curriculum=2, feature_weight=0.03, branches=2, ramp=4, logit_loss=logit_loss)
    models = {name: model.double().eval() for name, model in method.models(make_ingredients()).items()}
    labels = torch.tensor([0, 2, 1, 0])
    images = torch.randn(4, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    result = method.losses("student", models, Batch(images, labels, torch.arange(4)), at_epoch(1))
    with torch.no_grad():
        *branches, joint = models["network"](images)
    t, ze = by_hand.LEARNED, by_hand.standard(joint.logits)
    if logit_loss == "kl":
        divergence = sum(by_hand.kl(by_hand.standard(branch.logits), ze, t, 1e-7) for branch in branches)
    else:
        divergence = sum(by_hand.decoupled(by_hand.standard(branch.logits), ze, labels, t) for branch in branches)
    assert {name: value.item() for name, value in result.items()} == {
        "ensemble label": close(by_hand.label(joint.logits, labels)),
        "label": close(sum(by_hand.label(branch.logits, labels) for branch in branches)),
        "logit": pytest.approx(math.exp(-5 * (1 - 1 / 4) ** 2) * t**2 * divergence, rel=1e-9),
        "feature": close(0.03 * sum(by_hand.distance(branch.features, joint.features) for branch in branches)),
    }
