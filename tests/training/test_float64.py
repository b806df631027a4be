"""Data in float64 is trained on in the run's own type, and a run of 64-true is opened with all its bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from spacedkd import DataSpec, NetworkSpec, OptimizerSpec, RateSpec, RunSpec, UserError, load_student, train
from spacedkd.config.objects import Objects
from spacedkd.data.run_data import from_datasets
from spacedkd.training.trained_models import load_run
from tests.conftest import TINY, tensors

OWN = replace(TINY, data=DataSpec(), network=NetworkSpec(), method="none", epochs=2)


class Rows(Dataset[Any]):
    """Rows of eight numbers in two classes."""

    classes = ("low", "high")

    def __init__(self, dtype: torch.dtype = torch.float64, seed: int = 0) -> None:
        drawn = torch.randn(24, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        self.x, self.y = drawn.to(dtype), (drawn.sum(1) > 0).long()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.x[row], int(self.y[row])


def linear() -> nn.Module:
    return nn.Linear(8, 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("precision", ["64-true", "32-true", "bf16-mixed", "bf16-true"])
def test_own_data_of_any_floating_type_is_brought_to_that_of_the_run(
    tmp_path: Path, precision: str, dtype: torch.dtype
) -> None:
    spec = replace(OWN, precision=precision, epochs=0.7, ema=0.9)
    run = train(spec, tmp_path / "run", data=(Rows(dtype), Rows(dtype, 1)), network=linear)
    double = torch.float64 if precision == "64-true" else torch.float32
    for which in ("last", "average"):
        assert load_student(run.folder, linear, which=which).weight.dtype == double


def test_no_bit_of_float64_data_is_lost_in_64_true(tmp_path: Path) -> None:
    """Softmax regression by hand; data cut to float32 would be off by 1e-8."""
    plain = OptimizerSpec("sgd", lr=0.1, momentum=0.0, weight_decay=0.0)
    spec = replace(OWN, precision="64-true", optimizer=plain, rate=RateSpec("constant"))
    data = (Rows(), Rows(seed=1))
    run = train(spec, tmp_path / "run", data=data, network=linear)
    student = load_student(run.folder, linear)
    with torch.random.fork_rng():
        stream = from_datasets(data).stream(spec.batch_size, spec.seed)
    first = train(
        replace(spec, epochs=0.4, optimizer=replace(plain, lr=0.0)), tmp_path / "0", data=data, network=linear
    )
    weight, bias = (one.detach().clone().requires_grad_() for one in load_student(first.folder, linear).parameters())
    for step in range(6):
        batch = stream.batch(step)
        assert batch.inputs.dtype == torch.float64  # type: ignore[union-attr]
        loss = F.cross_entropy(batch.inputs @ weight.T + bias, batch.labels)
        for one, gradient in zip((weight, bias), torch.autograd.grad(loss, (weight, bias)), strict=True):
            one.data -= 0.1 * gradient
    torch.testing.assert_close(student.weight, weight, rtol=0, atol=1e-14)
    torch.testing.assert_close(student.bias, bias, rtol=0, atol=1e-14)


@pytest.mark.parametrize("own", [False, True])
def test_a_student_of_64_true_opens_with_the_bits_of_the_run(tmp_path: Path, own: bool) -> None:
    given: dict[str, Any] = {"data": (Rows(), Rows(seed=1)), "network": linear} if own else {}
    spec: RunSpec = replace(OWN if own else TINY, method="none", precision="64-true", epochs=1)
    train(spec, tmp_path / "run", **given)
    student = load_student(tmp_path / "run", given.get("network"))
    saved = load_run(tmp_path / "run", objects=Objects(**given))
    shown, _ = saved.data.test.inputs_and_labels(torch.arange(20))
    with torch.no_grad():
        logits = saved.module(shown.double())[0].logits  # type: ignore[union-attr]
        assert torch.equal(student(shown.double()), logits)  # type: ignore[union-attr]
        assert logits.dtype == torch.float64
        assert not torch.equal(logits, logits.float().double())
    state = {name.removeprefix("model/student/network."): one for name, one in tensors(tmp_path / "run").items()}
    assert all(torch.equal(one, state[name]) for name, one in student.state_dict().items())


def test_a_network_that_takes_float64_as_it_is_sees_it_as_it_is(tmp_path: Path) -> None:
    seen = set()

    class Casts(nn.Linear):
        def forward(self, rows: Tensor) -> Tensor:
            seen.add(rows.dtype)
            return super().forward(rows.to(self.weight.dtype))

    train(replace(OWN, epochs=0.7), tmp_path / "run", data=(Rows(), Rows(seed=1)), network=lambda: Casts(8, 2))
    assert seen == {torch.float64}


def test_a_network_that_fails_for_another_reason_says_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="fails on float64"):
        train(OWN, tmp_path / "run", data=(Rows(), Rows(seed=1)), network=lambda: nn.Linear(9, 2))
