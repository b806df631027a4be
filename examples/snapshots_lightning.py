"""Spaced KD with Lightning: a teacher's run leaves snapshots, a student's run reads them. Stop it, and it resumes.

Run it with: python examples/snapshots_lightning.py FOLDER
"""

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from spacedkd import Spacing, losses, seeded_loader

# isort: split
from lightning.pytorch import Callback, LightningModule, Trainer  # after spacedkd, which lets it import torchvision
from lightning.pytorch.callbacks import ModelCheckpoint

STEPS = 285  # 15 epochs of 19 steps


class Moved(TensorDataset):
    """Images that are moved by a pixel at random."""

    def __getitem__(self, row: int) -> tuple[Tensor, ...]:
        image, label = super().__getitem__(row)
        return image.roll(torch.randint(-1, 2, (2,)).tolist(), (1, 2)), label


pixels, digits = load_digits(return_X_y=True)
images, labels = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(digits)
train, test = Moved(images[:600], labels[:600]), (images[600:], labels[600:])


def network() -> nn.Module:
    torch.manual_seed(0)
    block = [nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*block, nn.Linear(16 * 9, 10))


class Classifier(LightningModule):
    """A network that learns from labels and, where it has one, from a teacher."""

    teacher: nn.Module | None = None  # the callback of the student's run sets it

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        z = self.network(batch[0])
        loss = losses.cross_entropy(z, batch[1])
        return loss if self.teacher is None else 0.7 * loss + 0.3 * losses.kl(z, self.teacher(batch[0]), temperature=3)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.network.parameters(), 0.01, momentum=0.9)


def fit(folder: Path, *callbacks: Callback) -> float:
    """Train to the end, from the last checkpoint if there is one; gives the accuracy on the test images."""
    model = Classifier()
    saving = ModelCheckpoint(folder, "last", every_n_train_steps=50, enable_version_counter=False)
    trainer = Trainer(max_steps=STEPS, callbacks=[*callbacks, saving], logger=False)
    loader = seeded_loader(train, 32, seed=0)  # the same bits in both runs, and after a resume
    trainer.fit(model, loader, ckpt_path=folder / "last.ckpt" if (folder / "last.ckpt").exists() else None)
    return float((model.eval().network(test[0]).argmax(1) == test[1]).float().mean())


def main(folder: Path, *more: Callback) -> dict[str, float]:
    spacing = Spacing(folder / "snapshots", every="1.5ep")
    alone = fit(folder / "teacher", spacing.lightning.teacher(part="network"), *more)
    return {"teacher": alone, "student": fit(folder / "student", spacing.lightning.student(network), *more)}


if __name__ == "__main__":
    for role, accuracy in main(Path(sys.argv[1])).items():
        print(f"{role}: {100 * accuracy:.1f} % of {len(test[1])} test images, last step, one seed")
