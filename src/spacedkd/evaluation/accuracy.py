"""What a network gets right, how sure it is of it, and whether two networks agree; one pass, flat in memory.

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

Predict = Callable[[Any], Sequence[Prediction]]
"""inputs to what each head says of them"""

BINS = 15
TOP = 5


def with_ensemble(head_names: Sequence[str], predictions: Sequence[Prediction]) -> tuple[list[str], Tensor]:
    """Every head and its logits, [H, B, C]; where there are several, their mean is one more: `ensemble`."""
    logits = torch.stack([prediction.logits for prediction in predictions])
    if len(head_names) == 1:
        return [*head_names], logits
    return [*head_names, "ensemble"], torch.cat([logits, logits.mean(0, keepdim=True)])


class NotFinite(UserError):
    """Logits of a network are not finite, so that these images have no class and the network no accuracy."""

    def __init__(self, line: str, item: int | None = None) -> None:
        super().__init__(line)
        self.item = item
        """of the data, where it holds what is not finite itself"""


def check_finite(heads: Iterable[str], undefined: Sequence[int], images: int, what: str = "images") -> None:
    """Refuse a network that has heads with not finite logits for some images; `undefined` are counts of those."""
    for head, count in zip(heads, undefined, strict=True):
        if count:
            raise NotFinite(f"Logits of {count} of {images} {what} are not finite numbers (head {head}).")


def undefined_images(logits: Tensor) -> Tensor:
    """Whether any logit of an image is not finite: [..., B, C] -> [..., B]."""
    return logits.isfinite().all(-1).logical_not()


def count(predict: Predict, head_names: Sequence[str], batches: Iterable[Batch]) -> tuple[list[str], Tensor]:
    """The heads, and of each how many images it gets right and of how many its logits are not finite: [2, H]."""
    counts: list[Tensor] = []
    with torch.no_grad():
        for batch in batches:
            names, logits = with_ensemble(head_names, predict(batch.inputs))
            counts.append(torch.stack([logits.argmax(2) == batch.labels, undefined_images(logits)]).sum(2))
    return names, torch.stack(counts).sum(0)


def correct(predict: Predict, head_names: Sequence[str], batches: Iterable[Batch]) -> dict[str, Tensor]:
    """How many images each head gets right, and all of them together; `NotFinite` if some have no class."""
    images = 0

    def counted() -> Iterable[Batch]:
        nonlocal images
        for batch in batches:
            images += len(batch.labels)
            yield batch

    names, (right, undefined) = count(predict, head_names, counted())
    check_finite(names, undefined.tolist(), images)
    return dict(zip(names, right, strict=True))


@dataclass(frozen=True)
class Bin:
    """The images whose confidence lies above `low` and not above `high`; without images there are no means."""

    low: float
    high: float
    images: int
    confidence: float | None
    accuracy: float | None


@dataclass(frozen=True)
class HeadScores:
    """One head on N images."""

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
    """All heads of a network on N images, and how often its deepest one chooses what other networks choose."""

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
    """Scores of every head over the batches; `others` are networks to be agreed with.

    `NotFinite` if logits are not finite, of this network or of another.
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
            for tally, found in zip(tallies.values(), logits.float(), strict=True):
                tally.add(found, batch.labels, final)
            for name, other in others.items():
                chosen = other(batch.inputs)[0].logits
                same[name] += int((chosen.argmax(1) == final).sum())
                undefined_others[name] += int(undefined_images(chosen).sum())
            images += len(batch.labels)
    check_finite(tallies, undefined.tolist(), images)
    for name, wrong in undefined_others.items():
        check_finite(["final"], [wrong], images, f"images, as the {name} gives them,")
    class_images = tuple(map(int, tallies[head_names[0]].of_class[0]))
    heads = {name: tally.scores(images) for name, tally in tallies.items()}
    return Scores(images, class_images, BINS, heads, {name: count / images for name, count in same.items()})


@dataclass
class _Tally:
    """Sums over images: everything the scores of one head need, however many images there are."""

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
        yes = (one.to(log_p) for one in (chosen == labels, near, chosen == final))
        together = torch.stack([confidence.exp(), of_class, *yes])  # so that a device is waited for once
        sure, likely, right, close, as_final = together.cpu().double()
        one = torch.ones_like(right)
        bins = (sure * BINS).ceil().long().clamp(1, BINS) - 1
        self.of_class.index_add_(1, labels.cpu(), torch.stack([one, right]))
        self.in_bin.index_add_(1, bins, torch.stack([one, sure, right]))
        self.near += int(close.sum())
        self.loss -= float(likely.sum())
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
                Bin(place / BINS, (place + 1) / BINS, int(n), _mean(c, n), _mean(r, n))
                for place, (n, c, r) in enumerate(self.in_bin.T.tolist())
            ),
            agrees_with_final=self.as_final / images,
        )


def _mean(total: float, count: float) -> float | None:
    return total / count if count else None
