"""How two predictions are compared: the weights and losses every distillation method here shares."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from spacedkd.errors import UserError, unknown
from spacedkd.methods.losses import FEATURE_LOSSES, LOGIT_LOSSES, cross_entropy
from spacedkd.models.heads import Prediction


@dataclass(frozen=True)
class Distillation:
    """Label, logit and feature terms of a student's loss, with the paper's weights.

    L = label_weight CE(z_s, y) + logit_weight [T^2] KL(z_t -> z_s; T) + feature_weight || A(f_s) - f_t ||
    """

    label_weight: float = 0.7
    logit_weight: float = 0.3
    feature_weight: float = 0.03
    temperature: float = 3.0
    temperature_squared: bool = False
    """multiply the logit term by T^2, so that its gradient does not shrink as T grows; the paper does not"""
    logit_loss: str = "kl"
    feature_loss: str = "norm"

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise UserError(f"temperature must be above 0 and finite, got {self.temperature:g}. The paper uses 3.")
        for name in ("label_weight", "logit_weight", "feature_weight"):
            if not (getattr(self, name) >= 0 and math.isfinite(getattr(self, name))):
                raise UserError(f"{name} must be 0 or more and finite, got {getattr(self, name):g}.")
        if not any((self.label_weight, self.logit_weight, self.feature_weight)):
            raise UserError("label_weight, logit_weight and feature_weight are all 0: there is nothing to learn from.")
        if self.logit_loss not in LOGIT_LOSSES:
            raise unknown("logit loss", self.logit_loss, LOGIT_LOSSES)
        if self.feature_loss not in FEATURE_LOSSES:
            raise unknown("feature loss", self.feature_loss, FEATURE_LOSSES)

    def terms(
        self, student: Prediction, teacher: Prediction, labels: Tensor, features: bool = True
    ) -> dict[str, Tensor]:
        """The weighted terms by name; those of weight zero are left out."""
        terms = {}
        if self.label_weight:
            terms["label"] = self.label_weight * cross_entropy(student.logits, labels)
        if self.logit_weight:
            logit = LOGIT_LOSSES[self.logit_loss](student.logits, teacher.logits, self.temperature)
            terms["logit"] = self.logit_weight * logit * (self.temperature**2 if self.temperature_squared else 1)
        if self.feature_weight and features:
            terms["feature"] = self.feature_weight * FEATURE_LOSSES[self.feature_loss](
                student.features, teacher.features
            )
        return terms
