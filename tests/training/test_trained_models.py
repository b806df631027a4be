"""Trained networks as they come back to be measured: the same weights, heads and accuracies as in training."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch

from spacedkd import NetworkSpec, RunSpec, train
from spacedkd.data.stream import evaluation_batches
from spacedkd.evaluation.scores import correct
from spacedkd.runs.tensor_file import digest
from spacedkd.runtime.errors import UserError
from spacedkd.training.trained_models import device_for, load_network, load_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.conftest import TINY

    folder = tmp_path_factory.mktemp("saved") / "run"
    train(replace(TINY, ema=0.9), folder)
    return folder


def test_the_student_is_the_one_that_was_saved(run: Path) -> None:
    saved = load_run(run)
    images = saved.data.test.inputs(torch.arange(6))
    student = timm.create_model(f"local-dir:{run}/student", pretrained=True).eval()
    with torch.no_grad():
        expected = student(images)
        torch.testing.assert_close(saved.predict()(images)[0].logits, expected)
        torch.testing.assert_close(saved.student_in_float32()(images), expected)


def test_the_teacher_and_the_average_come_along(run: Path) -> None:
    saved = load_run(run)
    assert set(saved.models) == {"teacher", "student", "average"}
    assert saved.student == "student"
    result = json.loads((run / "result.json").read_text())
    for model in saved.models:
        batches = evaluation_batches(saved.data.test, 256)
        counts = correct(saved.predict(model), saved.head_names(model), batches)
        last = result["accuracy"][model]["test"]["final"]["last"]
        assert int(counts["final"]) / len(saved.data.test.labels) == last, model


def test_early_exits_are_measured_too_and_left_out_where_only_the_deepest_counts(
    tiny_with: Callable[..., RunSpec], tmp_path: Path
) -> None:
    train(tiny_with("self-kd"), tmp_path / "run")
    saved = load_run(tmp_path / "run")
    assert saved.head_names() == ("final", "stage3", "stage2", "stage1")
    images = saved.data.test.inputs(torch.arange(6))
    with torch.no_grad():
        (deepest,) = saved.predict_deepest()(images)
        torch.testing.assert_close(deepest.logits, saved.predict()(images)[0].logits)
    assert {name.split(".")[0] for name, _ in saved.deepest().named_parameters()} == {"network"}


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "bf16-true", "64-true"])
def test_every_precision_measures_what_training_measured(precision: str, tiny: RunSpec, tmp_path: Path) -> None:
    result = train(replace(tiny, precision=precision, epochs=1, ema=0.5), tmp_path / "run")
    saved = load_run(tmp_path / "run")
    assert saved.origin["precision"] == precision
    for model in ("teacher", "student", "average"):
        counts = correct(saved.predict(model), saved.head_names(model), evaluation_batches(saved.data.test, 256))
        last = result.accuracies[model]["test"]["final"]["last"]
        assert int(counts["final"]) / len(saved.data.test.labels) == last, model


def test_only_what_learned_in_bfloat16_is_measured_in_it(tiny: RunSpec, tmp_path: Path) -> None:
    train(replace(tiny, precision="bf16-true", epochs=0.4, ema=0.5), tmp_path / "run")
    kept_in = {name: next(model.parameters()).dtype for name, model in load_run(tmp_path / "run").models.items()}
    assert kept_in == {"teacher": torch.bfloat16, "student": torch.bfloat16, "average": torch.float32}


def test_equal_weights_have_equal_names(run: Path) -> None:
    one, other = load_run(run), load_run(run)
    assert one.origin["weights_digest"] == other.origin["weights_digest"] == digest(one.module.state_dict())
    with torch.no_grad():
        next(other.module.parameters()).flatten()[0] += 1e-3
    assert digest(other.module.state_dict()) != digest(one.module.state_dict())
    assert digest(one.student_in_float32().state_dict()) == digest(one.student_in_float32().state_dict())


def test_weights_of_a_run_folder_fit_a_network_of_the_same_kind(run: Path, tiny: RunSpec) -> None:
    saved = load_network(replace(tiny.network, weights=str(run)), tiny.data)
    images = saved.data.test.inputs(torch.arange(6))
    with torch.no_grad():
        torch.testing.assert_close(saved.predict()(images)[0].logits, load_run(run).predict()(images)[0].logits)
    with pytest.raises(UserError, match="do not fit SmallResNet"):
        load_network(NetworkSpec("resnet18_small", {"width": 8}, str(run)), tiny.data)


def test_a_network_sees_images_as_in_its_own_training(run: Path, tiny: RunSpec) -> None:
    """Other training images have another mean and deviation; what the network says of an image stays the same."""
    trained = replace(tiny.network, weights=str(run))
    here, there = (load_network(trained, replace(tiny.data, train_limit=limit)) for limit in (40, 300))
    assert here.data.train.mean != there.data.train.mean
    rows = torch.arange(20)
    with torch.no_grad():
        one, other = (saved.predict()(saved.data.test.inputs(rows))[0].logits for saved in (here, there))
    torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_devices() -> None:
    assert device_for("cpu") == torch.device("cpu")
    with pytest.raises(UserError, match="tpu"):
        device_for("tpu")
