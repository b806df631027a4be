"""Of the processes of a run on one machine, one looks at the images and the others read what it has found."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from spacedkd import DataSpec, EngineSpec, UserError
from spacedkd.config.serialization import to_json
from spacedkd.data import launch_cache
from spacedkd.data.sources import Library, load
from spacedkd.runtime import processes
from tests.conftest import TINY
from tests.data.on_disk import class_folders
from tests.training.two_processes import finished, started, torchrun_variables

COUNT = 40
"""images of each class in each split"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_of_two_gloo_processes_one_looks_at_the_images(tmp_path: Path) -> None:
    """First images that stay encoded, and are checked; then a run on others, whose pixels are kept."""
    encoded = class_folders(tmp_path / "encoded", count=COUNT, sizes=(12, 14))
    pixels = class_folders(tmp_path / "pixels", count=COUNT)
    spec = replace(TINY, data=DataSpec(str(encoded)), epochs=1, engine=EngineSpec("cpu", devices=2, threads=1))
    (tmp_path / "spec.json").write_text(json.dumps(to_json(spec)))
    words = ["-m", "tests.data.looking_processes", str(encoded), str(pixels), str(tmp_path / "spec.json")]
    for code, _, errors in finished(started(words, torchrun_variables())):
        assert code == 0, errors
    ranks = [json.loads((tmp_path / f"counts{rank}.json").read_text()) for rank in range(2)]
    for images in ("encoded", "pixels"):
        second, first = sorted((counts[images] for counts in ranks), key=lambda counts: counts.get("open", 0))
        assert first["looked at"] == 4 * COUNT  # each image once
        assert first["open"] >= 4 * COUNT
        assert first["os.scandir"] > 4
        assert second.get("looked at", 0) == second.get("os.scandir", 0) == 0
        assert second.get("open", 0) <= 3  # the first image, for its size


def test_what_is_shared_is_what_each_would_have_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = DataSpec(str(class_folders(tmp_path / "images", count=3)))
    (tmp_path / "images" / "train" / "cat" / "notes.txt").write_text("none")
    alone = load(spec)
    monkeypatch.setattr(processes, "_starter", lambda: 1)
    shared = [Library().load(spec, processes=2)]
    monkeypatch.setattr(launch_cache, "_process", 0)  # as another process, which counts from the beginning
    shared.append(Library().load(spec, processes=2))
    for data in shared:
        assert data.describe() == alone.describe()
        assert data.train.pixels.equal(alone.train.pixels)
        assert data.test.labels.equal(alone.test.labels)
        assert data.notes == alone.notes
        assert data.notes


def test_a_damaged_image_is_refused_by_each_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = class_folders(tmp_path / "images", count=3)
    (images / "train" / "cat" / "001.png").write_bytes(b"no image")
    monkeypatch.setattr(processes, "_starter", lambda: 1)
    for _ in range(2):
        monkeypatch.setattr(launch_cache, "_process", 0)
        with pytest.raises(UserError, match=r"001\.png is not an image"):
            Library().load(DataSpec(str(images)), processes=2)


def test_the_next_launch_looks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = DataSpec(str(images := class_folders(tmp_path / "images", count=3)))
    with launch_cache.shared_by(2):
        Library().load(spec, processes=2)
    (images / "train" / "cat" / "000.png").unlink()
    monkeypatch.setattr(launch_cache, "_process", 0)  # a new process with an old number, which starts the others
    assert len(Library().load(spec, processes=2).train) == 5


def numbers(value: int) -> dict[str, np.ndarray]:
    return {"numbers": np.full(3, value)}


def test_a_damaged_result_is_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_starter", lambda: 1)
    with launch_cache.shared_by(2):
        launch_cache.compute_once("thing", lambda: numbers(1))
        (file,) = (tmp_path / "cache").rglob("*.npz")
        file.write_bytes(file.read_bytes()[:-40] + b"x" * 40)
        monkeypatch.setattr(launch_cache, "_process", 0)
        assert launch_cache.compute_once("thing", lambda: numbers(2))["numbers"].tolist() == [2, 2, 2]
        assert launch_cache.compute_once("thing", lambda: numbers(3))["numbers"].tolist() == [
            3,
            3,
            3,
        ]  # the second time
    assert launch_cache.compute_once("thing", lambda: numbers(4))["numbers"].tolist() == [4, 4, 4]  # alone


def test_results_of_old_launches_are_removed(tmp_path: Path) -> None:
    old = tmp_path / "cache" / "spacedkd" / "launches" / "old"
    old.mkdir(parents=True)
    os.utime(old, (0, 0))
    launch_cache._process = 0
    with launch_cache.shared_by(2):
        launch_cache.compute_once("thing", lambda: numbers(1))
    assert not old.exists()


def test_a_home_without_room_costs_time_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("a file where the folder would be")
    with launch_cache.shared_by(2):
        assert launch_cache.compute_once("thing", lambda: numbers(5))["numbers"].tolist() == [5, 5, 5]


def test_processes_of_one_launch_have_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def name_of(variables: Mapping[str, str]) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(processes, "_starters", {})
            for key, value in variables.items():
                patch.setenv(key, value)
            return processes.launch_name()

    ranks = torchrun_variables()
    assert name_of(ranks[0]) == name_of(ranks[1])
    assert name_of(ranks[0]) != name_of({**ranks[0], "MASTER_PORT": "1"})
    slurm = {"SLURM_NTASKS": "2", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "train"}
    assert name_of({**slurm, "SLURM_PROCID": "0"}) == name_of({**slurm, "SLURM_PROCID": "1"})
    assert name_of(slurm) != name_of({**slurm, "SLURM_STEP_ID": "1"})
    child = {"LOCAL_RANK": "1", "SPACEDKD_STARTED_BY": str(os.getpid())}
    assert name_of({}) == name_of(child)
