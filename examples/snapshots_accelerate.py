"""Spaced KD in a loop of Hugging Face accelerate, on any number of processes; start it again and it resumes.

Run it with: python examples/snapshots_accelerate.py FOLDER, or with accelerate launch in place of python
"""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from spacedkd import Spacing, losses, seeded_loader

STEPS, INTERVAL, SAVE = 300, 30, 100
pixels, digits = load_digits(return_X_y=True)
images, labels = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(digits)
train, test = TensorDataset(images[:600], labels[:600]), (images[600:], labels[600:])


def network() -> nn.Module:
    torch.manual_seed(0)
    block = [nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*block, nn.Linear(16 * 9, 10))


def fit(accelerator: Accelerator, folder: Path, spacing: Spacing, teacher: nn.Module | None, stop: int) -> float:
    model = network()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1, 0.9))
    accelerator.register_for_checkpointing(spacing)
    saved = sorted(folder.glob("state-*"), key=lambda path: int(path.name.removeprefix("state-")))
    if saved:
        accelerator.load_state(str(saved[-1]))
    # The loader is not prepared: each process takes its slice of a batch by itself.
    loader = seeded_loader(train, 32, seed=0, steps=range(stop))
    for step, batch in spacing.steps(loader, save=model if teacher is None else None):
        x, y = (one.to(accelerator.device) for one in batch)
        z = model(x)
        loss: Tensor = losses.cross_entropy(z, y)
        if teacher is not None:
            loss = 0.7 * loss + 0.3 * losses.kl(z, teacher(x), temperature=3.0)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        if (step + 1) % SAVE == 0:
            accelerator.save_state(str(folder / f"state-{step + 1}"))
    accelerator.wait_for_everyone()
    x, y = (one.to(accelerator.device) for one in test)
    return float((model.eval()(x).argmax(1) == y).float().mean())


def main(folder: Path, stop: int = STEPS) -> dict[str, float]:
    spacing = Spacing(folder / "snapshots", every=INTERVAL, total=STEPS)
    alone = fit(Accelerator(), folder / "teacher", spacing, None, STEPS)

    spacing, accelerator = Spacing(folder / "snapshots", every=INTERVAL, total=STEPS), Accelerator()
    # It is no part that learns, so it is moved and not prepared.
    teacher = spacing.teacher(network).to(accelerator.device)
    return {"teacher": alone, "student": fit(accelerator, folder / "student", spacing, teacher, stop)}


if __name__ == "__main__":
    for role, accuracy in main(Path(sys.argv[1])).items():
        print(f"{role}: {100 * accuracy:.1f} % of {len(test[1])} test images")
