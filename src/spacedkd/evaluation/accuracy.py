"""Top-1 accuracy of every head of a model, and of all heads together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from spacedkd.data.stream import Batch
from spacedkd.models.heads import Prediction

Predict = Callable[[Any], Sequence[Prediction]]
"""inputs to what each head says of them"""


def with_ensemble(head_names: Sequence[str], predictions: Sequence[Prediction]) -> tuple[list[str], Tensor]:
    """Every head and its logits, [H, B, C]; where there are several, their mean is one more: `ensemble`."""
    logits = torch.stack([prediction.logits for prediction in predictions])
    if len(head_names) == 1:
        return [*head_names], logits
    return [*head_names, "ensemble"], torch.cat([logits, logits.mean(0, keepdim=True)])


def correct(predict: Predict, head_names: Sequence[str], batches: Iterator[Batch]) -> dict[str, Tensor]:
    """How many images each head gets right, and all of them together."""
    counts: list[Tensor] = []
    with torch.no_grad():
        for batch in batches:
            names, logits = with_ensemble(head_names, predict(batch.inputs))
            counts.append((logits.argmax(2) == batch.labels).sum(1))
    return dict(zip(names, torch.stack(counts).sum(0), strict=True))
