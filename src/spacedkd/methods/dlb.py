"""Self-distillation from the last mini-batch (DLB, Shen et al., CVPR 2022): every batch comes twice.

A step learns its own batch, and the one before it once more under another augmentation. The second time, logits are
pulled towards those of the first time:

    CE([z_i; z'_i-1], [y_i; y_i-1]) + alpha T^2 KL(sg z_i-1 -> z'_i-1; T=3),    alpha = 1

z_i are the logits [B, C] of batch i, z'_i-1 those of the last batch's second view, and z_i-1 the network's logits of
its first view a step ago, before that step's update. The cross-entropy is a mean over both batches, which may differ
in size where epochs meet. There are two passes, so BatchNorm sees two batches; the first step has no last one.

`variant` is plain, the method itself, or taught: the teacher learns by DLB and a student learns from it as in `kd`,
from the first view alone, with label_weight, logit_weight, feature_weight and temperature_squared as its options.

    spacedkd train --method dlb
    spacedkd train --method dlb --interval 1.5ep        # variant taught
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import nn

from spacedkd.data.stream import Batch, View
from spacedkd.methods.base import Ingredients, Losses, Models, Progress
from spacedkd.methods.losses import cross_entropy
from spacedkd.methods.memory import LastBatch, check_indices
from spacedkd.methods.one_network import SelfTrainedTeacher
from spacedkd.runtime.errors import UserError, check_between

MEMORY = "last batch"


@dataclass(frozen=True)
class DLB(SelfTrainedTeacher):
    """A network's predictions for the last batch, seen again, are pulled towards those of a step ago."""

    paper = "Shen et al., Self-Distillation from the Last Mini-Batch for Consistency Regularization, CVPR 2022"
    weights = "1 CE over both batches + 1 T²KL (T 3); a taught student as kd"
    source = "the authors' code, which leaves T and alpha open"

    alpha: float = 1.0
    """weight of the last batch's logits"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("alpha", self.alpha, 0)

    def models(self, ingredients: Ingredients) -> dict[str, nn.Module]:
        if ingredients.micro_batches > 1:
            raise UserError("Method dlb needs the whole of its last batch in one pass: leave out --accumulate.")
        models, first = super().models(ingredients), self.chain[0]
        memory = LastBatch(ingredients.batch_size, ingredients.classes)
        return {**models, first: self.with_learned_temperature(models[first]), MEMORY: memory}

    def views(self, role: str, step: int) -> Sequence[View]:
        again = (View(step - 1, view=1),) if role == self.chain[0] and step > 0 else ()
        return (View(step), *again)

    def leader_losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> Losses:
        check_indices(batch.indices, "dlb")
        memory = cast(LastBatch, models[MEMORY])
        (now,) = models[role](batch.inputs)
        if not batch.others:
            losses = {"label": cross_entropy(now.logits, batch.labels) + self.zero_of_unused(now)}
        else:
            (last,) = batch.others
            (again,) = models[role](last.inputs)
            both, labels = torch.cat([again.logits, now.logits]), torch.cat([last.labels, batch.labels])
            losses = {"label": cross_entropy(both, labels)}
            if self.alpha and memory.holds(progress.step - 1):
                before = again._replace(logits=memory.read(last.indices))
                # T^2 is part of the method, whatever a taught student's loss has.
                term = replace(self, temperature_squared=True).logit_term(again, before, last.labels, progress)
                losses["last batch"] = self.alpha * term
        memory.write(batch.indices, now.logits, progress)
        return losses
