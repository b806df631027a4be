"""Decoded pixels are kept on disk, shared, and the same bits as without."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from spacedkd import DataSpec, UserError
from spacedkd.data import pixel_cache
from spacedkd.data.images import Images, decode
from spacedkd.data.run_data import RunData
from spacedkd.data.sources import load
from tests.data.on_disk import class_folders, parquet, picture, png, write

pytestmark = pytest.mark.usefixtures("pixels")

PLACES: dict[str, Callable[[Path], Path]] = {
    "folder": lambda place: class_folders(place, count=5),
    "parquet": parquet,
}


def bits(data: RunData) -> list[bytes]:
    batches = [data.stream(4, 7).batch(step) for step in range(6)]
    shown = data.test.inputs(torch.arange(len(data.test)))
    return [part.numpy().tobytes() for part in (shown, *(part for batch in batches for part in batch[:3]))]


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("augmentation", ["small", "self-cifar", "vit"])
def test_the_same_bits_with_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: list[int], kind: str, augmentation: str
) -> None:
    spec = DataSpec(str(PLACES[kind](tmp_path / "data")), augmentation=augmentation, image_size=32)
    first, again = load(spec), load(spec)
    assert len(reads) == 2  # training and test images, once
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    without = load(spec)
    assert len(reads) == 4
    monkeypatch.setattr(pixel_cache, "MANY_IMAGES", 1000)
    in_one_process = load(spec)
    assert isinstance(again.train, Images)
    assert bits(first) == bits(again) == bits(without) == bits(in_one_process)
    assert first.describe() == again.describe() == without.describe()


def test_pixels_are_mapped_and_cannot_be_changed_for_others(tmp_path: Path, pixels: Path) -> None:
    spec = DataSpec(str(class_folders(tmp_path / "data")))
    one, other = load(spec), load(spec)
    before = other.train.pixels.clone()
    maps = Path("/proc/self/maps").read_text()
    assert all(str(file) in maps for file in pixels.glob("*.npy"))
    one.train.pixels.zero_()  # which nobody should
    assert torch.equal(other.train.pixels, before)
    assert torch.equal(load(spec).train.pixels, before)


def test_a_file_that_changes_is_read_again(tmp_path: Path, reads: list[int]) -> None:
    place = class_folders(tmp_path / "data")
    spec = DataSpec(str(place))
    before = load(spec).train.pixels.clone()
    changed = write(place / "train" / "cat" / "001.png", picture(77))
    os.utime(changed, ns=(1, 1))
    after = load(spec)
    assert reads == [8, 8, 8]
    assert torch.equal(after.train.pixels[1], torch.from_numpy(np.array(picture(77))).permute(2, 0, 1))
    assert torch.equal(after.train.pixels[2:], before[2:])
    load(DataSpec(str(place), image_size=6))  # another size
    assert reads == [8, 8, 8, 8, 8]


def test_a_file_that_a_table_names_is_read_again(tmp_path: Path, reads: list[int]) -> None:
    form = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    for part in ("train", "test"):
        files = [write(tmp_path / part / f"{n}.png", picture(n)) for n in range(6)]
        cells = pa.array([{"bytes": None, "path": str(file)} for file in files[:3]], form)
        held = pa.array([{"bytes": png(picture(n)), "path": "elsewhere.png"} for n in range(3, 6)], form)
        table = pa.table({"image": pa.chunked_array([cells, held]), "label": [0, 1] * 3})
        (tmp_path / "tables").mkdir(exist_ok=True)
        pq.write_table(table, tmp_path / "tables" / f"{part}.parquet")
    spec = DataSpec(str(tmp_path / "tables"))
    load(spec)
    assert torch.equal(load(spec).train.pixels[4], torch.from_numpy(np.array(picture(4))).permute(2, 0, 1))
    assert reads == [6, 6]
    os.utime(write(tmp_path / "train" / "1.png", picture(55)), ns=(1, 1))
    assert torch.equal(load(spec).train.pixels[1], torch.from_numpy(np.array(picture(55))).permute(2, 0, 1))
    assert reads == [6, 6, 6]


def cut_off(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 100)


def one_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-500] ^= 4
    file.write_bytes(data)


def of_another_shape(file: Path) -> None:
    np.save(file, np.zeros((3, 3, 12, 12), np.uint8))


def no_record(file: Path) -> None:
    file.with_suffix(".json").unlink()


def torn_record(file: Path) -> None:
    file.with_suffix(".json").write_text('{"checksum": 1')


def strange_record(file: Path) -> None:
    file.with_suffix(".json").write_text("[]")


def empty_record(file: Path) -> None:
    file.with_suffix(".json").write_text("")


def other_verdict(file: Path) -> None:
    """An image that can be read is said to be bad."""
    record = file.with_suffix(".json")
    record.write_text(json.dumps({**json.loads(record.read_text()), "bad": {"1": "is empty"}}))


def no_header(file: Path) -> None:
    file.write_bytes(b"\x93NUMPY\x01\x00\x10\x00{'descr': (((((((")


DAMAGE = [cut_off, one_bit, of_another_shape, torn_record, strange_record, empty_record, other_verdict, no_header]


@pytest.mark.parametrize("harm", [Path.unlink, no_record, *DAMAGE])
def test_what_is_damaged_is_made_anew(
    tmp_path: Path, pixels: Path, reads: list[int], harm: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = DataSpec(str(class_folders(tmp_path / "data")))
    whole = load(spec).train.pixels.clone()
    files = [*pixels.glob("*.npy")]
    for file in files:
        harm(file)
    capsys.readouterr()
    assert torch.equal(load(spec).train.pixels, whole)
    said = capsys.readouterr().err.splitlines()
    assert {*said} == ({f"{file} is damaged: it is made again." for file in files} if harm in DAMAGE else set())
    assert reads == [8, 8, 8, 8]
    load(spec)
    assert reads == [8, 8, 8, 8]


def test_bad_images_are_remembered_with_their_reasons(tmp_path: Path, reads: list[int]) -> None:
    place = class_folders(tmp_path / "data")
    (place / "train" / "dog" / "005.png").write_bytes(b"")
    for _ in range(2):
        with pytest.raises(UserError, match="train/dog/005.png is empty"):
            load(DataSpec(str(place)))
        data = load(DataSpec(str(place), skip_bad=True))
        assert data.train.labels.tolist() == [0] * 4 + [1] * 3
        assert len(data.notes) == 1
    assert reads == [8, 8]


def test_images_of_differing_sizes_leave_nothing_behind(tmp_path: Path, pixels: Path) -> None:
    place = class_folders(tmp_path / "data", sizes=(120, 100))
    load(DataSpec(str(place), augmentation="imagenet", image_size=32))
    assert not [*pixels.glob("*.npy*")]


def test_a_full_disk_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pixels: Path
) -> None:
    spec = DataSpec(str(class_folders(tmp_path / "data")))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=800))
    for _ in range(2):
        data = load(spec)
    assert torch.equal(data.train.pixels[3], torch.from_numpy(np.array(picture(3))).permute(2, 0, 1))
    said = capsys.readouterr().err
    assert said.count(f"Decoded images are not cached in {pixels} (they need 0.0 GB, and 0.0 GB are free)") == 1
    assert not [*pixels.glob("*.npy*")]


def test_what_was_not_used_for_long_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pixels: Path) -> None:
    places = [str(class_folders(tmp_path / f"data{number}")) for number in range(3)]
    monkeypatch.setattr(pixel_cache, "CACHE_BYTES", 4 * (8 * 3 * 12 * 12 + 128))  # two sets of two parts
    owners: dict[Path, int] = {}
    for number, place in enumerate(places[:2]):
        load(DataSpec(place))
        for file in {*pixels.glob("*.npy")} - owners.keys():
            owners[file] = number
            os.utime(file, ns=(number, number))
    load(DataSpec(places[0]))  # used again
    load(DataSpec(places[2]))
    left = {*pixels.glob("*.npy")}
    assert len(left) == 4
    assert {owners[file] for file in left & owners.keys()} == {0}
    assert {file.stem for file in left} == {file.stem for file in pixels.glob("*.json")}


def test_few_images_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pixels: Path) -> None:
    monkeypatch.setattr(pixel_cache, "MANY_IMAGES", 9)
    load(DataSpec(str(class_folders(tmp_path / "data"))))
    assert not pixels.exists()


def test_the_record_says_what_is_in_the_file(tmp_path: Path, pixels: Path) -> None:
    place = class_folders(tmp_path / "data")
    load(DataSpec(str(place)))
    held = {np.load(file).tobytes() for file in pixels.glob("*.npy")}
    for part, first in (("train", 0), ("val", 8)):
        files = sorted((place / part).rglob("*.png"))
        images = [np.array(decode(file.read_bytes())).transpose(2, 0, 1) for file in files]
        assert np.stack(images).tobytes() in held, first
    assert all(json.loads(file.read_text())["bad"] == {} for file in pixels.glob("*.json"))


@pytest.mark.parametrize("harm", ["", "{", "[]", '{"bad": {}, "checksum": "0"}', '{"bad": {"x": 1}}', "null", "{}"])
def test_a_damaged_verdict_is_reached_anew(tmp_path: Path, harm: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = class_folders(tmp_path / "data", sizes=(120, 100))
    (place / "train" / "dog" / "005.png").write_bytes(b"")
    spec = DataSpec(str(place), augmentation="imagenet", image_size=32, skip_bad=True)
    assert len(load(spec, 0).train) == 7
    checked = [*(tmp_path / "cache" / "spacedkd" / "checked").glob("*.json")]
    for file in checked:
        file.write_text(harm)
    capsys.readouterr()
    assert len(load(spec, 0).train) == 7
    said = capsys.readouterr().err
    assert all(said.count(f"{file} is damaged: images are checked again.") == 1 for file in checked)
    assert len(load(spec, 0).train) == 7
    assert "is damaged" not in capsys.readouterr().err


def test_what_killed_writers_left_is_removed(tmp_path: Path, pixels: Path) -> None:
    pixels.mkdir(parents=True)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = [pixels / f"x.npy.{gone.pid}.unfinished", pixels / "x.npy.unfinished"]
    for file in left:
        file.write_bytes(bytes(1000))
    load(DataSpec(str(class_folders(tmp_path / "data"))))
    assert not any(file.exists() for file in left)
