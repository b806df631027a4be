"""Losses of tokens, computed a chunk at a time, against the formulas over all tokens at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from benchmarks.token_loss_memory import peak_bytes
from torch import Tensor
from torch.nn import functional as F

from spacedkd import UserError, losses

B, L, V = 3, 7, 11


def tensors(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of a student and a teacher, and labels of which some do not count."""
    generator = torch.Generator().manual_seed(0)
    student, teacher = (3 * torch.randn(B, L, V, generator=generator, dtype=torch.float64) for _ in range(2))
    labels = torch.randint(0, V, (B, L), generator=generator)
    labels[0, 4:] = labels[1, :3] = -100
    return student.to(dtype).requires_grad_(), teacher.to(dtype), labels


def counted(labels: Tensor, shift: bool) -> list[tuple[int, int, int]]:
    """The row and the place of each logit vector that counts, and the label that it predicts."""
    return [
        (row, place, int(labels[row, place + shift]))
        for row in range(labels.shape[0])
        for place in range(labels.shape[1] - shift)
        if labels[row, place + shift] != -100
    ]


def kl(p: Tensor, q: Tensor) -> Tensor:
    return (p * (p.log() - q.log())).sum()


def jsd(beta: float) -> Callable[[Tensor, Tensor], Tensor]:
    """TRL's definition (GKDTrainer): the mixture has 1 - beta of the student, the teacher's term counts beta."""

    def divergence(s: Tensor, t: Tensor) -> Tensor:
        mixture = (1 - beta) * s + beta * t
        return beta * kl(t, mixture) + (1 - beta) * kl(s, mixture)

    return divergence


DIVERGENCES: dict[str, tuple[dict[str, Any], Callable[[Tensor, Tensor], Tensor]]] = {
    "forward": ({}, lambda s, t: kl(t, s)),
    "reverse": ({"direction": "reverse"}, lambda s, t: kl(s, t)),
    "jsd": ({"direction": "jsd"}, jsd(0.5)),
    "jsd, beta 0.2": ({"direction": "jsd", "beta": 0.2}, jsd(0.2)),
}


