"""Any torch map-style dataset as the data of a run: its batches by step, and a pair of them, checked."""

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
from spacedkd.data.inputs import Inputs, first_not_finite, tensors
from spacedkd.data.transforms import preserve_generators, seed_generators
from spacedkd.runtime.errors import UserError, first_line
from spacedkd.runtime.seeds import seed_for
from spacedkd.runtime.user_code import note_place

# The items of a torch map-style dataset, whatever they are, made into batches and checked.

Collate = Callable[[list[Any]], Any]
"""a list of items to (inputs, labels), to (several inputs ..., labels), or to a mapping with `labels` in it"""


@runtime_checkable
class MapStyle(Protocol):
    """Whatever has a length and gives an item for a whole number."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> Any: ...


def check_map_style(dataset: object, what: str) -> None:
    if not isinstance(dataset, MapStyle) or isinstance(dataset, IterableDataset):
        raise UserError(
            f"{what} must be map-style, with __len__ and __getitem__, so that any batch can be asked for again; got "
            f"{type(dataset).__name__}."
        )
    if len(dataset) == 0:
        raise UserError(f"{what} has no items: its length is 0.")


@dataclass(frozen=True)
class Items:
    """Some rows of a dataset, shown without chance; and how any of its rows become a batch."""

    dataset: MapStyle
    rows: Tensor  # [N] int64
    collate: Collate | None = None
    classes: int | None = None
    """how many there are, where that is known"""
    instant = False

    def __len__(self) -> int:
        return len(self.rows)

    def subset(self, rows: Tensor) -> Items:
        return replace(self, rows=self.rows[rows])

    def inputs_and_labels(self, rows: Tensor) -> tuple[Inputs, Tensor]:
        """What a network is evaluated on, and the labels."""
        chosen = self.rows[rows].tolist()
        return self.batch(chosen, [seed_for(0, "evaluation", row) for row in chosen], "in evaluation")

    def first_not_finite(self) -> int | None:
        """Return the dataset row of the first item that holds NaN or infinity in evaluation; None if all are finite."""
        for places in torch.arange(len(self)).split(256):
            if (place := first_not_finite(self.inputs_and_labels(places)[0])) is not None:
                return int(self.rows[places[place]])
        return None

    def batch(self, rows: Sequence[int], seeds: Sequence[int], when: str) -> tuple[Inputs, Tensor]:
        """The items of some rows of the dataset, each drawn with its own seed."""
        with preserve_generators():
            items = drawn(self.dataset, zip(rows, seeds, strict=True), partial(_item, when=when))
            seed_collate(seeds[0])
            collated = _collated(items, rows, when) if self.collate is None else _called(self.collate, items, when)
        inputs, labels = _inputs_and_labels(collated)
        return _checked_inputs(inputs, len(rows)), _checked_labels(labels, rows, self.classes)


def drawn(
    dataset: MapStyle, rows: Iterable[tuple[int, int]], get: Callable[[MapStyle, int], Any] = operator.getitem
) -> list[Any]:
    """The items of rows, each with its own seed; all global generators are left seeded."""
    items = []
    for row, seed in rows:
        seed_generators(seed)
        items.append(get(dataset, row))
    return items


def _item(dataset: MapStyle, row: int, when: str) -> Any:
    try:
        return dataset[row]
    except Exception as error:  # it stays what it is: a loop of the user's own may wait for it
        note_place(error, f"Item {row} of {qualified_name(dataset)}", when)
        raise


def _called(collate: Collate, items: list[Any], when: str) -> Any:
    try:
        return collate(items)
    except Exception as error:
        note_place(error, f"Collate {qualified_name(collate)}", when)
        raise


def seed_collate(first: int) -> None:
    """Seed what a collate may draw, by the seed of a batch's first item."""
    seed_generators(seed_for(first, "collate"))


def _collated(items: list[Any], rows: Sequence[int], when: str) -> Any:
    """torch's default, for items that are all alike."""
    way_out = "give collate, a function that makes (inputs, labels) of a list of items"
    forms = [form_of(item) for item in items]
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


def form_of(item: Any) -> str:
    """What an item is made of, in words."""
    if isinstance(item, Tensor | np.ndarray):
        return f"{str(item.dtype).removeprefix('torch.')}{list(item.shape)}"
    if isinstance(item, Mapping):
        return "{" + ", ".join(f"{name}: {form_of(part)}" for name, part in item.items()) + "}"
    if isinstance(item, tuple | list):
        return "(" + ", ".join(form_of(part) for part in item) + ")"
    return type(item).__name__


def _inputs_and_labels(collated: Any) -> tuple[Any, Any]:
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
        f"{form_of(collated)}. Give collate, a function that makes one of a list of items."
    )


def _checked_inputs(inputs: Any, count: int) -> Inputs:
    plain: Any = tuple(inputs) if isinstance(inputs, list) else inputs
    made = isinstance(plain, Tensor | Mapping | tuple) and list(tensors(plain))
    if not made or not all(isinstance(part, Tensor) for part in made):
        raise UserError(f"Inputs must be tensors, got {form_of(inputs)}: leave the rest out in collate.")
    if not any(part.ndim and len(part) == count for part in made):
        raise UserError(f"A batch of {count} items came out of collate as {form_of(inputs)}: it must keep all of them.")
    return dict(plain) if isinstance(plain, Mapping) else plain


def _checked_labels(labels: Any, rows: Sequence[int], classes: int | None) -> Tensor:
    """[B] int64 or [B, C] float32."""
    if isinstance(labels, Tensor) and labels.ndim == 2 and labels.is_floating_point():
        return _checked_soft(labels, rows, classes)
    whole = isinstance(labels, Tensor) and not labels.is_floating_point() and labels.dtype != torch.bool
    if not whole or labels.shape != (len(rows),):
        raise UserError(
            f"Labels of {len(rows)} items must be as many whole numbers, or [{len(rows)}, classes] shares; got "
            f"{form_of(labels)}."
        )
    strange = (labels < 0) | (labels >= (classes or labels.max() + 1))
    if strange.any():
        place = int(strange.nonzero()[0])
        there = f"there are {classes} classes, 0 to {classes - 1}" if classes else "they count from 0"
        raise UserError(f"Item {rows[place]} has label {int(labels[place])}, and {there}.")
    numbers: Tensor = labels.long()
    return numbers


def _checked_soft(labels: Tensor, rows: Sequence[int], classes: int | None) -> Tensor:
    if labels.shape != (len(rows), classes or labels.shape[1]):
        wanted = f"[{len(rows)}, {classes or 'classes'}]"
        raise UserError(f"Labels as shares of {len(rows)} items must be {wanted}, got {form_of(labels)}.")
    bad = ~(((labels.sum(1) - 1).abs() < 1e-3) & (labels >= 0).all(1))
    if bad.any():
        raise UserError(f"The label of item {rows[int(bad.nonzero()[0])]} has shares that do not sum to one.")
    return labels.float()


# Any torch map-style dataset as the data of a run: its batches by step, and a pair of them, checked.
