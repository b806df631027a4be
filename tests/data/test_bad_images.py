"""Images that cannot be read, and images that are not plain RGB."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from spacedkd import DataSpec, UserError
from spacedkd.data import pixel_cache
from spacedkd.data.images import BadImage, decode
from spacedkd.data.sources import load
from tests.data.on_disk import class_folders, parquet, picture, png, write

LARGE = 140


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def replaced_by_text(path: Path) -> None:
    path.write_text("this is not an image")


@pytest.mark.parametrize("memory_limit", [1 << 30, 0], ids=["memory", "encoded"])
@pytest.mark.parametrize("ending", ["png", "jpg"])
@pytest.mark.parametrize(
    ("spoil", "said"),
    [(truncated, "cannot be read: "), (emptied, "is empty"), (replaced_by_text, "is not an image")],
)
def test_a_bad_image_is_named_or_left_out(
    tmp_path: Path, spoil: Any, said: str, ending: str, memory_limit: int, capsys: pytest.CaptureFixture[str]
) -> None:
    place = class_folders(tmp_path, sizes=(LARGE,), ending=ending)
    spoil(place / "train" / "dog" / f"005.{ending}")
    with pytest.raises(UserError) as error:
        load(DataSpec(str(place), image_size=32), memory_limit)
    assert f"train/dog/005.{ending} {said}" in str(error.value)
    assert "data.skip_bad=True" in str(error.value)
    assert "\n" not in str(error.value)
    data = load(DataSpec(str(place), image_size=32, skip_bad=True), memory_limit)
    assert data.train.labels.tolist() == [0] * 4 + [1] * 3
    assert data.train.open(5).size == (LARGE, LARGE)
    assert len(data.notes) == 1
    assert data.notes[0].startswith("Left out 1 of 8 images that cannot be read, first: ")
    assert data.notes[0] in capsys.readouterr().err


def test_several_bad_images_are_counted(tmp_path: Path) -> None:
    place = class_folders(tmp_path)
    for name in ("train/cat/001.png", "train/dog/004.png", "train/dog/006.png"):
        emptied(place / name)
    with pytest.raises(UserError, match="cat/001.png is empty. 2 more are bad too."):
        load(DataSpec(str(place)))


def test_files_that_claim_nothing_are_skipped_with_a_count(tmp_path: Path) -> None:
    place = class_folders(tmp_path)
    alone = load(DataSpec(str(place)))
    assert alone.notes == ()
    for stray in (".DS_Store", "Thumbs.db", "desktop.ini", "notes.txt", "labels"):
        (place / "train" / "cat" / stray).write_text("my cats")
    beside = load(DataSpec(str(place)))
    assert torch.equal(beside.train.pixels, alone.train.pixels)
    assert beside.digest == alone.digest
    (line,) = beside.notes
    assert line.startswith("Skipped 4 files")  # what is hidden does not count
    assert "train/cat/Thumbs.db" in line


def test_an_image_without_an_ending_is_one(tmp_path: Path) -> None:
    place = class_folders(tmp_path)
    first = sorted((place / "train" / "cat").iterdir())[0]
    first.rename(first.with_suffix(""))
    read = load(DataSpec(str(place)))
    assert (len(read.train.labels), read.notes) == (8, ())


def test_what_claims_to_be_an_image_and_is_none_is_refused(tmp_path: Path) -> None:
    place = class_folders(tmp_path)
    (place / "train" / "cat" / "notes.png").write_text("my cats")
    with pytest.raises(UserError, match="train/cat/notes.png is not an image"):
        load(DataSpec(str(place)))


def test_left_out_with_bad_images_strays_are_counted_as_before(tmp_path: Path) -> None:
    place = class_folders(tmp_path)
    (place / "train" / "cat" / "notes.txt").write_text("my cats")
    read = load(DataSpec(str(place), skip_bad=True))
    assert len(read.train.labels) == 8
    assert [line[:17] for line in read.notes] == ["Left out 1 of 9 i"]


def test_a_class_with_too_few_images_is_named(tmp_path: Path) -> None:
    place = class_folders(tmp_path, ("all",), count=10) / "all"
    for path in sorted((place / "dog").iterdir())[1:]:
        path.unlink()
    with pytest.raises(UserError, match=r"Class dog has 1 image, and a test_part of 0\.2 "):
        load(DataSpec(str(place), test_part=0.2))


def test_bad_cells_of_tables_are_named(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    place = parquet(tmp_path)
    cells = [png(picture(n)) for n in range(7)] + [b"no image"]
    table = pa.table({"image": cells, "label": [0, 1] * 4})
    pq.write_table(table, place / "train-00000-of-00001.parquet")
    with pytest.raises(UserError, match="row 7 of .*train is not an image"):
        load(DataSpec(str(place)))
    assert len(load(DataSpec(str(place), skip_bad=True)).train.labels) == 7


def test_nothing_readable_is_an_error(tmp_path: Path) -> None:
    place = class_folders(tmp_path)
    for file in (place / "val").rglob("*.png"):
        emptied(file)
    with pytest.raises(UserError, match="val has no image that can be read"):
        load(DataSpec(str(place), skip_bad=True))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Every image that is decoded for a check."""
    seen: list[bytes] = []

    def spy(data: bytes, smaller: bool = False) -> Image.Image:
        seen.append(data)
        return decode(data, smaller)

    monkeypatch.setattr(pixel_cache, "decode", spy)
    return seen


