"""A tiny problem and the bare loops that train on it, as somebody without our trainer would write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from spacedkd import Snapshots, SnapshotTeacher, learning_rate, losses, seeded_loader

STEPS, INTERVAL, SEED = 14, 4, 3  # the last block is shorter
LR = learning_rate.cosine(0.1, STEPS)


class Spots(Dataset[tuple[Tensor, int]]):
    """Which quarter of a noisy 8x8 image is bright; the noise is drawn anew whenever an image is asked for."""

    classes = ("top left", "top right", "bottom left", "bottom right")

    def __init__(self, count: int, offset: int = 0) -> None:
        self.count, self.offset = count, offset

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        label = (row + self.offset) % 4
        image = torch.zeros(1, 8, 8)
        image[0, 4 * (label // 2) : 4 * (label // 2) + 4, 4 * (label % 2) : 4 * (label % 2) + 4] = 0.5
        return image + torch.rand(1, 8, 8), label


def network(width: int = 6) -> nn.Module:
    block = [nn.Conv2d(1, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    return nn.Sequential(*block, nn.Linear(4 * width, 4))


Loss = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""of a step, its images, its labels and the logits"""


def loop(
    model: nn.Module,
    loss: Loss,
    start: int = 0,
    stop: int = STEPS,
    optimizer: torch.optim.Optimizer | None = None,
    after: Callable[[int, nn.Module], object] = lambda updates, model: None,
) -> None:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=5e-4)
    model.train()
    for step, (x, y) in enumerate(seeded_loader(Spots(40), 8, SEED, steps=range(start, stop)), start):
        optimizer.param_groups[0]["lr"] = LR(step)
        optimizer.zero_grad()
        loss(step, x, y, model(x)).backward()
        optimizer.step()
        after(step + 1, model)


def train_teacher(model: nn.Module, folder: Path) -> None:
    snapshots = Snapshots(folder, INTERVAL, total=STEPS)
    loop(model, lambda step, x, y, z: F.cross_entropy(z, y), after=snapshots.after)


def distilled(teacher: SnapshotTeacher) -> Loss:
    def loss(step: int, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return 0.7 * F.cross_entropy(z, y) + 0.3 * losses.kl(z, teacher.seek(step)(x), temperature=3.0)

    return loss
