"""What a forecast says, against the runs themselves, formulas, and files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from spacedkd import DataSpec, Duration, MethodSpec, NetworkSpec, RunSpec, Spaced, UserError, forecast, train
from spacedkd.paper.scales import scale_of
from spacedkd.runs import checkpoint
from spacedkd.runs.folder import RunFolder
from spacedkd.training import Forecast
from spacedkd.training.forecast import forecasts
from tests.conftest import TINY, assert_same_bits, tensors
from tests.training.stopping import train_until
from tests.training.test_every_method import asked

Make = Callable[..., RunSpec]
AT_ONCE = 0.0
"""seconds of timing: as few steps as can be"""


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# One of each kind: a teacher, one that stops early, one network, memory, several views, branches, peers.
@pytest.mark.parametrize("name", ["none", "kd", "eskd", "self-kd", "ps-kd", "dlb", "pcl", "one", "dml"])
def test_costs_are_those_of_the_run(tmp_path: Path, tiny: RunSpec, name: str) -> None:
    """A last batch that is smaller, blocks that do not fit, and DLB, whose first step has no batch before it."""
    schedule, once = None if name == "none" else Spaced("4st"), Duration(100, "%")
    short = replace(tiny, data=DataSpec(train_limit=21), epochs=2, evaluate_every=once, save_every=once)
    spec = asked(short, name, schedule)
    found = forecast(spec, seconds=AT_ONCE)
    run = train(spec, tmp_path / "run")
    assert found.cost == run.cost
    assert found.turns == found.turns_left == sum(role.turns for role in found.roles)
    assert [role.role for role in found.roles] == [*run.roles]


class Linear(nn.Module):
    """Features in, classes out: flatten, then one matrix."""

    def __init__(self, features: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.matrix = nn.Linear(features, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.matrix(inputs.flatten(1))
        return out


@pytest.fixture(scope="module")
def linear() -> Forecast:
    """No KD on a matrix of 64 x 10, batches of 8 of 24 images, with momentum."""
    torch.manual_seed(0)
    train_set, test_set = (TensorDataset(torch.randn(n, 1, 8, 8), torch.arange(n) % 10) for n in (24, 30))
    spec = replace(TINY, method=MethodSpec("none"), network=NetworkSpec(), data=DataSpec())
    return forecast(spec, network=Linear, data=(train_set, test_set), seconds=AT_ONCE)


def test_flops_are_those_of_the_formula(linear: Forecast) -> None:
    """Forward and the gradient of the weights; nobody asks for that of the images."""
    (student,) = linear.roles
    assert student.step.flops == 2 * (2 * 8 * 64 * 10)
    assert linear.flops == 9 * student.step.flops


def test_memory_is_that_of_the_tensors(linear: Forecast) -> None:
    weights = 4 * (64 * 10 + 10)
    assert linear.parameters == {"student": 650}
    assert (linear.memory.weights, linear.memory.gradients, linear.memory.optimizers) == (weights,) * 3
    # The images, which the weights' gradient needs, and the log-probabilities and labels of the loss.
    images, logits, labels = 8 * 64 * 4, 8 * 10 * 4, 8 * 8
    assert images + logits + labels <= linear.memory.activations <= images + 3 * logits + 2 * labels
    assert linear.memory.process > 50e6
    assert linear.memory.device is None


def test_attention_is_counted_on_a_cpu(tiny: RunSpec) -> None:
    """By hand: for each token 12 d^2 in a block's matrices and 2 n d in its attention; backward twice that or more."""
    depth, width, batch, tokens = 2, 24, 8, 17
    options = {"img_size": 8, "patch_size": 2, "embed_dim": width, "depth": depth, "num_heads": 2}
    spec = replace(tiny, method=MethodSpec("none"), network=NetworkSpec("vit_tiny_patch16_224", options), epochs=1)
    step = forecast(spec, seconds=AT_ONCE).roles[0].step
    matrices = 3 * depth * 12 * width**2 * tokens
    attention = depth * 2 * width * tokens**2 * 3.5  # its backward pass computes the scores anew: five products for two
    patches, head = 2 * (2 * 2 * width) * 16, 3 * width * 10
    assert step.flops == 2 * batch * (matrices + attention + patches + head)


