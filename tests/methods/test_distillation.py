"""LSKD, CTKD and DKD: METHODS.md cards 11, 12 and 20, alone and combined with each other and with other methods."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spacedkd.data import Batch
from spacedkd.methods import KD, SelfKD
from spacedkd.methods.ctkd import CTKD
from spacedkd.methods.distillation import WithTemperature, curriculum_strength, learned_temperature
from spacedkd.methods.dkd import DKD
from spacedkd.methods.hinton import Hinton
from spacedkd.methods.losses import cross_entropy, decoupled_kl, kl, standardised
from spacedkd.methods.lskd import LSKD
from spacedkd.models.classifier import Prediction
from tests.methods.vectors import FS, FT, START, TE, S, Y, at_epoch, close, close_to, gradient, tensor

THETA = torch.ones(1, dtype=torch.float64)
LAST = at_epoch(299)


def total(
    method: KD, student: Tensor = S, teacher: Tensor = TE, heat: Tensor | None = None, epoch: int = 299
) -> Tensor:
    """Return a student's loss through the method itself."""
    predictions = {"teacher": Prediction(teacher, FT), "student": Prediction(student, FS, heat)}
    models: Any = {role: lambda images, adapted=True, p=p: (p,) for role, p in predictions.items()}
    terms = method.losses("student", models, Batch(S, Y, Y), at_epoch(epoch))
    return torch.stack([*terms.values()]).sum()


@pytest.mark.parametrize(
    ("method", "arguments", "value"),
    [
        (Hinton(), {}, 0.3984522518),
        (LSKD(), {}, 2.8868142185),
        (LSKD(label_weight=0.5, logit_weight=10.0), {}, 3.5071169020),  # the transformers' form
        (LSKD(label_weight=0.0, logit_weight=1.0), {"student": 3 * S + 7, "teacher": 0.2 * TE - 1}, 0.3121985887),
        (CTKD(), {"heat": THETA}, 0.4138447139),
        (DKD(label_weight=0.0), {}, 2.3858544650),
        (DKD(label_weight=0.0), {"epoch": 4}, 2.3858544650 * 5 / 20),
        (DKD(), {}, 2.3858544650 + 0.7702599809),
    ],
)
def test_whole_losses(method: KD, arguments: dict[str, Any], value: float) -> None:
    assert total(method, **arguments).item() == close(value)


@pytest.mark.parametrize(
    ("method", "heat", "expected"),
    [
        (
            LSKD(label_weight=0.0, logit_weight=1.0),
            None,
            [[-0.26778884, 0.08926297, 0.17852587], [0.03386002, -0.02370201, -0.01015801]],
        ),
        (CTKD(), THETA, [[-0.21166554, 0.16572286, 0.04594268], [0.10068759, -0.18090870, 0.08022110]]),
    ],
)
def test_gradients(method: KD, heat: Tensor | None, expected: list[list[float]]) -> None:
    assert gradient(lambda s: total(method, s, heat=heat), S).numpy() == close_to(expected)


def test_lskd() -> None:
    assert standardised(S).numpy() == close_to(
        [[-0.2182178617, 1.0910893083, -0.8728714467], [-0.2598279083, -0.8444407021, 1.1042686104]]
    )
    assert standardised(TE).numpy() == close_to(
        [[1.0170742975, -0.0350715275, -0.9820027700], [-0.8153679908, -0.3003987335, 1.1157667243]]
    )
    assert (4 * kl(standardised(S), standardised(TE), 2.0)).item() == close(0.3121986912)
    s, t = ((z - z.mean(1, keepdim=True)) / (1e-7 + z.std(1, correction=0, keepdim=True)) for z in (S, TE))
    assert (4 * kl(s, t, 2.0)).item() == close(0.4714156736)  # which ours must not be


def test_lskd_distils_the_shape_of_a_logit_vector_alone() -> None:
    of_logits = gradient(lambda s: total(LSKD(label_weight=0.0, logit_weight=1.0), s), S)
    assert of_logits.sum(1).abs().max() < 1e-12
    assert (of_logits * S).sum(1).abs().max() < 1e-6


def test_ctkd() -> None:
    temperature = learned_temperature(THETA, -1.0)
    assert temperature.item() == close(15.6211715726)
    assert (temperature**2 * kl(S, TE, temperature)).item() == close(0.3742430176)


def test_ctkds_curriculum() -> None:
    expected = {0: 0, 1: -0.02447174, 2: -0.09549150, 5: -0.5, 9: -0.97552826, 10: -1, 11: -1}
    assert {epoch: curriculum_strength(epoch, 10) for epoch in expected} == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize(("epoch", "stored"), [(0, -0.0000230979), (9, -0.0009438634), (200, -0.0009438634)])
