"""TSB as we reconstructed it: METHODS.md card 10."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from math import exp
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spacedkd import Duration, OptimizerSpec, RateSpec, Spaced, UserError
from spacedkd.data import Batch
from spacedkd.methods import Progress
from spacedkd.methods.memory import Bank
from spacedkd.methods.tsb import TSB, memory_name, unbiased_mean
from tests.methods.fakes import copied, says, shown, total
from tests.methods.vectors import START, TE, S, U, Y, at_epoch, close, close_to, gradient
from tests.methods.whole_runs import tiny
from tests.training.stepping import ready, turn_by_turn

CE_S, CE_TE = 0.7702599809, 0.2829793541
AT_ONCE = TSB(ramp=0)
VISITS = [
    [[0.2312238976, 0.6285317192, 0.1402443832], [0.0563512319, 0.0169726649, 0.9266761033]],
    [[0.4985846734, 0.3872200014, 0.1141953252], [0.0479429990, 0.0660343660, 0.8860226350]],
    [[0.3690662028, 0.5290674271, 0.1018663701], [0.3628909361, 0.0782773289, 0.5588317350]],
]


def peers(images: int = 2, **logits: Tensor) -> dict[str, Any]:
    """Networks that say this, with empty memories in float64."""
    banks = {memory_name(name): Bank(images, 3).double() for name in logits}
    return {**{name: says(z) for name, z in logits.items()}, **banks}


def test_the_memory_is_a_running_mean_without_its_start() -> None:
    """Bias-corrected rows after one, two and three visits of two images somewhere in the data."""
    method = TSB(temperature=1.0)
    models = peers(7, teacher=S, student=TE)
    batch = shown(indices=(5, 2))
    for visit, (leader, follower) in enumerate([(S, TE), (TE, U), (U, S)]):
        models |= {"teacher": says(leader), "student": says(follower)}
        method.losses("teacher", models, batch, START)
        rows = unbiased_mean(models["memory of teacher"], batch.indices, 0.6)
        assert rows.numpy() == close_to(VISITS[visit])
        assert rows.sum(1).numpy() == pytest.approx(1.0, abs=1e-12)
        assert models["memory of student"].visits.tolist() == [0, 0, visit + 1, 0, 0, visit + 1, 0]
    student = 0.4 * (0.36 * TE.softmax(1) + 0.6 * U.softmax(1) + S.softmax(1)) / (1 - 0.216)
    torch.testing.assert_close(unbiased_mean(models["memory of student"], batch.indices, 0.6), student)


def test_after_one_visit_the_memory_is_the_prediction() -> None:
    """Then the soft loss is T^2 KL of the logits at T = 3 (card 0): a probability is not softened again."""
    models = peers(teacher=TE, student=S)
    backwards = 9 * F.kl_div((TE / 3).log_softmax(1), (S / 3).softmax(1), reduction="batchmean")
    leader = total(AT_ONCE.losses("teacher", models, shown(), START))
    assert leader.item() == close(CE_TE + backwards.item())
    follower = total(AT_ONCE.losses("student", models, shown(), START))
    assert follower.item() == close(CE_S + 0.3467275381)


def test_gradients_and_who_gets_none() -> None:
    def loss(z: Tensor) -> Tensor:
        models = peers(teacher=TE, student=S)
        AT_ONCE.losses("teacher", models, shown(), START)
        return total(AT_ONCE.losses("student", {**models, "student": says(z)}, shown(), START))

    expected = (S.softmax(1) - F.one_hot(Y, 3)) / 2 + 3 * ((S / 3).softmax(1) - (TE / 3).softmax(1)) / 2
    torch.testing.assert_close(gradient(loss, S), expected)
    teacher, student = TE.clone().requires_grad_(), S.clone().requires_grad_()
    models = peers(teacher=teacher, student=student)
    total(AT_ONCE.losses("teacher", models, shown(), START)).backward()
    assert student.grad is None
    assert teacher.grad is not None
    assert not any(models[memory_name(role)].rows.requires_grad for role in AT_ONCE.roles)


def test_a_follower_reads_the_memory_and_leaves_it_alone() -> None:
    models = peers(teacher=TE, student=S)
    AT_ONCE.losses("teacher", models, shown(), START)
    before = {role: copied(models[memory_name(role)]) for role in AT_ONCE.roles}
    first = total(AT_ONCE.losses("student", models, shown(), START))
    moved = {**models, "teacher": says(U)}  # only what is remembered of it counts
    assert total(AT_ONCE.losses("student", moved, shown(), START)) == first
    for role in AT_ONCE.roles:
        assert all(torch.equal(value, before[role][name]) for name, value in copied(models[memory_name(role)]).items())


def test_an_image_nobody_has_visited_counts_nothing() -> None:
    models = peers(4, teacher=TE, student=S)
    nothing = AT_ONCE.losses("student", models, shown(indices=(0, 1)), START)
    assert nothing["logit"].item() == 0
    AT_ONCE.losses("teacher", models, shown(indices=(0, 1)), START)
    whole = AT_ONCE.losses("student", models, shown(indices=(0, 1)), START)["logit"]
    half = AT_ONCE.losses("student", models, shown(indices=(0, 3)), START)["logit"]
    first = 9 * F.kl_div((S[0] / 3).log_softmax(0), (TE[0] / 3).softmax(0), reduction="sum")
    assert half.item() == close(first.item() / 2)
    assert half < whole


@pytest.mark.parametrize("labels", [Y, F.one_hot(Y, 3).double()], ids=["hard", "soft"])
def test_peers_are_weighed_alike_or_by_how_right_they_are(labels: Tensor) -> None:
    batch = shown(labels=labels)
    said = {"teacher": TE, "peer 2": U, "student": S}
    m = torch.stack([(TE / 3).softmax(1), (U / 3).softmax(1)])
    right = torch.stack([one[torch.arange(2), Y] for one in m])  # exp(-CE)
    for spatial, weights in {"uniform": torch.full((2, 2), 0.5), "confidence": right / right.sum(0)}.items():
        method = TSB(peers=3, spatial=spatial, ramp=0)  # type: ignore[arg-type]
        models = peers(**said)
        method.losses("teacher", models, batch, START)
        target = (weights[:, :, None] * m).sum(0)
        expected = CE_S + 9 * F.kl_div((S / 3).log_softmax(1), target, reduction="batchmean").item()
        assert total(method.losses("student", models, batch, START)).item() == close(expected)


def test_the_soft_loss_rises_over_eighty_epochs() -> None:
    models = peers(teacher=TE, student=S)
    TSB().losses("teacher", models, shown(), START)
    for epoch, part in {0: 0.00673795, 10: 0.02175036, 40: 0.28650480, 80: 1.0, 299: 1.0}.items():
        soft = TSB().losses("student", models, shown(), at_epoch(epoch))["logit"]
        assert soft.item() == pytest.approx(part * 0.3467275381, abs=1e-8)


def test_it_says_what_it_is() -> None:
    assert "reconstruction" in TSB.source
    assert "pcl" in TSB.source
    assert "RECONSTRUCTION" in (TSB.__doc__ or "")


def test_a_batch_must_say_which_images_it_holds() -> None:
    with pytest.raises(UserError, match="Method tsb-like remembers images by their index"):
        AT_ONCE.losses("teacher", peers(teacher=TE, student=S), Batch(torch.zeros(2), Y, None), START)


def in_a_replay(now: Progress) -> Progress:
    return now._replace(is_replay=lambda: True)


def test_in_a_replay_the_peers_ahead_answer_once_more_and_nothing_is_written() -> None:
    models = peers(teacher=TE, student=S)
    AT_ONCE.losses("teacher", models, shown(), START)
    AT_ONCE.losses("teacher", models, shown(), START)
    before = {role: copied(models[memory_name(role)]) for role in AT_ONCE.roles}
    moved = {**models, "teacher": says(U)}  # which has learned since
    target = (0.6 * (0.6 * 0.4 + 0.4) * (TE / 3).softmax(1) + 0.4 * (U / 3).softmax(1)) / (1 - 0.6**3)
    expected = CE_S + 9 * F.kl_div((S / 3).log_softmax(1), target, reduction="batchmean").item()
    assert total(AT_ONCE.losses("student", moved, shown(), in_a_replay(START))).item() == close(expected)
    for role in AT_ONCE.roles:
        assert all(torch.equal(value, before[role][name]) for name, value in copied(models[memory_name(role)]).items())
    unvisited = peers(teacher=TE, student=S)  # its answer is all there is
    follower = total(AT_ONCE.losses("student", unvisited, shown(), in_a_replay(START)))
    assert follower.item() == close(CE_S + 0.3467275381)


def test_the_ramp_of_a_short_run_ends_within_it() -> None:
    models = peers(teacher=TE, student=S)
    TSB().losses("teacher", models, shown(), START)
    for epochs, epoch, part in ((80, 0, exp(-5)), (80, 20, exp(-1.25)), (80, 40, 1), (3, 1, exp(-5 / 9)), (3, 2, 1)):
        now = Progress(step=10 * epoch, steps_per_epoch=10, total_steps=10 * epochs)
        assert TSB().losses("student", models, shown(), now)["logit"].item() == close(part * 0.3467275381)
    for steps, step, part in (
        (10, 0, exp(-5)),
        (10, 2, exp(-1.8)),
        (10, 5, 1),
        (10, 9, 1),
        (4, 1, exp(-1.25)),
        (4, 2, 1),
    ):
        now = Progress(step=step, steps_per_epoch=10, total_steps=steps)  # one epoch, or a part of one
        assert TSB().losses("student", models, shown(), now)["logit"].item() == close(part * 0.3467275381)
    now = Progress(step=400, steps_per_epoch=10, total_steps=810)  # 80 epochs end within it
    assert TSB().losses("student", models, shown(), now)["logit"].item() == close(exp(-1.25) * 0.3467275381)


class ByHand:
    """Two peers, their memories and plain SGD, with nothing of the library but the networks and their first weights."""

    def __init__(self, networks: dict[str, nn.Module], images: int, epochs: float, ramp: float) -> None:
        self.networks, self.epochs, self.ramp = networks, epochs, ramp
        self.memory = {name: torch.zeros(images, 10, dtype=torch.float64) for name in networks}
        self.visits = torch.zeros(images, dtype=torch.float64)

    def answer(self, name: str, images: Tensor) -> Tensor:
        with torch.no_grad():
            return (self.networks[name].eval()(images) / 3).softmax(1)

    def turn(self, name: str, batch: Batch, epoch: int, replays: bool, lr: float) -> float:
        images, rows = batch.inputs.double(), batch.indices
        other = "student" if name == "teacher" else "teacher"
        z = self.networks[name].train()(images)
        if name == "teacher":
            answers = {"teacher": (z / 3).softmax(1).detach(), "student": self.answer("student", images)}
            for one, p in answers.items():
                self.memory[one][rows] = 0.6 * self.memory[one][rows] + 0.4 * p
            self.visits[rows] += 1
        held, visits = self.memory[other][rows], self.visits[rows]
        if replays:
            held, visits = 0.6 * held + 0.4 * self.answer(other, images), visits + 1
        q = held / (1 - 0.6**visits)[:, None]
        ramp = min(self.ramp, self.epochs / 2)
        weight = 1.0 if epoch >= ramp else exp(-5 * (1 - epoch / ramp) ** 2)
        soft = 9 * (q * (q.log() - (z / 3).log_softmax(1))).sum(1).mean()
        loss = F.cross_entropy(z, batch.labels) + weight * soft
        gradients = torch.autograd.grad(loss, [*self.networks[name].parameters()])
        with torch.no_grad():
            for parameter, gradient_ in zip(self.networks[name].parameters(), gradients, strict=True):
                parameter.sub_(lr * gradient_)
        return loss.item()


@pytest.mark.parametrize(("interval", "replays"), [("1st", False), ("4st", True)])
def test_whole_runs_against_a_plain_loop(interval: str, replays: bool) -> None:
    optimizer = OptimizerSpec("sgd", lr=0.05, momentum=0.0, weight_decay=0.0)
    spec = tiny("tsb-like", {}, optimizer=optimizer, precision="64-true", schedule=Spaced(interval))
    setup = ready(replace(spec, rate=RateSpec("constant"), evaluate_every=Duration(100, "%"), epochs=1.6))
    networks = {name: deepcopy(setup.modules()[name].network).double() for name in ("teacher", "student")}
    plain = ByHand(networks, images=40, epochs=1.6, ramp=80)
    ours = [sum(moment.losses.values()) for moment in turn_by_turn(setup)]
    expected = [
        plain.turn(role, setup.stream.batch(step), step // 5, replays and role == "student", lr=0.05)
        for role, step in Spaced(interval).turns(("teacher", "student"), range(8))
    ]
    assert ours == pytest.approx(expected, rel=1e-10)
    for name, network in networks.items():
        for one, other in zip(network.parameters(), setup.modules()[name].network.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
