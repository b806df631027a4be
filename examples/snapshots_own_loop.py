"""Spaced KD as two ordinary runs of a plain loop: a teacher that leaves snapshots, a student that learns from them.

Run it with: python examples/snapshots_own_loop.py FOLDER
"""

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from spacedkd import Spacing, losses, seeded_loader

STEPS, INTERVAL = 300, 30
pixels, digits = load_digits(return_X_y=True)
images, labels = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(digits)
train, test = TensorDataset(images[:600], labels[:600]), (images[600:], labels[600:])


def network() -> nn.Module:
    torch.manual_seed(0)
    block = [nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*block, nn.Linear(16 * 9, 10))


def fit(spacing: Spacing, teacher: nn.Module | None = None) -> float:
    """The loop you have already: one network, one optimizer, one pass over the data after the other."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    loader = seeded_loader(train, 32, seed=0, steps=range(STEPS))
    for _, (x, y) in spacing.steps(loader, save=model if teacher is None else None):
        z = model(x)
        loss: Tensor = losses.cross_entropy(z, y)
        if teacher is not None:
            loss = 0.7 * loss + 0.3 * losses.kl(z, teacher(x), temperature=3.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
    x, y = test
    return float((model.eval()(x).argmax(1) == y).float().mean())


def main(folder: Path) -> dict[str, float]:
    spacing = Spacing(folder, every=INTERVAL)
    alone = fit(spacing)
    return {"teacher": alone, "student": fit(spacing, spacing.teacher(network))}


if __name__ == "__main__":
    for role, accuracy in main(Path(sys.argv[1])).items():
        print(f"{role}: {100 * accuracy:.1f} % of {len(test[1])} test images")
