"""Tables of paths and labels as text: .csv and .tsv files, whose images are files beside them."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import torch

from spacedkd.config.spec import DataSpec
from spacedkd.data.images import ImageColumn, read_text
from spacedkd.data.parquet import OPTIONS, PATH_NAMES, split_name
from spacedkd.data.reader import TEST_NAMES, TRAIN_NAMES, RawDataset, RawSplit, Reader, choose_splits
from spacedkd.runtime.errors import UserError, first_line, unknown

SUFFIXES = (".csv", ".tsv")
LABEL_NAMES = ("label", "labels", "class", "class_name", "target", "category")
SPLIT_NAME = "split"
"""the column that says which split a row belongs to"""

Row = Mapping[str, str]


def read_csv(spec: DataSpec) -> RawDataset:
    """Read a .csv or .tsv file, or a folder of them whose names say train, test, validation ...

    Splits are the values of a column called split, or else the files.
    """
    source = Path(spec.source)
    files = _files(source) if source.is_dir() else [source]
    tables = {file: _read_rows(file) for file in files}
    first = next(iter(tables.values()))[0]
    image = _choose_column(spec.source, first, spec.image_column, PATH_NAMES, "image")
    label = _choose_column(spec.source, first, spec.label_column, LABEL_NAMES, "label", but=(image, SPLIT_NAME))
    rows: dict[str, list[tuple[str, str]]] = {}
    for file, table in tables.items():
        own = split_name(file, source, spec)
        for row in table:
            for column in (image, label):
                if not row.get(column):
                    raise UserError(f"{file} has a row without {column}: {dict(row)}. Fill it in or remove the row.")
            rows.setdefault(row.get(SPLIT_NAME) or own, []).append((locate(row[image], file), row[label]))
    train, test = choose_splits(spec.source, rows, spec)
    return RawDataset(spec.source, _split(train, rows[train]), None if test is None else _split(test, rows[test]))


def _split(name: str, rows: Sequence[tuple[str, str]]) -> RawSplit:
    """Return a split of image files; labels that are all whole numbers are numbers, others are text."""
    labels = np.array([label for _, label in rows])
    if all(label.removeprefix("-").isdecimal() and len(label) < 19 for _, label in rows):
        labels = labels.astype(np.int64)
    return RawSplit(
        name, ImageColumn(pa.array([path for path, _ in rows], pa.string()), torch.arange(len(rows))), labels
    )


def locate(path: str, table: Path) -> str:
    """Return where a table's image is: paths are relative to the table's folder, and file:// URLs are paths.

    >>> locate("cats/1.png", Path("photos/train.csv")), locate("file:///photos/a%20b.png", Path("x.csv"))
    ('photos/cats/1.png', '/photos/a b.png')
    """
    url = urlsplit(path) if "://" in path else None
    if url is not None and url.scheme != "file":
        raise UserError(f"{table} names {path}: images must be files on this machine, so download them first.")
    return str(table.parent / (path if url is None else unquote(url.path)))


def _files(folder: Path) -> list[Path]:
    return sorted(path for suffix in SUFFIXES for path in folder.glob(f"*{suffix}"))


def _read_rows(file: Path) -> list[Row]:
    """Return the rows of a file as text by column; the first line has the names."""
    try:
        lines = read_text(file).removeprefix("\ufeff").splitlines()
        rows: list[Row] = [
            *csv.DictReader(lines, dialect="excel-tab" if file.suffix == ".tsv" else "excel", strict=True)
        ]
    except FileNotFoundError:
        raise UserError(
            f"There is no file {file}. Give a .csv or .tsv with a column of paths and one of labels."
        ) from None
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read as a table: {first_line(error)}.") from None
    if not rows:
        raise UserError(f"{file} has no rows: its first line has the names of columns, each further one is an image.")
    if any(None in row for row in rows):
        raise UserError(f"{file} has a row with more values than columns: {next(row for row in rows if None in row)}.")
    return rows


def _choose_column(
    location: str, row: Row, name: str | None, usual: Sequence[str], kind: str, but: Sequence[str] = ()
) -> str:
    """Return the column that the user named, else the one with a usual name, else the only one that is left."""
    if name is not None:
        if name not in row:
            raise unknown(f"column of {location}", name, row)
        return name
    others = [column for column in row if column not in but]
    likely = [column for column in others if column.strip().lower() in usual] or (others if len(others) == 1 else [])
    if len(likely) != 1:
        raise UserError(f"{location} has the columns {', '.join(row)}: choose the {kind}s with --{kind}-column NAME.")
    return likely[0]


def _is_csv_folder(source: str) -> bool:
    """Return whether a folder has a table whose name says train, and no folder of that name."""
    folder = Path(source)
    if not folder.is_dir() or any((folder / name).is_dir() for name in (*TRAIN_NAMES, *TEST_NAMES)):
        return False
    return any(split_name(file, folder, DataSpec()) in TRAIN_NAMES for file in _files(folder))


CSV = Reader(
    name="FILE.csv",
    about="a path and a label a line; also .tsv, and a folder with train.csv and test.csv",
    docs="also `.tsv`: a column of paths, relative to the file, and one of labels; a column `split` says `train` or "
    "`test`. Also a folder of such files whose names say `train`, `test`, `validation`",
    read=read_csv,
    recognises=lambda source: (Path(source).suffix == ".tsv" and not Path(source).is_dir()) or _is_csv_folder(source),
    suffix=".csv",
    options=OPTIONS,
)
