"""Spaced KD for dense outputs: is a pixel background, disc or square? Pixels at the edges of shapes do not count.

Run it with: python examples/segmentation.py FOLDER
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from spacedkd import NetworkSpec, OptimizerSpec, Run, RunSpec, Spaced, train

SIDE, EDGE = 16, 255


def shapes(count: int, seed: int) -> TensorDataset:
    """Noisy images [1, 16, 16] of a disc and a square, and the class of each pixel [16, 16]; edges are 255."""
    random = torch.Generator().manual_seed(seed)
    x, y, size, left, top = torch.randint(3, SIDE - 3, (5, count, 1, 1), generator=random)
    size, across, down = size % 3 + 2, torch.arange(SIDE), torch.arange(SIDE)[:, None]
    distance = ((across - x) ** 2 + (down - y) ** 2).sqrt()
    labels = torch.where(distance < size, 1, 0)
    labels[((across - left).abs() < 3) & ((down - top).abs() < 3)] = 2
    labels[(distance - size).abs() < 0.5] = EDGE
    brightness = torch.tensor([0.0, 1.0, 0.7])[labels.where(labels != EDGE, 0)]
    return TensorDataset((brightness + 0.3 * torch.randn(brightness.shape, generator=random))[:, None], labels)


def data() -> tuple[TensorDataset, TensorDataset]:
    return shapes(256, seed=0), shapes(128, seed=1)


class Net(nn.Module):
    """Half the resolution inside, and a 1x1 convolution whose output is the logits."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 2, 1))
        self.up = nn.Conv2d(3 * width, width, 3, padding=1)
        self.head = nn.Conv2d(width, 3, 1)

    def forward(self, images: Tensor) -> Tensor:  # [B, 1, 16, 16] -> [B, 3, 16, 16]
        half = F.relu(self.down(images))
        maps = torch.cat([F.interpolate(half, scale_factor=2), self.down[0](images)], 1)
        return self.head(F.relu(self.up(maps)))  # type: ignore[no-any-return]


def main(folder: Path, epochs: float = 12) -> Run:
    spec = RunSpec(
        task="dense",
        ignore_index=EDGE,
        network=NetworkSpec(options={"width": 4}),
        teacher=NetworkSpec(options={"width": 12}),
        schedule=Spaced("1.5ep"),
        epochs=epochs,
        batch_size=16,
        optimizer=OptimizerSpec("adamw", lr=5e-3),
    )
    return train(spec, folder, network=Net, teacher=Net, data=data())


if __name__ == "__main__":
    run = main(Path(sys.argv[1]))
    scores = run.accuracies["student"]["test"]["final"]
    pixels = scores["metrics"]["accuracy"]["last"]
    print(f"student: mean IoU {100 * run.score():.1f} %, {100 * pixels:.1f} % of pixels, last epoch, one seed")
