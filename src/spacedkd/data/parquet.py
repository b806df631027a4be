"""Tables with an image column and a label column, in parquet files.

First the reader of parquet files, then what any table needs to become a dataset (`dataset_of_tables`), which the
readers of the Hugging Face hub use too.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from spacedkd.config.spec import DataSpec
from spacedkd.data.images import ImageColumn, check_fits
from spacedkd.data.reader import TEST_NAMES, TRAIN_NAMES, RawDataset, RawSplit, Reader, choose_splits
from spacedkd.runtime.errors import UserError, first_line, unknown

OPTIONS = ("image_column", "label_column", "train_split", "test_split", "test_part", "skip_bad")

MEMORY_LIMIT = 4 << 30
"""parquet files of more bytes are turned into a memory-mapped table by `datasets`"""
BATCH_ROWS = 1024
"""rows of a parquet file that are read before their bytes are counted"""


class Table(NamedTuple):
    """A split of a dataset as an Arrow table, and the files of the table."""

    columns: pa.Table
    files: tuple[str, ...]


def read_parquet(spec: DataSpec) -> RawDataset:
    """Read a .parquet file, or a folder of them whose names or folders say train, test, validation ..."""
    path = Path(spec.source)
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise UserError(f"There is no parquet file {path}. Give one, or a folder of them.")
    files_by_split: dict[str, list[Path]] = {}
    for file in files:
        files_by_split.setdefault(split_name(file, path, spec), []).append(file)
    return dataset_of_tables(str(path), files_by_split, lambda files: _read_files(files, spec), spec)


def split_name(file: Path, folder: Path, spec: DataSpec) -> str:
    """Return the first word of a file's name that names a split, else the folder that does, else the file's name."""
    folders = file.relative_to(folder).parts[:-1] if folder.is_dir() else ()
    wanted = [name.lower() for name in (spec.train_split, spec.test_split) if name]
    for words in (re.split(r"[^a-z]+", file.stem.lower()), [name.lower() for name in reversed(folders)]):
        for word in words:
            if word in (*wanted, *TRAIN_NAMES, *TEST_NAMES):
                return word
    return file.stem


def _read_files(files: Sequence[Path], spec: DataSpec) -> Table:
    names = [str(file) for file in files]
    try:
        columns = [*_image_and_label_columns(spec.source, pq.read_schema(names[0]), spec)]
        if sum(file.stat().st_size for file in files) > MEMORY_LIMIT:
            import datasets

            loaded = datasets.load_dataset("parquet", data_files=names, split="train")
            return table_of_dataset(loaded.select_columns(columns))
        return Table(_read_columns(spec.source, names, columns), tuple(names))
    except (pa.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
        raise UserError(f"{names[0]} cannot be read as parquet: {first_line(error)} Check that it is whole.") from None


def _read_columns(location: str, names: Sequence[str], columns: Sequence[str]) -> pa.Table:
    """Return some columns of all files; refuse what does not fit into memory.

    Bytes are counted as they are read, because a small file can repeat a large cell without end.
    """
    bytes_read, batches = 0, []
    for name in names:
        with pq.ParquetFile(name) as file:
            groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
            check_fits(name, sum(group.total_byte_size for group in groups), "tables")
            for batch in file.iter_batches(BATCH_ROWS, columns=columns):
                bytes_read += batch.nbytes
                check_fits(location, bytes_read, "tables")
                batches.append(batch)
    return pa.Table.from_batches(batches) if batches else pq.read_table(names[0], columns=columns)


def _is_parquet_folder(source: str) -> bool:
    # Not any deeper: looking through all folders of a large dataset takes long.
    folder = Path(source)
    return folder.is_dir() and any(
        next(folder.glob(pattern), None) for pattern in ("*.parquet", "*/*.parquet", "*/*/*.parquet")
    )


PARQUET = Reader(
    name="FILE.parquet",
    about="an image and a label column; also a folder of such files",
    docs="also a folder of such files: an image column (the hub's `{bytes, path}`, bytes in any of Arrow's forms, or "
    "paths, relative to the file) and a label column (whole numbers or text); file or folder names say `train`, "
    "`test`, `validation`",
    read=read_parquet,
    recognises=_is_parquet_folder,
    suffix=".parquet",
    options=OPTIONS,
)


# Tables as datasets


def table_of_dataset(dataset: Any) -> Table:
    """Return the table of a Hugging Face dataset."""
    return Table(dataset.with_format("arrow")[:], tuple(file["filename"] for file in dataset.cache_files))


def dataset_of_tables(
    location: str, splits: Mapping[str, Any], read: Callable[[Any], Table], spec: DataSpec
) -> RawDataset:
    """Return the dataset of named splits; `read` makes the table of one, and only of those that are used."""
    train, test = choose_splits(location, splits, spec)
    tables = {name: read(splits[name]) for name in (train, test) if name}
    schema = tables[train].columns.schema
    image, label = _image_and_label_columns(location, schema, spec)

    def split(name: str) -> RawSplit:
        columns, files = tables[name]
        for column in (image, label):
            if column not in columns.column_names:
                raise UserError(f"{location}: the split {name} has no column {column}, which {train} has.")
        title = f"{location}, split {name}"
        cells = columns[image]
        if _is_text(cells.type):  # paths, and so no cells to be named by their row
            images = ImageColumn(_located(cells, Path(location), title), torch.arange(len(columns)))
        else:
            images = ImageColumn(_plain_bytes(cells), torch.arange(len(columns)), title, files)
        return RawSplit(title, images, _labels(columns[label], title))

    return RawDataset(location, split(train), split(test) if test else None, _class_labels(schema).get(label))


def _located(paths: pa.ChunkedArray, table: Path, title: str) -> pa.Array:
    """Return a column of paths, which are relative to the folder of the table."""
    folder = table if table.is_dir() else table.parent
    if paths.null_count:
        raise UserError(f"{title} has {paths.null_count} rows without a path: fill them in or remove them.")
    return pa.array([str(folder / path) for path in paths.to_pylist()], pa.string())


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _labels(column: pa.ChunkedArray, title: str) -> np.ndarray:
    if column.null_count:
        raise UserError(f"{title} has {column.null_count} rows without a label: fill them in or remove them.")
    labels: np.ndarray = column.to_numpy()
    return labels.astype(str) if labels.dtype == object else labels


def _image_and_label_columns(location: str, schema: pa.Schema, spec: DataSpec) -> tuple[str, str]:
    """Return the names of the two columns: those of the spec, or the only ones that can be meant."""
    images = [field.name for field in schema if _holds_bytes(field.type)]
    of_any_length = [name for name in images if not pa.types.is_fixed_size_binary(schema.field(name).type)]
    integers = [field.name for field in schema if pa.types.is_integer(field.type)]
    texts = [field.name for field in schema if _is_text(field.type)]
    if not images:
        images = [spec.image_column] if spec.image_column in texts else [name for name in texts if name in PATH_NAMES]
        texts = [name for name in texts if name not in images]
        of_any_length = images
    labels = [*_class_labels(schema)] or integers or texts
    # Bytes that all have one length are more often keys than images.
    image = _choose_column(location, schema, "image", spec.image_column, of_any_length or images)
    label = _choose_column(location, schema, "label", spec.label_column, labels)
    for name, kind, wanted in ((image, "image", "bytes or paths"), (label, "label", "whole numbers or text")):
        if (name in images) != (kind == "image"):
            suitable = images if kind == "image" else integers + texts
            raise UserError(
                f"The column {name} of {location} holds {schema.field(name).type}, and the {kind} column must hold "
                f"{wanted}: give --{kind}-column another ({', '.join(suitable) or 'it has none'})."
            )
    return image, label


PATH_NAMES = ("path", "image_path", "filepath", "file_path", "file", "filename", "file_name", "image", "img")
"""usual names of a column of paths"""
_USUAL_NAMES = {"image": ("image", "img"), "label": ("label", "labels")}


def _choose_column(location: str, schema: pa.Schema, kind: str, name: str | None, likely: Sequence[str]) -> str:
    """Return the column that the user named, else the only likely one, else the likely one with a usual name."""
    if name is not None:
        if name not in schema.names:
            raise unknown(f"column of {location}", name, schema.names)
        return name
    chosen = likely if len(likely) == 1 else [column for column in likely if column in _USUAL_NAMES[kind]]
    if len(chosen) == 1:
        return chosen[0]
    several = f"more than one column that could be the {kind} ({', '.join(likely)})"
    none = f"no column that could be the {kind} (it has {', '.join(schema.names)})"
    raise UserError(f"{location} has {several if likely else none}: choose one with --{kind}-column NAME.")


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(field.name == "bytes" for field in kind)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or _is_unusual_binary(kind))


def _is_unusual_binary(kind: pa.DataType) -> bool:
    """Return whether these are bytes in a form that not all of Arrow's functions know."""
    return bool(pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind))


def _plain_bytes(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the column with all bytes in the usual form."""
    kind = column.type
    if pa.types.is_struct(kind):
        fields = [field.with_type(pa.large_binary()) if _is_unusual_binary(field.type) else field for field in kind]
        return column.cast(pa.struct(fields)) if fields != [*kind] else column
    return column.cast(pa.large_binary()) if _is_unusual_binary(kind) else column


def _class_labels(schema: pa.Schema) -> dict[str, Sequence[str]]:
    """Return the columns that the hub's metadata declares to be classes, with the names of the classes."""
    import datasets

    try:
        declared = datasets.Features.from_arrow_schema(schema)
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"The table's own description of its columns (metadata 'huggingface') is bad: {first_line(error)}"
        ) from None
    return {name: kind.names for name, kind in declared.items() if isinstance(kind, datasets.ClassLabel)}
