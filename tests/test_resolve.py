"""What a spec leaves open, and `resolve` decides: here the workers and the kernels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

from spacedkd import AugmentSpec, DataSpec, EngineSpec, RunSpec, UserError, forecast, train
from spacedkd.config.objects import Objects
from spacedkd.config.resolve import MOST_WORKERS, choose_workers, resolve
from spacedkd.config.serialization import to_json
from spacedkd.data.run_data import from_datasets
from spacedkd.data.sources import load, resolve_data
from spacedkd.runtime import processes
from spacedkd.training import Event
from tests.conftest import TINY
from tests.training.stopping import train_until

IN_MEMORY = load(resolve_data(DataSpec("digits", augment=AugmentSpec())))
ONE_BY_ONE = load(resolve_data(DataSpec("digits", augmentation="vit", image_size=8)))
PAIR = tuple(TensorDataset(torch.rand(8, 3), torch.arange(8) % 2) for _ in range(2))


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(processes, "available_cores", lambda: 32)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("engine", "count"),
    [
        (EngineSpec(devices=4), 7),
        (EngineSpec(devices=32), 0),
        (EngineSpec(), MOST_WORKERS),
        (EngineSpec(pipeline=True), 15),
        (EngineSpec(threads=3), 2),  # as a run of a comparison has it: its share of the cores
        (EngineSpec(workers=5), 5),
        (EngineSpec(accelerator="cpu"), 0),
    ],
)
def test_each_gpu_has_its_cores_but_one_for_workers(engine: EngineSpec, count: int) -> None:
    assert choose_workers(engine, ONE_BY_ONE).count == count
    assert choose_workers(engine, from_datasets(PAIR)).count == count
    assert choose_workers(replace(engine, workers=None), IN_MEMORY).count == 0


@pytest.mark.usefixtures("gpus")
def test_a_task_of_slurm_has_the_cores_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"NTASKS": "4", "STEP_ID": "0", "JOB_NAME": "train", "CPUS_PER_TASK": "6"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert choose_workers(EngineSpec(devices=4), ONE_BY_ONE).count == 5


def test_on_cpus_training_takes_all_cores_and_the_plan_says_so() -> None:
    assert choose_workers(EngineSpec(), ONE_BY_ONE).count == 0
    assert forecast(TINY, seconds=0).workers == "0: the data is ready in memory"
    assert forecast(replace(TINY, engine=EngineSpec(workers=1)), seconds=0).workers == "1: as given"


def test_a_resolved_run_has_a_number_and_the_same_fingerprint() -> None:
    resolved = resolve(replace(TINY, engine=EngineSpec()), Objects()).spec
    assert resolved.engine.workers == 0
    assert resolved.fingerprint() == resolve(replace(TINY, engine=EngineSpec(workers=2))).spec.fingerprint()


def without_determinism(spec: RunSpec = TINY) -> RunSpec:
    return replace(spec, engine=replace(spec.engine, deterministic=False))


def test_a_run_without_deterministic_kernels_says_so(tmp_path: Path) -> None:
    spec = without_determinism(replace(TINY, epochs=1))
    assert spec.fingerprint() == replace(TINY, epochs=1).fingerprint()
    assert "deterministic" not in to_json(TINY)["engine"]
    flags: list[tuple[bool, bool]] = []

    def look(event: Event) -> None:
        flags.append((torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark))

    train(spec, tmp_path / "free", callback=look)
    assert {*flags} == {(False, True)}
    flags.clear()
    train(replace(TINY, epochs=1), tmp_path / "exact", callback=look)
    assert {*flags} == {(True, False)}
    free, exact = (
        json.loads((tmp_path / name / "result.json").read_text())["environment"] for name in ("free", "exact")
    )
    assert (free["deterministic"], free["bit_equal"]) == (False, False)
    assert not {"deterministic", "bit_equal"} & {*exact}


def test_a_run_keeps_the_kernels_it_began_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_until(without_determinism(), tmp_path / "run", 7)
    with pytest.raises(UserError, match="begun with engine.deterministic=False"):
        train(TINY, tmp_path / "run", if_exists="resume")
    assert "without" not in capsys.readouterr().err
    train(without_determinism(), tmp_path / "run", if_exists="resume")
    assert "will not have the bits of a run that was never stopped" in capsys.readouterr().err
    train(TINY, tmp_path / "run", if_exists="resume")  # it is finished, so nothing is computed
