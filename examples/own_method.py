"""A distillation method of your own: label smoothing by a teacher that only says how sure it is.

Run it with: python examples/own_method.py FOLDER
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spacedkd import (
    Batch,
    Classifier,
    DataSpec,
    Ingredients,
    Method,
    Models,
    NetworkSpec,
    Progress,
    RunSpec,
    Spaced,
    train,
)


@dataclass(frozen=True)
class Confidence(Method):
    """The student's label smoothing is the teacher's mean doubt about the batch."""

    roles = ("teacher", "student")
    strength: float = 0.5

    def models(self, given: Ingredients) -> dict[str, nn.Module]:
        return {role: Classifier(given.network(role)) for role in self.roles}

    def losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> Mapping[str, Tensor]:
        (own,) = models[role](batch.images)
        if role == "teacher":
            return {"label": F.cross_entropy(own.logits, batch.labels)}
        with torch.no_grad():
            (teacher,) = models["teacher"](batch.images)
        doubt = 1 - teacher.logits.softmax(1).amax(1).mean().item()
        return {"smoothed label": F.cross_entropy(own.logits, batch.labels, label_smoothing=self.strength * doubt)}


def main(folder: Path, epochs: float = 20) -> float:
    network = NetworkSpec("resnet18_small", {"width": 8})
    data = DataSpec("digits", train_limit=200)
    spec = RunSpec(data=data, network=network, schedule=Spaced("1.5ep"), epochs=epochs, batch_size=16)
    return train(spec, folder, method=Confidence()).student()


if __name__ == "__main__":
    print(f"{100 * main(Path(sys.argv[1])):.1f} % (student, last epoch, one seed)")
