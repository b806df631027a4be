"""A dataset reader: everything about one format of datasets on disk.

A new reader is one file that makes a `Reader`, and one entry in `sources.READERS`. Loading, `spacedkd list data`, the
messages for unknown data and unread options, and the tables of docs/data.md (a test compares them) follow from it:

    def read_csv(spec: DataSpec) -> RawDataset: ...

    CSV = Reader(
        name="FILE.csv",
        about="one image a line: its path, then its label",
        docs="lines of `path,label`; file names say `train` and `test`",
        read=read_csv,
        suffix=".csv",
        options=("train_split", "test_split"),
    )

What a reader returns is a `RawDataset`, nothing of it decoded yet. Here are also the rules that all readers share:
which split is for training and which for testing (`choose_splits`), and which class has which number (`Classes`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from spacedkd.config.spec import DataSpec
from spacedkd.data import launch_cache
from spacedkd.data.images import ImageColumn
from spacedkd.runtime.documents import parse_json
from spacedkd.runtime.errors import UserError, unknown


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One way to read a dataset, and the words that describe it.

    A reader reads the dataset called `name` (`digits`), files with a `suffix` (`.npz`), or whatever source its
    `recognises` accepts (a folder of a certain layout). Of several readers that accept a source, the first one in
    `sources.READERS` reads it.
    """

    name: str
    """value of --data: a name such as `digits`, or the form of a path such as `FILE.npz`"""
    about: str
    """description of the dataset in `spacedkd list data`"""
    docs: str
    """place or form of the images in docs/data.md"""
    read: Callable[[DataSpec], RawDataset]
    """finds the images of a spec and their labels; decodes nothing"""
    recognises: Callable[[str], bool] | None = None
    """returns whether this reader reads a source that is neither the name nor a file with the suffix"""
    suffix: str | None = None
    """the suffix of the files that it reads"""
    options: tuple[str, ...] = ()
    """the fields of a DataSpec that it reads besides `source`; a field that no reader of a source reads is refused"""
    signals: bool = False
    """True if its items are not images but signals: floats that are neither resized nor augmented"""
    augmentation: str | None = None
    """default augmentation of training images; None decides by the size of an image"""

    @property
    def is_named(self) -> bool:
        """Whether this is one dataset, known by its name, and not a form of files."""
        return self.suffix is None and self.recognises is None

    def accepts(self, source: str) -> bool:
        """Return whether this reader reads the source that a user named."""
        if self.is_named:
            return source == self.name
        path = Path(source)
        if self.suffix is not None and path.suffix == self.suffix and not path.is_dir():
            return True  # also where there is no such file: the reader says so
        return self.recognises is not None and self.recognises(source)


class RawSplit(NamedTuple):
    """N images that are not decoded yet, or N signals, with their labels."""

    name: str
    images: np.ndarray | ImageColumn  # an array is [N, H, W, C]: uint8, or float32 for signals
    labels: np.ndarray  # [N] whole numbers or text


class RawDataset(NamedTuple):
    """The training split and, where the dataset has one, the test split."""

    location: str
    """the folder, file or name a user knows the dataset by"""
    train: RawSplit
    test: RawSplit | None
    class_names: Sequence[str] | None = None
    """the names of the labels 0, 1, ..., where the dataset has them"""
    notes: tuple[str, ...] = ()
    """sentences for the user, such as which files were skipped"""


def read_once(what: str, read: Callable[[], RawDataset]) -> RawDataset:
    """Return what `read` returns; where it is lists of files, one process of a run lists them for the others."""
    own: list[RawDataset] = []

    def compute() -> launch_cache.Arrays:
        own.append(read())
        return _to_arrays(own[0])

    arrays = launch_cache.compute_once(f"dataset {what}", compute)
    if own:
        return own[0]
    return _from_arrays(arrays) if arrays else read()


def _to_arrays(raw: RawDataset) -> launch_cache.Arrays:
    """Return a dataset of image files as arrays; none for a table, which every process maps for itself."""
    splits = {"train": raw.train} | ({} if raw.test is None else {"test": raw.test})
    arrays: dict[str, np.ndarray] = {}
    for part, split in splits.items():
        if isinstance(split.images, np.ndarray) or split.images.table is not None or split.labels.dtype.kind == "O":
            return {}
        paths = "\0".join(split.images.column.to_pylist()).encode()
        arrays |= {f"{part} labels": split.labels, f"{part} paths": np.frombuffer(paths, np.uint8)}
    names = {part: split.name for part, split in splits.items()}
    described = {"location": raw.location, "names": names, "classes": raw.class_names, "notes": raw.notes}
    return {**arrays, "described": np.array(json.dumps(described))}


def _from_arrays(arrays: launch_cache.Arrays) -> RawDataset:
    described = parse_json(str(arrays["described"]), "a shared listing")
    splits = {}
    for part, name in described["names"].items():
        paths = pa.array(arrays[f"{part} paths"].tobytes().decode().split("\0"), pa.string())
        splits[part] = RawSplit(name, ImageColumn(paths, torch.arange(len(paths))), arrays[f"{part} labels"])
    notes, test = tuple(described["notes"]), splits.get("test")
    return RawDataset(described["location"], splits["train"], test, described["classes"], notes)


