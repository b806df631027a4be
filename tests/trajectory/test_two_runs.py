"""Two bare loops, a teacher's and a student's, are our own run, to the bit, also after a resume at any step."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from spacedkd import MethodSpec, RunSpec, SnapshotTeacher, Spaced, train
from spacedkd.models.factory import seeded
from spacedkd.runtime.seeds import seed_for
from tests.conftest import TINY, assert_same_bits
from tests.trajectory.bare_loop import INTERVAL, LR, SEED, STEPS, Spots, distilled, loop, network, train_teacher

UPDATES = (4, 8, 12, 14)


def first_weights() -> nn.Module:
    """Return the network of our run before its first update: drawn with the seed of the run."""
    with seeded(seed_for(SEED, "weights")):
        return network()


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that trains both, block by block, and records the teacher."""
    folder = tmp_path_factory.mktemp("ours") / "run"
    spec: RunSpec = replace(
        TINY,
        **{name: getattr(RunSpec(), name) for name in ("data", "network", "optimizer")},
        method=MethodSpec("kd", {"feature_weight": 0}),
        schedule=Spaced(INTERVAL),
        record=(Spaced(INTERVAL),),
        epochs=STEPS / 5,
        channels_last=False,  # as a bare loop has it
        seed=SEED,
    )
    train(spec, folder, network=network, data=(Spots(40), Spots(8, 1)), lr=LR)
    return folder


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The snapshots of a teacher that a bare loop has trained."""
    folder = tmp_path_factory.mktemp("theirs") / "teacher"
    train_teacher(first_weights(), folder)
    return folder


def network_state(path: Path) -> dict[str, Tensor]:
    """Return the weights of a recorded snapshot; our models hold their network as a part."""
    return {name.removeprefix("network."): value for name, value in load_file(path).items()}


def test_the_teacher_is_our_own(ours: Path, theirs: Path) -> None:
    assert sorted(file.name for file in theirs.iterdir()) == sorted(f"step-{n}.safetensors" for n in UPDATES)
    for update in UPDATES:
        recorded = network_state(ours / "path" / "teacher" / f"{update:09d}.safetensors")
        assert "1.running_mean" in recorded, "BatchNorm's statistics"
        assert_same_bits(recorded, load_file(theirs / f"step-{update}.safetensors"))


def test_the_student_is_our_own(ours: Path, theirs: Path) -> None:
    for folder in (theirs, ours):
        student = first_weights()
        loop(student, distilled(SnapshotTeacher(folder, INTERVAL, network, total=STEPS)))
        assert_same_bits(load_file(ours / "student" / "model.safetensors"), student.state_dict())


def test_a_resume_at_any_step_gives_the_same_bits(theirs: Path) -> None:
    whole = first_weights()
    states: dict[int, tuple[dict[str, Tensor], dict[str, Any]]] = {}
    teacher = SnapshotTeacher(theirs, INTERVAL, network, total=STEPS)
    optimizer = torch.optim.SGD(whole.parameters(), 0.1, 0.9, weight_decay=5e-4)
    for step in range(STEPS):
        states[step] = deepcopy((whole.state_dict(), optimizer.state_dict()))
        loop(whole, distilled(teacher), step, step + 1, optimizer)
    for step, (weights, state) in states.items():
        resumed = network()
        resumed.load_state_dict(weights)
        optimizer = torch.optim.SGD(resumed.parameters(), 0.1, 0.9, weight_decay=5e-4)
        optimizer.load_state_dict(state)
        loop(resumed, distilled(SnapshotTeacher(theirs, INTERVAL, network, total=STEPS)), step, optimizer=optimizer)
        assert_same_bits(whole.state_dict(), resumed.state_dict())
