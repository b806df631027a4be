"""The official recipes against the loops of the released code, written out by hand: one pass, one step at a time."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spacedkd import load_student, train
from spacedkd.cli.flags import parse
from spacedkd.cli.overrides import to_spec
from spacedkd.data.stream import evaluation_batches
from spacedkd.runtime.seeds import seed_for
from spacedkd.schedule import Turn
from spacedkd.training.state import TrainingState
from tests.conftest import assert_same_bits, of_model
from tests.training.stepping import ready, turn_by_turn
from tests.training.stopping import assert_same_run, train_in_parts

DATA = "--data digits --train-limit 40 --batch-size 8 --epochs 2 --threads 1"
VIT = "--image-size 8 --set network.patch_size=2 --set network.embed_dim=24 --set network.depth=2"
VIT += " --set network.num_heads=2 --set network.drop_path_rate=0.5 --warmup 1ep"
PIT = "--network pit_ti_224 --image-size 8 --augment none --set network.patch_size=2 --set network.stride=1"
PIT += " --set network.base_dims=[8,8,8] --set network.depth=[1,2,1] --set network.heads=[1,2,2]"
PIT += " --set network.drop_path_rate=0.5 --warmup 1ep"
CNN = "--width 4 --set network.layers=[1,1,1,1]"
STEPS, PER_EPOCH = 10, 5


def by_command(words: str) -> tuple[TrainingState, dict[str, Any]]:
    """A run of an official recipe, and copies of its networks before the first step."""
    setup = ready(to_spec(parse(f"{DATA} {words}".split())))
    assert (setup.run.total_steps, setup.run.steps_per_epoch) == (STEPS, PER_EPOCH)
    return setup, deepcopy(setup.modules())


def assert_same(setup: TrainingState, networks: dict[str, Any], atol: float) -> None:
    for name, module in setup.modules().items():
        for key, value in module.state_dict().items():
            torch.testing.assert_close(networks[name].state_dict()[key], value, rtol=0, atol=atol, msg=f"{name} {key}")


def adamw(*networks: nn.Module) -> torch.optim.AdamW:
    """One optimizer over all of them; matrices decay, and not tokens and positions."""
    named = [one for network in networks for one in network.named_parameters()]
    spared = [p for name, p in named if p.ndim < 2 or "token" in name or "pos_embed" in name]
    decayed = [p for name, p in named if not any(p is one for one in spared)]
    return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.05}, {"params": spared, "weight_decay": 0.0}])


def step(optimizer: torch.optim.Optimizer, loss: Tensor, lr: float, still: Iterable[Tensor] = ()) -> None:
    """What stands still has a gradient of zeros, which a joint optimizer does not take for none."""
    optimizer.zero_grad()
    (loss + sum(0.0 * one.sum() for one in still)).backward()
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()


def rate(epoch: int) -> float:
    """One epoch of warm-up from 5e-7, then a cosine over both epochs, from 5e-4 to 5e-6."""
    return (5e-7, 5e-6 + 4.95e-4 / 2)[epoch]


def vit_loss(student: nn.Module, batch: Any, taught: Tensor) -> Tensor:
    """The class token's head learns from the labels, the distillation token's from the teacher.

    A network without such a token learns from the teacher in a second pass, whose drop-path has other masks.
    """
    network: Any = student.network
    tokens = network.forward_features(batch.inputs)
    if getattr(network, "head_dist", None) is not None:
        of_class, of_token = network.head(tokens[:, 0]), network.head_dist(tokens[:, 1])
    else:
        of_class, of_token = network.forward_head(tokens), network(batch.inputs)
        assert not torch.equal(of_class, of_token)
    apart = F.kl_div(of_token.log_softmax(1), taught.detach().log_softmax(1), reduction="sum", log_target=True)
    return 0.5 * F.cross_entropy(of_class, batch.labels) + 0.5 * apart / of_token.numel()


def seeded(*word: str | int) -> None:
    torch.manual_seed(seed_for(0, "masks", *word, 0))


def vit_online(setup: TrainingState, networks: dict[str, Any]) -> None:
    teacher, student = networks["teacher"].train(), networks["student"].train()
    optimizer = adamw(student, teacher)
    for number in range(STEPS):
        batch = setup.stream.batch(number)
        seeded("shared", number)
        (taught,) = teacher(batch.inputs)
        own = F.cross_entropy(taught.logits, batch.labels)  # theirs is halved, which AdamW sees by its eps alone
        step(optimizer, vit_loss(student, batch, taught.logits) + own, rate(number // PER_EPOCH))


def vit_spaced(setup: TrainingState, networks: dict[str, Any]) -> None:
    """At 0.5 epochs of 5 steps a replay follows every third step, and the tenth is never taught."""
    teacher, student = networks["teacher"].train(), networks["student"].train()
    optimizer, counter, taught_steps = adamw(student, teacher), 0, 0
    for number in range(STEPS):
        batch, lr = setup.stream.batch(number), rate(number // PER_EPOCH)
        seeded("teacher", number)
        (own,) = teacher(batch.inputs)
        step(optimizer, F.cross_entropy(own.logits, batch.labels), lr, student.parameters())
        counter += 1
        if counter < 0.5 * PER_EPOCH:
            continue
        for _ in range(counter):
            (view,) = setup.run.views(Turn("student", taught_steps))
            replayed = setup.stream.batch(*view)
            seeded("student", taught_steps)
            with torch.no_grad():
                (taught,) = teacher(replayed.inputs)
            step(optimizer, vit_loss(student, replayed, taught.logits), lr, teacher.parameters())
            taught_steps += 1
        counter = 0
    assert taught_steps == 9


def vit_offline(setup: TrainingState, networks: dict[str, Any]) -> None:
    teacher, student = networks["teacher"].train(), networks["student"].train()
    optimizer = adamw(teacher)
    for number in range(STEPS):
        batch = setup.stream.batch(number)
        seeded("teacher", number)
        step(optimizer, F.cross_entropy(teacher(batch.inputs)[0].logits, batch.labels), rate(number // PER_EPOCH))
    optimizer = adamw(student)
    for number in range(STEPS):
        batch = setup.stream.batch(number)
        seeded("student", number)
        with torch.no_grad():
            (taught,) = teacher(batch.inputs)
        step(optimizer, vit_loss(student, batch, taught.logits), rate(number // PER_EPOCH))


@pytest.mark.parametrize("network", [VIT, PIT], ids=["deit", "pit"])
@pytest.mark.parametrize(
    ("interval", "by_hand"), [("online", vit_online), ("0.5ep", vit_spaced), ("offline", vit_offline)]
)
def test_the_transformers_loop(network: str, interval: str, by_hand: Any) -> None:
    setup, networks = by_command(f"--recipe official-vit {network} --interval {interval}")
    heads = {role: getattr(model.network, "head_dist", None) is not None for role, model in networks.items()}
    assert heads == {"teacher": False, "student": network is VIT}
    by_hand(setup, networks)
    for _ in turn_by_turn(setup):
        pass
    assert_same(setup, networks, atol=2e-6)


def test_a_student_with_a_distillation_token_is_evaluated_by_both_heads(tmp_path: Path) -> None:
    spec = to_spec(parse(f"{DATA} --recipe official-vit {VIT} --interval 1ep".split()))
    run = train(spec, tmp_path / "run")
    test = ready(spec).data.test
    (batch,) = evaluation_batches(test, len(test))
    opened: Any = load_student(tmp_path / "run")
    with torch.no_grad():
        tokens = opened.forward_features(batch.inputs)
        mean = (opened.head(tokens[:, 0]) + opened.head_dist(tokens[:, 1])) / 2
        torch.testing.assert_close(opened(batch.inputs), mean)
    right = (mean.argmax(1) == batch.labels).float().mean().item()
    assert run.accuracies["student"]["test"]["final"]["last"] == pytest.approx(right)
    assert {*run.accuracies["student"]["test"]} == {"final"}


def cnn_loss(said: Any, taught: Any, labels: Tensor) -> Tensor:
    """Probabilities where a KL wants their logarithms: sum p_t (log p_t - p_s) / B at T = 3."""
    p_t, p_s = (one.logits.div(3).softmax(1) for one in (taught, said))
    logit = (p_t.detach() * (p_t.detach().log() - p_s)).sum() / len(labels)
    feature = (said.features - taught.features.detach()).norm()
    return 0.7 * F.cross_entropy(said.logits, labels) + 0.3 * logit + 0.03 * feature


def cnn(setup: TrainingState, networks: dict[str, Any], interval: int) -> None:
    """One forward pass of the teacher for each batch; online it teaches, in the other modes a later one does."""
    teacher, student = networks["teacher"].train(), networks["student"].train()
    optimizers = [
        torch.optim.SGD(one.parameters(), 0.01, momentum=0.9, weight_decay=5e-4) for one in (teacher, student)
    ]
    waiting: list[Any] = []
    for number in range(STEPS):
        batch = setup.stream.batch(number)
        (taught,) = teacher(batch.inputs)
        step(optimizers[0], F.cross_entropy(taught.logits, batch.labels), 0.01)
        waiting.append(batch)
        if len(waiting) < interval:
            continue
        teacher.train(interval < STEPS)  # offline it is put into evaluation mode
        for seen in waiting:
            if interval > 1:
                with torch.no_grad():
                    (taught,) = teacher(seen.inputs)
            (said,) = student(seen.inputs)
            step(optimizers[1], cnn_loss(said, taught, seen.labels), 0.01)
        waiting.clear()


@pytest.mark.parametrize(("interval", "steps", "seen"), [("online", 1, 10), ("3st", 3, 19), ("offline", 10, 10)])
def test_the_cnns_loop_and_when_its_teachers_statistics_move(interval: str, steps: int, seen: int) -> None:
    setup, networks = by_command(f"--recipe official-cnn {CNN} --interval {interval}")
    cnn(setup, networks, steps)
    for _ in turn_by_turn(setup):
        pass
    assert int(setup.modules()["teacher"].network.bn1.num_batches_tracked) == seen  # type: ignore[union-attr, arg-type]
    assert_same(setup, networks, atol=1e-5)


def test_a_shared_forward_pass_is_the_same_wherever_it_is_computed(tmp_path: Path) -> None:
    """In a run that was stopped between the turns of one step, and with a teacher that was recorded before."""
    words = f"{DATA} --recipe official-cnn {CNN} --interval online --set network.drop_rate=0.3 --save-every 3st"
    spec = to_spec(parse(words.split()))
    train(spec, tmp_path / "whole")
    train_in_parts(spec, tmp_path / "parts", 7)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    train(replace(spec, only="teacher", record=("online",)), tmp_path / "recorded")
    train(replace(spec, teacher_path=str(tmp_path / "recorded")), tmp_path / "followed")
    for model in ("student", "teacher"):
        kept = [of_model(tmp_path / name, model) for name in ("whole", "followed")]
        assert_same_bits(*({k: v for k, v in one.items() if k.startswith("model/")} for one in kept))
