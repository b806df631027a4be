"""BAN, TAKD and ESKD: METHODS.md cards 13 to 15, and chains of any length."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spacedkd import Duration, MethodSpec, NetworkSpec, Offline, RateSpec, RunSpec, Spaced, UserError, train
from spacedkd.config.resolve import resolve
from spacedkd.data import Batch
from spacedkd.methods.ban import BAN, permuted, weighted_label
from spacedkd.methods.eskd import ESKD
from spacedkd.methods.kd import KD
from spacedkd.methods.takd import TAKD
from spacedkd.models.classifier import Prediction
from spacedkd.schedule import Turn
from tests.conftest import assert_same_bits, of_model, tensors
from tests.methods.vectors import FS, FT, TE, S, Y, at_epoch, close
from tests.training.stepping import ready


def total(method: KD, epoch: int = 0) -> float:
    """The student's loss, taught by whoever is ahead of it."""
    models: Any = {role: lambda images, adapted=True: (Prediction(TE, FT),) for role in method.chain}
    models["student"] = lambda images: (Prediction(S, FS),)
    return torch.stack([*method.losses("student", models, Batch(S, Y, Y), at_epoch(epoch)).values()]).sum().item()


def test_ban() -> None:
    assert total(BAN(label_weight=0.0)) == close(0.9246850246)
    assert total(BAN(label_weight=0.0, logit_loss="kl")) == close(0.2574859749)
    assert total(BAN()) == close(1.6949450055)


def test_bans_weighted_labels() -> None:
    confidence = TE.softmax(1).amax(1)
    assert (confidence / confidence.sum()).tolist() == [close(0.4333732764), close(0.5666267236)]
    assert weighted_label(S, TE, Y).item() == close(0.6777675901)
    assert total(BAN(knowledge="weights")) == close(0.6777675901)


def test_bans_permutation_moves_everything_but_the_largest() -> None:
    torch.manual_seed(0)
    logits = torch.randn(200, 6)
    shuffled = permuted(logits)
    assert torch.equal(logits.amax(1), shuffled.gather(1, logits.argmax(1, keepdim=True))[:, 0])
    assert torch.equal(logits.sort(1).values, shuffled.sort(1).values)
    assert not torch.equal(logits, shuffled)
    others = (logits != shuffled).float().mean(0)
    assert others.min() > 0.5, "every place is shuffled"


def test_takd() -> None:
    assert total(TAKD()) == close(0.4455733818)
    assert total(TAKD(logit_loss="kl")) == close(0.5664601645)
    small = {"label_weight": 0.8, "logit_weight": 0.2, "temperature": 2.0}
    assert total(TAKD(**small)) == close(0.6377430486)
    assert total(TAKD(**small, logit_loss="kl")) == close(0.6808131765)


def test_eskd_stops_listening() -> None:
    method = ESKD(distil_for="30ep")
    assert total(method, epoch=29) == close(0.3984522518)
    assert total(method, epoch=30) == close(0.7702599809)


def test_chains_of_any_length() -> None:
    assert BAN(generations=2).roles == ("teacher", "student")
    assert BAN(generations=4).roles == ("teacher", "generation 1", "generation 2", "student")
    assert TAKD().roles == ("teacher", "assistant", "student")
    two = TAKD(assistants=(NetworkSpec("resnet34_small"), NetworkSpec("resnet18_small")))
    assert two.roles == ("teacher", "assistant", "assistant 2", "student")
    assert two.teacher_of("student") == "assistant 2"
    with pytest.raises(UserError, match="needs two networks or more, got generations=1"):
        BAN(generations=1)


def test_generations_start_from_weights_of_their_own(tiny: RunSpec) -> None:
    setup = ready(replace(tiny, method=MethodSpec("ban")))
    firsts = [setup.learner(role).module.network.fc.weight for role in setup.run.method.roles]  # type: ignore[union-attr]
    assert not any(torch.equal(first, second) for first, second in itertools.pairwise(firsts))


def test_an_assistant_may_be_any_network(tmp_path: Path, tiny: RunSpec) -> None:
    assistants = [{"name": "resnet18_small", "options": {"width": 6}}]
    method = MethodSpec("takd", {"assistants": assistants, "feature_weight": 0.03})
    teacher = NetworkSpec("resnet18_small", {"width": 8})
    result = train(replace(tiny, method=method, teacher=teacher, epochs=1), tmp_path / "run")
    widths = [
        of_model(tmp_path / "run", role)[f"model/{role}/network.conv1.weight"].shape[0] for role in result.plan["roles"]
    ]
    assert widths == [8, 6, 4]


def test_the_generation_before_does_not_depend_on_those_after(tmp_path: Path, tiny: RunSpec) -> None:
    """Generation 0 is the same in a chain of three as in one of two, and whatever the interval."""
    for generations, schedule in ((2, Offline()), (3, Spaced("4st"))):
        options = {"generations": generations}
        spec = replace(tiny, method=MethodSpec("ban", options), schedule=schedule, epochs=2)
        train(spec, tmp_path / str(generations))
    assert_same_bits(of_model(tmp_path / "2", "teacher"), of_model(tmp_path / "3", "teacher"))


def test_an_early_stopped_teacher_has_no_more_turns_but_its_whole_course_of_the_rate(tiny: RunSpec) -> None:
    rate = RateSpec("multistep", milestones=(Duration(50, "%"),))
    spec = replace(tiny, method=MethodSpec("eskd", {"teacher_for": "40%"}), schedule=Spaced("4st"), rate=rate)
    plan = resolve(spec)
    turns = [*plan.timeline.after(0)]
    assert [turn.step for turn in turns if turn.role == "teacher"] == [0, 1, 2, 3, 4, 5]
    assert [turn.step for turn in turns if turn.role == "student"] == [*range(15)]
    assert len(turns) == len(plan.timeline) == 21
    assert [plan.lr(Turn("teacher", step)) for step in range(6)] == pytest.approx([0.02] * 3 + [0.002] * 3)
    assert [plan.lr(Turn("student", step)) for step in range(15)] == pytest.approx([0.02] * 7 + [0.002] * 8)


def test_a_teacher_that_stops_at_the_end_is_kd(tmp_path: Path, tiny: RunSpec) -> None:
    short = replace(tiny, schedule=Spaced("4st"), epochs=2)
    train(replace(short, method=MethodSpec("hinton")), tmp_path / "kd")
    train(replace(short, method=MethodSpec("eskd", {"teacher_for": "100%"})), tmp_path / "eskd")
    assert_same_bits(tensors(tmp_path / "kd"), tensors(tmp_path / "eskd"))
