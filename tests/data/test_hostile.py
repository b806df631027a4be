"""What is no data, declares absurd sizes, never ends, or leads in circles: one line, bounded in time and memory."""

from __future__ import annotations

import io
import os
import resource
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageOps

from spacedkd import DataSpec, UserError
from spacedkd.data import hub, images
from spacedkd.data import parquet as tables
from spacedkd.data.folders import MOST_OTHER_FILES, read_class_list
from spacedkd.data.images import MOST_ARRAY_BYTES, MOST_ENCODED_BYTES, MOST_PIXELS, BadImage, decode
from spacedkd.data.sources import load
from tests.data.on_disk import class_folders, parquet, picture, png, tiny_imagenet, write


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    """Whoever takes what a header declares fails here, not the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + (2 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def refused(spec: DataSpec) -> str:
    with pytest.raises(UserError) as error:
        load(spec)
    assert "\n" not in str(error.value)
    return str(error.value)


def pipe(path: Path) -> Path:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


def endless(path: Path) -> Path:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("make", [pipe, endless])
def test_pipes_and_devices_are_refused_at_once(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    assert "not an ordinary file" in refused(DataSpec(str(make(tmp_path / "x.npz"))))
    assert "There is no parquet file" in refused(DataSpec(str(make(tmp_path / "x.parquet"))))
    place = class_folders(tmp_path / "folder")
    assert "cannot be read" in refused(DataSpec(str(place), class_list=str(make(tmp_path / "list"))))
    make(place / "train" / "cat" / "001.png")
    assert "train/cat/001.png cannot be read: it is a pipe, a device" in refused(DataSpec(str(place)))
    assert len(load(DataSpec(str(place), skip_bad=True)).train) == 7
    table = tmp_path / "table"
    form = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table.mkdir()
    for part in ("train", "test"):
        cells = [{"bytes": png(picture(0)), "path": None}, {"bytes": None, "path": str(make(tmp_path / "cell"))}]
        pq.write_table(pa.table({"image": pa.array(cells, form), "label": [0, 1]}), table / f"{part}.parquet")
    assert "row 1 of" in refused(DataSpec(str(table)))


def npy(shape: tuple[int, ...], kind: str, data: bytes = b"") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})
    return file.getvalue() + data


def archive(path: Path, member: bytes, **options: Any) -> Path:
    with zipfile.ZipFile(path, "w", **options) as file:
        file.writestr("x_train.npy", member)
    return path


def bomb(path: Path) -> Path:
    """40 GB of zeros in a few MB, and headers that agree with it."""
    header, count = npy((40 << 30,), "|u1"), 40 << 30
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x_train.npy", header)
    raw = bytearray(path.read_bytes())
    for signature, place in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):  # sizes of 4 bytes: as much as they can say
        start = raw.index(signature) + place
        raw[start : start + 4] = struct.pack("<I", min(count + len(header), 0xFFFFFFFE))
    path.write_bytes(raw)
    return path


def test_archives_that_declare_more_than_they_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for shape, kind in (
        ((1 << 40, 64, 64, 3), "|u1"),
        ((1 << 62, 1 << 62), "<f8"),
        ((4,), "<U1000000000"),
        ((-5,), "|u1"),
    ):
        for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            path = archive(tmp_path / "x.npz", npy(shape, kind, b"0" * 64), compression=method)
            assert "is not an .npz of plain arrays, or is cut off" in refused(DataSpec(str(path)))
    assert "is not an .npz of plain arrays" in refused(DataSpec(str(bomb(tmp_path / "bomb.npz"))))
    monkeypatch.setattr(images, "MOST_ARRAY_BYTES", 1 << 20)
    zeros = {name: np.zeros((40, 128, 128, 3), np.uint8) for name in ("x_train", "x_test")}
    np.savez_compressed(tmp_path / "zeros.npz", **zeros, y_train=np.arange(40) % 2, y_test=np.arange(40) % 2)
    assert (tmp_path / "zeros.npz").stat().st_size < 20_000
    assert "declares 0.0 GB of arrays, and 0.0 GB are the most" in refused(DataSpec(str(tmp_path / "zeros.npz")))


def declared(width: int, height: int) -> bytes:
    """A PNG that says it is so large."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")
    )


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(("width", "height"), [(65535, 65535), (2**31 - 1, 2**31 - 1), (12_000, 12_000)])
def test_images_that_declare_absurd_sizes(width: int, height: int) -> None:
    with pytest.raises(BadImage, match=f"declares more pixels than the {MOST_PIXELS} that are read at most"):
        decode(declared(width, height))


