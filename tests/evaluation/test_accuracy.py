"""Accuracy against counting by hand."""

from __future__ import annotations

import torch

from spacedkd.data import Batch
from spacedkd.evaluation.scores import correct
from spacedkd.models import Prediction

DEEP = torch.tensor([[3.0, 1.0], [0.0, 1.0], [2.0, 1.0]])
SHALLOW = torch.tensor([[0.0, 1.0], [0.0, 5.0], [0.0, 3.0]])
LABELS = torch.tensor([0, 1, 1])


def batches() -> list[Batch]:
    return [Batch(rows.float()[:, None], LABELS[rows], rows) for rows in (torch.tensor([0, 1]), torch.tensor([2]))]


def test_each_head_and_their_ensemble_are_counted() -> None:
    def predict(images: torch.Tensor) -> list[Prediction]:
        rows = images[:, 0].long()
        return [Prediction(DEEP[rows], DEEP[rows]), Prediction(SHALLOW[rows], SHALLOW[rows])]

    counts = correct(predict, ("final", "stage1"), iter(batches()))
    # Mean logits: [1.5, 1] is right, [0, 3] is right, [1, 2] is right.
    assert {head: int(count) for head, count in counts.items()} == {"final": 2, "stage1": 2, "ensemble": 3}


def test_one_head_has_no_ensemble() -> None:
    counts = correct(lambda images: [Prediction(DEEP[images[:, 0].long()], DEEP)], ("final",), iter(batches()))
    assert {head: int(count) for head, count in counts.items()} == {"final": 2}
