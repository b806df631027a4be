"""The real data beside the project, and runs that use it and the rest."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from spacedkd import DataSpec, MethodSpec, UserError, train
from spacedkd.data.folders import read_class_list
from spacedkd.data.images import Encoded
from spacedkd.data.sources import load, resolve_data
from tests.conftest import TINY, assert_same_bits, tensors
from tests.data.on_disk import SHARED, class_folders, needs_shared


@needs_shared
def test_cifar100_is_the_real_one() -> None:
    with pytest.raises(UserError, match="fine_label, coarse_label.*data.label_column"):
        resolve_data(DataSpec(str(SHARED / "cifar100")))
    spec = DataSpec(str(SHARED / "cifar100"), label_column="fine_label", train_limit=5000)
    assert resolve_data(spec).image_size == 32
    data = load(spec)
    assert data.train.labels.bincount().tolist() == [50] * 100
    assert data.test.labels.bincount().tolist() == [100] * 100
    assert data.train.mean == pytest.approx((0.507, 0.487, 0.441), abs=0.01)
    assert data.train.std == pytest.approx((0.267, 0.256, 0.276), abs=0.01)
    coarse = load(replace(spec, label_column="coarse_label", source=str(SHARED / "cifar100")))
    assert len(coarse.train.classes) == 20


@needs_shared
def test_tiny_imagenet_is_the_real_one() -> None:
    data = load(DataSpec("tiny-imagenet", root=str(SHARED / "tiny-imagenet-sample")))
    assert list(data.train.classes) == (SHARED / "tiny-imagenet-sample" / "wnids.txt").read_text().split()
    assert data.train.labels.bincount().tolist() == [40] * 20
    assert data.test.labels.bincount().tolist() == [10] * 20
    first = sorted((SHARED / "tiny-imagenet-sample" / "train" / data.train.classes[0] / "images").iterdir())[0]
    with Image.open(first) as image:
        assert data.train.open(0).tobytes() == image.convert("RGB").tobytes()


@needs_shared
def test_the_list_of_a_hundred_classes_is_read() -> None:
    assert len(read_class_list(str(SHARED / "imagenet100.txt"))) == 100


def test_a_run_keeps_what_its_labels_mean(tmp_path: Path) -> None:
    place = class_folders(tmp_path / "data", count=8)
    (place / "train" / "dog" / "012.png").write_text("broken")
    spec = replace(TINY, data=DataSpec(str(place), skip_bad=True), epochs=1, batch_size=5)
    train(spec, tmp_path / "run")
    kept = json.loads((tmp_path / "run" / "classes.json").read_text())
    assert [entry["name"] for entry in kept["classes"]] == ["cat", "dog"]
    assert kept["items"] == {"train": 15, "test": 16}
    assert "012.png is not an image" in kept["notes"][0]
    filled = json.loads((tmp_path / "run" / "spec.json").read_text())["data"]
    assert (filled["augmentation"], filled["image_size"]) == ("small", 12)


def test_a_run_on_encoded_images_with_mixing_is_the_same_with_workers(tmp_path: Path) -> None:
    place = class_folders(tmp_path / "data", count=8, sizes=(100, 110))
    data = DataSpec(str(place), image_size=16, mixup=0.2, cutmix=1.0)
    assert isinstance(load(data).train, Encoded)
    spec = replace(TINY, data=data, method=MethodSpec("kd"), epochs=2)
    for workers in (0, 2):
        train(replace(spec, engine=replace(TINY.engine, workers=workers)), tmp_path / f"{workers}")
    alone, shared = ((tmp_path / name / "journal.jsonl").read_text() for name in ("0", "2"))
    assert alone == shared
    train(replace(spec, seed=1), tmp_path / "seed")
    assert (tmp_path / "seed" / "journal.jsonl").read_text() != alone
    assert_same_bits(tensors(tmp_path / "0"), tensors(tmp_path / "2"))


def test_images_can_move_to_a_device_where_that_helps(tmp_path: Path) -> None:
    place = str(class_folders(tmp_path, sizes=(40,)))
    meta = torch.device("meta")
    batch_wise = load(DataSpec(place)).to(meta)
    assert (batch_wise.train.pixels.device, batch_wise.test.pixels.device) == (meta, meta)
    one_by_one = load(DataSpec(place, augmentation="self-cifar")).to(meta)
    assert one_by_one.train.pixels.device.type == "cpu"
    assert load(DataSpec(place), memory_limit=0).to(meta).train.labels.device.type == "cpu"


def test_cifar100_by_name_from_the_hubs_parquet_files_in_the_root() -> None:
    by_name = DataSpec("cifar100", root=str(SHARED), class_limit=25, image_size=16)
    assert resolve_data(by_name).augmentation == "cifar"
    data = load(by_name)
    assert data.train.labels.bincount().tolist() == [500] * 25
    assert data.test.labels.bincount().tolist() == [100] * 25
    assert data.train.shape == (3, 16, 16)