# The splits

TRAIN_NAMES = ("train", "training")
TEST_NAMES = ("test", "testing", "val", "valid", "validation", "eval", "dev")


def choose_splits(location: str, names: Collection[str], spec: DataSpec) -> tuple[str, str | None]:
    """Return the names of the training split and of the test split, or None where there is no test split.

    The spec's train_split and test_split come first, then the usual names. Refuses names that do not exist, several
    splits that could be meant, and testing on the training split.
    """
    for name in (spec.train_split, spec.test_split):
        if name is not None and name not in names:
            raise unknown(f"split of {location}", name, names)
    train = spec.train_split or _likely_train_split(location, names)
    test_names = sorted(name for name in names if name.lower() in TEST_NAMES and name != train)
    if len(test_names) > 1 and spec.test_split is None and spec.test_part is None:
        raise UserError(
            f"{location} has more than one split to test on ({', '.join(test_names)}): choose one with "
            "--test-split NAME."
        )
    test = spec.test_split or next(iter(test_names), None)
    if test == train:
        raise UserError(
            f"The split {train} of {location} cannot be trained on and tested on: give another --test-split."
        )
    return train, test


def _likely_train_split(location: str, names: Collection[str]) -> str:
    likely = [name for name in names if name.lower() in TRAIN_NAMES]
    if not likely and len(names) == 1:
        likely = [name for name in names if name.lower() not in TEST_NAMES]
    if len(likely) == 1:
        return likely[0]
    raise UserError(
        f"{location} has no split called train (it has {', '.join(sorted(names))}): choose the one to train on with "
        "--train-split NAME."
    )


def check_test_split(raw: RawDataset, spec: DataSpec) -> None:
    """Refuse a dataset without a test split, and a test_part for one that has a test split."""
    if raw.test is None and spec.test_part is None:
        raise UserError(
            f"{raw.location} has no split to test on: add one called val or test next to {raw.train.name}, name it "
            "with --test-split, or use a fifth of the images for testing with --test-part 0.2."
        )
    if raw.test is not None and spec.test_part is not None:
        raise UserError(f"{raw.location} has a split to test on, {raw.test.name}: leave out --test-part.")


# The classes


class Classes(NamedTuple):
    """The classes of a dataset; the number of a class is its index here."""

    names: tuple[str, ...]
    labels: tuple[int | str, ...]
    """the labels as the dataset has them, sorted"""
    note: str | None = None
    """a sentence for the user about the numbering"""

    @classmethod
    def of(cls, raw: RawDataset) -> Classes:
        """Return the classes of the training images, numbered in the order of their labels."""
        _check_labels(raw.train)
        values = np.unique(raw.train.labels)
        if len(values) < 2:
            raise UserError(
                f"All training images of {raw.location} have label {values[0]}; at least 2 classes are needed."
            )
        numbers, labels, declared, note = np.arange(len(values)), values.tolist(), raw.class_names or (), None
        are_integers = np.issubdtype(values.dtype, np.integer)
        have_names = are_integers and values[0] >= 0 and values[-1] < len(declared)
        if have_names and len(labels) < len(declared):
            missing = len(declared) - len(labels)
            note = f"{missing} of {len(declared)} declared classes have no training images and are left out."
        elif are_integers and not have_names and not np.array_equal(values, numbers):
            note = (
                f"Labels {labels[0]} to {labels[-1]} are numbered 0 to {numbers[-1]}; "
                "classes.json keeps which is which."
            )
        return cls(tuple(declared[label] if have_names else str(label) for label in labels), tuple(labels), note)

    def first(self, limit: int | None) -> Classes:
        """Return only the first `limit` classes; all of them if None."""
        if limit is not None and limit > len(self.names):
            raise UserError(f"class_limit must be from 2 to {len(self.names)}, the number of classes; got {limit}.")
        return Classes(self.names[:limit], self.labels[:limit], self.note)

    def numbers(self, split: RawSplit) -> Tensor:
        """Return the class number of every image of a split, [N] int64; refuse labels that are no class."""
        _check_labels(split)
        labels = np.array(self.labels)
        if (labels.dtype.kind == "U") != (split.labels.dtype.kind == "U"):
            raise UserError(
                f"{split.name} has labels like {split.labels[0]!r}, the training images like {labels[0]!r}."
            )
        numbers = np.searchsorted(labels, split.labels).clip(max=len(labels) - 1)
        unknown_labels = labels[numbers] != split.labels
        if unknown_labels.any():
            raise UserError(
                f"{split.name} has images with label {split.labels[unknown_labels][0]}, and no training image has it: "
                "both splits need the same classes."
            )
        return torch.from_numpy(numbers.astype(np.int64))


def _check_labels(split: RawSplit) -> None:
    if len(split.labels) == 0:
        raise UserError(f"The dataset has no {split.name} images.")
    if split.labels.dtype.kind not in "iuU":
        raise UserError(
            f"Labels must be whole numbers or text, got {split.labels.dtype} in {split.name}. Save them as int64."
        )
    if split.labels.dtype.kind != "U" and (split.labels == -1).all():
        raise UserError(f"{split.name} has no labels: all of them are -1.")
