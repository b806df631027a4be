"""Spaced KD from the checkpoints of a training that is over: its teacher is not trained again.

Run it with: python examples/snapshots_of_checkpoints.py FOLDER
"""

import sys
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from spacedkd import Spacing, losses
from spacedkd.integrations.transformers import StudentTrainer

# isort: split
from transformers import Trainer, TrainingArguments  # after spacedkd, which lets torchvision be imported

pixels, digits = load_digits(return_X_y=True)
images, labels = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(digits)
train, test = TensorDataset(images[:600], labels[:600]), (images[600:], labels[600:])


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.layers(images)
        return (
            {"logits": logits} if labels is None else {"loss": losses.cross_entropy(logits, labels), "logits": logits}
        )


def named(items: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    return {"images": torch.stack([image for image, _ in items]), "labels": torch.stack([label for _, label in items])}


def settings(folder: Path) -> TrainingArguments:
    """Those of the training that is over; the student has the same seed, batch size and number of steps."""
    return TrainingArguments(
        output_dir=str(folder),
        seed=1,
        max_steps=190,
        per_device_train_batch_size=32,
        learning_rate=5e-3,
        save_steps=19,
        dataloader_pin_memory=torch.cuda.is_available(),
        report_to="none",
    )


def accuracy(model: nn.Module) -> float:
    return float((model.eval().cpu()(test[0])["logits"].argmax(1) == test[1]).float().mean())


def main(folder: Path) -> dict[str, float]:
    data: dict[str, Any] = {"train_dataset": train, "data_collator": named}
    if not (folder / "long ago" / "checkpoint-190").exists():  # an ordinary training, which knew nothing of spacing
        Trainer(Classifier(), settings(folder / "long ago"), **data).train()

    spacing = Spacing(folder / "long ago", every=38)  # any multiple of save_steps
    teacher, callback = spacing.teacher(Classifier), spacing.transformers.student()
    student = StudentTrainer(Classifier(), settings(folder / "student"), teacher=teacher, callbacks=[callback], **data)
    student.train()
    return {"teacher": accuracy(teacher), "student": accuracy(student.model)}


if __name__ == "__main__":
    for role, share in main(Path(sys.argv[1])).items():
        print(f"{role}: {100 * share:.1f} % of {len(test[1])} test images, last step, one seed")
