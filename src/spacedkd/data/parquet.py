"""Tables with an image and a label column: parquet files, data sets saved to disk, and the Hugging Face hub."""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from spacedkd.config.spec import DataSpec
from spacedkd.data.decoding import ImageColumn, check_fits
from spacedkd.data.hub import asked_briefly
from spacedkd.data.raw_dataset import TEST, TRAIN, RawDataset, RawSplit, choose_splits
from spacedkd.runtime.errors import UserError, first_line, unknown
from spacedkd.runtime.processes import print_notice

IN_MEMORY = 4 << 30
"""parquet files of more bytes are turned into a memory-mapped table by `datasets`"""
AT_ONCE = 1024
"""rows of a parquet file that are read before they are counted"""

Table = tuple[pa.Table, tuple[str, ...]]
"""one part of a data set, and the files it lies in"""


def parquet(spec: DataSpec) -> RawDataset:
    """A .parquet file, or a folder of them whose names or folders say train, test, validation ..."""
    place = Path(spec.source)
    files = sorted(place.rglob("*.parquet")) if place.is_dir() else [place]
    if not files or not all(file.is_file() for file in files):
        raise UserError(f"There is no parquet file {place}. Give one, or a folder of them.")
    by_part: dict[str, list[Path]] = {}
    for file in files:
        by_part.setdefault(_part_name(file, place, spec), []).append(file)
    return _found(str(place), by_part, lambda files: _read(files, spec), spec)


def _part_name(file: Path, place: Path, spec: DataSpec) -> str:
    """The first word of the file's name that names a part, else of the folders it is in, else the name itself."""
    folders = file.relative_to(place).parts[:-1] if place.is_dir() else ()
    asked = [name.lower() for name in (spec.train_split, spec.test_split) if name]
    for words in (re.split(r"[^a-z]+", file.stem.lower()), [folder.lower() for folder in reversed(folders)]):
        for word in words:
            if word in (*asked, *TRAIN, *TEST):
                return word
    return file.stem


