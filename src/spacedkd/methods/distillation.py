"""How two predictions are compared: the weights and losses every distillation method here shares.

The logits of a student z_s and a teacher z_t are compared in three independent ways, which any method may combine:

    standardise       both are first brought to mean 0 and deviation 1, class by class (LSKD)
    curriculum        the temperature is learned by the student's side, against the student (CTKD)
    logit_loss        "kl" and its relatives, or "decoupled": target class and other classes apart (DKD)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spacedkd.config.serialization import check_fields
from spacedkd.methods.base import Progress
from spacedkd.methods.losses import FEATURE_LOSSES, LOGIT_LOSSES, Temperature, cross_entropy, decoupled_kl, standardised
from spacedkd.models.classifier import Prediction
from spacedkd.runtime.errors import UserError, unknown

# A temperature that learns to make distillation hard (CTKD, Li et al. 2023).

COLDEST, RANGE = 1.0, 20.0


class WithTemperature(nn.Module):
    """A model that also says how soft it wants to be compared: every head's `heat` is the learned theta."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.heat = nn.Parameter(torch.ones(1))

    @property
    def network(self) -> nn.Module:
        return self.model.network  # type: ignore[return-value]

    @property
    def head_names(self) -> Sequence[str]:
        return self.model.head_names  # type: ignore[return-value]

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Prediction, ...]:
        heat = self.heat.clone()  # weights that are spread over devices are gone after the pass
        return tuple(prediction._replace(heat=heat) for prediction in self.model(*args, **kwargs))


def curriculum(epoch: int, epochs: float) -> float:
    """lambda_e of epoch e, counted from 1: from 0 down to -1, which it reaches with the last of `epochs`.

    >>> [round(curriculum(epoch, 10), 3) for epoch in (0, 1, 5, 10, 11)]
    [0.0, -0.024, -0.5, -1.0, -1.0]
    """
    return (math.cos(math.pi * min(epoch, epochs) / epochs) + 1) / 2 - 1


def learned_temperature(heat: Tensor, strength: float) -> Tensor:
    """T of theta; the gradient that reaches theta is multiplied by `strength`, which is negative."""
    value = heat.detach()
    return COLDEST + RANGE * torch.sigmoid(value + strength * (heat - value))[0]


# How two predictions are compared: the weights and losses every distillation method here shares.

DECOUPLED = "decoupled"


