"""Scores against counting image by image, in any cut into batches."""

from __future__ import annotations

import math
import tracemalloc

import pytest
import torch
from torch import Tensor

from spacedkd.data.stream import Batch
from spacedkd.evaluation.scores import BINS, Predict, Scores, score
from spacedkd.models.classifier import Prediction

CLASSES = 7


def logits(seed: int, count: int = 60) -> Tensor:
    return 3 * torch.randn(count, CLASSES, generator=torch.Generator().manual_seed(seed))


LABELS = torch.randint(0, CLASSES, (60,), generator=torch.Generator().manual_seed(9))


def scored(*heads: Tensor, labels: Tensor = LABELS, batch: int = 8, teacher: Tensor | None = None) -> Scores:
    """Images are their own row numbers, so that a predict function can look up what it says of them."""
    rows = torch.arange(len(labels))
    batches = [Batch(part.view(-1, 1, 1, 1).float(), labels[part], part) for part in rows.split(batch)]

    def saying(*said: Tensor) -> Predict:
        return lambda images: [Prediction(one[images.flatten().long()], images) for one in said]

    names = ["final", "stage3", "stage2"][: len(heads)]
    others = {} if teacher is None else {"teacher": saying(teacher)}
    return score(saying(*heads), names, iter(batches), heads[0].shape[1], others)


def test_everything_equals_counting_by_hand() -> None:
    said = logits(0)
    p = said.double().softmax(1)
    found = scored(said).heads["final"]
    order = said.argsort(1, descending=True)
    assert found.top1 == sum(int(order[i, 0] == LABELS[i]) for i in range(60)) / 60
    assert found.top5 == sum(int(LABELS[i] in order[i, :5]) for i in range(60)) / 60
    assert found.nll == pytest.approx(sum(-math.log(p[i, LABELS[i]]) for i in range(60)) / 60, rel=1e-6)
    for place in range(CLASSES):
        mine = [int(order[i, 0] == place) for i in range(60) if LABELS[i] == place]
        assert found.per_class[place] == pytest.approx(sum(mine) / len(mine))
        assert scored(said).class_images[place] == len(mine)


def test_calibration_error_is_the_weighted_gap_of_the_bins() -> None:
    said = logits(1)
    confidence, chosen = said.double().softmax(1).max(1)
    gap = 0.0
    for place in range(BINS):
        inside = [i for i in range(60) if place / BINS < confidence[i] <= (place + 1) / BINS]
        if inside:
            right = sum(int(chosen[i] == LABELS[i]) for i in inside) / len(inside)
            gap += len(inside) / 60 * abs(right - sum(float(confidence[i]) for i in inside) / len(inside))
    found = scored(said)
    assert found.bins == BINS == len(found.heads["final"].reliability) == 15
    assert found.heads["final"].ece == pytest.approx(gap, rel=1e-5)
    assert sum(one.images for one in found.heads["final"].reliability) == 60


def test_a_network_that_is_as_right_as_it_is_sure_has_no_calibration_error() -> None:
    sure = torch.tensor([[math.log(3.0), 0.0]]).expand(4, 2)  # 75 %
    found = scored(sure, labels=torch.tensor([0, 0, 0, 1])).heads["final"]
    assert found.ece == pytest.approx(0, abs=1e-7)
    assert [one.accuracy for one in found.reliability if one.images] == [0.75]
    assert found.top5 is None


def test_certainty_falls_into_the_last_bin() -> None:
    found = scored(torch.eye(CLASSES)[LABELS] * 1e4).heads["final"]
    assert found.reliability[-1].images == 60
    assert (found.ece, found.nll) == (0, 0)


def test_heads_their_ensemble_and_agreement() -> None:
    first, second, teacher = logits(2), logits(3), logits(4)
    found = scored(first, second, teacher=teacher)
    assert list(found.heads) == ["final", "stage3", "ensemble"]
    mean = (first + second) / 2
    assert found.heads["ensemble"].top1 == float((mean.argmax(1) == LABELS).double().mean())
    assert found.heads["final"].agrees_with_final == 1
    assert found.heads["stage3"].agrees_with_final == float((first.argmax(1) == second.argmax(1)).double().mean())
    assert found.agreement == {"teacher": float((first.argmax(1) == teacher.argmax(1)).double().mean())}


def test_a_class_without_images_has_no_accuracy() -> None:
    assert scored(logits(5), labels=LABELS.clamp(max=4)).heads["final"].per_class[5:] == (None, None)


@pytest.mark.parametrize("batch", [1, 7, 60])
def test_batches_can_be_cut_in_any_way(batch: int) -> None:
    whole, cut = scored(logits(6), batch=60).heads["final"], scored(logits(6), batch=batch).heads["final"]
    assert (cut.top1, cut.top5, cut.per_class) == (whole.top1, whole.top5, whole.per_class)
    assert (cut.nll, cut.ece) == pytest.approx((whole.nll, whole.ece), rel=1e-6)


def test_memory_does_not_grow_with_the_images() -> None:
    def peak(count: int) -> int:
        shown = Batch(torch.zeros(4, 1, 1, 1), torch.zeros(4, dtype=torch.int64), torch.arange(4))
        tracemalloc.start()
        score(lambda images: [Prediction(torch.zeros(4, 3), images)], ["final"], (shown for _ in range(count)), 3)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(10)
    assert peak(400) < 1.5 * peak(40) + 10_000
