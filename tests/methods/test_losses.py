"""Every loss value and gradient of METHODS.md, cards 0 to 5, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from spacedkd import UserError
from spacedkd.data import Batch
from spacedkd.methods import KD, Progress, SelfKD, losses
from spacedkd.models.classifier import Prediction
from tests.methods.vectors import FS, FT, O1, O2, START, TE, S, Y, close, gradient, tensor


@pytest.mark.parametrize("name", [*losses.LOGIT_LOSSES, "decoupled"])
def test_logits_that_would_be_broadcast_and_temperatures_of_nothing_are_refused(name: str) -> None:
    def loss(student: Tensor, teacher: Tensor, temperature: float | Tensor) -> object:
        if name == "decoupled":
            return losses.decoupled_kl(student, teacher, Y, temperature)
        return losses.LOGIT_LOSSES[name](student, teacher, temperature)

    for teacher in (TE[:1], TE[:, :1], TE[0], TE[None]):
        with pytest.raises(UserError, match=r"^The student's logits \[2, 3\] and the teacher's \[.*\] must have"):
            loss(S, teacher, 3.0)
    for temperature in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UserError, match=r"^A temperature must be above 0 and finite, got"):
            loss(S, TE, temperature)
    loss(S, TE, torch.tensor(2.0))  # a learned one


@pytest.mark.parametrize("name", losses.FEATURE_LOSSES)
def test_features_that_would_be_broadcast_are_refused(name: str) -> None:
    for teacher in (FT[:1], FT[:, :1], FT[0]):
        with pytest.raises(UserError, match=r"^The student's features \[2, 4\] and the teacher's \[.*\] must have the"):
            losses.FEATURE_LOSSES[name](FS, teacher)


SIGNED = tensor([[-0.5, 1, 0, 2], [1.5, 0, -0.3, 0.7]])


@pytest.mark.parametrize(
    ("loss", "arguments", "value"),
    [
        (losses.cross_entropy, (S, Y), 0.7702599809),
        (losses.cross_entropy, (TE, Y), 0.2829793541),
        (losses.kl, (S, TE, 1), 0.2574859749),
        (losses.kl, (S, TE, 2), 0.0807564898),
        (losses.kl, (S, TE, 3), 0.0385252820),
        (losses.kl, (S, TE, 4), 0.0223212676),
        (losses.kl_over_classes, (S, TE, 1), 0.0858286583),
        (losses.kl_over_classes, (S, TE, 2), 0.0269188299),
        (losses.kl_over_classes, (S, TE, 3), 0.0128417607),
        (losses.kl_over_classes, (S, TE, 4), 0.0074404225),
        (losses.soft_cross_entropy, (S, TE, 1.0), 0.9246850246),
        (losses.probability_kl, (S, TE, 3.0), -1.4103873109),  # card 4: probabilities where logarithms belong
        (losses.feature_norm, (FS, FT), 1.4422205102),  # card 3, from here on
        (losses.feature_mse, (FS, FT), 0.26),
        (losses.feature_square_sum, (FS, FT), 2.08),
        (losses.feature_square_sum, (SIGNED, FT), 2.08),
        (losses.feature_cross_entropy, (FS, FT), 3.2606718797),
        (losses.feature_masked_square_sum, (FS, FT), 2.08),
        (losses.feature_masked_square_sum, (SIGNED, FT), 1.74),
    ],
)
def test_values(loss: Callable[..., Tensor], arguments: tuple[Any, ...], value: float) -> None:
    assert loss(*arguments).item() == close(value)


@pytest.mark.parametrize(
    ("loss", "at", "expected"),
    [
        (
            lambda s: 16 * losses.kl(s, TE, 4.0),
            S,
            [[-0.2014875244, 0.1621851463, 0.0393023782], [0.0716848853, -0.1684435951, 0.0967587098]],
        ),
        (
            lambda s: losses.kl(s, TE, 3.0),
            S,
            [[-0.0227542920, 0.0186054299, 0.0041488621], [0.0063825092, -0.0167971610, 0.0104146517]],
        ),
        (
            lambda s: losses.soft_cross_entropy(s, TE, 3.0),  # the gradient of the KL
            S,
            [[-0.0227542920, 0.0186054299, 0.0041488621], [0.0063825092, -0.0167971610, 0.0104146517]],
        ),
        (
            lambda s: losses.probability_kl(s, TE, 3.0),
            S,
            [[-0.0055933399, 0.0012433154, 0.0043500245], [0.0085486890, 0.0041173729, -0.0126660619]],
        ),
        (
            lambda f: losses.feature_norm(f, FT),
            FS,
            [
                [0.3466876226, -0.1386750491, -0.2773500981, 0.6933752453],
                [0.3466876226, -0.3466876226, 0.2080125736, -0.1386750491],
            ],
        ),
    ],
    ids=["T^2 kl, T=4", "kl, T=3", "soft cross-entropy, T=3", "probability kl, T=3", "feature norm"],
)
def test_gradients(loss: Callable[[Tensor], Tensor], at: Tensor, expected: list[list[float]]) -> None:
    torch.testing.assert_close(gradient(loss, at), tensor(expected), atol=1e-9, rtol=0)


def test_soft_cross_entropy_has_the_gradient_of_kl() -> None:
    torch.testing.assert_close(
        gradient(lambda s: losses.soft_cross_entropy(s, TE, 3.0), S), gradient(lambda s: losses.kl(s, TE, 3.0), S)
    )


def test_the_gradient_of_the_feature_norm_has_norm_one_and_is_zero_at_equality() -> None:
    assert gradient(lambda f: losses.feature_norm(f, FT), FS).norm().item() == close(1.0)
    at_equality = FT.clone().requires_grad_()
    losses.feature_norm(at_equality, FT).backward()
    assert torch.equal(at_equality.grad, torch.zeros_like(FT))  # type: ignore[arg-type]


@pytest.mark.parametrize("loss", losses.LOGIT_LOSSES.values(), ids=losses.LOGIT_LOSSES)
def test_the_teacher_never_gets_a_gradient(loss: losses.LogitLoss) -> None:
    assert not loss(S, TE.clone().requires_grad_(), 3.0).requires_grad
    assert loss(S.clone().requires_grad_(), TE, 3.0).requires_grad


@pytest.mark.parametrize("loss", losses.FEATURE_LOSSES.values(), ids=losses.FEATURE_LOSSES)
def test_teacher_features_never_get_a_gradient(loss: losses.FeatureLoss) -> None:
    assert not loss(FS, FT.clone().requires_grad_()).requires_grad


ONLY_LOGITS = {"temperature_squared": True, "label_weight": 0.0, "logit_weight": 1.0, "feature_weight": 0.0}


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"logit_loss": "probability-kl"}, 0.1593324086),
        ({}, 0.5940061865),
        ({"temperature_squared": True}, 0.6864668634),
        ({**ONLY_LOGITS, "temperature": 1.0}, 0.2574859749),
        ({**ONLY_LOGITS, "temperature": 2.0}, 0.3230259590),
        ({**ONLY_LOGITS, "temperature": 3.0}, 0.3467275381),
        ({**ONLY_LOGITS, "temperature": 4.0}, 0.3571402819),
        (
            {
                "temperature": 4.0,
                "temperature_squared": True,
                "label_weight": 0.1,
                "logit_weight": 0.9,
                "feature_weight": 0.0,
            },
            0.3984522518,
        ),
    ],
    ids=[
        "as the paper's code",
        "the paper's formula",
        "with T squared",
        *(f"T^2 KL, T={t}" for t in (1, 2, 3, 4)),
        "Hinton's KD",
    ],
)
def test_the_students_whole_loss(options: dict[str, float], value: float) -> None:
    """Cards 2 and 4."""
    terms = KD(**options).terms(Prediction(S, FS), Prediction(TE, FT), Y, START)  # type: ignore[arg-type]
    assert sum(terms.values()).item() == close(value)  # type: ignore[union-attr]


def self_kd_loss(method: SelfKD, o4: Tensor, o3: Tensor, features: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Return the loss of a network whose heads give the card's numbers."""
    f3, f2, f1 = features
    heads = (Prediction(o4, FT), Prediction(o3, f3), Prediction(O2, f2), Prediction(O1, f1))
    models = {"network": lambda images: heads}
    batch = Batch(torch.zeros(2, 1, 1, 1), Y, torch.arange(2))
    return torch.stack([*method.losses("student", models, batch, Progress(0, 1, 1)).values()]).sum()  # type: ignore[arg-type]


