"""Accuracy, calibration and agreement of networks, counted in one pass with memory that does not grow with the images.

    top-k        the share of images whose class is among the k highest logits
    NLL          the mean of -log p(class), p the softmax of the logits
    ECE          sum_b n_b / N |accuracy_b - confidence_b| over fifteen bins of equal width of the confidence, which is
                 the highest p (Guo et al. 2017); the bins themselves are the reliability diagram
    agreement    the share of images for which two heads, or two networks' deepest heads, choose the same class

Where a network has several heads, `ensemble` is the mean of their logits. An image whose logits are not finite has no
class: a network with such images is not scored, it is refused (`NotFinite`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from spacedkd.data.stream import Batch
from spacedkd.models.classifier import Prediction
from spacedkd.runtime.errors import UserError
from spacedkd.task import CLASSIFICATION, Task

Predict = Callable[[Any], Sequence[Prediction]]
"""inputs to the predictions of each head, the deepest first"""

BINS = 15
TOP = 5


def with_ensemble(head_names: Sequence[str], predictions: Sequence[Prediction]) -> tuple[list[str], Tensor]:
    """Return head names and logits, [H, B, C] or those of another task; of several heads the mean is an `ensemble`."""
    logits = torch.stack([prediction.logits for prediction in predictions])
    if len(head_names) == 1:
        return [*head_names], logits
    return [*head_names, "ensemble"], torch.cat([logits, logits.mean(0, keepdim=True)])


class NotFinite(UserError):
    """Logits that are not finite: these images have no class, and the network has no accuracy."""

    def __init__(self, line: str, item: int | None = None) -> None:
        super().__init__(line)
        self.item = item
        """index of the data's item that is not finite itself, where there is one"""


def check_finite(heads: Iterable[str], undefined: Sequence[int], images: int, what: str = "images") -> None:
    """Refuse a network whose heads have logits that are not finite; `undefined` are the counts of such images."""
    for head, count in zip(heads, undefined, strict=True):
        if count:
            raise NotFinite(f"Logits of {count} of {images} {what} are not finite numbers (head {head}).")


def undefined_images(logits: Tensor) -> Tensor:
    """Return whether any logit of an image is not finite: [..., B, C] -> [..., B]."""
    return logits.isfinite().all(-1).logical_not()


def count(
    predict: Predict, head_names: Sequence[str], batches: Iterable[Batch], task: Task = CLASSIFICATION
) -> tuple[list[str], Tensor]:
    """Return the heads, and the sums that the task's metrics are computed from, [K, H].

    For classification: how many images each head gets right, and of how many its logits are not finite, [2, H].
    """
    sums: Tensor | None = None
    with torch.no_grad():
        for batch in batches:
            names, logits = with_ensemble(head_names, predict(batch.inputs))
            of_batch = task.tally(logits, batch.labels)
            sums = of_batch if sums is None else sums + of_batch
    assert sums is not None, "there is an item to evaluate"
    return names, sums


def correct(predict: Predict, head_names: Sequence[str], batches: Iterable[Batch]) -> dict[str, Tensor]:
    """Return how many images each head and their ensemble get right; raise `NotFinite` if some have no class."""
    images = 0

    def counting() -> Iterable[Batch]:
        nonlocal images
        for batch in batches:
            images += len(batch.labels)
            yield batch

    names, (right, undefined) = count(predict, head_names, counting())
    check_finite(names, undefined.tolist(), images)
    return dict(zip(names, right, strict=True))


@dataclass(frozen=True)
class Bin:
    """The images whose confidence is above `low` and not above `high`; without images there are no means."""

    low: float
    high: float
    images: int
    confidence: float | None
    accuracy: float | None


@dataclass(frozen=True)
class HeadScores:
    """The scores of one head on N images."""

    top1: float
    top5: float | None
    """None where there are no more than five classes"""
    nll: float
    ece: float
    per_class: tuple[float | None, ...]
    """top-1 among the images of each class; None where there is none"""
    reliability: tuple[Bin, ...]
    agrees_with_final: float
    """1 for the deepest head itself"""


