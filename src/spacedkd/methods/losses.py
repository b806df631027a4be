"""Losses as pure functions. Student first, teacher second; the teacher's side never gets a gradient.

Shapes: logits [B, C], labels [B], features [B, D]. All give one number.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from spacedkd.errors import UserError

Temperature = float | Tensor


def check_alike(student: Tensor, teacher: Tensor, what: str = "logits", temperature: Temperature = 1.0) -> None:
    """Refuse tensors that would be compared after a silent broadcast, and a temperature of nothing.

    A learned temperature is a tensor and not looked at: a GPU would be kept waiting for it.
    """
    if student.shape != teacher.shape:
        raise UserError(
            f"The student's {what} {[*student.shape]} and the teacher's {[*teacher.shape]} must have the same shape."
        )
    if not isinstance(temperature, Tensor) and not 0 < temperature < math.inf:
        raise UserError(f"A temperature must be above 0 and finite, got {temperature:g}. The paper uses 3.")


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """-1/B sum_b log softmax(z_b)[y_b]."""
    return F.cross_entropy(logits, labels)


def kl(student: Tensor, teacher: Tensor, temperature: Temperature) -> Tensor:
    """KL divergence from teacher to student: 1/B sum_b sum_c p_t (log p_t - log p_s), p = softmax(z/T)."""
    check_alike(student, teacher, temperature=temperature)
    log_p_s = F.log_softmax(student / temperature, dim=1)
    log_p_t = F.log_softmax(teacher.detach() / temperature, dim=1)
    return F.kl_div(log_p_s, log_p_t, reduction="batchmean", log_target=True)


def kl_over_classes(student: Tensor, teacher: Tensor, temperature: Temperature) -> Tensor:
    """The KL divided by B C instead of B: what the paper's transformer code and PyTorch's default reduction compute."""
    return kl(student, teacher, temperature) / student.shape[1]


def soft_cross_entropy(student: Tensor, teacher: Tensor, temperature: Temperature) -> Tensor:
    """-1/B sum_b sum_c p_t log p_s: the KL plus the teacher's entropy, so with the same gradient."""
    check_alike(student, teacher, temperature=temperature)
    p_t = F.softmax(teacher.detach() / temperature, dim=1)
    return -(p_t * F.log_softmax(student / temperature, dim=1)).sum(1).mean()


def probability_kl(student: Tensor, teacher: Tensor, temperature: Temperature) -> Tensor:
    """1/B sum_b sum_c p_t (log p_t - p_s): what the paper's CNN code computes in place of the KL.

    It feeds probabilities where log-probabilities belong. The result is not a divergence: its minimum puts all
    mass on the teacher's first choice, and its gradient is a few percent of the KL's.
    """
    check_alike(student, teacher, temperature=temperature)
    p_s = F.softmax(student / temperature, dim=1)
    p_t = F.softmax(teacher.detach() / temperature, dim=1)
    return F.kl_div(p_s, p_t, reduction="batchmean")


def standardised(logits: Tensor) -> Tensor:
    """(z - mean z) / (1e-7 + std z) over the classes of each image, with the sample deviation (LSKD)."""
    return (logits - logits.mean(1, keepdim=True)) / (1e-7 + logits.std(1, keepdim=True))


def target_class(labels: Tensor) -> Tensor:
    """The class of each label [B]; of a soft label [B, C] the one with the largest share."""
    return labels if labels.ndim == 1 else labels.argmax(1)


def soft_label(labels: Tensor, classes: int) -> Tensor:
    """Every label as a distribution [B, C]: a class [B] becomes a one among zeros, a soft label stays as it is."""
    return F.one_hot(labels, classes) if labels.ndim == 1 else labels


def decoupled_kl(student: Tensor, teacher: Tensor, labels: Tensor, temperature: Temperature) -> tuple[Tensor, Tensor]:
    """The KL in two parts: target class against the rest, and the other classes among themselves (DKD).

    With b = (p_y, 1 - p_y) and q the softmax over the classes other than y, all at temperature T:
    KL(b_t -> b_s) and KL(q_t -> q_s), each a mean over the batch. For every image
    KL(p_t -> p_s) = KL(b_t -> b_s) + (1 - p_t,y) KL(q_t -> q_s).
    """
    check_alike(student, teacher, temperature=temperature)
    target = target_class(labels)[:, None]
    log_b_s, log_q_s = _decoupled(student / temperature, target)
    log_b_t, log_q_t = _decoupled(teacher.detach() / temperature, target)
    binary = F.kl_div(log_b_s, log_b_t, reduction="batchmean", log_target=True)
    return binary, F.kl_div(log_q_s, log_q_t, reduction="batchmean", log_target=True)


def _decoupled(softened: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """log b [B, 2] and log q [B, C - 1]; sums of probabilities stay logarithms, so none of them underflows."""
    log_p = F.log_softmax(softened, dim=1)
    classes = torch.arange(log_p.shape[1] - 1, device=log_p.device)
    others = log_p.gather(1, classes + (classes >= target))
    rest = others.logsumexp(1, keepdim=True)
    return torch.cat([log_p.gather(1, target), rest], 1), others - rest


def feature_norm(student: Tensor, teacher: Tensor) -> Tensor:
    """The Frobenius norm of the difference over the whole batch, neither squared nor averaged.

    Its gradient has norm 1 whatever the batch size, and is zero where both are equal.
    """
    check_alike(student, teacher, "features")
    return torch.dist(student, teacher.detach())


def feature_mse(student: Tensor, teacher: Tensor) -> Tensor:
    """The mean squared difference over batch and features."""
    check_alike(student, teacher, "features")
    return F.mse_loss(student, teacher.detach())


def feature_square_sum(student: Tensor, teacher: Tensor) -> Tensor:
    """The squared difference summed over batch and features: what the paper's loss table calls MSE (sum)."""
    check_alike(student, teacher, "features")
    return F.mse_loss(student, teacher.detach(), reduction="sum")


def feature_cross_entropy(student: Tensor, teacher: Tensor) -> Tensor:
    """Student features read as logits, raw teacher features as class weights, as in the paper code's CE option."""
    check_alike(student, teacher, "features")
    return F.cross_entropy(student, teacher.detach())


def feature_masked_square_sum(student: Tensor, teacher: Tensor) -> Tensor:
    """The squared difference summed where either side is positive, as in a widely used BYOT re-implementation."""
    check_alike(student, teacher, "features")
    teacher = teacher.detach()
    active = (student > 0) | (teacher > 0)
    return ((student - teacher).square() * active).sum()


def feature_l1(student: Tensor, teacher: Tensor) -> Tensor:
    """The mean absolute difference over batch and features."""
    check_alike(student, teacher, "features")
    return F.l1_loss(student, teacher.detach())


def feature_smooth_l1(student: Tensor, teacher: Tensor) -> Tensor:
    """The mean of d^2/2 where the difference d is below 1, of |d| - 1/2 where it is above."""
    check_alike(student, teacher, "features")
    return F.smooth_l1_loss(student, teacher.detach())


LogitLoss = Callable[[Tensor, Tensor, Temperature], Tensor]
FeatureLoss = Callable[[Tensor, Tensor], Tensor]

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
