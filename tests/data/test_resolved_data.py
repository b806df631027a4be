"""What a data spec means: one meaning for a name, and nothing given in vain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from spacedkd import AugmentSpec, DataSpec, UserError
from spacedkd.data.sources import READERS, choose_reader, load, resolve_data
from tests.data.on_disk import class_folders, hub_table, parquet, tiny_imagenet


def arrays(path: Path, side: int = 20) -> str:
    pixels = np.random.default_rng(0).integers(0, 256, (12, side, side + 4, 3), dtype=np.uint8)
    labels = np.arange(12) % 3
    np.savez(path, x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
    return str(path)


def test_a_name_means_the_same_said_or_left_open(tmp_path: Path) -> None:
    small = str(class_folders(tmp_path / "small", sizes=(24,)))
    photographs = str(class_folders(tmp_path / "large", sizes=(120,)))
    npz = arrays(tmp_path / "x.npz")
    for place, name, changes in (
        (small, "small", AugmentSpec(crop=3, flip=True)),
        (photographs, "imagenet", None),
        ("digits", "digits", AugmentSpec(crop=1, rotate=10)),
        ("cifar10", "cifar", AugmentSpec(4, True, 15)),
        (npz, "small", AugmentSpec(crop=2, flip=True)),
        (arrays(tmp_path / "photographs.npz", 120), "imagenet", None),
    ):
        left_open, said = resolve_data(DataSpec(place)), resolve_data(DataSpec(place, augmentation=name))
        assert left_open == said
        assert (said.augmentation, said.augment) == (name, changes)
        smaller = (
            resolve_data(DataSpec(place, image_size=8)),
            resolve_data(DataSpec(place, augmentation=name, image_size=8)),
        )
        assert smaller[0] == smaller[1]


def test_arrays_get_what_files_of_the_same_pictures_get(tmp_path: Path) -> None:
    for side in (24, 120):
        files, table = (str(make(tmp_path / f"{kind}{side}", side)) for kind, make in (("f", _folder), ("t", _table)))
        pixels = arrays(tmp_path / f"{side}.npz", side)
        filled = [resolve_data(DataSpec(place)) for place in (files, table, pixels)]
        assert len({one.augmentation for one in filled}) == 1
        assert len({one.augment for one in filled}) == 1
    wide = load(DataSpec(arrays(tmp_path / "wide.npz", 120), augmentation="plain"))
    assert wide.train.shape == (3, 120, 124)  # their own shape, where no size is asked for


@pytest.mark.parametrize("channels", [2, 4])
def test_arrays_that_are_no_photographs_are_varied_like_small_pictures(tmp_path: Path, channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 120, 124, channels), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", x_train=pixels, y_train=[0, 1] * 2, x_test=pixels, y_test=[0, 1] * 2)
    spec = DataSpec(str(tmp_path / "x.npz"))
    assert resolve_data(spec).augmentation == "small"
    assert load(spec).train.shape == (channels, 120, 124)
    with pytest.raises(UserError, match="leave out data.image_size, and give data.augmentation='small', plain or none"):
        load(DataSpec(spec.source, augmentation="imagenet"))


def _folder(place: Path, side: int) -> Path:
    return class_folders(place, sizes=(side,))


def _table(place: Path, side: int) -> Path:
    place.mkdir()
    for part in ("train", "test"):
        pq.write_table(hub_table(range(4), {"label": [0, 1] * 2}, side), place / f"{part}.parquet")
    return place


def test_plain_is_what_was_asked_and_nothing_else(tmp_path: Path) -> None:
    for place in (str(class_folders(tmp_path, count=8, sizes=(16,))), "digits", arrays(tmp_path / "x.npz")):
        assert resolve_data(DataSpec(place, augmentation="plain")).augment == AugmentSpec()
        data = load(DataSpec(place, augmentation="plain"))
        batch = data.stream(4, 0).batch(1)
        assert torch.equal(batch.inputs, data.train.inputs(batch.indices))
        asked = DataSpec(place, AugmentSpec(2), augmentation="plain")
        assert resolve_data(asked).augment == AugmentSpec(2)
        varied = load(asked).stream(4, 0).batch(1)
        assert not torch.equal(varied.inputs, data.train.inputs(varied.indices))


def test_small_crops_by_an_eighth_wherever_it_is_asked_for(tmp_path: Path) -> None:
    assert resolve_data(DataSpec("digits", augmentation="small")).augment == AugmentSpec(1, True)
    assert resolve_data(DataSpec(arrays(tmp_path / "x.npz", 40), augmentation="small")).augment == AugmentSpec(5, True)
    assert resolve_data(DataSpec("tiny-imagenet", augmentation="small")).augment == AugmentSpec(8, True)
    photographs = resolve_data(DataSpec(str(class_folders(tmp_path / "l", sizes=(120,))), augmentation="small"))
    assert (photographs.augment, photographs.image_size) == (AugmentSpec(28, True), 224)


def test_a_fixed_augmentation_stays_fixed_in_a_complete_spec(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Augmentation none is fixed"):
        resolve_data(DataSpec(str(class_folders(tmp_path)), AugmentSpec(4), augmentation="none", image_size=12))


VALUES: dict[str, Any] = {
    "root": "elsewhere",
    "class_list": "list.txt",
    "image_column": "picture",
    "label_column": "kind",
    "train_split": "seen",
    "test_split": "unseen",
    "test_part": 0.2,
    "skip_bad": True,
}
PARTS = {"train_split", "test_split"}
FOLDER = {"class_list", "test_part", "skip_bad", *PARTS}
TABLE = {"image_column", "label_column", "test_part", "skip_bad", *PARTS}
READ = {
    "digits": set(),
    "mnist1d": {"train_items", "test_items"},
    "cifar10": {"root"},
    "cifar100": {"root"},
    "tiny-imagenet": {"root", "skip_bad", *PARTS},
    "imagenet-100": {"root", *FOLDER},
    "imagenet-1k": {"root", *FOLDER},
}


def test_every_source_says_what_it_reads(tmp_path: Path) -> None:
    assert {reader.name: {*reader.options} for reader in READERS if reader.is_named} == READ
    for place, read in (
        (class_folders(tmp_path / "folder"), FOLDER),
        (parquet(tmp_path / "table"), TABLE),
        (tmp_path / "x.npz", set()),
        (tiny_imagenet(tmp_path / "tiny"), {"skip_bad", *PARTS}),
    ):
        assert {*choose_reader(str(place)).options} == read


@pytest.mark.parametrize("source", READ)
def test_what_cannot_matter_is_refused_by_name(source: str) -> None:
    for name, value in VALUES.items():
        if name not in READ[source]:
            with pytest.raises(UserError, match=f"^{name} does not matter for {source}, it is for .*: leave it out"):
                resolve_data(DataSpec(source, **{name: value}))


def test_what_cannot_matter_for_a_place_is_refused_too(tmp_path: Path) -> None:
    folder, table = str(class_folders(tmp_path / "folder")), str(parquet(tmp_path / "table"))
    tiny = str(tiny_imagenet(tmp_path / "tiny"))
    for spec, name in (
        (DataSpec(folder, label_column="kind"), "label_column"),
        (DataSpec(table, class_list="list.txt"), "class_list"),
        (DataSpec(table, root="elsewhere"), "root"),
        (DataSpec(arrays(tmp_path / "x.npz"), skip_bad=True), "skip_bad"),
        (DataSpec(tiny, test_split="val"), "test_split"),  # the official layout has no parts to choose from
    ):
        with pytest.raises(UserError, match=f"{name} does not matter for"):
            load(spec)
    assert resolve_data(DataSpec("digits", root="data")) == resolve_data(DataSpec("digits"))  # as it is by default


def test_nobody_is_tested_on_what_it_learned(tmp_path: Path) -> None:
    folder, table = class_folders(tmp_path / "folder"), parquet(tmp_path / "table")
    for spec in (
        DataSpec(folder, train_split="val", test_split="val"),
        DataSpec(folder, test_split="train"),
        DataSpec(table, train_split="test", test_split="test"),
    ):
        with pytest.raises(UserError, match="cannot be trained on and tested on.*data.test_split"):
            load(spec)


def test_paths_are_as_good_as_text(tmp_path: Path) -> None:
    place = class_folders(tmp_path)
    assert DataSpec(place) == DataSpec(str(place))
    assert DataSpec("cifar10", root=tmp_path).root == str(tmp_path)
    assert DataSpec(class_list=tmp_path / "list").class_list == str(tmp_path / "list")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("train_limit", 0),
        ("holdout", 1.0),
        ("holdout", -0.1),
        ("holdout", float("nan")),
        ("test_part", 0.0),
        ("test_part", 1.0),
        ("image_size", 0),
        ("mixup", -1.0),
        ("cutmix", float("inf")),
    ],
)
def test_impossible_numbers_are_refused_when_the_spec_is_made(field: str, value: float) -> None:
    with pytest.raises(UserError, match=f"^{field} must be .*, got"):
        DataSpec(**{field: value})
