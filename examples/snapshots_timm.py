"""Spaced KD with timm's own parts: its optimizers, its schedulers and its distillation task, which gets our teacher.

Run it with: python examples/snapshots_timm.py FOLDER
"""

import sys
from pathlib import Path

import spacedkd.models  # noqa: F401  first, because it makes the small-image ResNets known to timm

# isort: split
import timm
import torch
from sklearn.datasets import load_digits
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.task import ClassificationTask, LogitDistillationTask
from timm.task.task import TrainingTask
from torch import nn
from torch.utils.data import TensorDataset

from spacedkd import Spacing, seeded_loader

EPOCHS, BATCH = 6, 32
pixels, digits = load_digits(return_X_y=True)
images, labels = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(digits)
train, test = TensorDataset(images[:608], labels[:608]), (images[608:], labels[608:])


def network() -> nn.Module:
    torch.manual_seed(0)
    made: nn.Module = timm.create_model("resnet18_small", width=8, in_chans=1, num_classes=10)
    return made


def fit(task: TrainingTask, spacing: Spacing, is_teacher: bool) -> float:
    """timm's usual loop: a task gives the loss, a scheduler counts updates."""
    model = task.trainable_module
    optimizer = create_optimizer_v2(model, opt="adamw", lr=3e-3, weight_decay=0.05)
    settings = {"num_epochs": EPOCHS, "updates_per_epoch": len(train) // BATCH, "step_on_epochs": False}
    scheduler, _ = create_scheduler_v2(optimizer, sched="cosine", **settings)
    task.train()
    loader = seeded_loader(train, BATCH, seed=0)
    for step, (x, y) in spacing.steps(loader, epochs=EPOCHS, save=model if is_teacher else None):
        optimizer.zero_grad()
        task(x, y)["loss"].backward()
        optimizer.step()
        scheduler.step_update(step + 1)
    x, y = test
    return float((model.eval()(x).argmax(1) == y).float().mean())


def main(folder: Path) -> dict[str, float]:
    spacing = Spacing(folder, every="1.5ep")
    alone = fit(ClassificationTask(network(), nn.CrossEntropyLoss()), spacing, is_teacher=True)
    weights = {"task_loss_weight": 0.7, "distill_loss_weight": 0.3 / 9, "temperature": 3.0}  # timm's KL is times T^2
    task = LogitDistillationTask(network(), spacing.teacher(network), nn.CrossEntropyLoss(), **weights)
    return {"teacher": alone, "student": fit(task, spacing, is_teacher=False)}


if __name__ == "__main__":
    for role, accuracy in main(Path(sys.argv[1])).items():
        print(f"{role}: {100 * accuracy:.1f} % of {len(test[1])} test images")
