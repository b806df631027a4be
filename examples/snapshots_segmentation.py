"""Spaced KD for a dense output: which pixels are a disc, which a square? The KL is that of every pixel's classes.

Run it with: python examples/snapshots_segmentation.py FOLDER
"""

import sys
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from spacedkd import Spacing, losses, seeded_loader

STEPS, INTERVAL, SIDE = 200, 15, 16


class Shapes(Dataset[tuple[Tensor, Tensor]]):
    """Images [1, 16, 16] of a disc before a square, and labels [16, 16]; the noise is drawn at every access."""

    def __init__(self, first: int, count: int) -> None:
        self.first, self.count = first, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        place = torch.randint(3, SIDE - 3, (2, 2), generator=torch.Generator().manual_seed(self.first + row))
        rows, columns = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
        away = torch.stack([rows, columns])[None] - place[..., None, None]
        disc, square = away[0].square().sum(0) <= 10, away[1].abs().amax(0) <= 3
        labels = torch.where(disc, 1, torch.where(square, 2, 0))
        return (labels > 0).float()[None] + 0.5 * torch.randn(1, SIDE, SIDE), labels


def network() -> nn.Module:
    """Images [B, 1, H, W] to logits [B, 3, H, W]."""
    torch.manual_seed(0)
    widths = [1, 12, 12, 12]
    blocks = [
        nn.Sequential(nn.Conv2d(a, b, 3, padding="same", dilation=2**i), nn.BatchNorm2d(b), nn.ReLU())
        for i, (a, b) in enumerate(pairwise(widths))
    ]
    return nn.Sequential(*blocks, nn.Conv2d(12, 3, 1))


def fit(spacing: Spacing, teacher: nn.Module | None = None) -> float:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    loader = seeded_loader(Shapes(0, 240), 16, seed=0, steps=range(STEPS))
    for _, (x, y) in spacing.steps(loader, save=model if teacher is None else None):
        z = model(x)
        loss = F.cross_entropy(z, y)
        if teacher is not None:
            loss = 0.7 * loss + 0.3 * losses.kl(z, teacher(x), temperature=3.0, dim=1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x, y = next(iter(seeded_loader(Shapes(240, 100), 100, seed=1)))
    return float((model.eval()(x).argmax(1) == y).float().mean())


def main(folder: Path) -> dict[str, float]:
    spacing = Spacing(folder, every=INTERVAL)
    alone = fit(spacing)
    return {"teacher": alone, "student": fit(spacing, spacing.teacher(network))}


if __name__ == "__main__":
    for role, accuracy in main(Path(sys.argv[1])).items():
        print(f"{role}: {100 * accuracy:.1f} % of the pixels of 100 images")
