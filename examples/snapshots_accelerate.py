"""Spaced KD in a loop of Hugging Face accelerate, on any number of processes; start it again and it resumes.

Run it with: python examples/snapshots_accelerate.py FOLDER, or with accelerate launch in place of python
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from spacedkd import Snapshots, SnapshotTeacher, losses, seeded_loader

STEPS, INTERVAL, SAVE = 300, 30, 100
pixels, digits = load_digits(return_X_y=True)
images, labels = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(digits)
train, test = TensorDataset(images[:600], labels[:600]), (images[600:], labels[600:])

Loss = Callable[[int, Tensor, Tensor, Tensor], Tensor]


def network() -> nn.Module:
    torch.manual_seed(0)
    block = [nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*block, nn.Linear(16 * 9, 10))


def fit(accelerator: Accelerator, folder: Path, loss: Loss, snapshots: Snapshots | None, stop: int) -> float:
    model = network()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1, 0.9))
    saved = sorted(folder.glob("state-*"), key=lambda path: int(path.name.removeprefix("state-")))
    done = int(saved[-1].name.removeprefix("state-")) if saved else 0
    if saved:
        accelerator.load_state(str(saved[-1]))
    # Each process takes its slice by itself, so the loader is not prepared.
    part = {"rank": accelerator.process_index, "ranks": accelerator.num_processes}
    for step, batch in enumerate(seeded_loader(train, 32, seed=0, steps=range(done, stop), **part), done):
        x, y = (one.to(accelerator.device) for one in batch)
        optimizer.zero_grad()
        accelerator.backward(loss(step, x, y, model(x)))
        optimizer.step()
        if snapshots is not None:
            snapshots.after(step + 1, model)
        if (step + 1) % SAVE == 0:
            accelerator.save_state(str(folder / f"state-{step + 1}"))
    accelerator.wait_for_everyone()
    x, y = (one.to(accelerator.device) for one in test)
    return float((model.eval()(x).argmax(1) == y).float().mean())


def main(folder: Path, stop: int = STEPS) -> dict[str, float]:
    accelerator = Accelerator()
    snapshots = Snapshots(folder / "teacher", INTERVAL, total=STEPS)
    alone = fit(accelerator, folder / "teacher", lambda step, x, y, z: losses.cross_entropy(z, y), snapshots, STEPS)

    # It is no part that learns, so it is moved and not prepared.
    teacher = SnapshotTeacher(folder / "teacher", INTERVAL, network, total=STEPS).to(accelerator.device)

    def distil(step: int, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return 0.7 * losses.cross_entropy(z, y) + 0.3 * losses.kl(z, teacher.seek(step)(x), temperature=3.0)

    return {"teacher": alone, "student": fit(accelerator, folder / "student", distil, None, stop)}


if __name__ == "__main__":
    for role, accuracy in main(Path(sys.argv[1])).items():
        print(f"{role}: {100 * accuracy:.1f} % of {len(test[1])} test images")