@dataclass(frozen=True)
class Scores:
    """The scores of all heads of a network on N images, and how often its deepest one agrees with other networks."""

    images: int
    class_images: tuple[int, ...]
    """how many of them are of each class"""
    bins: int
    heads: dict[str, HeadScores]
    agreement: dict[str, float]


def score(
    predict: Predict,
    head_names: Sequence[str],
    batches: Iterable[Batch],
    classes: int,
    others: Mapping[str, Predict] = {},
) -> Scores:
    """Return the scores of every head over the batches; `others` are networks whose agreement is counted.

    Raise `NotFinite` if logits are not finite, of this network or of another.
    """
    tallies: dict[str, _Tally] = {}
    same, undefined_others = dict.fromkeys(others, 0), dict.fromkeys(others, 0)
    images, undefined = 0, torch.zeros((), dtype=torch.int64)
    with torch.no_grad():
        for batch in batches:
            names, logits = with_ensemble(head_names, predict(batch.inputs))
            tallies = tallies or {name: _Tally(torch.zeros(2, classes, dtype=torch.float64)) for name in names}
            undefined = undefined_images(logits).sum(1).cpu() + undefined
            final = logits[0].argmax(1)
            for tally, of_head in zip(tallies.values(), logits.float(), strict=True):
                tally.add(of_head, batch.labels, final)
            for name, other in others.items():
                chosen = other(batch.inputs)[0].logits
                same[name] += int((chosen.argmax(1) == final).sum())
                undefined_others[name] += int(undefined_images(chosen).sum())
            images += len(batch.labels)
    check_finite(tallies, undefined.tolist(), images)
    for name, number in undefined_others.items():
        check_finite(["final"], [number], images, f"images, as the {name} gives them,")
    class_images = tuple(map(int, tallies[head_names[0]].of_class[0]))
    heads = {name: tally.scores(images) for name, tally in tallies.items()}
    return Scores(images, class_images, BINS, heads, {name: count / images for name, count in same.items()})


@dataclass
class _Tally:
    """Sums over images from which the scores of one head follow."""

    of_class: Tensor  # [2, classes]: images, right ones
    in_bin: Tensor = field(default_factory=lambda: torch.zeros(3, BINS, dtype=torch.float64))
    """images, sum of confidences, right ones"""
    near: int = 0
    loss: float = 0.0
    as_final: int = 0

    def add(self, logits: Tensor, labels: Tensor, final: Tensor) -> None:
        log_p = logits.log_softmax(1)
        confidence, chosen = log_p.max(1)
        of_class = log_p.gather(1, labels[:, None])[:, 0]
        near = (logits.topk(min(TOP, logits.shape[1])).indices == labels[:, None]).any(1)
        flags = (flag.to(log_p) for flag in (chosen == labels, near, chosen == final))
        columns = torch.stack([confidence.exp(), of_class, *flags])  # in one tensor: a device is waited for once
        p_max, log_p_class, right, among_top, as_final = columns.cpu().double()
        ones = torch.ones_like(right)
        bins = (p_max * BINS).ceil().long().clamp(1, BINS) - 1
        self.of_class.index_add_(1, labels.cpu(), torch.stack([ones, right]))
        self.in_bin.index_add_(1, bins, torch.stack([ones, p_max, right]))
        self.near += int(among_top.sum())
        self.loss -= float(log_p_class.sum())
        self.as_final += int(as_final.sum())

    def scores(self, images: int) -> HeadScores:
        _, confidences, right = self.in_bin
        return HeadScores(
            top1=float(self.of_class[1].sum()) / images,
            top5=self.near / images if self.of_class.shape[1] > TOP else None,
            nll=self.loss / images,
            ece=float((right - confidences).abs().sum()) / images,
            per_class=tuple(_mean(r, n) for n, r in self.of_class.T.tolist()),
            reliability=tuple(
                Bin(number / BINS, (number + 1) / BINS, int(n), _mean(c, n), _mean(r, n))
                for number, (n, c, r) in enumerate(self.in_bin.T.tolist())
            ),
            agrees_with_final=self.as_final / images,
        )


def _mean(total: float, count: float) -> float | None:
    return total / count if count else None
