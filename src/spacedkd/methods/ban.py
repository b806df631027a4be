"""Born-again networks (Furlanello et al., ICML 2018): every generation is taught by the one before it.

    generation 0      CE(z_0, y)
    generation k      CE(z_k, y) + SCE(z_k-1 -> z_k; T=1)

SCE is the soft cross-entropy, the KL plus a constant. Generations have the student's architecture, or, all but the
student, that of --teacher; their initial weights are their own: equal ones would defeat the point. `knowledge` says
what is passed on:

    all         the whole distribution, as above
    weights     its largest probability alone, as the weight of the label's loss: sum_b w_b CE_b, sum_b w_b = 1 (CWTM)
    permuted    the distribution with everything but its largest probability shuffled (DKPP)

Without spacing the generations learn side by side; with an interval each one learns a block, is frozen, and the next
replays the block; `--interval offline` is born-again training as in the paper, one whole run after the other.

    spacedkd train --method ban --interval 1.5ep --set method.generations=4
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spacedkd.methods.base import Card, Ingredients, Progress
from spacedkd.methods.kd import KD
from spacedkd.models.classifier import Prediction
from spacedkd.runtime.errors import UserError


@dataclass(frozen=True)
class BAN(KD):
    """Generations of one network, each taught by the one before."""

    card = Card("chain")
    paper = "Furlanello et al., Born-Again Neural Networks, ICML 2018"
    weights = "1 CE + 1 soft CE (T 1), 3 generations"
    source = "the paper; no official code"
    tasks = ("classification", "regression", "dense")

    label_weight: float = 1.0
    logit_weight: float = 1.0
    feature_weight: float = 0.0
    temperature: float = 1.0
    logit_loss: str = "soft-cross-entropy"
    generations: int = 3
    """how many networks there are in all, the first one included"""
    knowledge: Literal["all", "weights", "permuted"] = "all"
    """what a generation passes on; with weights, the weighted label is the whole loss and no other weight counts"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.generations < 2:
            raise UserError(f"Born-again training needs two networks or more, got generations={self.generations}.")

    def check_task(self, task: str) -> None:
        super().check_task(task)
        if self.knowledge != "all" and task != "classification":
            raise UserError(f"knowledge={self.knowledge} is about one class for each item, not about task {task}.")

    @property
    def chain(self) -> Sequence[str]:
        return ("teacher", *(f"generation {k}" for k in range(1, self.generations - 1)), "student")

    def network(self, role: str, ingredients: Ingredients) -> nn.Module:
        return ingredients.network(role, fresh=True, frozen=self.is_frozen(role))

    def terms(
        self, student: Prediction, teacher: Prediction, labels: Tensor, progress: Progress, features: bool = True
    ) -> dict[str, Tensor]:
        if self.knowledge == "weights":
            return {"weighted label": weighted_label(student.logits, teacher.logits, labels)}
        if self.knowledge == "permuted":
            teacher = teacher._replace(logits=permuted(teacher.logits))
        return super().terms(student, teacher, labels, progress, features)


def weighted_label(student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
    """Return sum_b w_b CE_b, w_b the teacher's largest probability for image b, divided by their sum over the batch."""
    confidence = teacher.detach().softmax(1).amax(1)
    each = F.cross_entropy(student, labels, reduction="none")
    return (confidence / confidence.sum() * each).sum()


def permuted(logits: Tensor) -> Tensor:
    """Return logits [B, C] with all but the largest of each image shuffled among the classes."""
    largest = logits.argmax(1, keepdim=True)
    draws = torch.rand_like(logits).scatter(1, largest, 2.0)
    at_random = draws.argsort(1)[:, :-1]  # the largest comes last
    in_order = at_random.sort(1).values
    return logits.scatter(1, in_order, logits.gather(1, at_random))
