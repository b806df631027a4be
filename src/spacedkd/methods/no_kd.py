"""No distillation: the network learns from the labels alone. The baseline of every comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from spacedkd.data.stream import Batch
from spacedkd.methods.losses import cross_entropy
from spacedkd.methods.method import Ingredients, Method, Models, Progress
from spacedkd.models.heads import Classifier


@dataclass(frozen=True)
class NoKD(Method):
    """L = CE(z, y)."""

    roles = ("student",)

    def models(self, given: Ingredients) -> dict[str, nn.Module]:
        return {"student": Classifier(given.network("student"))}

    def losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> Mapping[str, Tensor]:
        (prediction,) = models["student"](batch.images)
        return {"label": cross_entropy(prediction.logits, batch.labels)}