@dataclass(frozen=True)
class Distillation:
    """Label, logit and feature terms of a student's loss, with the paper's weights.

    L = label_weight CE(z_s, y) + logit_weight [T^2] KL(z_t -> z_s; T) + feature_weight || A(f_s) - f_t ||
    """

    label_weight: float = 0.7
    """of the labels' cross-entropy"""
    logit_weight: float = 0.3
    """of the difference between the logits"""
    feature_weight: float = 0.03
    """of the difference between the pooled features"""
    temperature: float = 3.0
    """logits are divided by it before they are compared; with a curriculum the learned one takes its place"""
    temperature_squared: bool = False
    """multiply the logit term by T^2, so that its gradient does not shrink as T grows; Spaced KD does not"""
    logit_loss: str = "kl"
    """kl, kl-over-classes, soft-cross-entropy, probability-kl or decoupled"""
    feature_loss: str = "norm"
    """norm, l1, smooth-l1, mse, square-sum, cross-entropy or masked-square-sum"""
    standardise: bool = False
    """compare logits at mean 0 and deviation 1 (LSKD)"""
    curriculum: float = 0.0
    """learn the temperature against the student, at full strength after this many epochs (CTKD); 0 keeps it fixed"""
    target_weight: float = 1.0
    """of the target class against all others, where the logit loss is decoupled (DKD)"""
    others_weight: float = 8.0
    """of the other classes among themselves, where the logit loss is decoupled (DKD)"""
    warmup: float = 0.0
    """let the logit term grow from nothing over this many epochs"""

    def __post_init__(self) -> None:
        check_fields(self)
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise UserError(f"temperature must be above 0 and finite, got {self.temperature:g}. The paper uses 3.")
        weights = ("label_weight", "logit_weight", "feature_weight")
        for name in (*weights, "curriculum", "target_weight", "others_weight", "warmup"):
            if not (getattr(self, name) >= 0 and math.isfinite(getattr(self, name))):
                raise UserError(f"{name} must be 0 or more and finite, got {getattr(self, name):g}.")
        if not any(getattr(self, name) for name in weights):
            raise UserError("label_weight, logit_weight and feature_weight are all 0: there is nothing to learn from.")
        if self.logit_loss not in (*LOGIT_LOSSES, DECOUPLED):
            raise unknown("logit loss", self.logit_loss, [*LOGIT_LOSSES, DECOUPLED])
        if self.feature_loss not in FEATURE_LOSSES:
            raise unknown("feature loss", self.feature_loss, FEATURE_LOSSES)

    def equipped(self, student: nn.Module) -> nn.Module:
        """The student's model with whatever of the comparison learns along with it."""
        return WithTemperature(student) if self.curriculum and self.logit_weight else student

    def terms(
        self, student: Prediction, teacher: Prediction, labels: Tensor, progress: Progress, features: bool = True
    ) -> dict[str, Tensor]:
        """The weighted terms by name; those of weight zero are left out."""
        terms = {}
        if self.label_weight:
            terms["label"] = self.label_weight * cross_entropy(student.logits, labels)
        if self.logit_weight:
            terms["logit"] = self.logit_weight * self.logit_term(student, teacher, labels, progress)
        if self.feature_weight and features:
            apart = FEATURE_LOSSES[self.feature_loss](student.features, teacher.features)
            terms["feature"] = self.feature_weight * apart
        return terms

    def logit_term(self, student: Prediction, teacher: Prediction, labels: Tensor, progress: Progress) -> Tensor:
        """How far the student's logits are from the teacher's, before any weight."""
        z_s, z_t = student.logits, teacher.logits
        if self.standardise:
            z_s, z_t = standardised(z_s), standardised(z_t)
        temperature: Temperature = self.temperature
        if self.curriculum and student.heat is not None:
            temperature = learned_temperature(student.heat, curriculum(progress.epoch + 1, self.curriculum))
        if self.logit_loss == DECOUPLED:
            target, others = decoupled_kl(z_s, z_t, labels, temperature)
            apart = self.target_weight * target + self.others_weight * others
        else:
            apart = self.divergence(z_s, z_t, temperature)
        return self.warmup_weight(progress) * apart * (temperature**2 if self.temperature_squared else 1)

    def divergence(self, student: Tensor, teacher: Tensor, temperature: Temperature) -> Tensor:
        """How two sets of logits are compared where target and other classes are not kept apart."""
        return LOGIT_LOSSES[self.logit_loss](student, teacher, temperature)

    def warmup_weight(self, progress: Progress) -> float:
        """How much of the logit term counts by now."""
        return min((progress.epoch + 1) / self.warmup, 1.0) if self.warmup else 1.0

    def unused(self, prediction: Prediction) -> Tensor:
        """Nothing, but made of whatever a loss leaves out: processes that share gradients wait for all of them."""
        nothing = 0 * prediction.features.sum()
        return nothing if prediction.heat is None else nothing + 0 * prediction.heat.sum()


def ramp_up(epoch: float, epochs: float) -> float:
    """exp(-5 (1 - e/E)^2) for epoch e, counted from 0, until E; from then on 1.

    So a soft loss grows in the first epochs, while predictions are not worth listening to.

    >>> [round(ramp_up(epoch, 80), 8) for epoch in (0, 10, 40, 80, 200)]
    [0.00673795, 0.02175036, 0.2865048, 1.0, 1.0]
    """
    return math.exp(-5 * (1 - epoch / epochs) ** 2) if epoch < epochs else 1.0
