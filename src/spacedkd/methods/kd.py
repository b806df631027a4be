"""Teacher and student are two networks: online, spaced and offline KD (Sun et al. 2025).

The teacher learns from the labels alone, so its path depends neither on the student nor on the interval. The
student learns from labels, from the frozen teacher's softened classes, and from its features through an adapter:

    teacher   CE(z_t, y)
    student   0.7 CE(z_s, y) + 0.3 KL(z_t -> z_s; T=3) + 0.03 || A(f_s) - f_t ||

z are logits [B, C], f pooled features [B, D], A is Linear, ReLU, Linear and belongs to the student. The norm is over
the whole batch, neither squared nor averaged; `feature_loss` and `logit_loss` name the alternatives.

    spacedkd train --method kd --interval 1.5ep
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import torch
from torch import nn

from spacedkd.data.stream import Batch
from spacedkd.methods.base import Card, Ingredients, Losses, Method, Models, Progress
from spacedkd.methods.distillation import Distillation
from spacedkd.methods.losses import cross_entropy
from spacedkd.models.classifier import Classifier, feature_width, make_adapter
from spacedkd.runtime.errors import UserError


@dataclass(frozen=True)
class KD(Distillation, Method):
    """A teacher network teaches a student network by its logits and pooled features."""

    card = Card("teacher")
    paper = "Sun et al., Spaced Knowledge Distillation, ICML 2025"
    weights = "0.7 CE + 0.3 KL (T 3) + 0.03 feature norm"
    source = "the paper; its released code by --recipe official-cnn"

    teacher_learns: bool = True
    """False keeps a pre-trained teacher as it is"""
    distillation_token: bool = field(default=False, metadata={"later": True})
    """the head of the student's class token learns from the labels, that of its distillation token from the teacher's
    logits, and it is evaluated by their mean (DeiT)"""
    second_pass: bool = field(default=False, metadata={"later": True})
    """compare the teacher's logits with those of a second pass through the student, under drop-path masks of its own"""

    def __post_init__(self) -> None:
        super().__post_init__()
        asked = [name for name in ("distillation_token", "second_pass") if getattr(self, name)]
        heeded = all(getattr(type(self), name) is getattr(KD, name) for name in ("models", "losses", "terms"))
        if asked and not heeded:
            raise UserError(
                f"{asked[0]} is an option of kd, and {type(self).__name__} would not heed it: leave it out."
            )
        if asked and not self.logit_weight:
            raise UserError(f"{asked[0]} is about the logits' loss, and logit_weight is 0: leave one of them out.")
        if len(asked) == 2:
            raise UserError(
                "distillation_token and second_pass both say which logits learn from the teacher: leave one out."
            )

    @property
    def chain(self) -> Sequence[str]:
        """Every network's name, each taught by the one before it; here the chain is as short as can be."""
        return ("teacher", "student")

    @property
    def roles(self) -> Sequence[str]:
        return self.chain if self.teacher_learns else self.chain[1:]

    @property
    def frozen(self) -> Sequence[str]:
        return [role for role in self.chain if role not in self.roles]

    def models(self, ingredients: Ingredients) -> dict[str, nn.Module]:
        networks = {role: self.network(role, ingredients) for role in self.chain}
        models: dict[str, nn.Module] = {self.chain[0]: Classifier(networks[self.chain[0]])}
        for ahead, role in pairwise(self.chain):
            bridge = None
            if self.feature_weight:
                bridge = make_adapter(*(feature_width(networks[one], ingredients.sample) for one in (role, ahead)))
            has_token = self.distillation_token and role == self.chain[-1]
            models[role] = self.equipped(Classifier(networks[role], bridge, has_token))
        return models

    def network(self, role: str, ingredients: Ingredients) -> nn.Module:
        """The network of one link of the chain."""
        return ingredients.network(role, frozen=self.is_frozen(role))

    def is_frozen(self, role: str) -> bool:
        """Whether a network is trained already and stays as it is."""
        return role == self.chain[0] and not self.teacher_learns

    def determined_by(self, role: str) -> Literal["labels", "method"] | None:
        return "labels" if role == self.chain[0] else "method"

    def losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> Losses:
        if role == self.chain[0]:
            return self.own_losses(role, models, batch, progress)
        with torch.no_grad():
            (teacher,) = models[self.ahead_of(role)](batch.inputs, adapted=False)
        student, *distilled = models[role](batch.inputs)
        if self.second_pass:
            distilled = models[role](batch.inputs)
        terms = self.terms(student, teacher, batch.labels, progress)
        for other in distilled:  # the one that learns from the teacher's logits in the student's place
            terms["logit"] = self.logit_weight * self.logit_term(other, teacher, batch.labels, progress)
        return terms

    def own_losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> Losses:
        """What the first of the chain learns from: the labels alone."""
        (teacher,) = models[role](batch.inputs)
        return {"label": cross_entropy(teacher.logits, batch.labels)}

    def ahead_of(self, role: str) -> str:
        """Who teaches a role."""
        return self.chain[self.chain.index(role) - 1]