def test_what_is_written_is_that_of_the_run(tmp_path: Path, tiny_with: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The student's last turn of a dropped tail is in the middle of an epoch, and is measured too."""
    save = Mock(wraps=checkpoint.save)
    monkeypatch.setattr(checkpoint, "save", save)
    often = {"save_every": Duration(3, "st"), "evaluate_every": Duration(4, "st")}
    data = DataSpec(train_limit=50, holdout=0.2)
    spec = tiny_with(schedule=Spaced("4st", tail="drop"), ema=0.9, data=data, **often)
    found = forecast(spec, seconds=AT_ONCE)
    save.reset_mock()
    folder = train(spec, tmp_path / "run").folder
    journal = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    measured = [entry["role"] for entry in journal if entry["event"] == "accuracy"]
    assert found.evaluations == len([role for role in measured if role != "average"])
    assert found.saves_left == save.call_count
    sizes = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    assert found.disk.checkpoint == pytest.approx(sizes[folder / "checkpoint" / "latest.safetensors"], rel=0.002)
    students = [path for path in sizes if path.parent.name in ("student", "average", "best")]
    assert found.disk.students == sum(sizes[path] for path in students if path.name != "measured.json")
    assert found.disk.journal == pytest.approx(sizes[folder / "journal.jsonl"], rel=0.03)
    assert found.disk.needed > sum(sizes.values())


def test_what_is_left_of_a_run(tmp_path: Path, tiny_with: Make) -> None:
    """Blocks of five steps, saved after every fourth: stopped after turn 10 of 30, it was saved last after turn 9."""
    spec = tiny_with(schedule=Spaced("5st"))
    train_until(spec, tmp_path / "run", 10)
    before = contents(tmp_path / "run")
    found = forecast(spec, tmp_path / "run", seconds=AT_ONCE)
    assert contents(tmp_path / "run") == before
    assert (found.turns, found.turns_left, found.finished) == (30, 21, False)
    assert {role.role: role.turns_left for role in found.roles} == {"teacher": 10, "student": 11}
    assert [role.evaluations_left for role in found.roles] == [2, 3]
    assert found.saves_left == 5, "four on the way, one at the end"

    assert found.cost == train(spec, tmp_path / "run", if_exists="resume").cost
    after = forecast(spec, tmp_path / "run", seconds=AT_ONCE)
    assert (after.turns_left, after.finished, after.seconds_left) == (0, True, 0)


def test_time_is_made_of_its_parts(linear: Forecast) -> None:
    (student,) = linear.roles
    assert (student.turns_left, student.evaluations_left, linear.saves_left) == (9, 3, 3)
    by_hand = 9 * student.step.seconds + 3 * student.step.evaluation_seconds + 3 * linear.save_seconds
    assert linear.seconds_left == pytest.approx(by_hand + linear.start_seconds + linear.finish_seconds)
    assert min(student.step.seconds, student.step.evaluation_seconds, linear.save_seconds) > 0


def test_time_is_about_what_it_takes(tmp_path: Path, tiny_with: Make) -> None:
    """Within a factor that a busy machine leaves; a wrong unit or a forgotten role would be out of it."""
    spec = tiny_with(schedule=Spaced("1.5ep"), epochs=5)
    found = forecast(spec, seconds=0.3)
    run = train(spec, tmp_path / "run")
    assert run.seconds / 5 < found.seconds_left - found.start_seconds < 5 * run.seconds


def test_a_network_whose_blocks_take_tuples_has_a_forecast(tiny: RunSpec) -> None:
    """PiT's pass on a pair of tokens, where torch's tracker of modules fails."""
    network = scale_of("smoke").networks["pit_tiny"]
    assert forecast(replace(tiny, network=network, epochs=1), seconds=AT_ONCE).roles[0].step.flops > 0


def test_what_training_refuses_is_refused(tmp_path: Path, tiny: RunSpec) -> None:
    for asked_for in ({"record": (Spaced("1ep"),)}, {"engine": replace(tiny.engine, pipeline=True)}):
        with pytest.raises(UserError, match="With frozen_mode=train the teacher moves while others learn"):
            forecast(replace(tiny, schedule=Spaced("1ep"), frozen_mode="train", **asked_for))
    train(replace(tiny, epochs=1), tmp_path / "run")
    with pytest.raises(UserError, match="holds another run"):
        forecast(replace(tiny, epochs=2), tmp_path / "run")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty and not a run"):
        forecast(tiny, tmp_path / "full")
    with pytest.raises(UserError, match="must be a RunSpec"):
        forecast("runs/mine")  # type: ignore[arg-type]


def test_a_student_that_follows_has_its_own_turns_left(tmp_path: Path, tiny: RunSpec) -> None:
    for seed in (0, 1):
        train(replace(tiny, seed=seed, schedule=Spaced("1ep"), record=("1ep",)), tmp_path / f"recorded{seed}")
    asked = [
        replace(tiny, seed=seed, schedule=Spaced("1ep"), teacher_path=tmp_path / f"recorded{seed}") for seed in (0, 1)
    ]
    assert forecast(asked[0], seconds=0.01).turns_left == 15
    both = forecasts([(spec, RunFolder(tmp_path / str(spec.seed))) for spec in asked], seconds=0.01)
    assert [one.turns_left for one in both] == [15, 15]
    with pytest.raises(UserError, match="there is no run"):
        forecast(replace(tiny, teacher_path=tmp_path / "nowhere"), seconds=0.01)


def test_training_after_a_forecast_has_the_same_bits(tmp_path: Path, tiny_with: Make) -> None:
    spec = tiny_with(schedule=Spaced("2st"), epochs=1)
    train(spec, tmp_path / "before")
    forecast(spec, seconds=AT_ONCE)
    train(spec, tmp_path / "after")
    assert_same_bits(tensors(tmp_path / "before"), tensors(tmp_path / "after"))
