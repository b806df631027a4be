"""A network that is none of timm's, with Lion and a learning rate of your own; stop it any time and start it again.

Run it with: python examples/own_network.py FOLDER
"""

import math
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from spacedkd import OptimizerSpec, Run, RunSpec, Spaced, load_student, train

STEPS_PER_EPOCH, EPOCHS = 29, 10


class Mixer(nn.Module):
    """Rows and columns of an image take turns in two small layers."""

    def __init__(self, side: int = 8, width: int = 32) -> None:
        super().__init__()
        self.rows = nn.Sequential(nn.Linear(side, width), nn.BatchNorm1d(side), nn.GELU())
        self.columns = nn.Sequential(nn.Linear(side, side), nn.GELU())
        self.head = nn.Linear(side * width, 10)

    def forward(self, images: Tensor) -> Tensor:  # [B, 1, 8, 8] -> [B, 10]
        rows = self.rows(images[:, 0])
        return self.head((rows + self.columns(rows.mT).mT).flatten(1))  # type: ignore[no-any-return]


def main(folder: Path) -> Run:
    spec = RunSpec(
        schedule=Spaced("1.5ep"),
        epochs=EPOCHS,
        batch_size=32,
        optimizer=OptimizerSpec("lion", weight_decay=0.01),
    )
    return train(
        spec,
        folder,
        if_exists="resume",
        network=lambda: Mixer(),
        lr=lambda step: 2e-3 * math.cos(math.pi / 2 * step / (STEPS_PER_EPOCH * EPOCHS)),
    )


if __name__ == "__main__":
    run = main(Path(sys.argv[1]))
    student = load_student(run.folder, network=Mixer)
    print(f"student: {100 * run.accuracy:.1f} % of {run.plan['test_images']} test images, last epoch, one seed")
    print(f"a blank image is a {student(torch.zeros(1, 1, 8, 8)).argmax().item()} to it")
