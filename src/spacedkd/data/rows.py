"""Which images of a part are used for what: limits, holdouts and test parts, the same for every seed."""

from __future__ import annotations

import torch
from torch import Tensor

from spacedkd.errors import UserError
from spacedkd.seeds import seed_for


def evenly(labels: Tensor, limit: int | None, classes: int) -> Tensor:
    """The rows of the first `limit` images, counted round the classes; all rows without a limit."""
    if limit is None:
        return torch.arange(len(labels))
    if not classes <= limit <= len(labels):
        raise UserError(f"train_limit must be from {classes} (one a class) to {len(labels)} (all images), got {limit}.")
    return torch.argsort(_earlier_of_same_class(labels), stable=True)[:limit].sort().values


def _earlier_of_same_class(labels: Tensor) -> Tensor:
    """How many images of its own class come before each image: sorting by that deals the classes out in rounds."""
    order = torch.argsort(labels, stable=True)
    counts = torch.bincount(labels)
    starts = (counts.cumsum(0) - counts)[labels[order]]
    return torch.empty_like(labels).scatter_(0, order, torch.arange(len(labels)) - starts)


def held_out(count: int, part: float) -> tuple[Tensor, Tensor]:
    """Rows to train on and rows to keep aside. The same for every seed, so that runs stay comparable."""
    order = _shuffled(count, "holdout")
    aside = round(count * part)
    if not 0 < aside < count:
        raise UserError(f"A holdout of {part:g} of {count} images leaves one side empty; choose another part.")
    return order[aside:].sort().values, order[:aside].sort().values


def tested(labels: Tensor, part: float) -> tuple[Tensor, Tensor]:
    """Rows to train on and rows to test on, with this part of every class."""
    order = _shuffled(len(labels), "test part")
    earlier = torch.empty_like(labels).scatter_(0, order, _earlier_of_same_class(labels[order]))
    quota = (torch.bincount(labels) * part).round().long()
    testing = earlier < quota[labels]
    counts = torch.bincount(labels)
    if (quota < 1).any() or (quota >= counts).any():
        raise UserError(
            f"A test_part of {part:g} leaves a class of {int(counts.min())} image(s) empty in one part: choose "
            "another, or add images."
        )
    return (~testing).nonzero().flatten(), testing.nonzero().flatten()


def _shuffled(count: int, what: str) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed_for(0, what)))
