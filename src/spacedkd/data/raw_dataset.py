"""A data set as it was found, nothing decoded yet: which part of it is which, and which class has which number."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spacedkd.config.spec import DataSpec
from spacedkd.data.decoding import ImageColumn
from spacedkd.runtime.errors import UserError, unknown

TRAIN = ("train", "training")
TEST = ("test", "testing", "val", "valid", "validation", "eval", "dev")


class RawSplit(NamedTuple):
    """N images with their labels."""

    name: str
    images: np.ndarray | ImageColumn  # an array is uint8 [N, H, W, C]
    labels: np.ndarray  # [N] whole numbers or text


class RawDataset(NamedTuple):
    """All of a data set."""

    place: str
    train: RawSplit
    test: RawSplit | None
    names: Sequence[str] | None = None
    """what the labels 0, 1, ... are called, where the data says so"""
    notes: tuple[str, ...] = ()
    """what a user should know of what was found"""


_PARTS = "data that lies in parts with names"
READ_BY = {
    "root": "data sets known by name that lie in a folder",
    "class_list": "folders with a folder for each class",
    "image_column": "tables",
    "label_column": "tables",
    "train_split": _PARTS,
    "test_split": _PARTS,
    "test_part": "data that may have no part to test on",
    "skip_bad": "images in files and tables",
}
"""what each field that says where images lie is for"""


def refuse_unread(spec: DataSpec, read: Collection[str]) -> None:
    """What is given and cannot matter is refused; as it is by default, it counts as not given."""
    usual = DataSpec()
    for name, what in READ_BY.items():
        if name not in read and getattr(spec, name) != getattr(usual, name):
            raise UserError(f"{name} does not matter for {spec.source}, it is for {what}: leave it out.")


def choose_splits(place: str, parts: Collection[str], spec: DataSpec) -> tuple[str, str | None]:
    """The names of the part to train on and of the part to test on, if there is one."""
    for name in (spec.train_split, spec.test_split):
        if name is not None and name not in parts:
            raise unknown(f"part of {place}", name, parts)
    train = spec.train_split or _the_one_to_train_on(place, parts)
    likely = sorted(part for part in parts if part.lower() in TEST and part != train)
    if len(likely) > 1 and spec.test_split is None and spec.test_part is None:
        raise UserError(
            f"{place} has more than one part to test on ({', '.join(likely)}): say which with --test-split NAME."
        )
    test = spec.test_split or next(iter(likely), None)
    if test == train:
        raise UserError(f"The part {train} of {place} cannot be trained on and tested on: give another --test-split.")
    return train, test


def _the_one_to_train_on(place: str, parts: Collection[str]) -> str:
    likely = [part for part in parts if part.lower() in TRAIN]
    if not likely and len(parts) == 1:
        likely = [part for part in parts if part.lower() not in TEST]
    if len(likely) == 1:
        return likely[0]
    raise UserError(
        f"{place} has no part called train (it has {', '.join(sorted(parts))}): say which one to train on with "
        "--train-split NAME."
    )


def check_test_split(found: RawDataset, spec: DataSpec) -> None:
    """A part to test on must be there, or asked for, but not both."""
    if found.test is None and spec.test_part is None:
        raise UserError(
            f"{found.place} has no part to test on: add one called val or test beside {found.train.name}, name it with "
            "--test-split, or keep a fifth of the images for testing with --test-part 0.2."
        )
    if found.test is not None and spec.test_part is not None:
        raise UserError(f"{found.place} has a part to test on, {found.test.name}: leave out --test-part.")


class Classes(NamedTuple):
    """The classes of a data set; a class's place is its number."""

    names: tuple[str, ...]
    labels: tuple[int | str, ...]
    """as the data writes them"""
    note: str | None = None
    """what a user should know of the numbering"""

    def first(self, limit: int | None) -> "Classes":
        """Only the first so many of them."""
        if limit is not None and limit > len(self.names):
            raise UserError(f"class_limit must be from 2 to {len(self.names)}, the classes there are; got {limit}.")
        return Classes(self.names[:limit], self.labels[:limit], self.note)

    def number(self, part: RawSplit) -> Tensor:
        """The labels of a part as numbers, [N] int64."""
        _check(part)
        known = np.array(self.labels)
        if (known.dtype.kind == "U") != (part.labels.dtype.kind == "U"):
            raise UserError(f"{part.name} has labels like {part.labels[0]!r}, the training images like {known[0]!r}.")
        place = np.searchsorted(known, part.labels).clip(max=len(known) - 1)
        strange = known[place] != part.labels
        if strange.any():
            raise UserError(
                f"{part.name} has images with label {part.labels[strange][0]}, and no training image has it: both "
                "parts need the same classes."
            )
        return torch.from_numpy(place.astype(np.int64))


def classes_of(found: RawDataset) -> Classes:
    """The classes of the training images, numbered in the order of their labels."""
    _check(found.train)
    values = np.unique(found.train.labels)
    if len(values) < 2:
        raise UserError(f"All training images of {found.place} have label {values[0]}: two classes are the least.")
    numbers, labels, declared, note = np.arange(len(values)), values.tolist(), found.names or (), None
    whole = np.issubdtype(values.dtype, np.integer)
    named = whole and values[0] >= 0 and values[-1] < len(declared)
    if named and len(labels) < len(declared):
        left_out = len(declared) - len(labels)
        note = f"{left_out} of {len(declared)} declared classes have no training images and are left out."
    elif whole and not named and not np.array_equal(values, numbers):
        note = f"Labels {labels[0]} to {labels[-1]} are numbered 0 to {numbers[-1]}; classes.json keeps which is which."
    return Classes(tuple(declared[label] if named else str(label) for label in labels), tuple(labels), note)


def _check(part: RawSplit) -> None:
    if len(part.labels) == 0:
        raise UserError(f"The data set has no {part.name} images.")
    if part.labels.dtype.kind not in "iuU":
        raise UserError(
            f"Labels must be whole numbers or text, got {part.labels.dtype} in {part.name}. Save them as int64."
        )
    if part.labels.dtype.kind != "U" and (part.labels == -1).all():
        raise UserError(f"{part.name} has no labels: all of them are -1.")
