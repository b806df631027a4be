"""No distillation: the network learns from the labels alone. The baseline of every comparison.

With logits z [B, C] and labels y [B]:

    L = CE(z, y)

    spacedkd train --method none
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from spacedkd.data.stream import Batch
from spacedkd.methods.losses import cross_entropy
from spacedkd.methods.method import Card, Ingredients, Method, Models, Progress
from spacedkd.models.heads import Classifier


@dataclass(frozen=True)
class NoKD(Method):
    """L = CE(z, y)."""

    card: ClassVar = Card(
        about="labels alone, no teacher: the baseline",
        paper="",
        kind="nobody",
        weights="1 CE",
        source="",
    )

    roles = ("student",)

    def models(self, given: Ingredients) -> dict[str, nn.Module]:
        return {"student": Classifier(given.network("student"))}

    def losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> Mapping[str, Tensor]:
        (prediction,) = models[role](batch.inputs)
        return {"label": cross_entropy(prediction.logits, batch.labels)}
