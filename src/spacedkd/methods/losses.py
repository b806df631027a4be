"""Losses as pure functions. Student first, teacher second; the teacher's side never gets a gradient.

    loss = 0.7 * losses.cross_entropy(z_s, labels) + 0.3 * losses.kl(z_s, z_t, temperature=3.0)

Shapes: logits [B, C], labels [B], features [B, D]. Every loss returns one number.

Logits with more dimensions need `dim=`, the one of the classes: -1 for tokens [B, L, V], 1 for pixels [B, C, H, W]. The
loss is then the mean over all N positions, of [B, L] or [B, H, W]; with `mask`, True where a position counts, over
those alone, and 0 where none does. `LOGIT_LOSSES` and `FEATURE_LOSSES` have the names that methods know them by.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from spacedkd.runtime.errors import UserError

Temperature = float | Tensor
"""a number, or a learned scalar whose gradient is kept"""


def detach_teacher(student: Tensor, teacher: Tensor, what: str) -> tuple[Tensor, Tensor]:
    """Return both tensors, the teacher's without gradient; refuse shapes that would be broadcast silently."""
    if student.shape != teacher.shape:
        raise UserError(
            f"The student's {what} {[*student.shape]} and the teacher's {[*teacher.shape]} must have the same shape."
        )
    return student, teacher.detach()


def class_dim(logits: Tensor, dim: int | None = None) -> int:
    """Return the dimension of the classes, from 1 up: `dim`, or 1 for logits [B, C]; never guess for other shapes."""
    if dim is None:
        if logits.ndim == 2:
            return 1
        raise UserError(
            f"Logits {[*logits.shape]} must be [B, C], or say which dimension holds the classes: dim=-1 for tokens "
            "[B, L, V], dim=1 for pixels [B, C, H, W]."
        )
    if dim not in (*range(1, logits.ndim), *range(1 - logits.ndim, 0)):
        raise UserError(f"dim={dim} must name a dimension of the logits {[*logits.shape]} after the first, the batch.")
    return dim % logits.ndim


def rows(logits: Tensor, dim: int | None = None, mask: Tensor | None = None) -> Tensor:
    """Return logits as [N, C], a row for each position; with a `mask`, for each position where it is True."""
    dim = class_dim(logits, dim)
    flat = logits if logits.ndim == 2 else logits.movedim(dim, -1).flatten(0, -2)
    if mask is None:
        return flat
    positions = [size for axis, size in enumerate(logits.shape) if axis != dim]
    if mask.dtype != torch.bool or [*mask.shape] != positions:
        kind = str(mask.dtype).removeprefix("torch.")
        raise UserError(
            f"mask must be a bool tensor {positions}, True where a position counts; got {kind} {[*mask.shape]}. Zeros "
            "and ones become one by mask.bool()."
        )
    return flat[mask.flatten()]


