"""A finished run that has lost its student gets it again; nothing is trained, and nothing else changes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from spacedkd import EngineSpec, RunSpec, Spaced, UserError, train
from spacedkd.training import train as training
from tests.conftest import TINY


@pytest.fixture(scope="module")
def leader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mending") / "leader"
    train(replace(TINY, schedule=Spaced("1ep"), record=("1ep",)), folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": EngineSpec(threads=1, pipeline=True)},
        {"precision": "bf16-true", "ema": 0.9, "epochs": 1},
        {"teacher_path": "leader"},
    ],
    ids=["pipeline", "average in bf16-true", "follower"],
)
def test_a_student_is_made_again_from_the_checkpoint(
    tmp_path: Path, tiny: RunSpec, leader: Path, changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {name: leader if value == "leader" else value for name, value in changes.items()}
    spec = replace(tiny, schedule=Spaced("1ep"), **given)  # type: ignore[arg-type]
    done = train(spec, tmp_path / "run")
    before = contents(tmp_path / "run")
    (tmp_path / "run/student/model.safetensors").unlink()
    if spec.ema is not None:
        shutil.rmtree(tmp_path / "run/average")
    monkeypatch.setattr(training, "teacher_process", None)
    monkeypatch.setattr(training, "_train", None)  # neither is called
    assert train(spec, tmp_path / "run", if_exists="resume") == done
    assert contents(tmp_path / "run") == before


def test_a_follower_whose_path_was_removed_is_not_begun_again(tmp_path: Path, tiny: RunSpec, leader: Path) -> None:
    """It would lose what it has, and could not go on."""
    shutil.copytree(leader, tmp_path / "leader")
    spec = replace(tiny, schedule=Spaced("1ep"), teacher_path=tmp_path / "leader")
    train(spec, tmp_path / "run")
    before = contents(tmp_path / "run")
    min((tmp_path / "leader/path/teacher").glob("*.safetensors")).unlink()
    with pytest.raises(UserError, match="delete .*run and run the command"):
        train(spec, tmp_path / "run", if_exists="restart")
    assert contents(tmp_path / "run") == before