AUTHORS = SelfKD(skip_deepest_exit_features=True)


def test_self_kd_of_the_authors() -> None:
    """Card 5; the deepest exit's features are left out."""
    assert self_kd_loss(AUTHORS, TE, S, (FS, FS, 0.5 * FS)).item() == close(3.2180889005)
    everywhere = self_kd_loss(SelfKD(), TE, S, (FS, FS, 0.5 * FS)).item()
    assert everywhere == close(3.2180889005 + 0.03 * 1.4422205102)


def test_self_kd_of_the_widely_used_reimplementation() -> None:
    method = SelfKD(
        deepest_weight=0.9,
        label_weight=0.9,
        logit_weight=0.1,
        temperature_squared=True,
        feature_loss="masked-square-sum",
        feature_weight=1e-6,
    )
    assert self_kd_loss(method, TE, S, (FS, FS, FS)).item() == close(5.5970787348)


def test_gradients_of_self_kd() -> None:
    """The deepest head learns from the labels alone."""
    o4 = TE.clone().requires_grad_()
    self_kd_loss(AUTHORS, o4, S, (FS, FS, 0.5 * FS)).backward()
    expected = tensor([[-0.17049943, 0.12121649, 0.04928295], [0.02144903, 0.04773569, -0.06918472]])
    torch.testing.assert_close(o4.grad, expected, atol=1e-8, rtol=0)
    expected = tensor([[-0.27589792, 0.22556773, 0.05033019], [0.02163768, 0.00090128, -0.02253897]])
    of_exit = gradient(lambda o: self_kd_loss(AUTHORS, TE, o, (FS, FS, 0.5 * FS)), S)
    torch.testing.assert_close(of_exit, expected, atol=1e-8, rtol=0)


