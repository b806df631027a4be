"""Shadow knowledge distillation (Li and Jin, NeurIPS 2022): student and a shadow of the teacher teach each other.

A small shadow head reads the teacher's last three stages (blocks of a ViT) and classifies with the teacher's own
classifier (`models/early_exits.py`). z are logits [B, C] of student, teacher and shadow; all are compared, and meet the
labels, as n(z) = 3.1415 (z - mean z) / sqrt(var z + 1e-7) over the classes of one image:

    teacher's turn   CE(t, y) + T^2 KL(s -> p; T) + CE(p, y) + MSE(p, t)       s = n(z_s), t = n(z_t), p = n(z_shadow)
    student's turn   CE(s, y) + T^2 KL(p -> s; T) + 0 T^2 KL(t -> s; T)        T = 4

CE(t, y) moves the teacher's network alone, the rest of its turn the shadow head alone, with the student frozen.
With a pre-trained teacher that does not learn, CE(t, y) falls away and the turn is the shadow's. `shadow_label=false`
leaves out CE(p, y), which the authors' code has and the paper, users say, has not. One SGD for all, as in the authors'
code, is the online schedule but for the order: here the shadow learns first.

    spacedkd train --method shake --interval 1.5ep
    spacedkd train --method shake --interval 1.5ep --teacher-weights runs/teacher --set method.teacher_learns=false
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from spacedkd.data.stream import Batch
from spacedkd.methods.base import Ingredients, Losses, Models, Progress
from spacedkd.methods.kd import KD
from spacedkd.methods.losses import cross_entropy
from spacedkd.models.classifier import Prediction
from spacedkd.models.early_exits import WithShadow
from spacedkd.runtime.errors import UserError, check_between


@dataclass(frozen=True)
class SHAKE(KD):
    """Student and a shadow head on the teacher teach each other."""

    paper = "Li and Jin, Shadow Knowledge Distillation, NeurIPS 2022"
    weights = "1 CE + 1 T²KL (T 4); shadow: 1 T²KL + 1 CE + 1 MSE"
    source = "the authors' code; spacing and ViTs ours"

    label_weight: float = 1.0
    logit_weight: float = 1.0
    """of everything between student and shadow, the shadow's own losses among it"""
    feature_weight: float = 0.0
    temperature: float = 4.0
    temperature_squared: bool = True
    teacher_weight: float = 0.0
    """of what the student learns from the teacher itself"""
    shadow_label: bool = True
    """let the shadow learn from the labels too"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("teacher_weight", self.teacher_weight, 0)
        if not self.logit_weight:
            raise UserError("logit_weight is 0: the shadow would not learn. Use --method kd.")

    @property
    def roles(self) -> Sequence[str]:
        return self.chain

    def determined_by(self, role: str) -> None:
        return None  # the shadow learns from the student

    def models(self, ingredients: Ingredients) -> dict[str, nn.Module]:
        models = super().models(ingredients)
        teacher = self.chain[0]
        network: nn.Module = models[teacher].network  # type: ignore[assignment]
        return {**models, teacher: WithShadow(network, ingredients.sample, frozen=not self.teacher_learns)}

    def losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> Losses:
        teacher_role, student_role = self.chain
        with torch.set_grad_enabled(role == teacher_role):
            teacher, shadow = map(normalise_logits, models[teacher_role](batch.inputs))
        with torch.set_grad_enabled(role == student_role):
            (student,) = map(normalise_logits, models[student_role](batch.inputs))
        if role == student_role:
            losses = self.terms(student, shadow._replace(features=teacher.features), batch.labels, progress)
            if self.teacher_weight:
                term = self.logit_term(student, teacher, batch.labels, progress)
                losses["teacher logit"] = self.teacher_weight * term
            return losses
        shadow_losses = {
            "shadow logit": self.logit_term(shadow, student, batch.labels, progress),
            "shadow mse": F.mse_loss(shadow.logits, teacher.logits.detach()),
        }
        if self.shadow_label:
            shadow_losses["shadow label"] = cross_entropy(shadow.logits, batch.labels)
        losses = {"label": cross_entropy(teacher.logits, batch.labels)} if self.teacher_learns else {}
        return losses | {name: self.logit_weight * term for name, term in shadow_losses.items()}


def normalise_logits(prediction: Prediction) -> Prediction:
    """Return the prediction with n(z) for logits: mean 0 and, over the classes, a deviation of 3.1415."""
    logits = prediction.logits
    return prediction._replace(logits=3.1415 * F.layer_norm(logits, logits.shape[1:], eps=1e-7))
