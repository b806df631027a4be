"""Spaced KD in a training loop of your own: the schedule says who learns which batch, the rest is plain PyTorch.

Run it with: python examples/own_loop.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

from spacedkd import Spaced, losses

STEPS, BATCH = 600, 32
pixels, digits = load_digits(return_X_y=True)
images, labels = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(digits)
train, test = slice(0, 600), slice(600, None)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same images every time a step is asked for, so that a replay needs no buffer."""
    rows = torch.randperm(600, generator=torch.Generator().manual_seed(step))[:BATCH]
    return images[train][rows], labels[train][rows]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def main() -> dict[str, float]:
    models = {"teacher": network(), "student": network()}
    optimizers = {role: torch.optim.SGD(model.parameters(), 0.1, 0.9) for role, model in models.items()}
    for role, step in Spaced("30st").turns(("teacher", "student"), range(STEPS)):
        x, y = batch(step)
        z = models[role](x)
        loss = losses.cross_entropy(z, y)
        if role == "student":
            with torch.no_grad():
                taught = models["teacher"](x)
            loss = 0.7 * loss + 0.3 * losses.kl(z, taught, temperature=3.0)
        optimizers[role].zero_grad()
        loss.backward()
        optimizers[role].step()
    return {
        role: (model(images[test]).argmax(1) == labels[test]).float().mean().item() for role, model in models.items()
    }


if __name__ == "__main__":
    for role, accuracy in main().items():
        print(f"{role}: {100 * accuracy:.1f} % of {len(labels[test])} test images")
