"""What a spec's fields declare: its fingerprint, pairs of runs, a resume, a shared teacher."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spacedkd import DataSpec, EngineSpec, RunSpec, Spaced, read_spec
from spacedkd.config.spec import pairing_json, resumable_fields, teacher_settings

RUNS = sorted(Path(__file__).parent.parent.glob("results/runs/*/*/spec.json"))


def test_the_committed_runs_keep_their_fingerprints() -> None:
    """The folder of a reproduction's run is the fingerprint of its first seed."""
    folders = {path.parent.parent.name for path in RUNS}
    fingerprints = {read_spec(path).fingerprint() for path in RUNS if path.parent.name == "seed0"}
    assert len(RUNS) >= 128
    assert folders == fingerprints


@pytest.mark.parametrize(
    "change",
    [
        {"label": "mine"},
        {"save_every": "2ep"},
        {"log_every": "1st"},
        {"log": ("csv",)},
        {"record": (Spaced("2ep"),)},
        {"teacher_path": "runs/other"},
        {"engine": EngineSpec(workers=4, threads=2, accelerator="cpu")},
        {"data": DataSpec(root="elsewhere")},
    ],
)
def test_fields_that_do_not_decide_what_is_computed(change: dict[str, Any]) -> None:
    assert replace(RunSpec(), **change).fingerprint() == RunSpec().fingerprint()


@pytest.mark.parametrize(
    "change",
    [
        {"sync_batchnorm": True},
        {"only": "teacher"},
        {"on_nonfinite": "skip"},
        {"follower_rate": "leader"},
        {"accumulate": 2},
        {"evaluate_every": "2ep"},
        {"seed": 1},
        {"schedule": "2ep"},
        {"engine": EngineSpec(devices=2)},
        {"processes_before": ("2 until turn 3",)},
        {"data": DataSpec(label_noise=0.2)},
    ],
)
def test_fields_that_do(change: dict[str, Any]) -> None:
    assert replace(RunSpec(), **change).fingerprint() != RunSpec().fingerprint()


def test_runs_are_paired_by_all_but_schedule_seed_and_how_often_they_are_evaluated() -> None:
    spec = RunSpec()
    for change in ({"schedule": "2ep"}, {"seed": 3}, {"evaluate_every": "2ep"}, {"label": "a"}, {"record": ("2ep",)}):
        assert pairing_json(replace(spec, **change)) == pairing_json(spec)  # type: ignore[arg-type]
    for change in ({"epochs": 3}, {"batch_size": 3}, {"on_nonfinite": "skip"}):
        assert pairing_json(replace(spec, **change)) != pairing_json(spec)  # type: ignore[arg-type]


def test_a_resume_may_change_the_machine_and_the_loggers() -> None:
    assert resumable_fields() == {"engine.devices", "engine.nodes", "engine.strategy", "log"}


def test_what_a_shared_teacher_depends_on() -> None:
    spec = RunSpec()
    assert teacher_settings(spec) == teacher_settings(replace(spec, schedule="2ep", ema=0.9))  # type: ignore[arg-type]
    assert teacher_settings(spec) != teacher_settings(replace(spec, data=DataSpec(label_noise=0.2)))
    assert {*teacher_settings(spec)} == {
        *("data", "seed", "batch size", "epochs", "optimizer", "learning rate", "label smoothing", "precision"),
        *("memory layout", "compiler", "shared BatchNorm"),
    }
