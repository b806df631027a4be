"""Spaced KD in a training loop of your own: the schedule says who learns which batch, the rest is plain PyTorch.

Run it with: python examples/own_loop.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from spacedkd import Spaced, learning, learning_rate, losses
from spacedkd.data import DatasetStream

STEPS = 300
pixels, digits = load_digits(return_X_y=True)
images, labels = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(digits)
train, test = TensorDataset(images[:600], labels[:600]), (images[600:], labels[600:])


def network() -> nn.Module:
    torch.manual_seed(0)
    block = [nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*block, nn.Linear(16 * 9, 10))


def main() -> dict[str, float]:
    models = {"teacher": network(), "student": network()}
    optimizers = {role: torch.optim.SGD(model.parameters(), 0.1, 0.9) for role, model in models.items()}
    stream = DatasetStream(train, batch_size=32, seed=0)  # a pure function of the step: no buffer
    lr = learning_rate.cosine(0.1, STEPS)
    for role, step in Spaced("30st").turns(("teacher", "student"), range(STEPS)):
        x, y, *_ = stream.batch(step)
        with learning(models, role) as model:  # the other one is frozen, its BatchNorm statistics too
            z = model(x)
            loss = losses.cross_entropy(z, y)
            if role == "student":
                loss = 0.7 * loss + 0.3 * losses.kl(z, models["teacher"](x), temperature=3.0)
            optimizers[role].param_groups[0]["lr"] = lr(step)
            optimizers[role].zero_grad()
            loss.backward()
            optimizers[role].step()
    x, y = test
    return {role: (model.eval()(x).argmax(1) == y).float().mean().item() for role, model in models.items()}


if __name__ == "__main__":
    for role, accuracy in main().items():
        print(f"{role}: {100 * accuracy:.1f} % of {len(test[1])} test images")
