"""Losses as pure functions. Student first, teacher second; the teacher's side never gets a gradient.

    loss = 0.7 * losses.cross_entropy(z_s, labels) + 0.3 * losses.kl(z_s, z_t, temperature=3.0)

Shapes: logits [B, C], labels [B], features [B, D]. Every loss returns one number.

Logits with more dimensions need `dim=`, the one of the classes: -1 for tokens [B, L, V], 1 for pixels [B, C, H, W]. The
loss is then the mean over all N positions, of [B, L] or [B, H, W]; with `mask`, True where a position counts, over
those alone, and 0 where none does. `LOGIT_LOSSES` and `FEATURE_LOSSES` have the names that methods know them by.

`token_kl` and `token_cross_entropy` are the same for language models, whose logits are too large for copies: they hold
the softmax of a chunk of tokens at a time. A token whose label is -100, such as padding, does not count.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from spacedkd.runtime.errors import UserError, check_between, unknown

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


# Losses of tokens, a chunk at a time

IGNORED = -100
"""the label of a token that does not count, such as padding"""
DIRECTIONS = ("forward", "reverse", "jsd")


def token_kl(
    student: Tensor,
    teacher: Tensor,
    labels: Tensor,
    *,
    temperature: Temperature,
    shift: bool = True,
    direction: Literal["forward", "reverse", "jsd"] = "forward",
    beta: float = 0.5,
    chunk: int = 1024,
) -> Tensor:
    """Return the mean divergence of logits [B, L, V] over the N tokens that count, in memory bounded by `chunk`.

        forward   1/N sum_n KL(p_t -> p_s) = 1/N sum_n sum_v p_t (log p_t - log p_s), p = softmax(z/T)
        reverse   1/N sum_n KL(p_s -> p_t)
        jsd       1/N sum_n beta KL(p_t -> m) + (1 - beta) KL(p_s -> m), m = beta p_t + (1 - beta) p_s

    Labels [B, L] say which tokens count: those that are not -100; 0 is returned where none does. With `shift`, as in a
    causal model whose labels are its input_ids, the logits at a place predict the next label: the last logits and the
    first label are left out. There is no factor T^2. A token whose logit is -inf has probability 0 and adds nothing.
    Besides the arguments and the student's gradient only a few tensors [chunk, V] exist; they are float32, or float64
    where the logits are.

    >>> z = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])
    >>> round(token_kl(z, 0 * z, torch.tensor([[5, 7]]), temperature=1.0).item(), 4)
    0.1201
    """
    _check_tokens(student, teacher, labels)
    if isinstance(temperature, Tensor) or not 0 < temperature < math.inf:
        raise UserError(f"token_kl takes a temperature that is a number above 0 and finite, got {temperature}.")
    if direction not in DIRECTIONS:
        raise unknown("direction", str(direction), DIRECTIONS)
    if direction != "jsd" and beta != 0.5:
        raise UserError(f'beta={beta:g} does not matter for direction="{direction}": leave it out, or take "jsd".')
    if not 0 < beta < 1:
        raise UserError(
            f'beta must be above 0 and below 1, got {beta:g}: for one side alone take "forward" or "reverse".'
        )
    loss = partial(_divergence, temperature=float(temperature), direction=direction, beta=float(beta))
    return _token_mean(student, teacher.detach(), labels, loss, shift=shift, chunk=chunk)


def token_cross_entropy(
    logits: Tensor, labels: Tensor, *, shift: bool = True, smoothing: float = 0.0, chunk: int = 1024
) -> Tensor:
    """Return -1/N sum_n log softmax(z_n)[y_n] of logits [B, L, V] over the tokens that count, as `token_kl` does.

    With `smoothing` that part of every label is spread evenly over all V tokens.
    """
    _check_tokens(logits, None, labels)
    check_between("smoothing", smoothing, 0, 1)
    return _token_mean(logits, None, labels, partial(_label_loss, smoothing=smoothing), shift=shift, chunk=chunk)


def _check_tokens(student: Tensor, teacher: Tensor | None, labels: Tensor) -> None:
    """Refuse logits and labels of tokens that do not fit together."""
    if teacher is not None and student.shape[:-1] == teacher.shape[:-1] and student.shape != teacher.shape:
        small = min(student.shape[-1], teacher.shape[-1])
        raise UserError(
            f"The student's vocabulary has {student.shape[-1]} tokens and the teacher's {teacher.shape[-1]}: their "
            f"probabilities cannot be compared. Take models with the same tokenizer; where only padding makes one "
            f"larger, cut it off: logits[..., :{small}]."
        )
    if teacher is not None:
        detach_teacher(student, teacher, "logits")
    whole = not labels.is_floating_point() and labels.dtype != torch.bool
    if student.ndim < 2 or not whole or labels.shape != student.shape[:-1]:
        raise UserError(
            f"Labels of tokens must be whole numbers {[*student.shape[:-1]]} for logits {[*student.shape]}, got "
            f"{str(labels.dtype).removeprefix('torch.')} {[*labels.shape]}."
        )


class _TokenLoss(Protocol):
    """The sum of a loss over some tokens, and its gradient with respect to their logits if it is wanted."""

    def __call__(
        self, student: Tensor, teacher: Tensor | None, labels: Tensor, gradient: bool
    ) -> tuple[Tensor, Tensor | None]: ...


def _divergence(
    student: Tensor,
    teacher: Tensor | None,
    labels: Tensor,
    gradient: bool,
    *,
    temperature: float,
    direction: str,
    beta: float,
) -> tuple[Tensor, Tensor | None]:
    """Return the divergence of logits [n, V] summed over n tokens, and its gradient; it may write into the logits.

    With D = log p_s - log q, q = p_t (reverse) or m (jsd), the gradient is p_s (D - sum p_s D) / T, times 1 - beta for
    the jsd: there m moves with the student, and what that adds to the two terms cancels.
    """
    assert teacher is not None
    log_s, log_t = student.div_(temperature).log_softmax(1), teacher.div_(temperature).log_softmax(1)
    if direction == "forward":
        p_t = log_t.exp()
        value = _weighted(p_t, log_t.sub_(log_s)).sum()
        return value, log_s.exp_().sub_(p_t).div_(temperature) if gradient else None
    target, factor, value = log_t, 1.0, student.new_zeros(())
    if direction == "jsd":
        target, factor = torch.logaddexp(log_t + math.log(beta), log_s + math.log1p(-beta)), 1 - beta
        p_t = log_t.exp()
        value = beta * _weighted(p_t, log_t.sub_(target)).sum()
    p_s, apart = log_s.exp(), log_s.sub_(target)
    apart.masked_fill_(p_s == 0, 0)
    each = (p_s * apart).sum(1, keepdim=True)
    value = value + factor * each.sum()
    return value, p_s.mul_(apart.sub_(each)).mul_(factor / temperature) if gradient else None


def _weighted(p: Tensor, log_ratio: Tensor) -> Tensor:
    """Return p log(p/q), written into the logarithms; it is 0 where p is, also where log p is -inf."""
    return log_ratio.masked_fill_(p == 0, 0).mul_(p)


def _label_loss(
    student: Tensor, teacher: Tensor | None, labels: Tensor, gradient: bool, *, smoothing: float
) -> tuple[Tensor, Tensor | None]:
    """Return the cross-entropy of logits [n, V] summed over n tokens, and its gradient."""
    log_p, target = student.log_softmax(1), labels[:, None]
    value = -(1 - smoothing) * log_p.gather(1, target).sum()
    if smoothing:
        value = value - smoothing * log_p.mean(1).sum()
    if not gradient:
        return value, None
    p = log_p.exp_().sub_(smoothing / log_p.shape[1])
    return value, p.scatter_(1, target, p.gather(1, target) + (smoothing - 1))


def _token_mean(
    student: Tensor, teacher: Tensor | None, labels: Tensor, loss: _TokenLoss, *, shift: bool, chunk: int
) -> Tensor:
    """Return the mean of a loss over the tokens that count, computed a chunk of them at a time."""
    check_between("chunk", chunk, 1)
    labels = labels.long()  # a small integer type is no index, and uint8 cannot hold -100
    labels = F.pad(labels[..., 1:], (0, 1), value=IGNORED) if shift else labels
    student = student if torch.is_grad_enabled() else student.detach()
    mean: Tensor = _TokenMean.apply(student, teacher, labels, loss, chunk)
    return mean


class _TokenMean(torch.autograd.Function):
    """The mean of a loss of tokens. Its gradient is computed with it, because both need the same softmax."""

    @staticmethod
    def forward(
        ctx: Any, student: Tensor, teacher: Tensor | None, labels: Tensor, loss: _TokenLoss, chunk: int
    ) -> Tensor:
        ctx.save_for_backward(student, teacher, labels)
        ctx.loss, ctx.chunk = loss, chunk
        # Before they are scaled, gradients of a mean over thousands of tokens are too small for float16.
        now = ctx.needs_input_grad[0] and student.dtype != torch.float16
        mean, ctx.gradient = _by_chunks(student, teacher, labels, loss, chunk=chunk, learns=now)
        return mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        student, teacher, labels = (
            ctx.saved_tensors
        )  # read in any case: it refuses a second pass through a graph that was freed
        gradient, ctx.gradient = ctx.gradient, None  # it is scaled in place, so a second pass computes another
        if gradient is None:
            _, gradient = _by_chunks(student, teacher, labels, ctx.loss, chunk=ctx.chunk, learns=True, scale=scale)
        else:
            gradient.mul_(scale)
        return gradient, None, None, None, None


def _by_chunks(
    student: Tensor,
    teacher: Tensor | None,
    labels: Tensor,
    loss: _TokenLoss,
    *,
    chunk: int,
    learns: bool,
    scale: Tensor | float = 1.0,
) -> tuple[Tensor, Tensor | None]:
    """Return the mean of a loss, and its gradient times `scale` if the student learns."""
    number = torch.promote_types(student.dtype, torch.float32)
    counted = (labels != IGNORED).nonzero(as_tuple=True)
    count = max(len(counted[0]), 1)
    total = student.new_zeros((), dtype=number)
    gradient = torch.zeros_like(student) if learns else None
    for at in zip(*(places.split(chunk) for places in counted), strict=True):
        rows = None if teacher is None else teacher[at].to(number)
        value, slope = loss(student[at].to(number), rows, labels[at], learns)
        total += value
        if gradient is not None and slope is not None:
            gradient[at] = slope.mul_(scale / count).to(gradient.dtype)
    return total / count, gradient


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
