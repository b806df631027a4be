"""Results, costs and journals of runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch

from spacedkd import DataSpec, Duration, NetworkSpec, Online, OptimizerSpec, RunSpec, Spaced, UserError, train
from spacedkd.data.sources import load
from spacedkd.schedule import ReleasedSelfKD
from spacedkd.training import Event
from tests.conftest import tensors

Make = Callable[..., RunSpec]


COSTS = {
    # updates, forward passes, backward passes; 15 steps over 120 images
    "none": ("none", {}, (15, 15, 15)),
    "kd": ("kd", {}, (30, 45, 30)),
    "self-kd": ("self-kd", {}, (15, 15, 15)),
    "self-kd live": ("self-kd", {"variant": "live"}, (30, 30, 30)),
    "self-kd snapshot": ("self-kd", {"variant": "snapshot"}, (30, 45, 30)),
}


@pytest.mark.parametrize("case", COSTS)
def test_costs_are_counted(tmp_path: Path, tiny_with: Make, case: str) -> None:
    method, options, expected = COSTS[case]
    alone = expected[0] == 15  # one role, so nothing to space
    result = train(tiny_with(method, options, schedule=None if alone else Spaced("1.5ep")), tmp_path / "run")
    updates, forward, backward = expected
    assert (result.cost["updates"], result.cost["forward_passes"], result.cost["backward_passes"]) == expected
    assert result.cost["forward_images"] == forward * 8
    assert result.cost["backward_images"] == backward * 8
    assert result.seconds > 0
    assert sum(n for name, n in result.cost["by_model"].items() if name.endswith("updates")) == updates


def test_every_head_of_every_role_is_measured_every_epoch(tmp_path: Path, tiny_with: Make) -> None:
    spec = tiny_with("self-kd", {"variant": "live"}, schedule=Spaced("4st"), data=DataSpec(train_limit=50, holdout=0.2))
    result = train(spec, tmp_path / "run")
    heads = {"final", "stage3", "stage2", "stage1", "ensemble"}
    for role in ("teacher", "student"):
        assert result.accuracies[role].keys() == {"test", "holdout"}
        assert result.accuracies[role]["test"].keys() == heads
    measured = [json.loads(line) for line in (tmp_path / "run" / "journal.jsonl").read_text().splitlines()]
    epochs = [e["epoch"] for e in measured if e["event"] == "accuracy" and e["role"] == "student"]
    assert epochs == [1.0, 2.0, 3.0]


def test_a_dropped_tail_is_still_measured_at_its_end(tmp_path: Path, tiny_with: Make) -> None:
    """The student's last turn is in the middle of an epoch; that is where `last` must be."""
    result = train(tiny_with(schedule=Spaced("4st", tail="drop")), tmp_path / "run")
    measured = [json.loads(line) for line in (tmp_path / "run" / "journal.jsonl").read_text().splitlines()]
    student = [e for e in measured if e["event"] == "accuracy" and e["role"] == "student"]
    assert student[-1]["step"] == 11
    assert result.score() == student[-1]["accuracy"]["test"]["final"]


def of_the_saved_student(folder: Path, spec: RunSpec) -> float:
    """Its accuracy by hand: timm's loader, all test images at once."""
    student = timm.create_model(f"local-dir:{folder}/student", pretrained=True).eval()
    test = load(spec.data).test
    with torch.no_grad():
        return float((student(test.normalise(test.pixels)).argmax(1) == test.labels).float().mean())


def test_the_saved_student_has_the_accuracy_the_result_says(tmp_path: Path, tiny_with: Make) -> None:
    spec = tiny_with("self-kd", epochs=12, data=DataSpec(train_limit=200), batch_size=20)
    result = train(spec, tmp_path / "run")
    assert of_the_saved_student(tmp_path / "run", spec) == pytest.approx(result.score(), abs=1.5 / 898)
    assert result.score() > 0.3, "a few hundred steps should be far above the 10 % of chance"


ENDS = {
    # whose turns end the run though they are not the student's, and move it: one network, or an optimizer of both
    "released": ("self-kd", {"variant": "live"}, {"schedule": ReleasedSelfKD("7st")}),
    "snapshot": ("self-kd", {"variant": "snapshot"}, {"schedule": Spaced("4st", tail="drop")}),
    "follower first": ("one", {"variant": "live"}, {"schedule": Online(), "follower_first": True}),
    "moves frozen": (
        "kd",
        {},
        {"schedule": Spaced("4st", tail="drop"), "optimizer": OptimizerSpec("adamw", lr=0.02, moves_frozen=True)},
    ),
}


