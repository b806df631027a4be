"""Any torch map-style dataset as the data of a run: its batches by step, and a pair of them, checked."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset

from spacedkd.data.inputs import Inputs, tensors
from spacedkd.data.items import Collate, Items, MapStyle, check_map_style, form_of
from spacedkd.data.stream import Shuffled, smoothed
from spacedkd.errors import UserError
from spacedkd.seeds import seed_for

TRIED = 8
"""items that are asked for twice before a run begins"""


class DatasetStream(Shuffled):
    """Shuffled batches of any map-style dataset; one rank's slice of each global batch.

    What the dataset's transforms draw is seeded by (seed, step, view, place in the global batch). `collate` makes a
    batch of a list of items; torch's default if None. With `classes`, a count, labels are checked to be below it.
    """

    def __init__(
        self,
        dataset: MapStyle | Items,
        batch_size: int,
        seed: int,
        collate: Collate | None = None,
        *,
        drop_last: bool = False,
        rank: int = 0,
        ranks: int = 1,
        label_smoothing: float = 0.0,
        classes: int | None = None,
    ) -> None:
        if not isinstance(dataset, Items):
            check_map_style(dataset, "The dataset")
            dataset = Items(dataset, torch.arange(len(dataset)), collate, classes)
        super().__init__(len(dataset), batch_size, seed, drop_last, rank, ranks, "items", least=1)
        self.items = dataset
        self.label_smoothing = label_smoothing

    def _drawn(self, step: int, rows: Tensor, mine: Tensor, seed: int) -> tuple[Inputs, Tensor]:
        seeds = [seed_for(seed, place) for place in mine.tolist()]
        inputs, labels = self.items.batch(self.items.rows[rows[mine]].tolist(), seeds, f"at step {step}")
        classes = labels.shape[1] if labels.ndim == 2 else self.items.classes
        if classes is None and self.label_smoothing:
            raise UserError("Label smoothing needs to know how many classes there are: give classes=COUNT.")
        return inputs, smoothed(labels, classes or 0, self.label_smoothing)


def checked_pair(pair: Sequence[Any], collate: Collate | None) -> tuple[Items, Items, tuple[str, ...]]:
    """The items to train on and to test on, and the names of their classes where the datasets say so."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise UserError(f"data must be a pair of torch datasets, (train, test); got {form_of(pair)}.")
    for what, dataset in zip(("training", "test"), pair, strict=True):
        check_map_style(dataset, f"The {what} dataset")
    if pair[0] is pair[1]:
        raise UserError("The same dataset cannot be trained on and tested on: give a pair (train, test) of two.")
    names, others = (_class_names(dataset) for dataset in pair)
    if names and others and names != others:
        raise UserError(f"The two datasets have different classes: {_first_that_differs(names, others)}.")
    train, test = (Items(d, torch.arange(len(d)), collate, len(names or others) or None) for d in pair)
    _check_repeats("training", train)
    _check_repeats("test", test)
    return train, test, names or others


def _class_names(dataset: object) -> tuple[str, ...]:
    """torchvision's convention: `classes` lists the names."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    found = getattr(dataset, "classes", None)
    return tuple(str(name) for name in found) if isinstance(found, list | tuple) else ()


def _first_that_differs(names: Sequence[str], others: Sequence[str]) -> str:
    if len(names) != len(others):
        return f"{len(names)} to train on and {len(others)} to test on"
    number = next(n for n, (one, other) in enumerate(zip(names, others, strict=True)) if one != other)
    return f"number {number} is {names[number]} to train on and {others[number]} to test on"


def _check_repeats(what: str, part: Items) -> None:
    """A dataset with a generator of its own cannot be seeded, so its replays would differ."""
    rows = torch.linspace(0, len(part) - 1, min(TRIED, len(part))).long()
    (once, labels), (again, others) = (part.labelled(rows) for _ in range(2))
    for one, other in zip((*tensors(once), labels), (*tensors(again), others), strict=True):
        if one.shape != other.shape or not ((one == other) | ((one != one) & (other != other))).all():
            raise UserError(
                f"The {what} dataset gives other items when it is asked again with the same seeds: let its transforms "
                "draw from the global generators of torch, numpy or random, and from none of their own."
            )