def by_hand(name: str, student: list[float], teacher: list[float], temperature: float) -> float:
    """Return a logit loss of one position, summed class by class."""
    p, q = ([math.exp(z / temperature) for z in logits] for logits in (teacher, student))
    p, q = ([power / sum(powers) for power in powers] for powers in (p, q))
    return {
        "kl": sum(a * (math.log(a) - math.log(b)) for a, b in zip(p, q, strict=True)),
        "kl-over-classes": sum(a * (math.log(a) - math.log(b)) for a, b in zip(p, q, strict=True)) / len(p),
        "soft-cross-entropy": -sum(a * math.log(b) for a, b in zip(p, q, strict=True)),
        "probability-kl": sum(a * (math.log(a) - b) for a, b in zip(p, q, strict=True)),
    }[name]


SHAPES = {"tokens": ([2, 3, 5], -1), "pixels": ([2, 5, 3, 2], 1), "images": ([4, 5], -1)}


def dense(kind: str) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """Return logits of student and teacher, a mask and labels of their positions, and the dimension of the classes."""
    shape, dim = SHAPES[kind]
    drawn = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(shape, generator=drawn, dtype=torch.float64) for _ in range(2))
    positions = student.movedim(dim, -1).shape[:-1]
    mask = torch.rand(positions, generator=drawn) < 0.6
    return student, teacher, mask, torch.randint(0, 5, positions, generator=drawn), dim


def positions_of(student: Tensor, dim: int) -> list[tuple[int, ...]]:
    return [*product(*(range(size) for size in student.movedim(dim, -1).shape[:-1]))]


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("name", losses.LOGIT_LOSSES)
def test_logits_of_many_positions(name: str, kind: str) -> None:
    """The mean over the positions, or over those of a mask, each with the softmax over its own classes."""
    student, teacher, mask, _, dim = dense(kind)
    last = (student.movedim(dim, -1), teacher.movedim(dim, -1))
    each = {at: by_hand(name, last[0][at].tolist(), last[1][at].tolist(), 3.0) for at in positions_of(student, dim)}
    loss = losses.LOGIT_LOSSES[name]
    assert loss(student, teacher, 3.0, dim=dim).item() == close(sum(each.values()) / len(each))
    counted = [value for at, value in each.items() if mask[at]]
    assert 0 < len(counted) < len(each)
    masked = loss(student.requires_grad_(), teacher, 3.0, dim=dim, mask=mask)
    assert masked.item() == close(sum(counted) / len(counted))
    masked.backward()
    assert torch.equal(student.grad.movedim(dim, -1).abs().sum(-1) > 0, mask)  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", SHAPES)
def test_cross_entropy_of_many_positions(kind: str) -> None:
    student, _, mask, labels, dim = dense(kind)
    each = {
        at: math.log(sum(map(math.exp, z := student.movedim(dim, -1)[at].tolist()))) - z[labels[at]]
        for at in positions_of(student, dim)
    }
    assert losses.cross_entropy(student, labels, dim=dim).item() == close(sum(each.values()) / len(each))
    shares = F.one_hot(labels, 5).double().movedim(-1, dim)
    assert losses.cross_entropy(student, shares, dim=dim).item() == close(sum(each.values()) / len(each))
    counted = [value for at, value in each.items() if mask[at]]
    assert losses.cross_entropy(student, labels, dim=dim, mask=mask).item() == close(sum(counted) / len(counted))


