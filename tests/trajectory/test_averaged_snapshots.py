"""Snapshots of averaged weights in a loop of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import update_bn

from spacedkd import Snapshots, UserError


def make() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 4, generator=generator), torch.randint(3, (8,), generator=generator)


def inputs() -> list[Tensor]:
    return [batch(step)[0] for step in range(3)]


class Loop:
    """A training loop that can be stopped and resumed."""

    def __init__(self, snapshots: Snapshots) -> None:
        self.network, self.snapshots, self.step = make(), snapshots, 0
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.1, momentum=0.9)
        self.trajectory: list[dict[str, Tensor]] = []

    def run(self, until: int) -> None:
        for step in range(self.step, until):
            x, y = batch(step)
            self.optimizer.zero_grad()
            F.cross_entropy(self.network(x), y).backward()
            self.optimizer.step()
            self.step = step + 1
            self.snapshots.after(self.step, self.network)
            self.trajectory.append({k: v.detach().clone() for k, v in self.network.named_parameters()})


def test_a_snapshot_is_the_weighted_sum_with_statistics_of_its_own(tmp_path: Path) -> None:
    loop = Loop(Snapshots(tmp_path, every=5, total=12, average="poly:2", batches=inputs))
    loop.run(12)
    assert {path.name for path in tmp_path.iterdir()} == {f"step-{n}.safetensors" for n in (5, 10, 12)}
    for updates in (5, 10, 12):
        saved, factors = (
            load_file(tmp_path / f"step-{updates}.safetensors"),
            [k * (k + 1) for k in range(1, updates + 1)],
        )
        for name in loop.trajectory[0]:
            weighted = sum(
                f * weights[name].double() for f, weights in zip(factors, loop.trajectory[:updates], strict=True)
            )
            torch.testing.assert_close(saved[name].double(), weighted / sum(factors), rtol=1e-5, atol=1e-6)
        expected = make()
        expected.load_state_dict(saved)
        update_bn(inputs(), expected)
        torch.testing.assert_close(saved["1.running_mean"], expected.state_dict()["1.running_mean"])
        torch.testing.assert_close(saved["1.running_var"], expected.state_dict()["1.running_var"])


def test_the_network_learns_as_it_does_without(tmp_path: Path) -> None:
    averaged, plain = (
        Loop(Snapshots(tmp_path / (text or "plain"), every=5, average=text)) for text in ("poly:2", None)
    )
    averaged.run(11)
    plain.run(11)
    for name, value in plain.network.state_dict().items():
        assert torch.equal(value, averaged.network.state_dict()[name]), name


@pytest.mark.parametrize("average", ["poly:2", "ema:0.9"])
def test_a_loop_that_resumes_with_the_state_saves_the_same_bits(tmp_path: Path, average: str) -> None:
    Loop(Snapshots(tmp_path / "whole", every=4, total=10, average=average)).run(10)
    first = Loop(Snapshots(tmp_path / "parts", every=4, total=10, average=average))
    first.run(6)
    resumed = Loop(Snapshots(tmp_path / "parts", every=4, total=10, average=average))
    resumed.network.load_state_dict(first.network.state_dict())
    resumed.optimizer.load_state_dict(first.optimizer.state_dict())
    resumed.step = 6
    torch.save(first.snapshots.state_dict(), tmp_path / "state.pt")
    resumed.snapshots.load_state_dict(torch.load(tmp_path / "state.pt"))
    resumed.run(10)
    for updates in (4, 8, 10):
        whole, parts = (load_file(tmp_path / of / f"step-{updates}.safetensors") for of in ("whole", "parts"))
        assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_an_average_with_a_gap_is_refused(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path, every=4, average="poly:2")
    with pytest.raises(UserError, match="load_state_dict"):
        snapshots.after(7, make())
    snapshots = Snapshots(tmp_path, every=4, average="poly:2")
    snapshots.after(1, make())
    snapshots.after(1, make())  # a batch whose gradients were kept for the next one
    with pytest.raises(UserError, match="after"):
        snapshots.save(2, make())
    for wrong in ({"average": "swa:50%"}, {"average": "mean"}, {"batches": inputs}):
        with pytest.raises(UserError):
            Snapshots(tmp_path, every=4, **wrong)  # type: ignore[arg-type]
