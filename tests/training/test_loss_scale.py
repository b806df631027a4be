"""16-mixed: every learner has a loss scale of its own, so that the overflow of one leaves the others as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from spacedkd import Diverged, Duration, EngineSpec, OptimizerSpec, Spaced, UserError, train
from spacedkd.config.resolve import _choose_precision, best_precision, resolve_spec
from spacedkd.data import Batch
from spacedkd.methods import KD, Models, Progress
from spacedkd.runs.checkpoint import newest
from spacedkd.runs.journal import read_journal
from spacedkd.runs.result import read_run
from spacedkd.training.learner import LossScaler
from tests.conftest import TINY, assert_same_bits, of_model, tensors
from tests.training.stopping import assert_same_run, train_in_parts, train_until

HALF = replace(TINY, precision="16-mixed", schedule=Spaced("3st"))
FIRST_SCALE = 64.0
"""small enough that nothing overflows here that is not meant to"""


@pytest.fixture(autouse=True)
def small_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LossScaler, "FIRST", FIRST_SCALE)


class Steep(KD):
    """Knowledge distillation in which the student's loss is a number at some steps, and its slope overflows float16."""

    def __init__(self, at: Sequence[int] = (), factor: float = 1e20) -> None:
        super().__init__()
        self.at, self.factor = at, factor

    def losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> dict[str, Tensor]:
        losses = dict(super().losses(role, models, batch, progress))
        if role == "student" and progress.step in self.at:
            losses = {name: loss * self.factor for name, loss in losses.items()}
        return losses


def scales(folder: Path) -> dict[str, float]:
    position = newest(folder / "checkpoint" / "latest.safetensors").position
    return {name: state["scale"] for name, state in position.scales.items()}


def skipped(folder: Path) -> list[dict[str, object]]:
    return [entry for entry in read_journal(folder / "journal.jsonl") if entry["event"] == "skipped"]


def test_an_overflow_of_the_student_leaves_the_teacher_alone(tmp_path: Path) -> None:
    train(HALF, tmp_path / "plain", method=Steep())
    train(HALF, tmp_path / "steep", method=Steep(at=(4, 5)))
    assert_same_bits(of_model(tmp_path / "plain", "teacher"), of_model(tmp_path / "steep", "teacher"))
    assert scales(tmp_path / "plain") == {"teacher": FIRST_SCALE, "student": FIRST_SCALE}
    assert scales(tmp_path / "steep") == {"teacher": FIRST_SCALE, "student": FIRST_SCALE / 4}
    entries = skipped(tmp_path / "steep")
    assert [(e["role"], e["step"], e["not_finite"], e["loss_scale"]) for e in entries] == [
        ("student", 4, "gradients", FIRST_SCALE / 2),
        ("student", 5, "gradients", FIRST_SCALE / 4),
    ]
    assert read_run(tmp_path / "steep").plan["skipped_updates"] == {"student": 2}
    assert read_run(tmp_path / "plain").plan["skipped_updates"] == {}
    teachers = [
        [entry for entry in read_journal(tmp_path / name / "journal.jsonl") if entry["role"] == "teacher"]
        for name in ("plain", "steep")
    ]
    assert teachers[0] == teachers[1] != []


def test_a_skipped_update_moves_no_weight_and_no_average(tmp_path: Path) -> None:
    spec = replace(HALF, ema=0.9, save_every=Duration(1, "st"), epochs=1)
    method = Steep(at=(4,))  # the last step
    train_until(spec, tmp_path / "before", 9, method=method)
    train(spec, tmp_path / "after", method=method)
    for name, tensor in tensors(tmp_path / "before").items():
        if not ("running" in name or "num_batches" in name):
            assert torch.equal(tensor, tensors(tmp_path / "after")[name]), name


def test_a_resumed_run_has_the_scales_it_had(tmp_path: Path) -> None:
    method = Steep(at=(2, 7))
    train(HALF, tmp_path / "whole", method=method)
    train_in_parts(HALF, tmp_path / "parts", 7, 19, method=method)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    states = [
        newest(tmp_path / name / "checkpoint" / "latest.safetensors").position.scales for name in ("whole", "parts")
    ]
    assert states[0] == states[1]
    assert states[0]["student"]["_growth_tracker"] == 7.0  # updates since the last overflow


def test_gradients_that_overflow_at_any_scale_end_the_run(tmp_path: Path) -> None:
    spec = replace(HALF, epochs=8, save_every=Duration(1, "ep"))
    with pytest.raises(Diverged, match="the student's gradients are not finite at step 20"):
        train(spec, tmp_path / "run", method=Steep(at=range(1, 40)))


def test_losses_that_are_not_finite_end_a_run_as_in_other_precisions(tmp_path: Path) -> None:
    with pytest.raises(Diverged, match="the student's loss .* is not finite at step 2"):
        train(HALF, tmp_path / "run", method=Steep(at=(2,), factor=math.inf))
    train(replace(HALF, on_nonfinite="skip"), tmp_path / "skips", method=Steep(at=(2,), factor=math.inf))
    assert [entry["not_finite"] for entry in skipped(tmp_path / "skips")] == ["loss"]


def test_a_scaled_update_is_the_unscaled_one() -> None:
    """Scales are powers of two, so that multiplying and dividing by them changes no bit of a gradient in float32."""
    torch.manual_seed(0)
    plain, scaled = (nn.Linear(4, 3) for _ in range(2))
    scaled.load_state_dict(plain.state_dict())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (plain, scaled)]
    scaler, inputs = LossScaler("cpu"), torch.randn(8, 4)
    plain(inputs).square().mean().backward()
    optimizers[0].step()
    scaler.multiply(scaled(inputs).square().mean()).backward()
    scaler.divide_gradients(optimizers[1])
    assert scaler.step(optimizers[1])
    assert torch.equal(plain.weight, scaled.weight)


def test_auto_takes_it_on_gpus_without_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: False)
    assert best_precision("auto") == best_precision("cuda") == "16-mixed"
    auto = replace(TINY, precision="auto")
    assert resolve_spec(auto).precision == "16-mixed"
    assert resolve_spec(replace(auto, engine=EngineSpec(devices=2, strategy="fsdp"))).precision == "32-true"
    assert _choose_precision(replace(auto, optimizer=OptimizerSpec("package:optimizer"))) == "32-true"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    assert best_precision("cuda") == "bf16-mixed"


def test_optimizers_that_compute_losses_again_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="16-mixed needs an optimizer"):
        train(
            replace(HALF, optimizer=OptimizerSpec()),
            tmp_path / "run",
            optimizer=lambda named: torch.optim.LBFGS([weight for _, weight in named]),
        )
