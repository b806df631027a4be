"""Networks whose weights are spread over two processes learn what they learn whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch

from spacedkd import UserError, read_spec, train
from tests.conftest import tensors
from tests.training.runs_on_two import METHODS, SPREAD, VIT, OnTwo, assert_close, shared
from tests.training.two_processes import on_two


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> OnTwo:
    return shared(tmp_path_factory)


def test_they_are_really_spread(two: OnTwo) -> None:
    """Two blocks and the rest, of teacher and student; nobody asks DDP."""
    assert two.counts["spread kd with clipped gradients"]["spread modules"] == 2 * 3
    assert not any(one.get("forward") for name, one in two.counts.items() if name.startswith("spread"))


@pytest.mark.parametrize("name", [name for name in SPREAD if name != "bf16-true"])
def test_spread_over_two_they_learn_what_one_learns(tmp_path: Path, two: OnTwo, name: str) -> None:
    """Which is what DDP learns; and the file holds all of it, in the places where one process has it."""
    train(SPREAD[name], tmp_path / "one")
    assert_close(two.run(f"spread {name}"), tmp_path / "one", atol=2e-5 if "adamw" in name else 1e-6)


def test_the_student_is_saved_whole(two: OnTwo) -> None:
    for name, dtype in (("adamw and an average", torch.float32), ("bf16-true", torch.bfloat16)):
        run = two.run(f"spread {name}")
        student = timm.create_model(f"local-dir:{run / 'student'}", pretrained=True, **VIT.options)
        saved = tensors(run)
        for key, weight in student.state_dict().items():
            assert saved[f"model/student/network.{key}"].dtype == dtype
            torch.testing.assert_close(weight, saved[f"model/student/network.{key}"].float(), atol=0, rtol=0)
        average = timm.create_model(f"local-dir:{run / 'average'}", pretrained=True, **VIT.options)
        assert not torch.equal(average.head.weight, student.head.weight)


def test_what_one_process_saved_is_spread(tmp_path: Path, two: OnTwo) -> None:
    train(METHODS["kd"], tmp_path / "one")
    assert_close(two.run("spread taken up"), tmp_path / "one")
    assert read_spec(two.run("spread taken up")).processes_before == ("1 until turn 4",)


def test_what_cannot_be_spread_is_refused() -> None:
    with pytest.raises(UserError, match="give engine.devices too"):
        replace(METHODS["kd"], engine={"strategy": "fsdp"})
    with pytest.raises(UserError, match="leave one of them out"):
        on_two(METHODS["kd"], strategy="fsdp", compile=True)