@pytest.mark.parametrize("chunk", [1, 4, 1024])
@pytest.mark.parametrize("shift", [True, False])
@pytest.mark.parametrize("name", DIVERGENCES)
def test_value_and_gradient_are_those_of_the_formula(name: str, shift: bool, chunk: int) -> None:
    options, divergence = DIVERGENCES[name]
    student, teacher, labels = tensors()
    places = counted(labels, shift)
    each = [divergence((student[b, i] / 2.5).softmax(0), (teacher[b, i] / 2.5).softmax(0)) for b, i, _ in places]
    expected = torch.stack(each).sum() / len(places)
    value = losses.token_kl(student, teacher, labels, temperature=2.5, shift=shift, chunk=chunk, **options)
    assert value.item() == pytest.approx(expected.item(), rel=1e-12)
    slopes = [torch.autograd.grad(0.7 * number, student)[0] for number in (value, expected)]
    torch.testing.assert_close(*slopes, rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("shift", [True, False])
def test_cross_entropy_is_torchs(shift: bool, smoothing: float) -> None:
    student, _, labels = tensors()
    z, y = (student[:, :-1], labels[:, 1:]) if shift else (student, labels)
    expected = F.cross_entropy(z.flatten(0, 1), y.flatten(), label_smoothing=smoothing)
    value = losses.token_cross_entropy(student, labels, shift=shift, smoothing=smoothing, chunk=4)
    assert value.item() == pytest.approx(expected.item(), rel=1e-12)
    slopes = [torch.autograd.grad(number, student)[0] for number in (value, expected)]
    torch.testing.assert_close(*slopes, rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", DIVERGENCES)
def test_half_precision_is_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    """Only the gradient that comes out is rounded, and float16 after it was scaled: else it would be zero."""
    student, teacher, labels = tensors(dtype)
    exact = student.detach().double().requires_grad_()
    scale = 2.0**-20 if dtype == torch.bfloat16 else 2.0**14
    options = {"temperature": 2.5, "chunk": 4, **DIVERGENCES[name][0]}
    value = losses.token_kl(student, teacher, labels, **options)
    expected = losses.token_kl(exact, teacher.double(), labels, **options)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    (value * scale).backward()
    (expected * scale).backward()
    assert student.grad is not None
    assert exact.grad is not None
    torch.testing.assert_close(student.grad, exact.grad.to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=1e-10)


def test_tokens_that_do_not_count_have_no_part_in_it() -> None:
    student, teacher, labels = tensors()
    changed = student.detach().clone()
    changed[:, -1] = changed[0, 3:] = changed[1, :2] = math.nan
    values = [losses.token_kl(z, teacher, labels, temperature=1.0) for z in (student, changed.requires_grad_())]
    assert values[0].item() == values[1].item()
    values[1].backward()
    assert changed.grad is not None
    assert not changed.grad[0, 3:].any()
    assert not changed.grad[1, :2].any()
    assert not changed.grad[:, -1].any()
    assert changed.grad.isfinite().all()


def test_no_token_at_all_is_zero_with_a_gradient_of_zero() -> None:
    student, teacher, labels = tensors()
    nothing, one_place = torch.full_like(labels, -100), labels[:, :1]
    for value, used in (
        (losses.token_kl(student, teacher, nothing, temperature=1.0), student),
        (losses.token_cross_entropy(student, nothing), student),
        (losses.token_kl(student[:, :1], teacher[:, :1], one_place, temperature=1.0), student),
    ):
        assert value.item() == 0
        assert torch.equal(torch.autograd.grad(value, used)[0], torch.zeros_like(used))


@pytest.mark.parametrize("direction", losses.DIRECTIONS)
def test_tokens_that_neither_side_can_say_are_as_if_they_were_not_there(direction: Any) -> None:
    student, teacher, labels = tensors()
    shown = torch.tensor([0, 1, 2, 5, 6, 7, 8, 9])
    masked = [torch.full_like(z, -math.inf).index_copy(2, shown, z.detach()[..., shown]) for z in (student, teacher)]
    masked[0].requires_grad_()
    value = losses.token_kl(masked[0], masked[1], labels, temperature=2.0, direction=direction)
    expected = losses.token_kl(student[..., shown], teacher[..., shown], labels, temperature=2.0, direction=direction)
    assert value.item() == pytest.approx(expected.item(), rel=1e-12)
    (gradient,), (of_shown,) = torch.autograd.grad(value, masked[0]), torch.autograd.grad(expected, student)
    torch.testing.assert_close(gradient, of_shown, rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("direction", ["forward", "jsd"])
def test_tokens_that_the_teacher_cannot_say_have_probability_zero(direction: Any) -> None:
    student, teacher, labels = tensors()
    values = []
    for never in (-math.inf, -1e5):
        teacher[..., 3:5] = never
        value = losses.token_kl(student, teacher, labels, temperature=2.0, direction=direction)
        values.append((value, *torch.autograd.grad(value, student)))
    torch.testing.assert_close(*values, rtol=1e-12, atol=1e-16)
    student = student.detach()
    student[..., 0] = -math.inf  # the teacher has mass there
    assert losses.token_kl(student, teacher, labels, temperature=2.0).item() == math.inf


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_labels_of_any_whole_type(dtype: torch.dtype) -> None:
    student, teacher, labels = tensors()
    labels = labels.clamp(min=0)
    for loss in (
        partial(losses.token_kl, student, teacher, temperature=2.0),
        partial(losses.token_cross_entropy, student),
    ):
        assert loss(labels.to(dtype)).item() == loss(labels).item()


def test_a_second_backward_pass_adds_the_same_gradient() -> None:
    student, teacher, labels = tensors()
    value = losses.token_kl(student, teacher, labels, temperature=2.0)
    (2 * value).backward(retain_graph=True)
    once = student.grad.clone()  # type: ignore[union-attr]
    (2 * value).backward()
    torch.testing.assert_close(student.grad, 2 * once, rtol=1e-14, atol=0)
    with pytest.raises(RuntimeError, match="second time"):
        value.backward()


def test_strides_and_the_teachers_gradient() -> None:
    student, teacher, labels = tensors()
    expected = losses.token_kl(student, teacher, labels, temperature=2.0)
    strided = student.detach().movedim(-1, 1).contiguous().movedim(1, -1).requires_grad_()
    value = losses.token_kl(strided, teacher.clone().requires_grad_(), labels, temperature=2.0)
    gradients = [torch.autograd.grad(*pair)[0] for pair in ((expected, student), (value, strided))]
    assert value.item() == expected.item()
    assert torch.equal(*gradients)
    assert not losses.token_kl(student.detach(), teacher.requires_grad_(), labels, temperature=2.0).requires_grad
    with torch.no_grad():
        assert not losses.token_kl(student, teacher, labels, temperature=2.0).requires_grad


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"teacher": torch.zeros(B, L, V + 2)}, ["vocabulary", "11", "13", "[..., :11]"]),
        ({"teacher": torch.zeros(B, L - 1, V)}, ["[3, 7, 11]", "[3, 6, 11]"]),
        ({"labels": torch.zeros(B, L - 1, dtype=torch.long)}, ["[3, 7]", "[3, 6]"]),
        ({"labels": torch.zeros(B, L)}, ["whole numbers", "float32"]),
        ({"labels": torch.zeros(B, L, dtype=torch.bool)}, ["whole numbers", "bool"]),
        ({"temperature": 0.0}, ["temperature", "0"]),
        ({"temperature": torch.tensor(2.0)}, ["temperature"]),
        ({"direction": "backward"}, ["backward", "forward", "reverse", "jsd"]),
        ({"direction": "jsd", "beta": 1.0}, ["beta", "reverse"]),
        ({"beta": 0.2}, ["beta=0.2", "forward"]),
        ({"chunk": 0}, ["chunk"]),
    ],
)
def test_what_would_be_computed_wrong_is_refused(changes: dict[str, Any], names: list[str]) -> None:
    student, teacher, labels = tensors()
    arguments = {"student": student, "teacher": teacher, "labels": labels, "temperature": 2.0} | changes
    with pytest.raises(UserError) as refused:
        losses.token_kl(**arguments)
    assert all(name in str(refused.value) for name in names), refused.value


def test_memory_is_bounded_by_the_chunk() -> None:
    """Student, teacher and gradient are three tensors of logits; three more tensors of a chunk, a thirty-second."""
    student, teacher = torch.randn(4, 128, 1000, requires_grad=True), torch.randn(4, 128, 1000)
    labels = torch.zeros(4, 128, dtype=torch.long)
    size = 4 * student.numel()
    for name, (options, _) in DIVERGENCES.items():
        student.grad = None
        loss = partial(losses.token_kl, student, teacher, labels, temperature=2.0, chunk=16, **options)
        peak = peak_bytes(lambda loss=loss: loss().backward())  # type: ignore[misc]
        assert size < peak < 1.3 * size, name


def test_peak_bytes_of_what_is_known() -> None:
    def two_then_one() -> None:
        first, _ = torch.empty(1_000_000), torch.empty(2_000_000)
        del first, _
        torch.empty(1_500_000)

    assert peak_bytes(two_then_one) == pytest.approx(12_000_000, rel=1e-3)
