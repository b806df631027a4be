"""While one role learns, the others do not move by a bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from spacedkd import NetworkSpec, OptimizerSpec, RunSpec, Spaced
from spacedkd.training.folder import RunFolder
from spacedkd.training.prepare import prepare
from spacedkd.training.run import Run

ADAMW = OptimizerSpec("adamw", lr=1e-3, weight_decay=0.05)
WITH_DROPOUT = NetworkSpec("resnet18_small", {"width": 4, "drop_rate": 0.3, "drop_path_rate": 0.2})


def state(run: Run, model: str) -> dict[str, Tensor]:
    """Copies of parameters, buffers and optimizer state."""
    learner = run.learners[model]
    found = {f"model.{name}": value for name, value in learner.module.state_dict().items()}
    for index, slots in learner.optimizer.state_dict()["state"].items():
        found |= {f"optimizer.{index}.{name}": value for name, value in slots.items()}
    return {name: value.clone() for name, value in found.items() if isinstance(value, Tensor)}


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name in after if name not in before or not torch.equal(before[name], after[name])}


@pytest.mark.parametrize(
    "changes", [{}, {"optimizer": ADAMW}, {"network": WITH_DROPOUT}], ids=["sgd", "adamw", "dropout"]
)
def test_only_the_role_whose_turn_it_is_moves(
    tmp_path: Path, tiny_with: Callable[..., RunSpec], changes: dict[str, Any]
) -> None:
    run = prepare(tiny_with(schedule=Spaced("3st"), **changes), RunFolder(tmp_path / "run"))
    turns = 0
    for turn, batch in run.remaining():
        role = turn.role
        run.begin(role)
        before = {model: state(run, model) for model in run.learners}
        run.take(turn, batch)
        moved = {model: changed(before[model], state(run, model)) for model in run.learners}
        other = "student" if role == "teacher" else "teacher"
        assert not moved[other]
        assert any("running_mean" in name for name in moved[role])
        assert any("optimizer" in name for name in moved[role])
        turns += 1
    assert turns == 30


def test_evaluation_moves_nothing(tmp_path: Path, tiny_with: Callable[..., RunSpec]) -> None:
    run = prepare(tiny_with(), RunFolder(tmp_path / "run"))
    run.begin("teacher")
    before = {model: state(run, model) for model in run.learners}
    run.evaluate("teacher")
    run.evaluate("student")
    assert not any(changed(before[model], state(run, model)) for model in run.learners)
    assert run.models["teacher"].training
    assert not run.models["student"].training


def test_self_kd_leaves_its_exits_alone_while_the_teacher_learns(
    tmp_path: Path, tiny_with: Callable[..., RunSpec]
) -> None:
    spec = tiny_with("self-kd", {"variant": "live"}, schedule=Spaced("3st"), optimizer=ADAMW)
    run = prepare(spec, RunFolder(tmp_path / "run"))
    seen = {"teacher": set[str](), "student": set[str]()}
    for turn, batch in run.remaining():
        run.begin(turn.role)
        before = state(run, "network")
        run.take(turn, batch)
        seen[turn.role] |= changed(before, state(run, "network"))
    assert not any(name.startswith("model.exits") for name in seen["teacher"])
    assert "model.network.fc.weight" in seen["teacher"] & seen["student"]
    assert any(name.startswith("model.exits.stage1") for name in seen["student"])


def test_a_snapshot_stands_still_and_the_replay_does_not_train_the_deepest_classifier(
    tmp_path: Path, tiny_with: Callable[..., RunSpec]
) -> None:
    spec = tiny_with("self-kd", {"variant": "snapshot"}, schedule=Spaced("3st"))
    run = prepare(spec, RunFolder(tmp_path / "run"))
    role, begin = "", {}
    for turn, batch in run.remaining():
        if turn.role != role:
            role = turn.role
            run.begin(role)
            begin = {name: value.clone() for name, value in run.learners["network"].module.state_dict().items()}
        before = state(run, "network")
        run.take(turn, batch)
        if role == "student":
            assert not changed(run.models["snapshot"].state_dict(), begin)
            moved = changed(before, state(run, "network"))
            assert "model.network.fc.weight" not in moved
            assert "model.network.layer1.0.conv1.weight" in moved
