"""Images that are trained on and evaluated on are counted and said, against counts known beforehand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from spacedkd import DataSpec, train
from spacedkd.cli import main
from spacedkd.data import pixel_cache
from spacedkd.data.images import Encoded, Images
from spacedkd.data.run_data import from_datasets
from spacedkd.data.sources import load
from tests.conftest import TINY
from tests.data.on_disk import class_folders, picture, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Forty pictures to train on and forty to test on, three of which are among the others under other names."""
    place = class_folders(tmp_path / "data", count=20)
    for copy, (name, number) in enumerate([("cat", 3), ("dog", 25), ("dog", 31)]):
        write(place / "val" / name / f"copy{copy}.png", picture(number))
    return place


def test_pixels_in_memory_are_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = load(DataSpec(str(folder)))
    assert isinstance(data.train, Images)
    assert data.repeated == {"test": 3}
    assert "3 of 43 test images are training images as well" in capsys.readouterr().err
    assert data.describe()["repeated"] == {"test": 3}


def test_bytes_on_disk_are_counted_and_remembered(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    spec = DataSpec(str(folder), augmentation="imagenet", image_size=12)
    data = load(spec, memory_limit=1)
    assert isinstance(data.train, Encoded)
    assert data.repeated == {"test": 3}
    monkeypatch.setattr(pixel_cache, "_decode_all", None)  # nothing is read a second time
    assert load(spec, memory_limit=1).repeated == {"test": 3}
    for verdict in (tmp_path / "cache/spacedkd/checked").glob("*.json"):
        verdict.write_text(json.dumps({k: v for k, v in json.loads(verdict.read_text()).items() if k != "digests"}))
    assert load(spec, memory_limit=1).repeated == {"test": None}, "a verdict of before there were digests"
    monkeypatch.undo()


@pytest.mark.parametrize("in_memory", ["train", "test"])
def test_a_part_in_memory_is_compared_with_one_on_disk(folder: Path, in_memory: str) -> None:
    """Images of one size are kept in memory, those of several sizes stay encoded."""
    other = {"train": "val", "test": "train"}[in_memory]
    write(folder / other / "cat" / "wide.png", picture(99).resize((31, 17)))
    data = load(DataSpec(str(folder), augmentation="imagenet", image_size=12))
    assert {"train": type(data.train), "test": type(data.test)}[in_memory] is Images
    assert type(data.train) is not type(data.test)
    assert data.repeated == {"test": 3}
    assert data.with_holdout(0.5).repeated["test"] in range(1, 3), "of the images that are still trained on"


def test_damaged_digests_are_made_anew(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    spec = DataSpec(str(folder), augmentation="imagenet", image_size=12)
    load(spec, memory_limit=1)
    for file in (tmp_path / "cache/spacedkd/checked").glob("*.digests"):
        file.write_bytes(b"\0" * len(file.read_bytes()))
    assert load(spec, memory_limit=1).repeated == {"test": 3}


def test_held_out_images_are_counted_too(tmp_path: Path) -> None:
    """Every image is there twice, so that most that are held out are trained on as well."""
    once = np.random.default_rng(0).integers(0, 256, (30, 8, 8), dtype=np.uint8)
    images, labels = np.concatenate([once, once]), np.arange(60) % 2
    np.savez(tmp_path / "twice.npz", x_train=images, y_train=labels, x_test=255 - once, y_test=labels[:30])
    data = load(DataSpec(str(tmp_path / "twice.npz"), holdout=0.2))
    assert data.holdout is not None
    trained = {one.numpy().tobytes() for one in data.train.pixels}
    expected = sum(one.numpy().tobytes() in trained for one in data.holdout.pixels)
    assert data.repeated == {"test": 0, "holdout": expected}
    assert expected > 0


def test_images_that_differ_in_one_pixel_are_different(tmp_path: Path) -> None:
    black = np.zeros((20, 32, 32, 3), np.uint8)
    shifted = black.copy()
    for row in range(20):
        black[row, 5, row] = 9
        shifted[row, 6, row] = 9
    shifted[7] = black[11]
    arrays = {"x_train": black, "y_train": np.arange(20) % 2, "x_test": shifted, "y_test": np.arange(20) % 2}
    np.savez(tmp_path / "dots.npz", **arrays)
    assert load(DataSpec(str(tmp_path / "dots.npz"))).repeated == {"test": 1}


def test_subsets_of_one_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    whole = TensorDataset(torch.randn(40, 3), torch.arange(40) % 2)
    inner = Subset(whole, range(10, 40))
    assert from_datasets((Subset(whole, range(30)), Subset(inner, range(18, 30)))).repeated == {"test": 2}
    assert "2 of 12 test images" in capsys.readouterr().err
    assert from_datasets((Subset(whole, range(20)), Subset(whole, range(20, 40)))).repeated == {"test": 0}
    assert from_datasets((whole, TensorDataset(*whole.tensors))).repeated == {"test": None}
    assert capsys.readouterr().err == ""


def test_a_run_says_it_once_and_writes_it_down(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = "--width 4 --epochs 1 --batch-size 8 --threads 1 --precision 32-true --method none".split()
    main(["train", "--data", str(folder), *short, "--out", str(tmp_path / "run")])
    assert capsys.readouterr().err.count("are training images as well") == 1
    about = json.loads((tmp_path / "run/classes.json").read_text())
    assert about["repeated"] == {"test": 3}
    train(replace(TINY, method="none", epochs=0.4), tmp_path / "digits")
    assert json.loads((tmp_path / "digits/classes.json").read_text())["repeated"] == {"test": 0}
    assert "training images as well" not in capsys.readouterr().err