def test_an_encoded_image_has_a_largest_size(tmp_path: Path) -> None:
    place = class_folders(tmp_path)
    with (place / "train" / "dog" / "005.png").open("r+b") as file:
        file.truncate(1 << 40)  # which takes no room on the disk
    assert "has 1099511627776 bytes; 268435456 are the most" in refused(DataSpec(str(place)))


def test_a_small_table_that_repeats_a_large_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MOST_ARRAY_BYTES", 1 << 26)
    monkeypatch.setattr(tables, "BATCH_ROWS", 16)
    cell = bytes(1 << 20)
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 200, pa.int32()), pa.array([cell])).cast(pa.binary())
    for part in ("train", "test"):
        pq.write_table(pa.table({"image": repeated, "label": [0, 1] * 100}), tmp_path / f"{part}.parquet")
    assert (tmp_path / "train.parquet").stat().st_size < 1 << 21
    assert "GB of tables, and 0.1 GB are the most" in refused(DataSpec(str(tmp_path)))


def test_a_table_read_in_pieces_is_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = parquet(tmp_path)
    whole = load(DataSpec(str(place)))
    monkeypatch.setattr(tables, "BATCH_ROWS", 3)
    assert load(DataSpec(str(place))).train.pixels.equal(whole.train.pixels)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"image_column": "label"}, "The column label of .* holds int64, and the image column must hold bytes"),
        ({"image_column": "note"}, "The column note of .* holds string, .*data.image_column another .image"),
        ({"label_column": "image"}, "holds struct.* the label column must hold whole numbers or text: .* .label, note"),
        ({"image_column": "label", "label_column": "label"}, "are both 'label': a column holds images or labels"),
    ],
)
def test_columns_of_the_wrong_kind(tmp_path: Path, flags: dict[str, str], said: str) -> None:
    place = parquet(tmp_path, {"label": [0, 1] * 4, "note": ["a", "b"] * 4})
    with pytest.raises(UserError, match=said):
        load(DataSpec(str(place), **flags))  # type: ignore[arg-type]


@pytest.mark.parametrize("folder", ["/", "/usr", "/proc", "/proc/self", "/sys/kernel", "/dev"])
def test_folders_of_the_system_are_refused(folder: str) -> None:
    assert refused(DataSpec(folder)).startswith(f"{folder} is a folder of the operating system")


def test_a_folder_of_other_things_is_not_walked_through(tmp_path: Path) -> None:
    place = class_folders(tmp_path)
    for number in range(MOST_OTHER_FILES):
        (place / "train" / "dog" / f"a{number}.txt").write_text("no image")
    assert len(load(DataSpec(str(place), skip_bad=True)).train) == 8  # 004.png comes before them
    for file in (place / "train" / "dog").glob("*.png"):
        file.rename(file.with_name(f"z{file.name}"))
    said = f"None of the first {MOST_OTHER_FILES} files in {place / 'train' / 'dog'} is an image"
    assert said in refused(DataSpec(str(place), skip_bad=True))


@pytest.mark.parametrize("where", ["..", "../..", ".", "deep/again"])
def test_links_in_circles_are_refused_and_other_links_followed(tmp_path: Path, where: str) -> None:
    place = class_folders(tmp_path / "data")
    elsewhere = write(tmp_path / "elsewhere" / "more" / "one.png", picture(50)).parent.parent
    (place / "train" / "cat" / "linked").symlink_to(elsewhere)
    (place / "train" / "cat" / "linked.png").symlink_to(elsewhere / "more" / "one.png")
    assert len(load(DataSpec(str(place))).train) == 10
    if where == "deep/again":  # out of the data, and back
        (elsewhere / "back").symlink_to(place / "train")
        loop = place / "train" / "cat" / "linked" / "back"
    else:
        loop = place / "train" / "cat" / "loop"
        loop.symlink_to(where)
    for skip in (False, True):
        assert refused(DataSpec(str(place), skip_bad=skip)).startswith(f"{loop} is a link to a folder that contains it")


def test_a_name_that_is_no_text_is_named(tmp_path: Path) -> None:
    place = class_folders(tmp_path)
    (place / "train" / "cat" / os.fsdecode(b"\xff.png")).write_bytes(png(picture(0)))
    assert "cat/\\udcff.png' is not UTF-8: rename it." in refused(DataSpec(str(place)))


