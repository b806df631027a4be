"""Tasks: a class for each item, numbers for each item, or a class for each pixel; with their losses and metrics.

                     outputs z        labels y                 loss of labels   distillation         metrics
    classification   [B, C]           classes [B], or [B, C]   cross-entropy    the `logit_loss`     accuracy
    regression       [B, D] or [B]    floats [B, D] or [B]     mean (z - y)^2   mean (z_s - z_t)^2   R^2, MSE
    dense            [B, C, H, W]     classes [B, H, W]        cross-entropy    the `logit_loss`     mean IoU, accuracy

A dense loss is a mean over all pixels of a batch but those whose label is `ignore_index`. A method asks
`progress.task` for the first two losses, so that it serves every task that it names in its `tasks`.

    R^2        1 - sum (z - y)^2 / sum (y - mean y)^2 over all items and outputs, each output with its own mean
    mean IoU   the mean of TP / (TP + FP + FN) over the classes that occur, as labels or as answers
    accuracy   the share of items, or of pixels, whose class is the highest output

Metrics are of all items together, not means over batches. The one that a spec names as `metric` chooses the best epoch;
for each of those, more is better. The others, MSE among them, are reported beside it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from spacedkd.config.spec import RunSpec
from spacedkd.methods.losses import cross_entropy, detach_teacher
from spacedkd.runtime.errors import UserError


class Divergence(Protocol):
    """A loss between a student's and a teacher's logits.

    `where` may have `dim`, the dimension of the classes, and `mask`, which is True where a position counts.
    """

    def __call__(self, student: Tensor, teacher: Tensor, **where: Any) -> Tensor: ...


class Task(Protocol):
    """A task: its labels, its losses and its metrics."""

    name: ClassVar[str]
    form: ClassVar[str]
    """shape of a network's outputs, for messages; `{items}` stands for the number of items"""
    softens: ClassVar[bool]
    """whether outputs are logits, which a temperature softens"""

    def check_labels(self, labels: Any, rows: Sequence[int], classes: int | None) -> Tensor:
        """Return the labels of a batch in one form; refuse other forms and values. `rows` are those of the dataset."""

    def fits(self, outputs: Tensor, items: int) -> bool:
        """Return whether a network's outputs for this number of items have the task's form."""

    def label_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of the labels, a mean over the batch."""

    def distillation_loss(self, student: Tensor, teacher: Tensor, labels: Tensor, divergence: Divergence) -> Tensor:
        """Return the distance of the student's outputs from the teacher's; `divergence` is the method's, of logits."""

    def tally(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return K numbers for each head, [K, H]; the metrics are computed from their sums over all batches.

        Outputs are those of H heads, [H, B, ...]. The last number counts items whose outputs are not all finite.
        """

    def metrics(self, sums: Sequence[float], items: int) -> dict[str, float]:
        """Return the metrics of one head by name from its sums over all items; the metric of the run is the first."""


def _not_finite(outputs: Tensor) -> Tensor:
    """Return how many items of each head have outputs that are not all finite, [H]."""
    return outputs.isfinite().flatten(2).all(2).logical_not().sum(1)


def _describe(labels: Any) -> str:
    if not isinstance(labels, Tensor):
        return type(labels).__name__
    return f"{str(labels.dtype).removeprefix('torch.')}{[*labels.shape]}"


def _is_whole(labels: Any) -> bool:
    return isinstance(labels, Tensor) and not labels.is_floating_point() and labels.dtype != torch.bool


def _check_classes(labels: Tensor, rows: Sequence[int], classes: int | None) -> None:
    """Refuse a label that is no class; `labels` have a row for each item."""
    outside = ((labels < 0) | (labels >= (classes or labels.max() + 1))).flatten(1)
    if outside.any():
        item, pixel = outside.nonzero()[0].tolist()
        rule = f"there are {classes} classes, 0 to {classes - 1}" if classes else "labels count from 0"
        raise UserError(f"Item {rows[item]} has label {int(labels.flatten(1)[item, pixel])}, and {rule}.")


@dataclass(frozen=True)
class Classification:
    """One class for each item."""

    name: ClassVar[str] = "classification"
    form: ClassVar[str] = "logits [{items}, classes]"
    softens: ClassVar[bool] = True

    def check_labels(self, labels: Any, rows: Sequence[int], classes: int | None) -> Tensor:
        """Return labels as [B] int64 or [B, C] float32; refuse other forms, and labels that are no class."""
        count = len(rows)
        if isinstance(labels, Tensor) and labels.ndim == 2 and labels.is_floating_point():
            return self._check_shares(labels, rows, classes)
        if not _is_whole(labels) or labels.shape != (count,):
            raise UserError(
                f"Labels of {count} items must be as many whole numbers, or [{count}, classes] shares; got "
                f"{_describe(labels)}.{self._other_task(labels)}"
            )
        _check_classes(labels[:, None], rows, classes)
        numbers: Tensor = labels.long()
        return numbers

    def _other_task(self, labels: Any) -> str:
        """Return the way out where labels look like those of another task."""
        if isinstance(labels, Tensor) and labels.is_floating_point():
            return " If they are numbers to predict, use --task regression."
        if _is_whole(labels) and labels.ndim == 3:
            return " If they are the classes of pixels, use --task dense."
        return ""

    def _check_shares(self, labels: Tensor, rows: Sequence[int], classes: int | None) -> Tensor:
        other = self._other_task(labels)
        if labels.shape != (len(rows), classes or labels.shape[1]):
            wanted = f"[{len(rows)}, {classes or 'classes'}]"
            raise UserError(f"Labels as shares of {len(rows)} items must be {wanted}, got {_describe(labels)}.{other}")
        bad = ~(((labels.sum(1) - 1).abs() < 1e-3) & (labels >= 0).all(1))
        if bad.any():
            row = int(bad.nonzero()[0])
            raise UserError(
                f"The label of item {rows[row]} is {[round(share, 4) for share in labels[row, :4].tolist()]}"
                f"{' and more' if labels.shape[1] > 4 else ''}, which are no shares of classes that sum to one.{other}"
            )
        return labels.float()

    def fits(self, outputs: Tensor, items: int) -> bool:
        return outputs.ndim == 2 and len(outputs) == items

    def label_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy."""
        return cross_entropy(outputs, labels)

    def distillation_loss(self, student: Tensor, teacher: Tensor, labels: Tensor, divergence: Divergence) -> Tensor:
        """Return the method's divergence of logits."""
        return divergence(student, teacher)

    def tally(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return how many items are right, and of how many the logits are not finite."""
        return torch.stack([(outputs.argmax(2) == labels).sum(1), _not_finite(outputs)])

    def metrics(self, sums: Sequence[float], items: int) -> dict[str, float]:
        return {"accuracy": sums[0] / items}


@dataclass(frozen=True)
class Regression:
    """D numbers for each item."""

    name: ClassVar[str] = "regression"
    form: ClassVar[str] = "outputs [{items}, numbers]"
    softens: ClassVar[bool] = False

    double: bool = False
    """whether targets are kept in float64, as in a run of that precision; else they are float32"""

    def check_labels(self, labels: Any, rows: Sequence[int], classes: int | None) -> Tensor:
        """Return targets as floats [B, D]; refuse other forms, and numbers that are not finite."""
        count = len(rows)
        wanted = f"[{count}]" if classes == 1 else f"[{count}, {classes or 'D'}]"
        is_float = isinstance(labels, Tensor) and labels.is_floating_point()
        if not is_float or labels.ndim not in (1, 2) or len(labels) != count:
            raise UserError(f"Targets of {count} items must be floats [{count}] or {wanted}, got {_describe(labels)}.")
        targets: Tensor = labels.reshape(count, -1).to(torch.float64 if self.double else torch.float32)
        if targets.shape[1] != (classes or targets.shape[1]):
            raise UserError(
                f"The networks give {classes} numbers for an item, so targets of {count} items must be {wanted}; got "
                f"{_describe(labels)}."
            )
        bad = targets.isfinite().all(1).logical_not()
        if bad.any():
            raise UserError(f"The target of item {rows[int(bad.nonzero()[0])]} holds NaN or infinity: leave it out.")
        return targets

    def fits(self, outputs: Tensor, items: int) -> bool:
        return outputs.ndim in (1, 2) and len(outputs) == items

    def label_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean squared error over items and outputs."""
        if outputs.shape != labels.shape:
            raise UserError(f"Targets {[*labels.shape]} do not fit outputs {[*outputs.shape]}.")
        number = torch.promote_types(outputs.dtype, torch.float32)
        return F.mse_loss(outputs.to(number), labels.to(number))

    def distillation_loss(self, student: Tensor, teacher: Tensor, labels: Tensor, divergence: Divergence) -> Tensor:
        """Return the mean squared difference of the outputs; a divergence of logits has no meaning here."""
        student, teacher = detach_teacher(student, teacher, "outputs")
        return self.label_loss(student, teacher)

    def tally(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of squared errors, for each output the sums of y and y^2, and the items not finite."""
        number = torch.float32 if outputs.device.type == "mps" else torch.float64  # which MPS does not have
        y = labels.to(number)
        errors = (outputs.to(number) - y).square().flatten(1).sum(1)
        of_labels = torch.cat([y.sum(0), y.square().sum(0)])[:, None].expand(-1, len(outputs))
        return torch.cat([errors[None], of_labels, _not_finite(outputs)[None].to(number)])

    def metrics(self, sums: Sequence[float], items: int) -> dict[str, float]:
        error, *of_labels = sums[:-1]
        width = len(of_labels) // 2
        totals, squares = of_labels[:width], of_labels[width:]
        spread = sum(square - total**2 / items for total, square in zip(totals, squares, strict=True))
        if not spread > 1e-14 * sum(squares):  # what is left are rounding errors
            raise UserError("All targets that are tested on are equal, so R² has no meaning: test on others.")
        return {"r2": 1 - error / spread, "mse": error / (items * width)}


@dataclass(frozen=True)
class Dense:
    """One class for each pixel."""

    name: ClassVar[str] = "dense"
    form: ClassVar[str] = "logits [{items}, classes, height, width]"
    softens: ClassVar[bool] = True

    metric: str = "miou"
    ignore_index: int | None = None
    """the label of pixels that do not count"""

    def check_labels(self, labels: Any, rows: Sequence[int], classes: int | None) -> Tensor:
        """Return labels as [B, H, W] int64; refuse other forms, and labels that are neither a class nor ignored."""
        if not _is_whole(labels) or labels.ndim != 3 or len(labels) != len(rows):
            wanted = f"[{len(rows)}, height, width]"
            raise UserError(f"Labels of {len(rows)} items must be whole numbers {wanted}, got {_describe(labels)}.")
        numbers: Tensor = labels.long()
        counted = self._counted(numbers)
        try:
            _check_classes(numbers if counted is None else numbers.where(counted, 0), rows, classes)
        except UserError as error:
            raise UserError(f"{error} Pixels that are not to count need --ignore-index.") from None
        return numbers

    def _counted(self, labels: Tensor) -> Tensor | None:
        """Return which pixels count, [B, H, W]; None where all do."""
        return None if self.ignore_index is None else labels != self.ignore_index

    def fits(self, outputs: Tensor, items: int) -> bool:
        return outputs.ndim == 4 and len(outputs) == items

    def label_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy, a mean over the pixels that count; 0 where none does."""
        if labels.shape != (len(outputs), *outputs.shape[2:]):
            raise UserError(
                f"Labels {[*labels.shape]} do not fit outputs {[*outputs.shape]}: the network must give a class for "
                "each pixel of its label, [B, classes, height, width]."
            )
        # Pixels as rows, because on GPUs torch has no deterministic cross-entropy of [B, C, height, width].
        rows, classes = outputs.movedim(1, -1).flatten(0, 2), labels.flatten()
        if self.ignore_index is None:
            return F.cross_entropy(rows, classes)
        count = (classes != self.ignore_index).sum().clamp(min=1)
        return F.cross_entropy(rows, classes, ignore_index=self.ignore_index, reduction="sum") / count

    def distillation_loss(self, student: Tensor, teacher: Tensor, labels: Tensor, divergence: Divergence) -> Tensor:
        """Return the method's divergence of each pixel's logits, a mean over the pixels that count."""
        return divergence(student, teacher, dim=1, mask=self._counted(labels))

    def tally(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the confusion matrix of the pixels, flat: of label i and answer j at C i + j; and items not finite."""
        classes, counted = outputs.shape[2], self._counted(labels)
        pairs = labels * classes + outputs.argmax(2)  # of each head, [H, B, height, width]
        flat = pairs.flatten(1) if counted is None else pairs[:, counted]
        counts = torch.stack([torch.bincount(of_head, minlength=classes**2) for of_head in flat], 1)
        return torch.cat([counts, _not_finite(outputs)[None]])

    def metrics(self, sums: Sequence[float], items: int) -> dict[str, float]:
        classes = round((len(sums) - 1) ** 0.5)
        confusion = torch.tensor(sums[:-1], dtype=torch.float64).reshape(classes, classes)
        right, total = confusion.diag(), confusion.sum()
        if not total:
            raise UserError(f"No pixel that is tested on counts: all have the label {self.ignore_index}.")
        union = confusion.sum(0) + confusion.sum(1) - right
        scores = {"miou": float((right / union)[union > 0].mean()), "accuracy": float(right.sum() / total)}
        return {self.metric: scores.pop(self.metric), **scores}


CLASSIFICATION = Classification()


def make_task(spec: RunSpec) -> Task:
    """Return the task of a run whose spec is resolved.

    >>> make_task(RunSpec(task="dense", ignore_index=255)).ignore_index
    255
    """
    makes: Mapping[str, Callable[[], Task]] = {
        "classification": Classification,
        "regression": lambda: Regression(double=spec.precision == "64-true"),
        "dense": lambda: Dense(spec.judged_by, spec.ignore_index),
    }
    return makes[spec.task]()
