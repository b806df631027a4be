"""The loss that distillation methods share: label, logit and feature terms of a student, with their weights.

    L = label_weight CE(z_s, y) + logit_weight [T^2] KL(z_t -> z_s; T) + feature_weight || A(f_s) - f_t ||

The logits of a student z_s and a teacher z_t are compared in three independent ways, which any method may combine:

    standardise       both are first brought to mean 0 and deviation 1 over the classes (LSKD)
    curriculum        the temperature T is learned by the student's side, against the student (CTKD)
    logit_loss        "kl" and its relatives, or "decoupled": target class and other classes apart (DKD)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from spacedkd.config.serialization import check_fields
from spacedkd.methods.base import Progress
from spacedkd.methods.losses import FEATURE_LOSSES, LOGIT_LOSSES, Temperature, decoupled_kl, standardised
from spacedkd.models.classifier import Prediction
from spacedkd.runtime.errors import UserError, unknown

DECOUPLED = "decoupled"
"""the one logit loss that needs the labels, so it is not in `LOGIT_LOSSES`"""


@dataclass(frozen=True)
class Distillation:
    """The options and the loss of a student, with the Spaced KD paper's weights as defaults.

    Methods inherit from it and call `terms`, or `logit_term` for other pairs of predictions.
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

    def terms(
        self, student: Prediction, teacher: Prediction, labels: Tensor, progress: Progress, features: bool = True
    ) -> dict[str, Tensor]:
        """Return the weighted terms by name: "label", "logit", "feature"; terms of weight zero are left out."""
        terms = {}
        if self.label_weight:
            terms["label"] = self.label_weight * progress.task.label_loss(student.logits, labels)
        if self.logit_weight:
            terms["logit"] = self.logit_weight * self.logit_term(student, teacher, labels, progress)
        if self.feature_weight and features:
            distance = FEATURE_LOSSES[self.feature_loss](student.features, teacher.features)
            terms["feature"] = self.feature_weight * distance
        return terms

    def logit_term(self, student: Prediction, teacher: Prediction, labels: Tensor, progress: Progress) -> Tensor:
        """Return the loss between the student's and the teacher's logits, before `logit_weight`.

        In regression it is the mean squared difference of their outputs (`task.Regression`).
        """
        z_s, z_t = student.logits, teacher.logits
        if self.standardise:
            z_s, z_t = (standardised(z, None if z.ndim == 2 else 1) for z in (z_s, z_t))
        temperature: Temperature = self.temperature
        if self.curriculum and student.heat is not None:
            temperature = learned_temperature(student.heat, curriculum_strength(progress.epoch + 1, self.curriculum))
        if self.logit_loss == DECOUPLED:
            target, others = decoupled_kl(z_s, z_t, labels, temperature)
            loss = self.target_weight * target + self.others_weight * others
        else:

            def divergence(student: Tensor, teacher: Tensor, **where: Any) -> Tensor:
                return self.divergence(student, teacher, temperature, **where)

            loss = progress.task.distillation_loss(z_s, z_t, labels, divergence)
        squared = self.temperature_squared and progress.task.softens
        return self.warmup_weight(progress) * loss * (temperature**2 if squared else 1)

    def divergence(self, student: Tensor, teacher: Tensor, temperature: Temperature, **where: Any) -> Tensor:
        """Return the `logit_loss` of two sets of logits; for methods to override.

        Logits are [B, C]. For those of pixels `where` has `dim` and `mask`, as the losses take them.
        """
        return LOGIT_LOSSES[self.logit_loss](student, teacher, temperature, **where)

    def check_distillation(self, task: str) -> None:
        """Refuse options that do not matter in a task other than classification, or have no meaning there."""
        if task != "classification" and self.logit_loss == DECOUPLED:
            raise UserError(f"logit_loss={DECOUPLED} is about one class for each item, not about task {task}.")
        if task != "regression":
            return
        given = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        defaults = {entry.name: entry.default for entry in fields(self)}
        softening = ("temperature", "temperature_squared", "logit_loss", "target_weight", "others_weight")
        for name in ("standardise", "curriculum", *softening):
            if given[name] != (defaults[name] if name in softening else 0):
                raise UserError(
                    f"{name} is about logits, and in task regression students and teachers are compared by their mean "
                    "squared difference: leave it out."
                )

    def warmup_weight(self, progress: Progress) -> float:
        """Return the factor on the logit term in this epoch, from 1/warmup up to 1."""
        return min((progress.epoch + 1) / self.warmup, 1.0) if self.warmup else 1.0

    def with_learned_temperature(self, student: nn.Module) -> nn.Module:
        """Return the student's model, wrapped so that it learns a temperature if there is a curriculum."""
        return WithTemperature(student) if self.curriculum and self.logit_weight else student

    def zero_of_unused(self, prediction: Prediction) -> Tensor:
        """Return 0, computed from the outputs that a loss of logits leaves out.

        Processes that share gradients wait for a gradient of every parameter, so none may stay out of the graph.
        """
        zero = 0 * prediction.features.sum()
        return zero if prediction.heat is None else zero + 0 * prediction.heat.sum()


# The learned temperature of CTKD: T = 1 + 20 sigmoid(theta)

MIN_TEMPERATURE, TEMPERATURE_RANGE = 1.0, 20.0


class WithTemperature(nn.Module):
    """A model with a learned scalar theta, which every prediction carries as `heat`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.heat = nn.Parameter(torch.ones(1))

    @property
    def network(self) -> nn.Module:
        """The network inside the wrapped model."""
        return self.model.network  # type: ignore[return-value]

    @property
    def head_names(self) -> Sequence[str]:
        """The names of the wrapped model's heads."""
        return self.model.head_names  # type: ignore[return-value]

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Prediction, ...]:
        """Return the wrapped model's predictions with `heat`."""
        heat = self.heat.clone()  # a sharded weight is gone after the forward pass; its copy stays
        return tuple(prediction._replace(heat=heat) for prediction in self.model(*args, **kwargs))


def learned_temperature(heat: Tensor, strength: float) -> Tensor:
    """Return T = 1 + 20 sigmoid(theta); the gradient that reaches theta is multiplied by `strength`.

    A negative strength makes theta climb the loss that the student descends.
    """
    value = heat.detach()
    return MIN_TEMPERATURE + TEMPERATURE_RANGE * torch.sigmoid(value + strength * (heat - value))[0]


def curriculum_strength(epoch: int, epochs: float) -> float:
    """Return lambda_e of epoch e, counted from 1: half a cosine from 0 to -1, which it reaches at `epochs`.

    >>> [round(curriculum_strength(epoch, 10), 3) for epoch in (0, 1, 5, 10, 11)]
    [0.0, -0.024, -0.5, -1.0, -1.0]
    """
    return (math.cos(math.pi * min(epoch, epochs) / epochs) + 1) / 2 - 1


def ramp_up(epoch: float, epochs: float) -> float:
    """Return exp(-5 (1 - e/E)^2) for epoch e, counted from 0, up to E; from then on 1.

    A soft loss grows with it over the first epochs, while predictions are still poor.

    >>> [round(ramp_up(epoch, 80), 8) for epoch in (0, 10, 40, 80, 200)]
    [0.00673795, 0.02175036, 0.2865048, 1.0, 1.0]
    """
    return math.exp(-5 * (1 - epoch / epochs) ** 2) if epoch < epochs else 1.0
