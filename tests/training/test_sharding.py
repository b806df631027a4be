"""Networks whose weights are spread over two processes learn what they learn whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch

from spacedkd import OptimizerSpec, RunSpec, UserError, read_spec, train
from tests.conftest import tensors
from tests.training.stopping import stop_after
from tests.training.test_distributed import APART, METHODS, VIT, assert_close, splittable
from tests.training.two_processes import on_two, train_on_two

SPREAD: dict[str, RunSpec] = {
    **{name: METHODS[name] for name in ("kd with clipped gradients", "self-kd snapshot", "ctkd", "ps-kd", "ban")},
    "adamw and an average": splittable("kd", APART, ema=0.9, optimizer=OptimizerSpec("adamw", 1e-3)),
    "bf16-true": splittable("kd", APART, ema=0.9, precision="bf16-true", epochs=0.4, schedule=None),
}


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spread")
    stop_after(5, METHODS["kd"], folder / "taken up" / "run")
    specs = {**SPREAD, "taken up": METHODS["kd"]}
    counts = train_on_two({name: on_two(spec, strategy="fsdp") for name, spec in specs.items()}, folder)
    assert not any(one.get("forward") for one in counts.values()), "nobody asked DDP"
    assert {name: one["spread modules"] for name, one in counts.items()}["kd with clipped gradients"] == 2 * 3
    return folder


@pytest.mark.parametrize("name", [name for name in SPREAD if name != "bf16-true"])
def test_spread_over_two_they_learn_what_one_learns(tmp_path: Path, spread: Path, name: str) -> None:
    """Which is what DDP learns; and the file holds all of it, in the places where one process has it."""
    train(SPREAD[name], tmp_path / "one")
    assert_close(spread / name / "run", tmp_path / "one", atol=2e-5 if "adamw" in name else 1e-6)


def test_the_student_is_saved_whole(spread: Path) -> None:
    for name, dtype in (("adamw and an average", torch.float32), ("bf16-true", torch.bfloat16)):
        run = spread / name / "run"
        student = timm.create_model(f"local-dir:{run / 'student'}", pretrained=True, **VIT.options)
        saved = tensors(run)
        for key, weight in student.state_dict().items():
            assert saved[f"model/student/network.{key}"].dtype == dtype
            torch.testing.assert_close(weight, saved[f"model/student/network.{key}"].float(), atol=0, rtol=0)
        average = timm.create_model(f"local-dir:{run / 'average'}", pretrained=True, **VIT.options)
        assert not torch.equal(average.head.weight, student.head.weight)


def test_what_one_process_saved_is_spread(tmp_path: Path, spread: Path) -> None:
    train(METHODS["kd"], tmp_path / "one")
    assert_close(spread / "taken up" / "run", tmp_path / "one")
    assert read_spec(spread / "taken up" / "run").processes_before == ("1 until turn 4",)


def test_what_cannot_be_spread_is_refused() -> None:
    with pytest.raises(UserError, match="give --devices too"):
        replace(METHODS["kd"], engine={"strategy": "fsdp"})
    with pytest.raises(UserError, match="leave one of them out"):
        on_two(METHODS["kd"], strategy="fsdp", compile=True)