def _read(files: Sequence[Path], spec: DataSpec) -> Table:
    names = [str(file) for file in files]
    try:
        columns = [*_image_and_label(spec.source, pq.read_schema(names[0]), spec)]
        if sum(file.stat().st_size for file in files) > IN_MEMORY:
            import datasets

            loaded = datasets.load_dataset("parquet", data_files=names, split="train")
            return _of_dataset(loaded.select_columns(columns))
        return _in_memory(spec.source, names, columns), tuple(names)
    except (pa.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
        raise UserError(f"{names[0]} cannot be read as parquet: {first_line(error)} Check that it is whole.") from None


def _in_memory(place: str, names: Sequence[str], columns: Sequence[str]) -> pa.Table:
    """Some columns of all files; counted as they are read, because a small file can repeat a large cell for ever."""
    held, batches = 0, []
    for name in names:
        with pq.ParquetFile(name) as file:
            groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
            check_fits(name, sum(group.total_byte_size for group in groups), "tables")
            for batch in file.iter_batches(AT_ONCE, columns=columns):
                held += batch.nbytes
                check_fits(place, held, "tables")
                batches.append(batch)
    return pa.Table.from_batches(batches) if batches else pq.read_table(names[0], columns=columns)


def saved_to_disk(spec: DataSpec) -> RawDataset:
    """What `save_to_disk` of Hugging Face datasets wrote."""
    import datasets

    try:
        return _of_datasets(spec.source, datasets.load_from_disk(spec.source), spec)
    except UserError:
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UserError(f"{spec.source} cannot be read as a saved data set: {first_line(error)}") from None


def hub(spec: DataSpec) -> RawDataset:
    """owner/name on the Hugging Face hub, or owner/name:configuration; from version 4 on, its scripts are never run."""
    import datasets

    name, _, configuration = spec.source.partition(":")
    print_notice(f"Asking the Hugging Face hub for {spec.source}.")
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it repeats itself before it gives up
    try:
        with asked_briefly(name):
            loaded = datasets.load_dataset(name, configuration or None)  # which runs no script of anybody's
    except Exception as error:  # the hub's client has many kinds of errors, and none is ours to mend
        raise UserError(
            f"There is no folder or file {spec.source} here, and as a name on the Hugging Face hub it does not load: "
            f"{first_line(error)}"
        ) from None
    return _of_datasets(spec.source, loaded, spec)


def _of_datasets(place: str, loaded: Any, spec: DataSpec) -> RawDataset:
    parts: Mapping[str, Any] = loaded if isinstance(loaded, Mapping) else {"train": loaded}
    return _found(place, parts, _of_dataset, spec)


def _of_dataset(part: Any) -> Table:
    return part.with_format("arrow")[:], tuple(file["filename"] for file in part.cache_files)


def _found(place: str, parts: Mapping[str, Any], read: Callable[[Any], Table], spec: DataSpec) -> RawDataset:
    train, test = choose_splits(place, parts, spec)
    tables = {name: read(parts[name]) for name in (train, test) if name}
    schema = tables[train][0].schema
    image, label = _image_and_label(place, schema, spec)

    def part(name: str) -> RawSplit:
        columns, files = tables[name]
        for column in (image, label):
            if column not in columns.column_names:
                raise UserError(f"{place}: the part {name} has no column {column}, which {train} has.")
        called = f"{place}, part {name}"
        stored = ImageColumn(_plain(columns[image]), torch.arange(len(columns)), called, files)
        return RawSplit(called, stored, _labels(columns[label], called))

    return RawDataset(place, part(train), part(test) if test else None, _class_labels(schema).get(label))


def _labels(column: pa.ChunkedArray, called: str) -> np.ndarray:
    if column.null_count:
        raise UserError(f"{called} has {column.null_count} rows without a label: fill them in or remove them.")
    labels: np.ndarray = column.to_numpy()
    return labels.astype(str) if labels.dtype == object else labels


def _image_and_label(place: str, schema: pa.Schema, spec: DataSpec) -> tuple[str, str]:
    """The names of the two columns."""
    images = [field.name for field in schema if _holds_bytes(field.type)]
    free = [name for name in images if not pa.types.is_fixed_size_binary(schema.field(name).type)]
    image = _the_column(place, schema, spec.image_column, free or images, ("image", "img"), "image")
    whole = [field.name for field in schema if pa.types.is_integer(field.type)]
    text = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]
    likely = [*_class_labels(schema)] or whole or text
    label = _the_column(place, schema, spec.label_column, likely, ("label", "labels"), "label")
    for name, flag, wanted in ((image, "image", "bytes"), (label, "label", "whole numbers or text")):
        if (name in images) != (flag == "image"):
            can = images if flag == "image" else whole + text
            raise UserError(
                f"The column {name} of {place} holds {schema.field(name).type}, and the {flag} column must hold "
                f"{wanted}: give --{flag}-column another ({', '.join(can) or 'it has none'})."
            )
    return image, label


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(field.name == "bytes" for field in kind)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or _is_odd(kind))


def _is_odd(kind: pa.DataType) -> bool:
    """Bytes in a form that not all of Arrow's functions know; those of one length are more often keys than images."""
    return bool(pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind))


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column with all bytes in the usual form."""
    kind = column.type
    if pa.types.is_struct(kind):
        fields = [field.with_type(pa.large_binary()) if _is_odd(field.type) else field for field in kind]
        return column.cast(pa.struct(fields)) if fields != [*kind] else column
    return column.cast(pa.large_binary()) if _is_odd(kind) else column


def _the_column(
    place: str, schema: pa.Schema, asked: str | None, likely: Sequence[str], usual: Sequence[str], what: str
) -> str:
    if asked is not None:
        if asked not in schema.names:
            raise unknown(f"column of {place}", asked, schema.names)
        return asked
    chosen = likely if len(likely) == 1 else [name for name in likely if name in usual]
    if len(chosen) == 1:
        return chosen[0]
    several = f"more than one column that could be the {what} ({', '.join(likely)})"
    none = f"no column that could be the {what} (it has {', '.join(schema.names)})"
    raise UserError(f"{place} has {several if likely else none}: say which with --{what}-column NAME.")


def _class_labels(schema: pa.Schema) -> dict[str, Sequence[str]]:
    """The columns the hub's metadata declares to be classes, with the classes' names."""
    import datasets

    try:
        declared = datasets.Features.from_arrow_schema(schema)
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"The table's own description of its columns (metadata 'huggingface') is bad: {first_line(error)}"
        ) from None
    return {name: kind.names for name, kind in declared.items() if isinstance(kind, datasets.ClassLabel)}
