"""Teacher and student are two networks: online, spaced and offline KD (Sun et al. 2025).

The teacher learns from the labels alone, so its weights depend neither on the student nor on the interval. The
student learns from the labels, from the frozen teacher's softened logits, and from its features through an adapter:

    teacher   CE(z_t, y)
    student   0.7 CE(z_s, y) + 0.3 KL(z_t -> z_s; T=3) + 0.03 || A(f_s) - f_t ||

z are logits [B, C], f pooled features [B, D], A is Linear, ReLU, Linear and belongs to the student. The norm is over
the whole batch, neither squared nor averaged; `feature_loss` and `logit_loss` name the alternatives.

This is classification. In regression mean squared errors take the places of CE and KL, in a dense task both are means
over pixels (`task.py`).

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
from spacedkd.models.classifier import Classifier, feature_width, make_adapter
from spacedkd.runtime.errors import UserError


@dataclass(frozen=True)
class KD(Distillation, Method):
    """A teacher network teaches a student network by its logits and pooled features.

    `train(RunSpec(method="kd", schedule=Spaced("1.5ep")), folder)`, or as an object with other options:
    `train(spec, folder, method=KD(temperature=4.0, feature_weight=0.0))`. The fields below are the options.
    """

    card = Card("teacher")
    paper = "Sun et al., Spaced Knowledge Distillation, ICML 2025"
    weights = "0.7 CE + 0.3 KL (T 3) + 0.03 feature norm"
    source = "the paper; its released code by --recipe official-cnn"
    tasks = ("classification", "regression", "dense")

    teacher_learns: bool = True
    """False keeps a pre-trained teacher as it is"""
    distillation_token: bool = field(default=False, metadata={"later": True})
    """as in DeiT: the head of the student's class token learns from the labels, the head of its distillation token from
    the teacher's logits, and the student is evaluated by the mean of both"""
    second_pass: bool = field(default=False, metadata={"later": True})
    """compare the teacher's logits with those of a second pass through the student, under drop-path masks of its own"""

    def __post_init__(self) -> None:
        super().__post_init__()
        options = [name for name in ("distillation_token", "second_pass") if getattr(self, name)]
        # A method that builds on KD and overrides one of these may not read the two options.
        is_plain_kd = all(getattr(type(self), name) is getattr(KD, name) for name in ("models", "losses", "terms"))
        if options and not is_plain_kd:
            raise UserError(
                f"{options[0]} is an option of kd, and {type(self).__name__} would ignore it: leave it out."
            )
        if options and not self.logit_weight:
            raise UserError(f"{options[0]} changes the logits' loss, and logit_weight is 0: leave one of them out.")
        if len(options) == 2:
            raise UserError(
                "distillation_token and second_pass both say which logits learn from the teacher: leave one out."
            )

    def check_task(self, task: str) -> None:
        super().check_task(task)
        self.check_distillation(task)

    @property
    def chain(self) -> Sequence[str]:
        """Return the names of all networks, each taught by the one before it; methods with assistants have more."""
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
        for teacher, role in pairwise(self.chain):
            adapter = None
            if self.feature_weight:
                own, target = (feature_width(networks[name], ingredients.sample) for name in (role, teacher))
                adapter = make_adapter(own, target)
            has_token = self.distillation_token and role == self.chain[-1]
            models[role] = self.with_learned_temperature(Classifier(networks[role], adapter, has_token))
        return models

    def network(self, role: str, ingredients: Ingredients) -> nn.Module:
        """Return a new network for one role of the chain."""
        return ingredients.network(role, frozen=self.is_frozen(role))

    def is_frozen(self, role: str) -> bool:
        """Return whether a role has a trained network that does not learn."""
        return role == self.chain[0] and not self.teacher_learns

    def determined_by(self, role: str) -> Literal["labels", "method"] | None:
        return "labels" if role == self.chain[0] else "method"

    def losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> Losses:
        if role == self.chain[0]:
            return self.leader_losses(role, models, batch, progress)
        with torch.no_grad():  # `adapted=False`: a teacher that is itself a student, as in a chain, has an adapter too
            (teacher,) = models[self.teacher_of(role)](batch.inputs, adapted=False)
        # A student has one prediction, and a second one with a distillation token or a second pass. Then the second one
        # replaces the first in the logits' loss.
        student, *distilled = models[role](batch.inputs)
        if self.second_pass:
            distilled = models[role](batch.inputs)
        terms = self.terms(student, teacher, batch.labels, progress)
        for prediction in distilled:  # none or one
            terms["logit"] = self.logit_weight * self.logit_term(prediction, teacher, batch.labels, progress)
        return terms

    def leader_losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> Losses:
        """Return the losses of the first role, which has no teacher: the labels' cross-entropy."""
        (teacher,) = models[role](batch.inputs)
        return {"label": progress.task.label_loss(teacher.logits, batch.labels)}

    def teacher_of(self, role: str) -> str:
        """Return the role that teaches this one."""
        return self.chain[self.chain.index(role) - 1]
