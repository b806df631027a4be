"""A run goes on, is measured and is followed with the data it began with, or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import TensorDataset

from spacedkd import DataSpec, RunSpec, Spaced, UserError, train
from spacedkd.data import run_data
from spacedkd.data.run_data import describe_difference, from_datasets
from spacedkd.data.sources import load
from spacedkd.training import trained_models
from tests.conftest import TINY
from tests.data.on_disk import class_folders, hub_table, picture, write
from tests.training.stopping import train_in_parts, train_until

Harm = Callable[[Path], object]


def two_more(place: Path) -> None:
    for number in range(2):
        write(place / "train" / "cat" / f"zz{number}.png", picture(77 + number))


def renamed(place: Path) -> None:
    (place / "train" / "cat" / "001.png").rename(place / "train" / "cat" / "0.png")


def relabelled(place: Path) -> None:
    """The names and the contents within each class change places."""
    (place / "val" / "cat").rename(place / "val" / "x")
    (place / "val" / "dog").rename(place / "val" / "cat")
    (place / "val" / "x").rename(place / "val" / "dog")


def repainted(place: Path) -> None:
    write(place / "train" / "dog" / "005.png", picture(78))


def other_bytes(place: Path) -> None:
    """Of the same length."""
    file = place / "val" / "dog" / "013.png"
    file.write_bytes(file.read_bytes()[:-1] + b"\0")


CHANGES: list[tuple[Harm, str]] = [
    (two_more, "it had 8 training images, and has 10"),
    (renamed, "its training images have other names, or another order"),
    (relabelled, "its test images have other names"),
    (repainted, "its training images have other contents"),
    (other_bytes, "its test images have other contents"),
]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunSpec, Path]:
    """A run on a folder of files, stopped in the middle, and a finished one that records its teacher beside it."""
    place = tmp_path_factory.mktemp("data")
    data = DataSpec(str(class_folders(place / "data")))
    spec = replace(TINY, data=data, batch_size=4, epochs=2, schedule=Spaced("1ep"))
    train(replace(spec, record=(Spaced("1ep"),)), place / "whole")
    train_until(spec, place / "run", 5)
    return spec, place


@pytest.mark.parametrize(("harm", "said"), CHANGES)
def test_other_data_behind_the_same_path_is_refused(
    begun: tuple[RunSpec, Path], tmp_path: Path, harm: Harm, said: str
) -> None:
    spec, place = begun
    shutil.copytree(place / "data", tmp_path / "as it was")
    before = (place / "run" / "classes.json").read_bytes()
    try:
        harm(place / "data")
        with pytest.raises(UserError) as resumed:
            train(spec, place / "run", if_exists="resume")
        with pytest.raises(UserError) as measured:
            trained_models.load_run(place / "whole")
        with pytest.raises(UserError) as followed:
            train(replace(spec, teacher_path=str(place / "whole")), tmp_path / "follower")
    finally:
        shutil.rmtree(place / "data")
        shutil.copytree(tmp_path / "as it was", place / "data")
    for error, run in ((resumed, "run"), (measured, "whole"), (followed, "whole")):
        line = f"The data of {place / run} has changed since it began: {said}"
        assert str(error.value).removeprefix("teacher_path: ").startswith(line)
    assert (place / "run" / "classes.json").read_bytes() == before
    assert not (tmp_path / "follower").exists()


def test_a_run_that_begins_again_tells_of_other_data(
    begun: tuple[RunSpec, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, place = begun
    run = tmp_path / "run"
    shutil.copytree(place / "run", run)
    shutil.copytree(place / "data", tmp_path / "as it was")
    try:
        two_more(place / "data")
        train(spec, run, if_exists="restart")
        told = capsys.readouterr().err.splitlines()
        train(spec, run, if_exists="restart")
    finally:
        shutil.rmtree(place / "data")
        shutil.copytree(tmp_path / "as it was", place / "data")
    changed = "has changed since it began: it had 8 training images, and has 10"
    assert len(told) == 1
    assert told[0].startswith(f"The data of {run} {changed}.")
    assert not capsys.readouterr().err  # it has what it began with
    assert json.loads((run / "classes.json").read_text())["items"]["train"] == 10


def test_a_copy_of_the_data_is_the_same_and_old_runs_go_on(begun: tuple[RunSpec, Path]) -> None:
    spec, place = begun
    shutil.move(place / "data", place / "moved")
    shutil.copytree(place / "moved", place / "data", copy_function=shutil.copyfile)  # with other times
    shutil.rmtree(place / "moved")
    file = place / "run" / "classes.json"
    held = json.loads(file.read_text())
    del held["digest"]  # as it was before there were any
    file.write_text(json.dumps(held | {"items": {"train": 9, "test": 8}}))
    with pytest.raises(UserError, match="it had 9 train images, and has 8"):
        train(spec, place / "run", if_exists="resume")
    file.write_text(json.dumps(held))
    train(spec, place / "run", if_exists="resume")
    assert json.loads(file.read_text())["digest"]["training"]["images"] == 8
    for damaged in ("", "[]", '{"classes": 3}', '{"classes": null, "digest": 4, "items": {}}'):
        file.write_text(damaged)
        with pytest.raises(UserError, match=r"classes\.json .* Delete it"):
            trained_models.load_run(place / "run")


def test_arrays_and_tables_are_known_too(tmp_path: Path) -> None:
    pixels, labels = np.zeros((12, 8, 8, 3), np.uint8), np.arange(12) % 3

    def arrays(pixels: np.ndarray = pixels, labels: np.ndarray = labels) -> DataSpec:
        np.savez(tmp_path / "x.npz", x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
        return DataSpec(str(tmp_path / "x.npz"))

    def table(numbers: list[int], labels: list[int]) -> DataSpec:
        (tmp_path / "t").mkdir(exist_ok=True)
        for part in ("train", "test"):
            pq.write_table(hub_table(numbers, {"label": pa.array(labels)}), tmp_path / "t" / f"{part}.parquet")
        return DataSpec(str(tmp_path / "t"))

    other = pixels.copy()
    other[7, 3, 3, 1] = 1
    first, again = load(arrays()).digest, load(arrays()).digest
    assert describe_difference(first, again) is None
    assert describe_difference(first, load(arrays(other)).digest) == "its training images have other contents"
    assert (
        describe_difference(first, load(arrays(labels=labels[::-1])).digest) == "its training images have other labels"
    )
    first = load(table([1, 2, 3, 4], [0, 1, 0, 1])).digest
    assert (
        describe_difference(first, load(table([1, 2, 3, 4], [0, 1, 1, 0])).digest)
        == "its training images have other labels"
    )
    assert (
        describe_difference(first, load(table([1, 2, 3, 5], [0, 1, 0, 1])).digest)
        == "its training images have other contents"
    )
    assert describe_difference(first, load(table([1, 2], [0, 1])).digest) == "it had 4 training images, and has 2"


def test_files_that_cells_of_a_table_name_are_known_by_their_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_data, "SAMPLED_IMAGES", 1)  # so that contents alone do not tell
    files = [write(tmp_path / f"{number}.png", picture(number)) for number in range(4)]
    form = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    cells = pa.array([{"bytes": None, "path": str(file)} for file in files], form)
    for part in ("train", "test"):
        pq.write_table(pa.table({"image": cells, "label": [0, 1, 0, 1]}), tmp_path / f"{part}.parquet")
    first = load(DataSpec(str(tmp_path))).digest
    for file in files:
        held = file.read_bytes()
        file.write_bytes(held + b"more")
        assert (
            describe_difference(first, load(DataSpec(str(tmp_path))).digest)
            == "its training images have other contents"
        )
        file.write_bytes(held)
    assert describe_difference(first, load(DataSpec(str(tmp_path))).digest) is None


def test_datasets_given_as_objects_are_known_by_their_labels() -> None:
    def pair(labels: list[int]) -> tuple[TensorDataset, TensorDataset]:
        parts = (TensorDataset(torch.zeros(8, 1, 8, 8), torch.tensor(labels)) for _ in range(2))
        return next(parts), next(parts)

    one, other = from_datasets(pair([0, 1] * 4)), from_datasets(pair([1, 0] * 4))
    assert describe_difference(one.digest, from_datasets(pair([0, 1] * 4)).digest) is None
    assert describe_difference(one.digest, other.digest) == "its training images have other labels"


def test_a_run_in_parts_sees_the_same_data(tmp_path: Path, tiny: RunSpec) -> None:
    train_in_parts(replace(tiny, epochs=1), tmp_path / "run", 2)
    digest = json.loads((tmp_path / "run" / "classes.json").read_text())["digest"]
    assert {part: one["images"] for part, one in digest.items()} == {"training": 899, "test": 898}
