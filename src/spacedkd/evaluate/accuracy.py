"""Top-1 accuracy of every head of a model, and of all heads together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from spacedkd.data.stream import Batch
from spacedkd.models.heads import Prediction

Predict = Callable[[Tensor], Sequence[Prediction]]


def correct(predict: Predict, head_names: Sequence[str], batches: Iterator[Batch]) -> dict[str, Tensor]:
    """How many images each head gets right; where there are several, `ensemble` is the mean of their logits."""
    names = [*head_names, "ensemble"] if len(head_names) > 1 else [*head_names]
    counts: list[Tensor] = []
    with torch.no_grad():
        for batch in batches:
            logits = torch.stack([prediction.logits for prediction in predict(batch.images)])
            if len(head_names) > 1:
                logits = torch.cat([logits, logits.mean(0, keepdim=True)])
            counts.append((logits.argmax(2) == batch.labels).sum(1))
    return dict(zip(names, torch.stack(counts).sum(0), strict=True))
