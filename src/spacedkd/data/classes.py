"""Which class has which number: labels as the data writes them, and 0 .. C-1 as a network needs them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spacedkd.data.found import Found, Part
from spacedkd.errors import UserError


class Classes(NamedTuple):
    """The classes of a data set; a class's place is its number."""

    names: tuple[str, ...]
    labels: tuple[int | str, ...]
    """as the data writes them"""
    note: str | None = None
    """what a user should know of the numbering"""

    def number(self, part: Part) -> Tensor:
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


def classes_of(found: Found) -> Classes:
    """The classes of the training images, numbered in the order of their labels."""
    _check(found.train)
    values = np.unique(found.train.labels)
    if len(values) < 2:
        raise UserError(f"All training images of {found.place} have label {values[0]}: two classes are the least.")
    whole = np.issubdtype(values.dtype, np.integer)
    declared = found.names if whole and found.names and values[0] >= 0 and values[-1] < len(found.names) else None
    names = tuple(declared[value] if declared else str(value) for value in values.tolist())
    return Classes(names, tuple(values.tolist()), _note(values, whole, declared is not None, len(found.names or ())))


def _check(part: Part) -> None:
    if len(part.labels) == 0:
        raise UserError(f"The data set has no {part.name} images.")
    if part.labels.dtype.kind not in "iuU":
        raise UserError(
            f"Labels must be whole numbers or text, got {part.labels.dtype} in {part.name}. Save them as int64."
        )
    if part.labels.dtype.kind != "U" and (part.labels == -1).all():
        raise UserError(f"{part.name} has no labels: all of them are -1.")


def _note(values: np.ndarray, whole: bool, named: bool, declared: int) -> str | None:
    if not whole or np.array_equal(values, np.arange(max(len(values), declared if named else 0))):
        return None
    if named:
        return f"{declared - len(values)} of {declared} declared classes have no training images and are left out."
    return f"Labels {values[0]} to {values[-1]} are numbered 0 to {len(values) - 1}; classes.json keeps which is which."
