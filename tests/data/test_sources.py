"""Data sets by name and by file, and what is said of bad ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spacedkd import DataSpec, UserError
from spacedkd.data.sources import from_arrays, load


def arrays(**changes: Any) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    good = {
        "x_train": rng.integers(0, 256, (30, 6, 5, 3), dtype=np.uint8),
        "y_train": np.arange(30) % 3,
        "x_test": rng.integers(0, 256, (12, 6, 5, 3), dtype=np.uint8),
        "y_test": np.arange(12) % 3,
    }
    return {**good, **changes}


def test_digits_are_the_real_ones() -> None:
    splits = load(DataSpec("digits"))
    assert splits.train.pixels.shape == (899, 1, 8, 8)
    assert splits.test.pixels.shape == (898, 1, 8, 8)
    assert splits.train.pixels.dtype == torch.uint8
    # scikit-learn's first image is a zero: dark in the middle, bright around it.
    assert splits.train.labels[0] == 0
    assert splits.train.pixels[0, 0, 3:5, 3].max() < splits.train.pixels[0, 0, 3:5, 2].min()


def test_an_npz_gives_back_its_images(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays())
    splits = load(DataSpec(str(path)))
    assert torch.equal(splits.train.pixels, torch.from_numpy(arrays()["x_train"]).permute(0, 3, 1, 2))
    assert splits.test.labels.tolist() == (np.arange(12) % 3).tolist()
    assert splits.train.mean == pytest.approx(tuple(arrays()["x_train"].mean((0, 1, 2)) / 255))
    assert splits.train.std == pytest.approx(tuple(arrays()["x_train"].std((0, 1, 2)) / 255))
    assert splits.test.mean == splits.train.mean


def test_a_limit_takes_all_classes_evenly() -> None:
    train = load(DataSpec("digits", train_limit=200)).train
    assert train.labels.bincount().tolist() == [20] * 10


def test_a_holdout_is_kept_aside_and_the_same_for_all() -> None:
    whole, split, again = (load(DataSpec("digits", holdout=part)) for part in (0, 0.25, 0.25))
    assert split.holdout is not None
    assert again.holdout is not None
    assert len(split.holdout.labels) == round(899 * 0.25)
    assert len(split.train.labels) + len(split.holdout.labels) == len(whole.train.labels)
    assert torch.equal(split.holdout.pixels, again.holdout.pixels)
    joined = torch.cat([split.train.pixels, split.holdout.pixels]).flatten(1)
    assert torch.equal(joined.sum(1).sort().values, whole.train.pixels.flatten(1).sum(1).sort().values)
    assert split.evaluated().keys() == {"test", "holdout"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": np.zeros((0, 6, 5, 3), np.uint8), "y_train": np.zeros(0, int)}, "no training images"),
        ({"x_test": np.zeros((0, 6, 5, 3), np.uint8), "y_test": np.zeros(0, int)}, "no test images"),
        ({"y_train": np.arange(30) % 3 + 1}, "0 to C-1 without gaps"),
        ({"y_train": np.arange(30) % 3 - 1}, "0 to C-1 without gaps"),
        ({"y_train": (np.arange(30) % 3) * 2}, "0 to C-1 without gaps"),
        ({"y_test": np.arange(12) % 4}, "labels from 0 to 3, but the training labels say 0 to 2"),
        ({"y_train": np.arange(30) / 30}, "whole numbers"),
        ({"y_train": np.arange(29) % 3}, "30 images but y_train has 29 labels"),
        ({"x_train": np.zeros((30, 6, 5, 3), np.float32)}, "must be uint8"),
    ],
)
def test_bad_arrays_are_explained(changes: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(UserError) as error:
        from_arrays(arrays(**changes), DataSpec())
    assert message in str(error.value)


def test_bad_files_are_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no file"):
        load(DataSpec(str(tmp_path / "none.npz")))
    (tmp_path / "text.npz").write_text("not an archive")
    with pytest.raises(UserError, match="cannot be read"):
        load(DataSpec(str(tmp_path / "text.npz")))
    np.savez(tmp_path / "half.npz", x_train=arrays()["x_train"])
    with pytest.raises(UserError, match="no array y_train"):
        load(DataSpec(str(tmp_path / "half.npz")))
    with pytest.raises(UserError, match="Did you mean 'digits'"):
        load(DataSpec("digit"))


@pytest.mark.parametrize("limit", [0, 9, 900])
def test_an_impossible_limit_is_refused(limit: int) -> None:
    with pytest.raises(UserError, match="train_limit must be from 10"):
        load(DataSpec("digits", train_limit=limit))
