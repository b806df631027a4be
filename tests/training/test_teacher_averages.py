"""The average of a teacher's weights, which its student sees: dense sums, and equal bits however it is computed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from spacedkd import EngineSpec, MethodSpec, RunSpec, SnapshotTeacher, Spaced, UserError, compare, train
from spacedkd.cli import main
from tests.conftest import TINY, assert_same_bits, of_model, tensors
from tests.training.stepping import ready, turn_by_turn
from tests.training.stopping import train_in_parts

SPEC = replace(TINY, schedule=Spaced("4st"), teacher_average="poly:2")
NAME = "teacher average poly-2"


def weights(folder: Path) -> dict[str, Tensor]:
    """Return everything in a run's checkpoint but the teacher's optimizer, which a replay does not have."""
    return {name: value for name, value in tensors(folder).items() if not name.startswith("optimizer/teacher")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(SPEC, folder)
    return folder


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded") / "run"
    train(replace(TINY, schedule=Spaced("5st"), record=("4st",), record_average=("poly:2",)), folder)
    return folder


def test_the_student_sees_the_weighted_sum_of_the_teachers_weights_so_far() -> None:
    state = ready(SPEC)
    teacher, trajectory, seen = state.modules()["teacher"], [], 0
    for event in turn_by_turn(state):
        if event.role == "teacher":
            trajectory.append([value.detach().double().clone() for value in teacher.parameters()])
            continue
        factors = [k * (k + 1) for k in range(1, len(trajectory) + 1)]
        for number, value in enumerate(state.models["teacher"].parameters()):
            expected = sum(f * own[number] for f, own in zip(factors, trajectory, strict=True)) / sum(factors)
            torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6)
        seen += 1
    assert seen == 15


def test_the_teacher_learns_as_it_does_without(tmp_path: Path, whole: Path) -> None:
    train(replace(SPEC, teacher_average=None), tmp_path / "plain")
    assert_same_bits(of_model(whole, "teacher"), of_model(tmp_path / "plain", "teacher"))
    student, plain = of_model(whole, "student"), of_model(tmp_path / "plain", "student")
    assert any(not torch.equal(student[name], plain[name]) for name in plain)


def test_it_is_resumed_to_the_bit(tmp_path: Path, whole: Path) -> None:
    train_in_parts(SPEC, tmp_path / "parts", 2, 10, 17)
    assert_same_bits(tensors(whole), tensors(tmp_path / "parts"))


def test_a_recorded_average_is_replayed_to_the_bit(tmp_path: Path, whole: Path, recorded: Path) -> None:
    train(replace(SPEC, teacher_path=str(recorded)), tmp_path / "replay")
    assert_same_bits(weights(whole), weights(tmp_path / "replay"))
    assert (whole / "journal.jsonl").read_bytes() == (tmp_path / "replay/journal.jsonl").read_bytes()
    train(replace(TINY, schedule=Spaced("4st"), teacher_path=str(recorded)), tmp_path / "raw")
    train(replace(TINY, schedule=Spaced("4st")), tmp_path / "alone")
    assert_same_bits(weights(tmp_path / "raw"), weights(tmp_path / "alone"))


def test_in_a_pipeline_the_bits_are_the_same(tmp_path: Path, whole: Path) -> None:
    train(replace(SPEC, engine=EngineSpec(threads=1, pipeline=True)), tmp_path / "pipeline")
    assert_same_bits(weights(whole), weights(tmp_path / "pipeline"))


def test_arms_with_and_without_an_average_share_one_teacher(tmp_path: Path, whole: Path) -> None:
    arms = {
        "raw": replace(SPEC, teacher_average=None, schedule=Spaced("2st")),
        "averaged": SPEC,
        "other": replace(SPEC, teacher_average="ema:0.5"),
    }
    compare(arms, tmp_path / "arms", seeds=1, jobs=1)
    specs = {arm: json.loads((tmp_path / f"arms/{arm}/seed0/spec.json").read_text()) for arm in arms}
    assert specs["raw"]["record_average"] == ["poly:2", "ema:0.5"]
    assert [schedule["interval"] for schedule in specs["raw"]["record_average_for"]] == ["4st"]
    assert specs["averaged"]["teacher_path"] == specs["other"]["teacher_path"] != ""
    assert_same_bits(weights(whole), weights(tmp_path / "arms/averaged/seed0"))
    train(arms["other"], tmp_path / "alone")
    assert_same_bits(weights(tmp_path / "alone"), weights(tmp_path / "arms/other/seed0"))


def test_averages_are_recorded_where_their_students_see_them_alone(tmp_path: Path, whole: Path) -> None:
    folder = tmp_path / "recorded"
    spec = replace(TINY, schedule=Spaced("2st"), record=("1st",), record_average=("poly:2",))
    train(replace(spec, record_average_for=("4st",), engine=EngineSpec(threads=1, keep_path=True)), folder)
    updates = {
        role: sorted(int(file.stem) for file in (folder / "path" / role).glob("*.safetensors"))
        for role in (NAME, "teacher")
    }
    assert updates == {NAME: [4, 8, 12, 15], "teacher": [*range(1, 16)]}
    train(replace(SPEC, teacher_path=str(folder)), tmp_path / "replay")
    assert_same_bits(weights(whole), weights(tmp_path / "replay"))
    with pytest.raises(UserError, match="did not record|records"):
        train(replace(SPEC, schedule=Spaced("3st"), teacher_path=str(folder)), tmp_path / "other")


def test_statistics_of_batch_norm_can_be_averaged_instead(tmp_path: Path) -> None:
    spec = replace(SPEC, average_bn="average")
    train(spec, tmp_path / "whole")
    assert any("with BatchNorm averaged" in name for name in tensors(tmp_path / "whole"))
    train(replace(spec, teacher_average=None, record=("4st",), record_average=("poly:2",)), tmp_path / "recorded")
    train(replace(spec, teacher_path=str(tmp_path / "recorded")), tmp_path / "replay")
    assert_same_bits(weights(tmp_path / "whole"), weights(tmp_path / "replay"))


def test_assistants_are_averaged_for_who_learns_from_them(tmp_path: Path) -> None:
    chain = replace(SPEC, method=MethodSpec("ban"), epochs=2)
    train(chain, tmp_path / "whole")
    train_in_parts(chain, tmp_path / "parts", 9)
    assert_same_bits(tensors(tmp_path / "whole"), tensors(tmp_path / "parts"))


def test_other_trainers_read_the_average_by_its_name(recorded: Path, whole: Path) -> None:
    average, raw = SnapshotTeacher(recorded, "4st", role=NAME), SnapshotTeacher(recorded, "4st")
    inputs = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 1, 8, 8))).float()
    assert not torch.equal(average.seek(14)(inputs), raw.seek(14)(inputs))
    saved = {name.partition(f"{NAME}/")[2]: value for name, value in of_model(whole, NAME).items()}
    found = {name.partition("network.")[2]: value for name, value in average.network.state_dict().items()}
    assert found
    for name, value in found.items():
        assert torch.equal(value, saved[f"network.{name}"]), name


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"teacher_average": "swa:50%"}, "swa:50%"),
        ({"teacher_average": "mean"}, "mean"),
        ({"record_average": ("poly:2",)}, "record"),
        ({"record_average_for": ("4st",)}, "record_average_for"),
        ({"method": MethodSpec("none"), "schedule": None}, "teacher_average"),
        ({"method": MethodSpec("self-kd", {"variant": "live"})}, "teacher_average"),
        ({"method": MethodSpec("dml")}, "teacher_average"),
        ({"frozen_mode": "train"}, "teacher_average"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_teacher_that_cannot_be_averaged_is_refused(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        train(replace(SPEC, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_average_that_was_not_recorded_is_refused(
    tmp_path: Path, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="record_average=poly:1|record_average.*poly:1"):
        train(replace(SPEC, teacher_average="poly:1", teacher_path=str(recorded)), tmp_path / "run")
    words = "--data digits --train-limit 40 --width 4 --epochs 1 --interval 1ep --teacher-average swa".split()
    with pytest.raises(SystemExit) as ended:
        main(["train", *words, "--out", str(tmp_path / "run")])
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_spec_without_one_is_written_as_before() -> None:
    from spacedkd.config.serialization import to_json

    assert not {"teacher_average", "record_average"} & to_json(RunSpec()).keys()
