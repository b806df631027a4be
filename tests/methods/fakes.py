"""Models that say what a card says, and batches to show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from spacedkd.data import Batch
from spacedkd.models.classifier import Prediction
from tests.methods.vectors import FS, Y


def says(logits: Tensor) -> Any:
    """A model that answers any images with these logits."""
    return lambda images, adapted=True: (Prediction(logits, FS),)


def shown(mark: float = 0.0, labels: Tensor = Y, indices: tuple[int, ...] = (0, 1)) -> Batch:
    """Images that are all equal to a mark."""
    return Batch(torch.full((len(indices), 1, 1, 1), mark), labels, torch.tensor(indices))


def total(losses: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([*losses.values()]).sum()


def copied(memory: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in memory.state_dict().items()}