def test_ctkds_temperature_climbs_the_loss(epoch: int, stored: float) -> None:
    """Epoch 0 here is epoch 1 of the card."""
    theta = THETA.clone().requires_grad_()
    total(CTKD(), heat=theta, epoch=epoch).backward()  # type: ignore[no-untyped-call]
    assert theta.grad is not None
    assert theta.grad.item() == close(stored)

    def kd_loss(theta: Tensor) -> Tensor:
        temperature = 1 + 20 * torch.sigmoid(theta[0])
        return temperature**2 * kl(S, TE, temperature)

    assert gradient(kd_loss, THETA).item() == close(0.0010487371)  # uphill, so the stored one must point down

    def detached_square(theta: Tensor) -> Tensor:
        temperature = 1 + 20 * torch.sigmoid(theta[0])
        return temperature.detach() ** 2 * kl(S, TE, temperature)

    (wrong,) = torch.autograd.grad(detached_square(theta), theta)
    assert wrong.item() == pytest.approx(-0.1873638758, abs=1e-8)  # had T^2 been left out of the graph


def test_ctkds_teacher_gets_no_gradient_and_its_heat_is_the_students_to_learn() -> None:
    teacher = TE.clone().requires_grad_()
    total(CTKD(), teacher=teacher, heat=THETA.clone().requires_grad_()).backward()  # type: ignore[no-untyped-call]
    assert teacher.grad is None
    model = CTKD().with_learned_temperature(nn.Identity())
    assert isinstance(model, WithTemperature)
    assert [name for name, _ in model.named_parameters()] == ["heat"]


def test_dkd() -> None:
    target, others = decoupled_kl(S, TE, Y, 4.0)
    assert (16 * target).item() == close(0.2167311209)
    assert (16 * others).item() == close(0.2711404180)
    gradient(lambda s: total(DKD(label_weight=0.0), s), S)  # against finite differences


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_dkds_parts_add_up_to_kd(temperature: float) -> None:
    """KD = TCKD + (1 - p_t,y) NCKD, image by image."""
    for row in range(2):
        s, t, y = S[row : row + 1], TE[row : row + 1], Y[row : row + 1]
        target, others = decoupled_kl(s, t, y, temperature)
        sure = (t / temperature).softmax(1)[0, y.item()]
        assert (target + (1 - sure) * others).item() == close(kl(s, t, temperature).item())


def test_dkd_of_a_soft_label_takes_its_largest_share() -> None:
    soft = tensor([[0.9, 0.05, 0.05], [0.1, 0.2, 0.7]])
    assert [part.item() for part in decoupled_kl(S, TE, soft, 4.0)] == [
        part.item() for part in decoupled_kl(S, TE, Y, 4.0)
    ]


def test_dkd_does_not_underflow() -> None:
    sure = torch.tensor([[300.0, 0.0, -300.0]])
    assert all(part.isfinite() for part in decoupled_kl(sure, -sure, torch.tensor([0]), 1.0))


def test_all_three_together() -> None:
    """Decoupled, on standardised logits, at a learned temperature, against the three formulas put together."""
    method = Hinton(label_weight=0.1, logit_weight=9.0, standardise=True, logit_loss="decoupled", curriculum=10)
    temperature = 1 + 20 * torch.sigmoid(THETA[0])
    target, others = decoupled_kl(standardised(S), standardised(TE), Y, temperature)
    expected = 0.1 * cross_entropy(S, Y) + 9 * temperature**2 * (target + 8 * others)
    assert total(method, heat=THETA).item() == close(expected.item())


@pytest.mark.parametrize("options", [{"standardise": True}, {"logit_loss": "decoupled"}, {"curriculum": 10.0}])
def test_self_kd_compares_its_exits_in_the_same_ways(options: dict[str, Any]) -> None:
    plain = {"label_weight": 0.0, "logit_weight": 1.0, "feature_weight": 0.0, "temperature_squared": True}
    method = SelfKD(**{"logit_loss": "kl", **plain, **options})
    heads = (Prediction(TE, FT, THETA), Prediction(S, FS, THETA))
    models: Any = {"network": lambda images: heads}
    losses = method.losses("student", models, Batch(S, Y, Y), LAST)
    alone = KD(**{**plain, **options}).logit_term(heads[1], heads[0], Y, LAST)
    assert losses["exit logit"].item() == close(alone.item())


def test_the_papers_feature_losses() -> None:
    """The six of its loss table, on the shared tensors; L1 and smooth L1 by hand."""
    difference = (FS - FT).abs()
    smooth = torch.where(difference < 1, difference.square() / 2, difference - 0.5).mean()
    expected = {
        "norm": 1.4422205102,
        "l1": difference.mean().item(),
        "smooth-l1": smooth.item(),
        "mse": 0.26,
        "square-sum": 2.08,
        "cross-entropy": 3.2606718797,
    }
    for name, value in expected.items():
        method = KD(label_weight=0.0, logit_weight=0.0, feature_weight=1.0, feature_loss=name)
        terms = method.terms(Prediction(S, FS), Prediction(TE, FT), Y, START)
        assert terms["feature"].item() == close(value)
