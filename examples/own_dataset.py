"""A torch Dataset of your own with random transforms: replays are equal to the bit, with any number of workers.

Run it with: python examples/own_dataset.py FOLDER
"""

import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.utils.data import Dataset

from spacedkd import EngineSpec, NetworkSpec, OptimizerSpec, RateSpec, Run, RunSpec, Spaced, train


class Digits(Dataset[tuple[Tensor, int]]):
    """Every other digit; those to train on are turned and shifted by torchvision and get noise from numpy."""

    classes = tuple("0123456789")  # so that a network by name knows how many there are

    def __init__(self, training: bool) -> None:
        from torchvision.transforms import v2  # after spacedkd, which lets it be imported beside a CPU build of torch

        digits = load_digits()
        self.images, self.labels = digits.images[not training :: 2], digits.target[not training :: 2]
        self.vary = v2.RandomAffine(degrees=10, translate=(0.1, 0.1)) if training else None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        image = torch.tensor(self.images[row], dtype=torch.float32)[None] / 16
        if self.vary is not None:
            image = self.vary(image) + torch.from_numpy(np.random.normal(0, 0.05, (1, 8, 8))).float()
        return image, int(self.labels[row])


def main(folder: Path, epochs: float = 10, workers: int = 2) -> Run:
    spec = RunSpec(
        network=NetworkSpec("resnet18_small", {"width": 8}),
        schedule=Spaced("1.5ep"),
        epochs=epochs,
        batch_size=32,
        optimizer=OptimizerSpec("adamw", lr=2e-3),
        rate=RateSpec("cosine"),
        engine=EngineSpec(workers=workers),
    )
    return train(spec, folder, data=(Digits(training=True), Digits(training=False)))


if __name__ == "__main__":
    run = main(Path(sys.argv[1]))
    print(f"student: {100 * run.accuracy:.1f} % of {run.plan['test_images']} test images, last epoch, one seed")
