"""Losses as pure functions. Student first, teacher second; the teacher's side never gets a gradient.

Shapes: logits [B, C], labels [B], features [B, D]. All give one number.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """-1/B sum_b log softmax(z_b)[y_b]."""
    return F.cross_entropy(logits, labels)


def kl(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL divergence from teacher to student: 1/B sum_b sum_c p_t (log p_t - log p_s), p = softmax(z/T)."""
    log_p_s = F.log_softmax(student / temperature, dim=1)
    log_p_t = F.log_softmax(teacher.detach() / temperature, dim=1)
    return F.kl_div(log_p_s, log_p_t, reduction="batchmean", log_target=True)


def kl_over_classes(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """The KL divided by B C instead of B: what the paper's transformer code and PyTorch's default reduction compute."""
    return kl(student, teacher, temperature) / student.shape[1]


def soft_cross_entropy(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """-1/B sum_b sum_c p_t log p_s: the KL plus the teacher's entropy, so with the same gradient."""
    p_t = F.softmax(teacher.detach() / temperature, dim=1)
    return -(p_t * F.log_softmax(student / temperature, dim=1)).sum(1).mean()


def probability_kl(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """1/B sum_b sum_c p_t (log p_t - p_s): what the paper's CNN code computes in place of the KL.

    It feeds probabilities where log-probabilities belong. The result is not a divergence: its minimum puts all
    mass on the teacher's first choice, and its gradient is a few percent of the KL's.
    """
    p_s = F.softmax(student / temperature, dim=1)
    p_t = F.softmax(teacher.detach() / temperature, dim=1)
    return F.kl_div(p_s, p_t, reduction="batchmean")


def feature_norm(student: Tensor, teacher: Tensor) -> Tensor:
    """The Frobenius norm of the difference over the whole batch, neither squared nor averaged.

    Its gradient has norm 1 whatever the batch size, and is zero where both are equal.
    """
    return torch.dist(student, teacher.detach())


def feature_mse(student: Tensor, teacher: Tensor) -> Tensor:
    """The mean squared difference over batch and features."""
    return F.mse_loss(student, teacher.detach())


def feature_square_sum(student: Tensor, teacher: Tensor) -> Tensor:
    """The squared difference summed over batch and features: what the paper's loss table calls MSE (sum)."""
    return F.mse_loss(student, teacher.detach(), reduction="sum")


def feature_cross_entropy(student: Tensor, teacher: Tensor) -> Tensor:
    """Student features read as logits, raw teacher features as class weights, as in the paper code's CE option."""
    return F.cross_entropy(student, teacher.detach())


def feature_masked_square_sum(student: Tensor, teacher: Tensor) -> Tensor:
    """The squared difference summed where either side is positive, as in a widely used BYOT re-implementation."""
    teacher = teacher.detach()
    active = (student > 0) | (teacher > 0)
    return ((student - teacher).square() * active).sum()


LogitLoss = Callable[[Tensor, Tensor, float], Tensor]
FeatureLoss = Callable[[Tensor, Tensor], Tensor]

LOGIT_LOSSES: dict[str, LogitLoss] = {
    "kl": kl,
    "kl-over-classes": kl_over_classes,
    "soft-cross-entropy": soft_cross_entropy,
    "probability-kl": probability_kl,
}
FEATURE_LOSSES: dict[str, FeatureLoss] = {
    "norm": feature_norm,
    "mse": feature_mse,
    "square-sum": feature_square_sum,
    "cross-entropy": feature_cross_entropy,
    "masked-square-sum": feature_masked_square_sum,
}
