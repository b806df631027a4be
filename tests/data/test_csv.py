"""Tables of paths: .csv, .tsv and .parquet files that name images beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from spacedkd import DataSpec, UserError
from spacedkd.data.sources import load

ROWS = [(f"images/{number}.png", ("cat", "dog")[number % 2], ("train", "test")[number > 7]) for number in range(12)]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    for number in range(12):
        Image.fromarray(np.full((8, 8), 20 * number, np.uint8)).save(tmp_path / f"images/{number}.png")
    return tmp_path


def check(spec: DataSpec, train: int = 8) -> None:
    """The data has these rows, in this order: the gray of an image is twenty times its number."""
    data = load(spec)
    assert data.info.classes == ("cat", "dog")
    gray = data.train.resized(torch.arange(len(data.train)))[:, 0, 0, 0]
    assert gray.tolist() == [20 * number for number in range(train)]
    assert data.train.labels.tolist() == [number % 2 for number in range(train)]
    assert len(data.test) == 12 - train


def lines(rows: list[tuple[str, ...]], separator: str = ",") -> str:
    return "\n".join(separator.join(row) for row in rows) + "\n"


@pytest.mark.parametrize(("suffix", "separator"), [("csv", ","), ("tsv", "\t")])
def test_a_column_says_which_split_a_row_is_of(place: Path, suffix: str, separator: str) -> None:
    file = place / f"photos.{suffix}"
    file.write_text(lines([("path", "label", "split"), *ROWS], separator), encoding="utf-8-sig")
    check(DataSpec(str(file)))
    check(DataSpec(str(file), train_split="train", test_split="test"))


def test_a_folder_of_tables(place: Path) -> None:
    for split in ("train", "test"):
        rows = [(label, path) for path, label, of in ROWS if of == split]
        (place / f"{split}.csv").write_text(lines([("class", "filename"), *rows]))
    check(DataSpec(str(place)))


def test_a_part_is_split_off_where_no_row_is_for_testing(place: Path) -> None:
    file = place / "all.csv"
    file.write_text(lines([("where", "kind", "size"), *((path, label, "8") for path, label, _ in ROWS)]))
    spec = DataSpec(str(file), image_column="where", label_column="kind", test_part=0.5)
    assert len(load(spec).test) == 6
    with pytest.raises(UserError, match="choose the images with data.image_column"):
        load(DataSpec(str(file), test_part=0.5))
    with pytest.raises(UserError, match="test_part"):
        load(DataSpec(str(file), image_column="where", label_column="kind"))


def test_paths_are_absolute_or_urls_of_files(place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("elsewhere") / "photos.csv"
    rows = [(str(place / path) if n % 2 else (place / path).as_uri(), *rest) for n, (path, *rest) in enumerate(ROWS)]
    file.write_text(lines([("image", "label", "split"), *rows]))
    check(DataSpec(str(file)))
    file.write_text(lines([("image", "label", "split"), ("https://example.org/a.png", "cat", "train")]))
    with pytest.raises(UserError, match="https://example.org/a.png.*download"):
        load(DataSpec(str(file)))


def test_labels_that_are_whole_numbers_are_numbers(place: Path) -> None:
    file = place / "photos.csv"
    file.write_text(
        lines([("path", "label", "split"), *((path, str(9 + (label == "dog")), of) for path, label, of in ROWS)])
    )
    data = load(DataSpec(str(file)))
    assert (data.class_labels, data.train.labels.tolist()) == ((9, 10), [0, 1] * 4)


def test_parquet_with_a_column_of_paths(place: Path) -> None:
    for split in ("train", "test"):
        rows = [row for row in ROWS if row[2] == split]
        table = pa.table({"path": [path for path, *_ in rows], "label": [label for _, label, _ in rows]})
        pq.write_table(table, place / f"{split}.parquet")
    check(DataSpec(str(place)))
    renamed = pa.table({"where": [path for path, *_ in ROWS], "label": [label for _, label, _ in ROWS]})
    (place / "one").mkdir()
    (place / "one" / "images").symlink_to(place / "images")
    pq.write_table(renamed, place / "one" / "all.parquet")
    spec = DataSpec(str(place / "one" / "all.parquet"), image_column="where", test_part=0.5)
    assert len(load(spec).train) == 6


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no rows"),
        ("path,label\n", "no rows"),
        ("path,label\nimages/0.png,cat,more\n", "more values than columns"),
        ("path,label\nimages/0.png,\n", "a row without label"),
        ("a,b,c\n1,2,3\n", "has the columns a, b, c"),
        ('path,label\n"images/0.png,cat\n', "cannot be read as a table"),
        (
            "path,label,split\nnone.png,cat,train\nimages/1.png,dog,train\nimages/2.png,cat,test\n",
            "none.png cannot be read",
        ),
    ],
)
def test_what_is_wrong_is_named(place: Path, text: str, words: str) -> None:
    file = place / "photos.csv"
    file.write_text(text)
    with pytest.raises(UserError, match=words):
        load(DataSpec(str(file)))
    with pytest.raises(UserError, match=r"There is no file .*nowhere\.csv"):
        load(DataSpec(str(place / "nowhere.csv")))


def test_heic_is_refused_with_the_library_it_needs(place: Path) -> None:
    (place / "images/0.png").rename(place / "images/0.heic")
    (place / "images/0.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(40))
    (place / "photos.csv").write_text(lines([("path", "label", "split"), ("images/0.heic", "cat", "train"), *ROWS[1:]]))
    with pytest.raises(UserError, match=r"0\.heic is a HEIC image.*pip install pillow-heif"):
        load(DataSpec(str(place / "photos.csv")))
