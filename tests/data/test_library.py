"""Datasets are found and read once in a process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spacedkd import AugmentSpec, DataSpec
from spacedkd.data import folders, images, pixel_cache, run_data, sources
from spacedkd.data.sources import Library, load
from tests.data.on_disk import class_folders, parquet


class Seen:
    """Which folders were walked through, and how many images were decoded to be kept."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.walked: list[str] = []
        self.decoded = 0
        walk, decode = folders.files_below, images.decode

        def counted_walk(top: Path) -> Iterator[str]:
            self.walked.append(f"{top.parent.name}/{top.name}")
            return walk(top)

        def counted_decode(*args: Any, **options: Any) -> Any:
            self.decoded += 1
            return decode(*args, **options)

        patch.setattr(folders, "files_below", counted_walk)
        patch.setattr(pixel_cache, "decode", counted_decode)


def test_a_folder_is_walked_once_and_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = DataSpec(str(class_folders(tmp_path, count=4)))
    seen, library = Seen(monkeypatch), Library()
    filled = library.resolve(spec)
    first = library.load(filled)
    once = ["train/cat", "train/dog", "val/cat", "val/dog"]
    assert sorted(seen.walked) == once
    assert seen.decoded == 16
    for varied in (
        spec,
        replace(filled, holdout=0.25),
        replace(spec, mixup=0.3, drop_last=True),
        replace(filled, augment=AugmentSpec(3)),
    ):
        library.load(library.resolve(varied))
    assert (sorted(seen.walked), seen.decoded) == (once, 16)
    library.load(replace(spec, train_limit=4))
    assert (sorted(seen.walked), seen.decoded) == (once, 16 + 4 + 8)
    library.load(replace(spec, train_split="val", test_split="train"))
    assert len(seen.walked) == 8  # other parts lie elsewhere
    assert torch.equal(first.train.pixels, load(spec).train.pixels)


def test_what_is_kept_does_not_change_what_is_given(tmp_path: Path) -> None:
    place, library = str(parquet(tmp_path, count=16)), Library()
    for varied in (
        DataSpec(place),
        DataSpec(place, holdout=0.25, cutmix=1.0),
        DataSpec(place, AugmentSpec(2, rotate=10)),
        DataSpec(place, train_limit=8),
        DataSpec(place, augmentation="self-cifar"),
        DataSpec(place),
    ):
        assert library.resolve(varied) == Library().resolve(varied)
        one, other = (data.stream(4, 0).batch(3) for data in (library.load(varied), load(varied)))
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.labels, other.labels)
        assert library.load(varied).describe() == load(varied).describe()


def test_two_data_sets_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int | None] = []

    def counted(found: Any, spec: DataSpec, limit: int) -> run_data.RunData:
        made.append(spec.train_limit)
        return run_data.load_splits(found, spec, limit)

    monkeypatch.setattr(sources, "load_splits", counted)
    library = Library()
    for limit in (10, 20, 10, 30, 10, 20):
        library.load(DataSpec(train_limit=limit))
    assert made == [10, 20, 30, 20]


def test_notes_are_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = class_folders(tmp_path)
    (place / "train" / "dog" / "005.png").write_text("broken")
    library, spec = Library(), DataSpec(str(place), skip_bad=True)
    for holdout in (0.0, 0.3):
        assert len(library.load(replace(spec, holdout=holdout)).notes) == 1
    assert capsys.readouterr().err.count("Left out 1 of 8 images") == 1