def test_annotations_that_lack_a_class(tmp_path: Path) -> None:
    place = tiny_imagenet(tmp_path / "tiny")
    (place / "val" / "val_annotations.txt").write_text("val_0.JPEG\n")
    assert "val_annotations.txt has a line 'val_0.JPEG'" in refused(DataSpec(str(place)))


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_upright(tmp_path: Path, ending: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture(3, 24, 16).save(tmp_path / f"turned.{ending}", exif=exif)
    data = (tmp_path / f"turned.{ending}").read_bytes()
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    assert decode(data).size == expected.size
    assert decode(data).tobytes() == expected.tobytes()


def test_every_way_of_reading_turns_images(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    picture(3, 120, 100).save(file, "JPEG", exif=exif)
    place = class_folders(tmp_path / "folder", sizes=(120,))
    for path in place.rglob("*.png"):
        path.with_suffix(".jpg").write_bytes(file.getvalue())
        path.unlink()
    form = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    (tmp_path / "table").mkdir()
    for part in ("train", "test"):
        cells = pa.array([{"bytes": file.getvalue(), "path": None}] * 4, form)
        pq.write_table(pa.table({"image": cells, "label": [0, 1] * 2}), tmp_path / "table" / f"{part}.parquet")
    for source in (place, tmp_path / "table"):
        for limit in (0, 1 << 30):
            data = load(DataSpec(str(source), augmentation="imagenet", image_size=32), limit)
            assert data.train.open(0).size == (100, 120)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_odd_metadata_does_not_make_an_image_unreadable() -> None:
    file = io.BytesIO()
    picture(3).save(file, "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff garbage")
    assert decode(file.getvalue()).size == (12, 12)


@pytest.mark.parametrize(
    ("pixels", "said"),
    [(np.float32, "has floating-point numbers for pixels"), (np.int32, "has 32-bit whole numbers for pixels")],
)
def test_pixels_without_a_known_white_are_refused_by_name(tmp_path: Path, pixels: Any, said: str) -> None:
    place = class_folders(tmp_path)
    (place / "train" / "cat" / "001.png").unlink()
    Image.fromarray(np.arange(144).reshape(12, 12).astype(pixels)).save(place / "train" / "cat" / "001.tif")
    assert f"train/cat/001.tif {said}" in refused(DataSpec(str(place)))
    deep = Image.fromarray((np.arange(144).reshape(12, 12) * 257).astype(np.uint16))
    for ending in ("png", "tif", "pgm"):  # 65535 is white
        deep.save(tmp_path / f"deep.{ending}")
        assert np.array_equal(np.array(decode((tmp_path / f"deep.{ending}").read_bytes()))[..., 0].ravel(), range(144))


def test_programs_are_not_run(tmp_path: Path) -> None:
    file = io.BytesIO()
    picture(0).save(file, "EPS")
    with pytest.raises(BadImage, match="PostScript"):
        decode(file.getvalue())


def test_scripts_of_the_hub_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    ran = tmp_path / "ran"
    script = tmp_path / "owner" / "name" / "name.py"
    script.parent.mkdir(parents=True)
    script.write_text(f"open({str(ran)!r}, 'w')\n")
    monkeypatch.setenv("HF_DATASETS_TRUST_REMOTE_CODE", "1")
    monkeypatch.setattr(hub, "offline_without_answer", lambda name: nullcontext())
    whole = datasets.load_dataset
    monkeypatch.setattr(datasets, "load_dataset", lambda name, *rest: whole(str(tmp_path / name), *rest))
    monkeypatch.chdir(tmp_path / "owner" / "name")
    assert "does not load" in refused(DataSpec("owner/name"))
    assert not ran.exists()


def test_a_hub_that_cannot_be_reached_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import HfApi, constants

    asked: list[Any] = []

    def unreachable(self: HfApi, name: str, timeout: float) -> None:
        asked.append((name, timeout))
        raise OSError("no network")

    monkeypatch.setattr(HfApi, "dataset_info", unreachable)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert "owner/nope" in refused(DataSpec("owner/nope"))
    assert asked == [("owner/nope", hub.ANSWER_SECONDS)]
    assert constants.HF_HUB_OFFLINE is False


def test_names_of_nothing_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class_folders(tmp_path)
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)
    assert refused(DataSpec("photos/cats")) == "There is no cats in the folder photos, which is empty."
    for name in ("", " "):
        assert refused(DataSpec(name)).startswith("data is empty")


def test_declared_limits_are_those_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    assert f"| the hub's answer | {hub.ANSWER_SECONDS:g} seconds" in page
    for limit in (
        MOST_PIXELS,
        MOST_ENCODED_BYTES >> 20,
        MOST_ARRAY_BYTES >> 30,
        MOST_OTHER_FILES,
    ):
        assert str(limit) in page


def test_a_class_list_that_is_too_long_is_refused_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spacedkd.data.images.MOST_TEXT_BYTES", 10)
    (tmp_path / "classes.txt").write_text("cats\ndogs\nbirds\n")
    with pytest.raises(UserError, match="larger than 10 bytes"):
        read_class_list(str(tmp_path / "classes.txt"))
