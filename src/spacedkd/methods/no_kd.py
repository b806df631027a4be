"""No distillation: the network learns from the labels alone. The baseline of every comparison.

With logits z [B, C] and labels y [B]:

    L = CE(z, y)

In regression CE is the mean squared error, in a dense task a mean over pixels (`task.py`).

    spacedkd train --method none
"""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from spacedkd.data.stream import Batch
from spacedkd.methods.base import Card, Ingredients, Losses, Method, Models, Progress
from spacedkd.models.classifier import Classifier


@dataclass(frozen=True)
class NoKD(Method):
    """Labels alone, no teacher: the baseline."""

    card = Card("nobody")
    weights = "1 CE"
    paper = source = ""
    roles = ("student",)
    tasks = ("classification", "regression", "dense")

    def models(self, ingredients: Ingredients) -> dict[str, nn.Module]:
        return {"student": Classifier(ingredients.network("student"))}

    def determined_by(self, role: str) -> Literal["labels"]:
        return "labels"

    def losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> Losses:
        (prediction,) = models[role](batch.inputs)
        return {"label": progress.task.label_loss(prediction.logits, batch.labels)}