@pytest.mark.parametrize("kind", SHAPES)
def test_standardised_logits_of_many_positions(kind: str) -> None:
    student, _, _, _, dim = dense(kind)
    result = losses.standardised(student, dim).movedim(dim, -1)
    for at in positions_of(student, dim):
        z = student.movedim(dim, -1)[at].tolist()
        mean = sum(z) / 5
        deviation = math.sqrt(sum((logit - mean) ** 2 for logit in z) / 4)
        assert result[at].tolist() == pytest.approx([(logit - mean) / (1e-7 + deviation) for logit in z], abs=1e-12)


def test_a_mask_without_a_position_gives_zero_and_no_gradient() -> None:
    student, teacher, mask, labels, dim = dense("tokens")
    nothing = torch.zeros_like(mask)
    for name, loss in losses.LOGIT_LOSSES.items():
        z = student.clone().requires_grad_()
        loss(z, teacher, 3.0, dim=dim, mask=nothing).backward()
        assert loss(z, teacher, 3.0, dim=dim, mask=nothing).item() == 0, name
        assert not z.grad.any(), name  # type: ignore[union-attr]
    assert losses.cross_entropy(student, labels, dim=dim, mask=nothing).item() == 0


@pytest.mark.parametrize("shape", [[5], [2, 3, 5], [2, 5, 3, 2]])
def test_a_shape_whose_classes_are_not_known_is_refused(shape: list[int]) -> None:
    z = torch.zeros(shape)
    labels = torch.zeros(shape[:1], dtype=torch.long)
    calls: list[Callable[[], object]] = [partial(loss, z, z, 3.0) for loss in losses.LOGIT_LOSSES.values()]
    calls += [partial(losses.decoupled_kl, z, z, labels, 3.0), partial(losses.cross_entropy, z, z)]
    for call in [*calls, partial(losses.standardised, z)]:
        with pytest.raises(UserError, match=r"^Logits \[.*\] must be \[B, C\], or say which .* dim=-1 .* dim=1 "):
            call()


TOKENS, TOKEN_TEACHER, MASK, LABELS, _ = dense("tokens")


@pytest.mark.parametrize(
    ("loss", "arguments", "wrong"),
    [
        *((losses.kl, {"dim": dim}, f"^dim={dim} ") for dim in (0, 3, -3, -4)),
        *(
            (losses.kl, {"dim": -1, "mask": mask}, r"^mask must be a bool tensor \[2, 3\]")
            for mask in (MASK.long(), MASK.float(), MASK[:1], MASK.T, MASK[..., None])
        ),
    ],
)
def test_dims_and_masks_that_do_not_fit_are_refused(loss: Any, arguments: dict[str, Any], wrong: str) -> None:
    with pytest.raises(UserError, match=wrong):
        loss(TOKENS, TOKEN_TEACHER, 3.0, **arguments)


@pytest.mark.parametrize(
    ("loss", "labels", "wrong"),
    [
        *(
            (partial(losses.cross_entropy, TOKENS, dim=-1), labels, r"logits \[2, 3, 5\]: give classes \[2, 3\]")
            for labels in (LABELS[:, 1:], LABELS[0], LABELS.T)
        ),
        (partial(losses.decoupled_kl, S, TE, temperature=3.0), Y[:, None], r"^Labels \[2, 1\] .* logits \[2, 3\]"),
    ],
)
def test_labels_that_do_not_fit_are_refused(loss: Any, labels: Tensor, wrong: str) -> None:
    with pytest.raises(UserError, match=wrong):
        loss(labels=labels)


def test_losses_of_images_are_those_of_torch_to_the_bit() -> None:
    drawn = torch.Generator().manual_seed(1)
    student, teacher = (torch.randn(37, 100, generator=drawn) for _ in range(2))
    labels = torch.randint(0, 100, (37,), generator=drawn)
    s, t = student / 3, teacher / 3
    expected = {
        "kl": F.kl_div(s.log_softmax(1), t.log_softmax(1), reduction="batchmean", log_target=True),
        "soft-cross-entropy": -(t.softmax(1) * s.log_softmax(1)).sum(1).mean(),
        "probability-kl": F.kl_div(s.softmax(1), t.softmax(1), reduction="batchmean"),
    }
    expected["kl-over-classes"] = expected["kl"] / 100
    for name, loss in losses.LOGIT_LOSSES.items():
        assert torch.equal(loss(student, teacher, 3.0), expected[name]), name
    assert torch.equal(losses.cross_entropy(student, labels), F.cross_entropy(student, labels))
