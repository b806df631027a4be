"""Teacher and student are two networks: online, spaced and offline KD (Hinton et al. 2015; Sun et al. 2025).

The teacher learns from the labels alone, so its path depends neither on the student nor on the interval. The
student learns from labels, from the frozen teacher's softened classes, and from its features through an adapter:

    teacher   CE(z_t, y)
    student   0.7 CE(z_s, y) + 0.3 KL(z_t -> z_s; T=3) + 0.03 || A(f_s) - f_t ||
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spacedkd.data.stream import Batch
from spacedkd.methods.distillation import Distillation
from spacedkd.methods.losses import cross_entropy
from spacedkd.methods.method import Ingredients, Method, Models, Progress
from spacedkd.models.heads import Classifier, adapter, feature_width


@dataclass(frozen=True)
class KD(Distillation, Method):
    """Two networks, of one architecture or of two; the adapter belongs to the student."""

    roles = ("teacher", "student")

    def models(self, given: Ingredients) -> dict[str, nn.Module]:
        teacher, student = given.network("teacher"), given.network("student")
        if not self.feature_weight:
            return {"teacher": Classifier(teacher), "student": Classifier(student)}
        bridge = adapter(feature_width(student, given.sample), feature_width(teacher, given.sample))
        return {"teacher": Classifier(teacher), "student": Classifier(student, bridge)}

    def losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> Mapping[str, Tensor]:
        if role == "teacher":
            (teacher,) = models["teacher"](batch.images)
            return {"label": cross_entropy(teacher.logits, batch.labels)}
        with torch.no_grad():
            (teacher,) = models["teacher"](batch.images)
        (student,) = models["student"](batch.images)
        return self.terms(student, teacher, batch.labels)
