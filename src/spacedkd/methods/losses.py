"""Losses as pure functions. Student first, teacher second; the teacher's side never gets a gradient.

Shapes: logits [B, C], labels [B], features [B, D]. All give one number.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from spacedkd.errors import UserError

Temperature = float | Tensor


def alike(student: Tensor, teacher: Tensor, what: str) -> tuple[Tensor, Tensor]:
    """Both, the teacher's without gradient; tensors that would be compared after a silent broadcast are refused."""
    if student.shape != teacher.shape:
        raise UserError(
            f"The student's {what} {[*student.shape]} and the teacher's {[*teacher.shape]} must have the same shape."
        )
    return student, teacher.detach()


def softened(student: Tensor, teacher: Tensor, temperature: Temperature) -> tuple[Tensor, Tensor]:
    """Both logits divided by the temperature, the teacher's without gradient.

    A learned temperature is a tensor and not looked at: a GPU would be kept waiting for it.
    """
    student, teacher = alike(student, teacher, "logits")
    if not isinstance(temperature, Tensor) and not 0 < temperature < math.inf:
        raise UserError(f"A temperature must be above 0 and finite, got {temperature:g}. The paper uses 3.")
    return student / temperature, teacher / temperature


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """-1/B sum_b log softmax(z_b)[y_b]."""
    return F.cross_entropy(logits, labels)


def kl(student: Tensor, teacher: Tensor, temperature: Temperature) -> Tensor:
    """KL divergence from teacher to student: 1/B sum_b sum_c p_t (log p_t - log p_s), p = softmax(z/T)."""
    s, t = softened(student, teacher, temperature)
    return F.kl_div(s.log_softmax(1), t.log_softmax(1), reduction="batchmean", log_target=True)


def kl_over_classes(student: Tensor, teacher: Tensor, temperature: Temperature) -> Tensor:
    """The KL divided by B C instead of B: what the paper's transformer code and PyTorch's default reduction compute."""
    return kl(student, teacher, temperature) / student.shape[1]


def soft_cross_entropy(student: Tensor, teacher: Tensor, temperature: Temperature) -> Tensor:
    """-1/B sum_b sum_c p_t log p_s: the KL plus the teacher's entropy, so with the same gradient."""
    s, t = softened(student, teacher, temperature)
    return -(t.softmax(1) * s.log_softmax(1)).sum(1).mean()


def probability_kl(student: Tensor, teacher: Tensor, temperature: Temperature) -> Tensor:
    """1/B sum_b sum_c p_t (log p_t - p_s): what the paper's CNN code computes in place of the KL.

    It feeds probabilities where log-probabilities belong. The result is not a divergence: its minimum puts all
    mass on the teacher's first choice, and its gradient is a few percent of the KL's.
    """
    s, t = softened(student, teacher, temperature)
    return F.kl_div(s.softmax(1), t.softmax(1), reduction="batchmean")


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
    target = target_class(labels)[:, None]
    both = (_decoupled(one, target) for one in softened(student, teacher, temperature))
    binary, others = (F.kl_div(s, t, reduction="batchmean", log_target=True) for s, t in zip(*both, strict=True))
    return binary, others


def _decoupled(softened: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """log b [B, 2] and log q [B, C - 1]; sums of probabilities stay logarithms, so none of them underflows."""
    log_p = softened.log_softmax(1)
    classes = torch.arange(log_p.shape[1] - 1, device=log_p.device)
    others = log_p.gather(1, classes + (classes >= target))
    rest = others.logsumexp(1, keepdim=True)
    return torch.cat([log_p.gather(1, target), rest], 1), others - rest


LogitLoss = Callable[[Tensor, Tensor, Temperature], Tensor]
FeatureLoss = Callable[[Tensor, Tensor], Tensor]


def _of_features(loss: FeatureLoss) -> FeatureLoss:
    """A loss of features of the same shape, the teacher's without gradient."""
    return lambda student, teacher: loss(*alike(student, teacher, "features"))


feature_norm = _of_features(torch.dist)
"""The Frobenius norm of the difference over the whole batch, neither squared nor averaged.

Its gradient has norm 1 whatever the batch size, and is zero where both are equal.
"""
feature_l1 = _of_features(F.l1_loss)
"""The mean absolute difference over batch and features."""
feature_smooth_l1 = _of_features(F.smooth_l1_loss)
"""The mean of d^2/2 where the difference d is below 1, of |d| - 1/2 where it is above."""
feature_mse = _of_features(F.mse_loss)
"""The mean squared difference over batch and features."""
feature_square_sum = _of_features(partial(F.mse_loss, reduction="sum"))
"""The squared difference summed over batch and features; what the paper's table calls MSE (sum) is `feature_norm`."""
feature_cross_entropy = _of_features(F.cross_entropy)
"""Student features read as logits, raw teacher features as class weights, as in the paper code's CE option."""


def feature_masked_square_sum(student: Tensor, teacher: Tensor) -> Tensor:
    """The squared difference summed where either side is positive, as in a widely used BYOT re-implementation."""
    student, teacher = alike(student, teacher, "features")
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