@pytest.mark.parametrize("case", ENDS)
def test_what_is_reported_last_is_what_is_saved(tmp_path: Path, tiny_with: Make, case: str) -> None:
    method, options, changes = ENDS[case]
    spec = tiny_with(method, options, **changes)
    turns: list[int] = []
    result = train(spec, tmp_path / "run", callback=lambda moment: turns.append(moment.turn))
    lines = [json.loads(line) for line in (tmp_path / "run" / "journal.jsonl").read_text().splitlines()]
    *_, last = (line for line in lines if line["event"] == "accuracy" and line["role"] == "student")
    assert (last["turn"], last["epoch"]) == (turns[-1], 3.0)
    assert result.score() == last["accuracy"]["test"]["final"] == result.accuracy_curves["student"][3.0]
    assert of_the_saved_student(tmp_path / "run", spec) == pytest.approx(result.score(), abs=0.5 / 898)


def test_networks_of_two_architectures(tmp_path: Path, tiny_with: Make) -> None:
    teacher = NetworkSpec("resnet34_small", {"width": 6})
    result = train(tiny_with(teacher=teacher, schedule=Spaced("1ep")), tmp_path / "run")
    config = json.loads((tmp_path / "run" / "student" / "config.json").read_text())
    assert config["architecture"] == "resnet18_small"
    assert result.accuracies.keys() == {"teacher", "student"}


def test_any_timm_network_is_trained_measured_and_saved(tmp_path: Path, tiny_with: Make) -> None:
    vit = NetworkSpec(
        "vit_tiny_patch16_224", {"img_size": 8, "patch_size": 2, "embed_dim": 24, "depth": 2, "num_heads": 2}
    )
    spec = tiny_with(network=vit, teacher=NetworkSpec("mobilenetv3_small_050"), precision="32-true")
    result = train(spec, tmp_path / "run")
    assert of_the_saved_student(tmp_path / "run", spec) == pytest.approx(result.score(), abs=0.5 / 898)


def test_the_precision_that_was_used_is_recorded(tmp_path: Path, tiny_with: Make) -> None:
    for asked in ("bf16-mixed", "32-true", "auto"):
        train(tiny_with(precision=asked, epochs=1), tmp_path / asked)
    said = {
        name: json.loads((tmp_path / name / "spec.json").read_text())["precision"] for name in ("bf16-mixed", "32-true")
    }
    assert said == {"bf16-mixed": "bf16-mixed", "32-true": "32-true"}
    chosen = json.loads((tmp_path / "auto" / "spec.json").read_text())["precision"]
    assert tensors_equal(tmp_path / "auto", tmp_path / chosen)
    assert not tensors_equal(tmp_path / "bf16-mixed", tmp_path / "32-true")


def tensors_equal(one: Path, other: Path) -> bool:
    pairs = zip(tensors(one).values(), tensors(other).values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_divergence_is_said_in_one_line(tmp_path: Path, tiny_with: Make) -> None:
    with pytest.raises(UserError, match=r"diverged.*Lower optimizer.lr"):
        train(tiny_with("none", optimizer=OptimizerSpec(lr=1e30), log_every=Duration(1, "st")), tmp_path / "run")


def test_divergence_in_a_run_too_short_to_log_is_noticed(tmp_path: Path, tiny_with: Make) -> None:
    with pytest.raises(UserError, match="diverged"):
        train(tiny_with("none", optimizer=OptimizerSpec(lr=1e30), log_every=Duration(100, "%")), tmp_path / "run")
    assert not (tmp_path / "run" / "result.json").exists()


def test_somebody_watching_is_told_every_turn(tmp_path: Path, tiny_with: Make) -> None:
    told: list[Event] = []
    train(tiny_with(schedule=Spaced("1.5ep")), tmp_path / "run", callback=told.append)
    assert [moment.turn for moment in told] == list(range(1, 31))
    assert {moment.turns for moment in told} == {30}
    assert sum(moment.accuracy is not None for moment in told) == 6
