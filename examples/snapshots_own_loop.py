"""Spaced KD as two ordinary runs of a plain loop: a teacher that leaves snapshots, a student that learns from them.

Run it with: python examples/snapshots_own_loop.py FOLDER
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from spacedkd import Snapshots, SnapshotTeacher, losses, seeded_loader

STEPS, INTERVAL = 300, 30
pixels, digits = load_digits(return_X_y=True)
images, labels = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(digits)
train, test = TensorDataset(images[:600], labels[:600]), (images[600:], labels[600:])


def network() -> nn.Module:
    torch.manual_seed(0)
    block = [nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*block, nn.Linear(16 * 9, 10))


def fit(loss: Callable[[int, Tensor, Tensor, Tensor], Tensor], after: Callable[[int, nn.Module], object]) -> float:
    """The loop you have already: one network, one optimizer, one pass over the data after the other."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for step, (x, y) in enumerate(seeded_loader(train, 32, seed=0, steps=range(STEPS))):
        optimizer.zero_grad()
        loss(step, x, y, model(x)).backward()
        optimizer.step()
        rate.step()
        after(step + 1, model)
    x, y = test
    return float((model.eval()(x).argmax(1) == y).float().mean())


def main(folder: Path) -> dict[str, float]:
    snapshots = Snapshots(folder, INTERVAL, total=STEPS)
    alone = fit(lambda step, x, y, z: losses.cross_entropy(z, y), snapshots.after)

    teacher = SnapshotTeacher(folder, INTERVAL, network, total=STEPS)

    def distil(step: int, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return 0.7 * losses.cross_entropy(z, y) + 0.3 * losses.kl(z, teacher.seek(step)(x), temperature=3.0)

    return {"teacher": alone, "student": fit(distil, lambda updates, model: None)}


if __name__ == "__main__":
    for role, accuracy in main(Path(sys.argv[1])).items():
        print(f"{role}: {100 * accuracy:.1f} % of {len(test[1])} test images")
