"""The items of a user's torch dataset, made into batches and checked.

A map-style dataset is used as it is: its own transforms and, if the user has one, its own collate. Every item is loaded
with the global generators seeded for it, so that random transforms repeat.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, default_collate

from spacedkd.config.serialization import qualified_name
from spacedkd.data.generators import preserve_generators, seed_generators
from spacedkd.data.inputs import Inputs, first_not_finite, tensors
from spacedkd.runtime.errors import UserError, first_line
from spacedkd.runtime.seeds import seed_for
from spacedkd.runtime.user_code import note_origin
from spacedkd.task import CLASSIFICATION, Task

Collate = Callable[[list[Any]], Any]
"""makes (inputs, labels), (several inputs ..., labels), or a mapping with `labels` in it, of a list of items"""


@runtime_checkable
class MapStyle(Protocol):
    """A map-style dataset: it has a length, and an item for every row."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> Any: ...


def check_map_style(dataset: object, what: str) -> None:
    """Refuse a dataset that is not map-style, or empty; `what` begins the message."""
    if not isinstance(dataset, MapStyle) or isinstance(dataset, IterableDataset):
        raise UserError(
            f"{what} must be map-style, with __len__ and __getitem__, so that any batch can be loaded again; got "
            f"{type(dataset).__name__}."
        )
    if len(dataset) == 0:
        raise UserError(f"{what} has no items: its length is 0.")


@dataclass(frozen=True)
class Items:
    """Some rows of a map-style dataset, and how rows of it become a batch."""

    dataset: MapStyle
    rows: Tensor  # [N] int64
    collate: Collate | None = None
    classes: int | None = None
    """number of classes, or of the numbers that are predicted, where it is known"""
    task: Task = CLASSIFICATION
    """what the labels are"""
    shift: Tensor | None = None
    """[rows of the dataset] int64, added to every label: label noise; None leaves all labels as they are"""
    instant = False  # loading an item may take time, so workers help

    def __len__(self) -> int:
        return len(self.rows)

    def subset(self, rows: Tensor) -> Items:
        """Return some of the items."""
        return replace(self, rows=self.rows[rows])

    def inputs_and_labels(self, rows: Tensor) -> tuple[Inputs, Tensor]:
        """Return the inputs on which a network is evaluated, and the labels; seeded by row, so always the same."""
        dataset_rows = self.rows[rows].tolist()
        seeds = [seed_for(0, "evaluation", row) for row in dataset_rows]
        return self.batch(dataset_rows, seeds, "in evaluation")

    def first_not_finite(self) -> int | None:
        """Return the dataset row of the first item that holds NaN or infinity in evaluation; None if all are finite."""
        for rows in torch.arange(len(self)).split(256):
            index = first_not_finite(self.inputs_and_labels(rows)[0])
            if index is not None:
                return int(self.rows[rows[index]])
        return None

    def batch(self, rows: Sequence[int], seeds: Sequence[int], when: str) -> tuple[Inputs, Tensor]:
        """Return inputs and labels of some rows of the dataset, each loaded with its own seed.

        `when` ends messages about the user's code, such as "at step 3".
        """
        with preserve_generators():
            items = load_items(self.dataset, zip(rows, seeds, strict=True), partial(_load_item, when=when))
            seed_collate(seeds[0])
            if self.collate is None:
                collated = _collate_by_default(items, rows, when)
            else:
                collated = _collate_by_user(self.collate, items, when)
        inputs, labels = _split_collated(collated)
        return _check_inputs(inputs, len(rows)), self._shift(self.task.check_labels(labels, rows, self.classes), rows)

    def _shift(self, labels: Tensor, rows: Sequence[int]) -> Tensor:
        if self.shift is None:
            return labels
        if labels.ndim == 2:
            raise UserError(
                "label_noise replaces labels that are whole numbers, and this dataset has shares of classes: leave it "
                "out."
            )
        assert self.classes is not None
        return (labels + self.shift[list(rows)].to(labels.device)) % self.classes


