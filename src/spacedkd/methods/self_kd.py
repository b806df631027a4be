"""One network teaches itself: its deepest classifier teaches early exits (BYOT, Zhang et al. 2019).

Exits sit behind the stages of a CNN, three of them for a ResNet, or behind the blocks of a transformer, eleven for
a ViT of twelve; `models/early_exits.py` says which network gets which.

With o the logits and f the features of the deepest classifier, o_k and f_k those of exit k:

    L = CE(o, y) + sum_k [ 0.7 CE(o_k, y) + 0.3 SCE(o -> o_k; T=3) + 0.03 || W_k f_k - f || ]

o and f are detached in the distillation terms, but the trunk learns from every exit. Three variants:

    plain      no spacing: one update of L for each batch
    live       spaced as in the paper's Algorithm 4: CE(o, y) for s steps, then L on the same batches, which
               trains the deepest classifier again; two updates for each batch
    snapshot   spaced with a teacher that is really frozen: the replay distils from a frozen copy of the
               network made when it begins, and leaves CE(o, y) out

    spacedkd train --method self-kd --interval 4ep
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from spacedkd.data.stream import Batch
from spacedkd.methods.base import Ingredients, Losses, Models, Progress
from spacedkd.methods.losses import cross_entropy
from spacedkd.methods.one_network import OneNetwork
from spacedkd.models.early_exits import Align, EarlyExits


@dataclass(frozen=True)
class SelfKD(OneNetwork):
    """One network's deepest classifier teaches its early exits: three of a ResNet, eleven of a ViT."""

    paper = "Zhang et al., Be Your Own Teacher, ICCV 2019"
    weights = "1 CE + for each exit 0.7 CE + 0.3 soft CE (T 3) + 0.03 feature norm"
    source = "the authors' code, with the feature term on every exit; for ViTs the paper's two sentences"

    logit_loss: str = "soft-cross-entropy"
    deepest_weight: float = 1.0
    """weight of the deepest classifier's label loss"""
    skip_deepest_exit_features: bool = False
    """leave the deepest exit out of the feature term, as the authors' code does against its own comment"""
    student_reduction: Literal["sum", "mean"] = "sum"
    """mean divides the exits' losses by how many there are: eleven exits weigh as much as one"""
    exits_run_along: bool = field(default=False, metadata={"later": True})
    """run the exits in the teacher's turns too: their BatchNorm statistics follow the trunk, their weights stay"""

    def models(self, ingredients: Ingredients) -> dict[str, nn.Module]:
        align: Align = "all-but-deepest" if self.skip_deepest_exit_features else "all"
        network = ingredients.network(self.roles[-1])
        return self.with_snapshot(EarlyExits(network, ingredients.sample, align if self.feature_weight else "none"))

    def losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> Losses:
        if role != self.roles[-1]:  # the teacher: the deepest classifier alone, `shallow=False` leaves out the exits
            (deepest,) = models["network"](batch.inputs, shallow=False, along=self.exits_run_along)
            return {"label": self.deepest_weight * cross_entropy(deepest.logits, batch.labels)}
        losses: dict[str, Tensor] = {}
        if self.variant == "snapshot":
            with torch.no_grad():
                (teacher,) = models["snapshot"](batch.inputs, shallow=False)
            exits = models["network"](batch.inputs, deepest=False)
        else:
            teacher, *exits = models["network"](batch.inputs)
            losses["label"] = self.deepest_weight * cross_entropy(teacher.logits, batch.labels)
        share = 1 / len(exits) if self.student_reduction == "mean" else 1.0
        for position, exit in enumerate(exits):  # from the deepest exit to the shallowest
            with_features = not (self.skip_deepest_exit_features and position == 0)
            for name, term in self.terms(exit, teacher, batch.labels, progress, with_features).items():
                total = losses.get(f"exit {name}")
                losses[f"exit {name}"] = share * term if total is None else total + share * term
        return losses
