"""One small problem for all trainers, noisy digits and a network with BatchNorm, and what our own makes of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Dataset

from spacedkd import EngineSpec, MethodSpec, OptimizerSpec, RunSpec, Spaced, losses, seeded_loader, train
from tests.conftest import tensors

STEPS, INTERVAL, BATCH = 20, 7, 8  # two epochs of ten; blocks of 7, 7 and 6


class Noisy(Dataset[tuple[Tensor, int]]):
    """Draws from torch's generator, so that batches are equal only where they are seeded alike."""

    def __init__(self, first: int, last: int, noise: float) -> None:
        pixels, digits = load_digits(return_X_y=True)
        self.images = torch.tensor(pixels[first:last], dtype=torch.float32).view(-1, 1, 8, 8) / 16
        self.labels, self.noise = digits[first:last], noise

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.images[row] + self.noise * torch.randn(1, 8, 8), int(self.labels[row])


def network(batch_norm: bool = True) -> nn.Module:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4) if batch_norm else nn.Identity()
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))


TRAIN = Noisy(0, 80, 0.1)
loader = partial(seeded_loader, TRAIN, BATCH, 0)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.05, 0.9, weight_decay=5e-4)


def loss_of(student: Tensor, labels: Tensor, teacher: Tensor | None) -> Tensor:
    label = losses.cross_entropy(student, labels)
    return label if teacher is None else 0.7 * label + 0.3 * losses.kl(student, teacher, 3.0)


def ours(folder: Path) -> dict[str, dict[str, Tensor]]:
    """The teacher's and the student's network after the same run by `spacedkd.train()`."""
    spec = RunSpec(
        method=MethodSpec("kd", {"feature_weight": 0.0}),
        schedule=Spaced(f"{INTERVAL}st"),
        epochs=2,
        batch_size=BATCH,
        optimizer=OptimizerSpec("sgd", lr=0.05, momentum=0.9, weight_decay=5e-4),
        precision="32-true",
        channels_last=False,
        engine=EngineSpec(threads=1),
    )
    train(spec, folder, network=network, data=(TRAIN, Noisy(80, 120, 0)))
    saved = tensors(folder)
    prefix = {role: f"model/{role}/network." for role in ("teacher", "student")}
    return {
        role: {name.removeprefix(start): value for name, value in saved.items() if name.startswith(start)}
        for role, start in prefix.items()
    }
