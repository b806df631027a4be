"""Datasets by name and by file, and what is said of bad ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torchvision import datasets as torchvision_sets

from spacedkd import AugmentSpec, DataSpec, UserError
from spacedkd.data.arrays import from_arrays
from spacedkd.data.run_data import RunData, load_splits
from spacedkd.data.sources import load, resolve_data
from tests.data.on_disk import cifar


def arrays(**changes: Any) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    good = {
        "x_train": rng.integers(0, 256, (30, 6, 5, 3), dtype=np.uint8),
        "y_train": np.arange(30) % 3,
        "x_test": rng.integers(0, 256, (12, 6, 5, 3), dtype=np.uint8),
        "y_test": np.arange(12) % 3,
    }
    return {**good, **changes}


def splits_of(**changes: Any) -> RunData:
    return load_splits(from_arrays(arrays(**changes)), DataSpec("x.npz", AugmentSpec(), augmentation="plain"))


def test_digits_are_the_real_ones() -> None:
    splits = load(DataSpec("digits"))
    assert splits.train.pixels.shape == (899, 1, 8, 8)
    assert splits.test.pixels.shape == (898, 1, 8, 8)
    assert splits.train.pixels.dtype == torch.uint8
    for part, first in ((splits.train, 0), (splits.test, 1)):  # every other image is for testing
        images, labels = load_digits(return_X_y=True)
        assert part.labels.tolist() == labels[first::2].tolist()
        assert (part.pixels[:, 0].numpy() == np.rint(images[first::2].reshape(-1, 8, 8) * 255 / 16)).all()


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
    assert split.evaluated_splits().keys() == {"test", "holdout"}


def test_labels_of_any_kind_are_numbered_and_the_numbering_is_kept() -> None:
    gaps = splits_of(y_train=(np.arange(30) % 3) * 5 - 1, y_test=(np.arange(12) % 2) * 10 - 1)
    assert gaps.train.labels.tolist() == (np.arange(30) % 3).tolist()
    assert gaps.test.labels.tolist() == [0, 2] * 6
    assert [entry["label"] for entry in gaps.describe()["classes"]] == [-1, 4, 9]
    assert gaps.notes == ("Labels -1 to 9 are numbered 0 to 2; classes.json keeps which is which.",)
    text = splits_of(y_train=np.array(["b", "c", "a"] * 10), y_test=np.array(["a", "b", "c"] * 4))
    assert text.train.classes == ("a", "b", "c")
    assert text.train.labels[:3].tolist() == [1, 2, 0]
    assert text.notes == ()


def test_arrays_are_resized_and_coloured_on_request(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays())
    assert load(DataSpec(str(path), image_size=8)).train.pixels.shape == (30, 3, 8, 8)
    assert load(DataSpec("digits", image_size=16)).train.pixels.shape == (899, 1, 16, 16)
    coloured = load(DataSpec("digits", augmentation="vit", image_size=24, train_limit=20))
    assert coloured.train.shape == (3, 24, 24)
    assert coloured.train.inputs(torch.arange(2)).shape == (2, 3, 24, 24)
    many = splits_of(x_train=np.zeros((30, 6, 5, 4), np.uint8), x_test=np.zeros((12, 6, 5, 4), np.uint8))
    assert many.train.shape == (4, 6, 5)


def test_what_a_spec_leaves_open_is_filled_in() -> None:
    assert resolve_data(DataSpec("cifar100")) == DataSpec("cifar100", AugmentSpec(4, True, 15), augmentation="cifar")
    assert resolve_data(DataSpec("cifar100", AugmentSpec(2))) == DataSpec(
        "cifar100", AugmentSpec(2), augmentation="cifar"
    )
    assert resolve_data(DataSpec("cifar100", augmentation="vit")) == DataSpec(
        "cifar100", augmentation="vit", image_size=224
    )
    assert resolve_data(DataSpec("cifar100", augmentation="vit", image_size=64)).image_size == 64
    assert resolve_data(DataSpec("tiny-imagenet")).image_size == 64
    assert resolve_data(DataSpec("imagenet-1k", AugmentSpec(2))).augmentation == "plain"
    for spec in (
        DataSpec("digits"),
        DataSpec("cifar10", augmentation="self-cifar"),
        DataSpec("tiny-imagenet", augmentation="none"),
    ):
        assert resolve_data(resolve_data(spec)) == resolve_data(spec)
    with pytest.raises(UserError, match="Augmentation vit is fixed: leave out data.augment.crop"):
        resolve_data(DataSpec("cifar100", AugmentSpec(4), augmentation="vit"))
    with pytest.raises(UserError, match="Unknown augmentation 'vti'. Did you mean 'vit'"):
        resolve_data(DataSpec("cifar100", augmentation="vti"))
    with pytest.raises(UserError, match="image_size must be from 1"):
        DataSpec("cifar100", image_size=-3)


@pytest.mark.parametrize("kind", [torchvision_sets.CIFAR10, torchvision_sets.CIFAR100])
def test_cifar_is_read_from_torchvisions_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    written = cifar(tmp_path, monkeypatch, kind)
    name = "cifar10" if kind is torchvision_sets.CIFAR10 else "cifar100"
    data = load(DataSpec(name, root=str(tmp_path)))
    train = np.concatenate([written[file] for file, _ in kind.train_list])
    assert torch.equal(data.train.pixels, torch.from_numpy(train).permute(0, 3, 1, 2))
    assert torch.equal(data.test.pixels, torch.from_numpy(written[kind.test_list[0][0]]).permute(0, 3, 1, 2))
    assert data.train.classes[3] == "class 3"
    assert data.train.mean == (0.507, 0.487, 0.441)
    broken = tmp_path / kind.base_folder / kind.test_list[0][0]
    broken.write_bytes(broken.read_bytes()[:-1])
    with pytest.raises(UserError, match="its files are not the official ones.*data.root"):
        load(DataSpec(name, root=str(tmp_path)))


def test_a_cifar_that_cannot_be_downloaded_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(self: Any) -> None:
        Path(self.root).mkdir(exist_ok=True)  # as its download does first
        raise OSError("no network\nsecond line")

    monkeypatch.setattr(torchvision_sets.CIFAR100, "download", offline)
    with pytest.raises(UserError, match="it cannot be downloaded .no network.. Put the official cifar-100-python"):
        load(DataSpec("cifar100", root=str(tmp_path)))
    assert tmp_path.exists()
    with pytest.raises(UserError, match="it cannot be downloaded"):
        load(DataSpec("cifar100", root=str(tmp_path / "new")))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": np.zeros((0, 6, 5, 3), np.uint8), "y_train": np.zeros(0, int)}, "no training images"),
        ({"x_test": np.zeros((0, 6, 5, 3), np.uint8), "y_test": np.zeros(0, int)}, "no test images"),
        ({"y_train": np.arange(30) % 3 + 1}, "test has images with label 0, and no training image has it"),
        ({"y_test": np.arange(12) % 4}, "test has images with label 3, and no training image has it"),
        ({"y_test": np.array(list("abcabcabcabc"))}, "test has labels like"),
        ({"y_train": np.zeros(30, int), "y_test": np.zeros(12, int)}, "have label 0"),
        ({"y_train": np.zeros((30, 2), int)}, "one label for each image"),
        ({"y_train": np.arange(30) / 30}, "whole numbers"),
        ({"y_train": np.arange(29) % 3}, "30 images but y_train has 29 labels"),
        ({"x_train": np.zeros((30, 6, 5, 3), np.float32)}, "must be uint8"),
    ],
)
def test_bad_arrays_are_explained(changes: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(UserError) as error:
        splits_of(**changes)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "content", [b"", b"PK", b"\x93NUMPY"], ids=["empty", "cut off", "one array that is no archive"]
)
def test_files_that_are_no_archives_are_explained(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.npz").write_bytes(content)
    with pytest.raises(UserError, match="is not an .npz of plain arrays"):
        load(DataSpec(str(tmp_path / "bad.npz")))


@pytest.mark.parametrize("shape", [(12, 6, 5), (12, 6, 5, 1), (12, 9, 5, 3)])
def test_images_of_another_shape_in_the_test_part_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="make them alike"):
        from_arrays(arrays(x_test=np.zeros(shape, np.uint8)))


def test_channels_come_last() -> None:
    first = np.zeros((30, 3, 6, 5), np.uint8)
    with pytest.raises(UserError, match="they come last"):
        from_arrays(arrays(x_train=first))


def test_bad_files_are_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no file"):
        load(DataSpec(str(tmp_path / "none.npz")))
    (tmp_path / "text.npz").write_text("not an archive")
    with pytest.raises(UserError, match="is not an .npz of plain arrays"):
        load(DataSpec(str(tmp_path / "text.npz")))
    np.savez(tmp_path / "half.npz", x_train=arrays()["x_train"])
    with pytest.raises(UserError, match="no array y_train"):
        load(DataSpec(str(tmp_path / "half.npz")))
    with pytest.raises(UserError, match="Did you mean 'digits'"):
        load(DataSpec("digit"))
    (tmp_path / "notes.txt").write_text("not a dataset")
    with pytest.raises(UserError, match="notes.txt is not a file that holds a dataset"):
        load(DataSpec(str(tmp_path / "notes.txt")))


@pytest.mark.parametrize("limit", [1, 9, 900])
def test_an_impossible_limit_is_refused(limit: int) -> None:
    with pytest.raises(UserError, match="train_limit must be from 10"):
        load(DataSpec("digits", train_limit=limit))


def test_only_the_first_classes() -> None:
    whole, some = load(DataSpec("digits")), load(DataSpec("digits", class_limit=4, train_limit=20))
    assert some.train.classes == some.test.classes == ("0", "1", "2", "3")
    assert some.train.labels.bincount().tolist() == [5] * 4
    kept = whole.test.labels < 4
    assert torch.equal(some.test.labels, whole.test.labels[kept])
    assert torch.equal(some.test.pixels, whole.test.pixels[kept])  # type: ignore[union-attr]
    with pytest.raises(UserError, match="class_limit must be from 2 to 10"):
        load(DataSpec("digits", class_limit=11))
    with pytest.raises(UserError, match="class_limit must be"):
        DataSpec("digits", class_limit=1)