def softened(
    student: Tensor, teacher: Tensor, temperature: Temperature, dim: int | None = None, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return both logits divided by the temperature as `rows` [N, C], the teacher's without gradient.

    The value of a learned temperature is not checked: reading it would make the CPU wait for the GPU.
    """
    student, teacher = detach_teacher(student, teacher, "logits")
    if not isinstance(temperature, Tensor) and not 0 < temperature < math.inf:
        raise UserError(f"A temperature must be above 0 and finite, got {temperature:g}. The paper uses 3.")
    return rows(student / temperature, dim, mask), rows(teacher / temperature, dim, mask)


def cross_entropy(logits: Tensor, labels: Tensor, *, dim: int | None = None, mask: Tensor | None = None) -> Tensor:
    """Return the cross-entropy -1/N sum_n log softmax(z_n)[y_n].

    Labels are class numbers [N], or class probabilities in the logits' shape (label smoothing, mixup).

    >>> round(cross_entropy(torch.tensor([[2.0, 0.0]]), torch.tensor([0])).item(), 4)
    0.1269
    """
    z = rows(logits, dim, mask)
    if labels.shape == logits.shape:
        y = rows(labels, dim, mask)
    else:
        positions = [size for axis, size in enumerate(logits.shape) if axis != class_dim(logits, dim)]
        if [*labels.shape] != positions:
            raise UserError(
                f"Labels {[*labels.shape]} do not fit logits {[*logits.shape]}: give classes {positions}, or class "
                "probabilities in the logits' shape."
            )
        y = labels.flatten() if mask is None else labels[mask]
    return F.cross_entropy(z, y) if mask is None or len(z) else z.sum()


def kl(
    student: Tensor,
    teacher: Tensor,
    temperature: Temperature,
    *,
    dim: int | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Return the KL divergence from teacher to student: 1/N sum_n sum_c p_t (log p_t - log p_s), p = softmax(z/T).

    There is no factor T^2: multiply by it to keep the gradient's size as T grows.

    >>> kl(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0]]), temperature=3.0).item()
    0.0
    """
    s, t = softened(student, teacher, temperature, dim, mask)
    return F.kl_div(s.log_softmax(1), t.log_softmax(1), reduction="sum", log_target=True) / max(len(s), 1)


def kl_over_classes(
    student: Tensor,
    teacher: Tensor,
    temperature: Temperature,
    *,
    dim: int | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Return the KL divided by N C instead of N, as the paper's transformer code and PyTorch's default reduction do."""
    return kl(student, teacher, temperature, dim=dim, mask=mask) / student.shape[class_dim(student, dim)]


def soft_cross_entropy(
    student: Tensor,
    teacher: Tensor,
    temperature: Temperature,
    *,
    dim: int | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Return -1/N sum_n sum_c p_t log p_s: the KL plus the teacher's entropy, so with the same gradient."""
    s, t = softened(student, teacher, temperature, dim, mask)
    each = -(t.softmax(1) * s.log_softmax(1)).sum(1)
    return each.mean() if len(each) else each.sum()


def probability_kl(
    student: Tensor,
    teacher: Tensor,
    temperature: Temperature,
    *,
    dim: int | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Return 1/N sum_n sum_c p_t (log p_t - p_s), which the paper's CNN code computes in place of the KL.

    That code passes probabilities where log-probabilities belong. The result is not a divergence: its minimum puts all
    mass on the teacher's first choice, and its gradient is a few percent of the KL's.
    """
    s, t = softened(student, teacher, temperature, dim, mask)
    return F.kl_div(s.softmax(1), t.softmax(1), reduction="sum") / max(len(s), 1)


def standardised(logits: Tensor, dim: int | None = None) -> Tensor:
    """Return (z - mean z) / (1e-7 + std z) over the classes of each position, with the sample deviation (LSKD)."""
    dim = class_dim(logits, dim)
    return (logits - logits.mean(dim, keepdim=True)) / (1e-7 + logits.std(dim, keepdim=True))


def target_class(labels: Tensor) -> Tensor:
    """Return the class of each label [B]; for soft labels [B, C] the class of the largest probability."""
    return labels if labels.ndim == 1 else labels.argmax(1)


def soft_label(labels: Tensor, classes: int) -> Tensor:
    """Return labels as distributions [B, C]: classes [B] become one-hot, soft labels stay as they are."""
    return F.one_hot(labels, classes) if labels.ndim == 1 else labels


def decoupled_kl(student: Tensor, teacher: Tensor, labels: Tensor, temperature: Temperature) -> tuple[Tensor, Tensor]:
    """Return the KL in two parts: target class against the rest, and the other classes among themselves (DKD).

    With b = (p_y, 1 - p_y) and q the softmax over the classes other than y, all at temperature T:
    KL(b_t -> b_s) and KL(q_t -> q_s), each a mean over the batch. For every image
    KL(p_t -> p_s) = KL(b_t -> b_s) + (1 - p_t,y) KL(q_t -> q_s). Logits are [B, C], labels [B] or [B, C].
    """
    both = softened(student, teacher, temperature)
    if labels.shape not in (student.shape[:1], student.shape):
        raise UserError(f"Labels {[*labels.shape]} do not fit logits {[*student.shape]}: give classes [B], or [B, C].")
    target = target_class(labels)[:, None]
    parts = (_log_target_and_others(logits, target) for logits in both)
    binary, others = (F.kl_div(s, t, reduction="batchmean", log_target=True) for s, t in zip(*parts, strict=True))
    return binary, others


def _log_target_and_others(softened: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return log b [B, 2] and log q [B, C - 1]; probabilities are summed as logarithms, so none underflows."""
    log_p = softened.log_softmax(1)
    classes = torch.arange(log_p.shape[1] - 1, device=log_p.device)
    others = log_p.gather(1, classes + (classes >= target))
    rest = others.logsumexp(1, keepdim=True)
    return torch.cat([log_p.gather(1, target), rest], 1), others - rest


class LogitLoss(Protocol):
    """A loss between a student's logits and a teacher's, at a temperature."""

    def __call__(
        self,
        student: Tensor,
        teacher: Tensor,
        temperature: Temperature,
        *,
        dim: int | None = None,
        mask: Tensor | None = None,
    ) -> Tensor: ...


FeatureLoss = Callable[[Tensor, Tensor], Tensor]
"""a loss between a student's features and a teacher's of the same shape"""


def _feature_loss(loss: FeatureLoss) -> FeatureLoss:
    """Return the loss for features of the same shape, the teacher's without gradient."""
    return lambda student, teacher: loss(*detach_teacher(student, teacher, "features"))


feature_norm = _feature_loss(torch.dist)
"""The Frobenius norm of the difference over the whole batch, neither squared nor averaged.

Its gradient has norm 1 whatever the batch size, and is zero where both are equal.
"""
feature_l1 = _feature_loss(F.l1_loss)
"""The mean absolute difference over batch and features."""
feature_smooth_l1 = _feature_loss(F.smooth_l1_loss)
"""The mean of d^2/2 where the difference d is below 1, of |d| - 1/2 where it is above."""
feature_mse = _feature_loss(F.mse_loss)
"""The mean squared difference over batch and features."""
feature_square_sum = _feature_loss(partial(F.mse_loss, reduction="sum"))
"""The squared difference summed over batch and features; what the paper's table calls MSE (sum) is `feature_norm`."""
feature_cross_entropy = _feature_loss(F.cross_entropy)
"""Student features read as logits, raw teacher features as class weights, as in the paper code's CE option."""


def feature_masked_square_sum(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the squared difference summed where either side is positive, as in a common BYOT re-implementation."""
    student, teacher = detach_teacher(student, teacher, "features")
    active = (student > 0) | (teacher > 0)
    return ((student - teacher).square() * active).sum()


LOGIT_LOSSES: dict[str, LogitLoss] = {
    "kl": kl,
    "kl-over-classes": kl_over_classes,
    "soft-cross-entropy": soft_cross_entropy,
    "probability-kl": probability_kl,
}
FEATURE_LOSSES: dict[str, FeatureLoss] = {
    "norm": feature_norm,
    "l1": feature_l1,
    "smooth-l1": feature_smooth_l1,
    "mse": feature_mse,
    "square-sum": feature_square_sum,
    "cross-entropy": feature_cross_entropy,
    "masked-square-sum": feature_masked_square_sum,
}
