"""Spaced KD for regression: the place and the size of a disc in a noisy image, by a small network and a larger one.

Run it with: python examples/regression.py FOLDER
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from spacedkd import MethodSpec, NetworkSpec, OptimizerSpec, Run, RunSpec, Spaced, train

SIDE = 16


def discs(count: int, seed: int) -> TensorDataset:
    """Images [1, 16, 16], and of each disc x, y and radius, as parts of the side."""
    random = torch.Generator().manual_seed(seed)
    targets = 0.2 + 0.6 * torch.rand(count, 3, generator=random)
    x, y, radius = (part[:, None, None] for part in (targets * torch.tensor([1, 1, 0.4])).T)
    place = (torch.arange(SIDE) + 0.5) / SIDE
    inside = (place - x) ** 2 + (place[:, None] - y) ** 2 < radius**2
    return TensorDataset((inside + 0.3 * torch.randn(inside.shape, generator=random))[:, None], targets)


def data() -> tuple[TensorDataset, TensorDataset]:
    return discs(512, seed=0), discs(256, seed=1)


def network(width: int = 8) -> nn.Module:  # [B, 1, 16, 16] -> [B, 3]
    layers = [nn.Conv2d(1, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(16 * width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 3))


def main(folder: Path, epochs: float = 20) -> Run:
    spec = RunSpec(
        task="regression",
        network=NetworkSpec(options={"width": 4}),
        teacher=NetworkSpec(options={"width": 16}),
        method=MethodSpec("kd", {"label_weight": 0.5, "logit_weight": 0.5, "feature_weight": 0.0}),
        schedule=Spaced("1.5ep"),
        epochs=epochs,
        batch_size=32,
        optimizer=OptimizerSpec("adamw", lr=3e-3),
    )
    return train(spec, folder, network=network, teacher=network, data=data())


if __name__ == "__main__":
    run = main(Path(sys.argv[1]))
    scores = run.accuracies["student"]["test"]["final"]
    print(f"student: R² {run.score():.3f}, MSE {scores['metrics']['mse']['last']:.5f}, last epoch, one seed")
