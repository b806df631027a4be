"""Peers that teach each other: METHODS.md card 8 (DML), and who learns from which weights of the others."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spacedkd import Online, Spaced, UserError
from spacedkd.methods.dml import DML
from spacedkd.methods.kdcl import KDCL
from spacedkd.methods.tsb import TSB
from spacedkd.models.classifier import Prediction
from tests.methods.fakes import says, shown, total
from tests.methods.vectors import FS, START, TE, S, U, close, close_to, gradient

CE_TE = 0.2829793541


def dml_loss(method: DML, role: str, **logits: Tensor) -> Tensor:
    """Return the loss of one of several networks that give these logits."""
    models = {name.replace("_", " "): says(z) for name, z in logits.items()}
    return total(method.losses(role, models, shown(), START))


@pytest.mark.parametrize(
    ("method", "role", "logits", "value"),
    [
        (DML(), "student", {"teacher": TE, "student": S}, 1.0277459558),
        (DML(), "teacher", {"teacher": TE, "student": S}, 0.5127612395),
        (DML(peers=3), "student", {"teacher": TE, "peer_2": U, "student": S}, 1.2685779928),
        (DML(peers=3, peer_reduction="sum"), "student", {"teacher": TE, "peer_2": U, "student": S}, 1.7668960047),
        (DML(reverse=False), "teacher", {"teacher": TE, "student": S}, CE_TE),  # from the labels alone
        (DML(reverse=False), "student", {"teacher": TE, "student": S}, 1.0277459558),
    ],
)
def test_values(method: DML, role: str, logits: dict[str, Tensor], value: float) -> None:
    assert dml_loss(method, role, **logits).item() == close(value)


def test_a_network_learns_and_its_peers_get_no_gradient() -> None:
    of_student = gradient(lambda s: dml_loss(DML(), "student", teacher=TE, student=s), S)
    expected = [[-0.59827667, 0.50731523, 0.09096144], [0.03490220, -0.03076303, -0.00413917]]
    assert of_student.numpy() == close_to(expected)
    peer, own = TE.clone().requires_grad_(), S.clone().requires_grad_()
    dml_loss(DML(), "student", teacher=peer, student=own).backward()
    assert peer.grad is None
    assert own.grad is not None


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"standardise": True, "temperature": 2.0, "label_weight": 0.1, "logit_weight": 9.0}, 2.8868142185),
        ({"logit_loss": "decoupled", "temperature": 4.0, "label_weight": 0.0}, 2.3858544650),
    ],
    ids=["standardised (card 12)", "decoupled (card 20)"],
)
def test_ways_to_compare_logits_compose_with_peers(options: Any, value: float) -> None:
    method = DML(temperature_squared=True, **options)
    assert dml_loss(method, "student", teacher=TE, student=S).item() == close(value)


class Counter(nn.Module):
    """A network whose only weight says how often it was updated."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("updates", torch.zeros(()))

    def forward(self, images: Tensor) -> tuple[Prediction, ...]:
        return (Prediction(self.updates.expand(len(images), 3).clone(), FS),)


class PeerIngredients:
    """Ingredients for peers: no networks at all, but each of its own."""

    def network(self, role: str, fresh: bool) -> nn.Module:
        assert fresh, "equal peers would stay equal"
        return nn.Identity()


def updates_seen(method: DML, turns: list[str]) -> list[list[float]]:
    """Return for each turn the number of updates that each other network has had, as its role sees them."""
    built = method.models(PeerIngredients())
    models: dict[str, Any] = {name: model if name == "round" else Counter() for name, model in built.items()}
    updates: list[list[float]] = []
    for before, role in pairwise(["", *turns]):
        if role != before:
            method.on_block_start(role, models)
        others = method.others(role)
        updates.append(
            [method.predict_peer(other, models, torch.zeros(1, 1, 1, 1)).logits[0, 0].item() for other in others]
        )
        models[role].updates += 1
    return updates


def test_every_peer_learns_its_own_temperature() -> None:
    models = DML(peers=3, curriculum=10.0).models(PeerIngredients())
    assert [[name for name, _ in model.named_parameters()] for model in models.values()] == [["heat"]] * 3


def test_the_next_network_learns_from_the_update_just_made() -> None:
    assert updates_seen(DML(), ["teacher", "student"] * 2) == [[0], [1], [1], [2]]


@pytest.mark.parametrize("order", [("teacher", "student"), ("student", "teacher")])
def test_or_everybody_as_they_were_before_the_round_whoever_comes_first(order: tuple[str, str]) -> None:
    method = DML(refresh_peers=False)
    assert updates_seen(method, [*order] * 3) == [[0], [0], [1], [1], [2], [2]]


def test_learning_from_the_others_as_they_were_would_undo_spacing() -> None:
    method = DML(refresh_peers=False)
    method.check_schedule(Online())
    DML().check_schedule(Spaced("2st"))
    with pytest.raises(UserError, match="refresh_peers"):
        method.check_schedule(Spaced("2st"))


def test_a_round_of_three() -> None:
    method = DML(peers=3, refresh_peers=False)
    assert updates_seen(method, ["teacher", "peer 2", "student"] * 2) == [[0, 0]] * 3 + [[1, 1]] * 3
    fresh = updates_seen(DML(peers=3), ["teacher", "peer 2", "student"] * 2)
    assert fresh == [[0, 0], [1, 0], [1, 1], [1, 1], [2, 1], [2, 2]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DML(peers=1), "needs two networks or more; got peers=1"),
        (lambda: KDCL(peers=0), "needs two networks or more; got peers=0"),
        (lambda: TSB(peers=1), "needs two networks or more; got peers=1"),
        (lambda: DML(temperature=0), "temperature must be above 0 and finite, got 0"),
        (lambda: TSB(temperature=0), "temperature must be above 0 and finite, got 0"),
        (lambda: DML(feature_weight=0.03), "compare logits alone"),
        (lambda: DML(peer_reduction="avg"), "Unknown peer_reduction 'avg'"),
        (lambda: KDCL(target="minlogit"), "Did you mean 'min-logit'"),
        (lambda: TSB(mu=1.0), "mu must be from 0 up to"),
        (lambda: TSB(spatial="confident"), "Did you mean 'confidence'"),
        (lambda: TSB(ramp=-1.0), "ramp must be at least 0"),
    ],
)
def test_bad_options_are_explained(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()