def load_items(
    dataset: MapStyle, rows: Iterable[tuple[int, int]], get: Callable[[MapStyle, int], Any] = operator.getitem
) -> list[Any]:
    """Return the items of pairs (row, seed); the global generators are seeded for each, and not restored."""
    items = []
    for row, seed in rows:
        seed_generators(seed)
        items.append(get(dataset, row))
    return items


def seed_collate(first: int) -> None:
    """Seed the global generators for a collate that draws, by the seed of the batch's first item."""
    seed_generators(seed_for(first, "collate"))


def _load_item(dataset: MapStyle, row: int, when: str) -> Any:
    try:
        return dataset[row]
    except Exception as error:  # not replaced: a loop of the user may wait for this very error
        note_origin(error, f"Item {row} of {qualified_name(dataset)}", when)
        raise


def _collate_by_user(collate: Collate, items: list[Any], when: str) -> Any:
    try:
        return collate(items)
    except Exception as error:
        note_origin(error, f"Collate {qualified_name(collate)}", when)
        raise


def _collate_by_default(items: list[Any], rows: Sequence[int], when: str) -> Any:
    """Return torch's default collate of the items; refuse items of different forms."""
    way_out = "give collate, a function that makes (inputs, labels) of a list of items"
    forms = [describe_form(item) for item in items]
    for row, form in zip(rows, forms, strict=True):
        if form != forms[0]:
            raise UserError(
                f"Items {rows[0]} and {row} do not fit into one batch {when}: {forms[0]} and {form}. Make all items "
                f"alike, or {way_out}."
            )
    try:
        return default_collate(items)
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        raise UserError(f"Items like {forms[0]} do not fit into a batch ({first_line(error)}): {way_out}.") from None


def describe_form(item: Any) -> str:
    """Return what an item is made of, such as (float32[3, 8, 8], int)."""
    if isinstance(item, Tensor | np.ndarray):
        return f"{str(item.dtype).removeprefix('torch.')}{list(item.shape)}"
    if isinstance(item, Mapping):
        return "{" + ", ".join(f"{name}: {describe_form(part)}" for name, part in item.items()) + "}"
    if isinstance(item, tuple | list):
        return "(" + ", ".join(describe_form(part) for part in item) + ")"
    return type(item).__name__


def _split_collated(collated: Any) -> tuple[Any, Any]:
    """Return inputs and labels of a collated batch."""
    if isinstance(collated, Mapping):
        for name in ("labels", "label"):
            if name in collated and len(collated) > 1:
                return {key: part for key, part in collated.items() if key != name}, collated[name]
    elif isinstance(collated, tuple | list) and len(collated) == 2:
        return collated[0], collated[1]
    elif isinstance(collated, tuple | list) and len(collated) > 2:
        return tuple(collated[:-1]), collated[-1]
    raise UserError(
        f"A batch must be (inputs, labels), (several inputs ..., labels) or a mapping with labels; got "
        f"{describe_form(collated)}. Give collate, a function that makes one of a list of items."
    )


def _check_inputs(inputs: Any, count: int) -> Inputs:
    """Return the inputs, a list as a tuple; refuse what is not tensors of `count` rows."""
    plain: Any = tuple(inputs) if isinstance(inputs, list) else inputs
    parts = isinstance(plain, Tensor | Mapping | tuple) and list(tensors(plain))
    if not parts or not all(isinstance(part, Tensor) for part in parts):
        raise UserError(f"Inputs must be tensors, got {describe_form(inputs)}: leave the rest out in collate.")
    if not any(part.ndim and len(part) == count for part in parts):
        raise UserError(
            f"A batch of {count} items came out of collate as {describe_form(inputs)}: it must keep all of them."
        )
    return dict(plain) if isinstance(plain, Mapping) else plain