def test_the_check_is_made_once_until_a_file_changes(tmp_path: Path, decoded: list[bytes]) -> None:
    place = class_folders(tmp_path, sizes=(LARGE, LARGE + 1))
    spec = DataSpec(str(place), augmentation="imagenet", image_size=32, skip_bad=True)
    load(spec, 0)
    assert len(decoded) >= 16
    decoded.clear()
    assert len(load(spec, 0).train.labels) == 8
    assert len(decoded) <= 2  # one look at the size of each part
    spoilt = place / "train" / "cat" / "002.png"
    truncated(spoilt)
    assert len(load(spec, 0).train.labels) == 7
    decoded.clear()
    assert len(load(spec, 0).train.labels) == 7  # a bad verdict is remembered too
    assert len(decoded) <= 2
    write(spoilt, picture(2, LARGE))
    assert len(load(spec, 0).train.labels) == 8
    whole = spoilt.read_bytes()
    spoilt.write_bytes(whole[:100] + bytes(len(whole) - 100))  # of the same length
    assert len(load(spec, 0).train.labels) == 7


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    place = class_folders(tmp_path / "data", sizes=(LARGE, LARGE + 1))
    assert len(load(DataSpec(str(place), image_size=32)).train.labels) == 8


def test_nothing_is_written_beside_the_users_images(tmp_path: Path) -> None:
    place = class_folders(tmp_path, sizes=(LARGE, LARGE + 1))
    before = sorted(os.walk(place))
    load(DataSpec(str(place), image_size=32))
    assert sorted(os.walk(place)) == before


def test_all_kinds_of_images_become_rgb(tmp_path: Path) -> None:
    plain = picture(0)
    gray = np.array(plain.convert("L"))
    alpha = plain.convert("RGBA")
    alpha.putalpha(100)
    palette = plain.quantize(16)
    kinds = {
        "gray.png": (plain.convert("L"), np.stack([gray] * 3, 2)),
        "alpha.png": (alpha, np.array(plain)),
        "gray-alpha.png": (plain.convert("LA"), np.stack([gray] * 3, 2)),
        "palette.png": (palette, np.array(palette.convert("RGB"))),
        "bilevel.png": (plain.convert("1"), np.array(plain.convert("1").convert("RGB"))),
        "deep.png": (Image.fromarray(gray.astype(np.uint16) * 257), np.stack([gray] * 3, 2)),
        "ink.tif": (plain.convert("CMYK"), np.array(plain.convert("CMYK").convert("RGB"))),
    }
    for name, (image, expected) in kinds.items():
        image.save(tmp_path / name)
        got = decode((tmp_path / name).read_bytes())
        assert got.mode == "RGB", name
        assert np.array_equal(np.array(got), expected), name
    palette.save(tmp_path / "see-through.png", transparency=bytes(range(16)))
    assert np.array_equal(
        np.array(decode((tmp_path / "see-through.png").read_bytes())), np.array(palette.convert("RGB"))
    )


def test_a_mixed_folder_of_modes_loads(tmp_path: Path) -> None:
    place = class_folders(tmp_path)
    write(place / "train" / "cat" / "000.png", picture(0).convert("L"))
    write(place / "train" / "cat" / "001.png", picture(1).convert("RGBA"))
    data = load(DataSpec(str(place)))
    assert data.train.pixels.shape == (8, 3, 12, 12)
    assert torch.equal(data.train.pixels[0, 0], data.train.pixels[0, 2])


def test_what_pillow_says_of_broken_bytes_fits_one_line() -> None:
    whole = png(picture(0, 40))
    for cut in range(0, len(whole) - 30, 7):  # the last bytes hold no pixels
        with pytest.raises(BadImage) as error:
            decode(whole[:cut])
        assert "\n" not in str(error.value)
