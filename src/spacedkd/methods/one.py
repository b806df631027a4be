"""On-the-fly native ensemble (Lan et al., NeurIPS 2018): branches on one trunk are taught by their gated ensemble.

The network's last stage and classifier (of a ViT the last quarter of its blocks) are there three times, on a trunk
that is computed once. With z_i [B, C] the branches' logits, and z_e = sum_i g_i z_i weighed by a gate on the trunk:

    L = sum_i CE(z_i, y) + CE(z_e, y) + r(e) sum_i T^2 KL'(z_e -> z_i; T=3),   r(e) = exp(-5 (1 - e/80)^2)

r grows over the first 80 epochs to 1. z_e is detached in the KL', so the gate learns from CE(z_e, y) alone. KL' is the
KL with 1e-7 added to the ensemble's probabilities, as the authors compute it. The saved student is branch 1, the
network itself. Three variants:

    plain      no spacing: one update of L for each batch
    live       sum_i CE(z_i, y) + CE(z_e, y) for s steps, then L on the same batches
    snapshot   the same for s steps, then L without CE(z_e, y), and with z_e of a frozen copy made when the replay
               begins; `replay_label=false` leaves out the branches' CE as well

    spacedkd train --method one --interval 4ep
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spacedkd.data.inputs import Inputs
from spacedkd.data.stream import Batch
from spacedkd.methods.base import Ingredients, Losses, Models, Progress
from spacedkd.methods.distillation import ramp_up
from spacedkd.methods.losses import Temperature, cross_entropy, softened
from spacedkd.methods.one_network import OneNetwork
from spacedkd.models.branches import Branches, Fusion, Gate
from spacedkd.models.classifier import Prediction
from spacedkd.runtime.errors import UserError, check_between


@dataclass(frozen=True)
class ONE(OneNetwork):
    """Branches on one trunk are taught by their ensemble, which a gate weighs image by image."""

    paper = "Lan et al., Knowledge Distillation by On-the-Fly Native Ensemble, NeurIPS 2018"
    weights = "1 CE of each of 3 branches and the ensemble + ramp to 1 T²KL (T 3)"
    source = "the authors' code; spacing and ViTs ours"
    join: ClassVar[type[Gate | Fusion]] = Gate

    label_weight: float = 1.0
    logit_weight: float = 1.0
    feature_weight: float = 0.0
    temperature_squared: bool = True
    branches: int = 3
    """how many there are in all, the network itself included"""
    ramp: float = 80.0
    """let the logit term grow to its full weight over this many epochs; 0 starts with it"""
    replay_label: bool = True
    """let the branches learn from the labels in a snapshot's replay too"""
    padding: float = 1e-7
    """added to the ensemble's probabilities where the logit loss is kl, as the authors' code does"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.branches < 2:
            raise UserError(f"An ensemble needs two branches or more, got branches={self.branches}.")
        check_between("ramp", self.ramp, 0)
        check_between("padding", self.padding, 0)
        if self.variant == "snapshot" and not (self.replay_label or self.logit_weight or self.feature_weight):
            raise UserError("logit_weight and feature_weight are 0: a replay without labels has no other loss.")

    def models(self, ingredients: Ingredients) -> dict[str, nn.Module]:
        student = self.roles[-1]
        network = ingredients.network(student)
        others = [ingredients.network(f"branch {k}", fresh=True, like=student) for k in range(2, self.branches + 1)]
        return self.with_snapshot(Branches(network, others, ingredients.sample, self.join))

    def losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> Losses:
        views = batch_views(batch)
        is_student = role == self.roles[-1]
        if is_student and self.variant == "snapshot":
            with torch.no_grad():
                *_, joint = models["snapshot"](*views)
            return self.ensemble_terms(models["network"](*views, joined=False), joint, models, batch, progress)
        *branches, joint = models["network"](*views)
        losses = {"ensemble label": cross_entropy(joint.logits, batch.labels)}
        if self.label_weight:
            label_losses = [cross_entropy(branch.logits, batch.labels) for branch in branches]
            losses["label"] = self.label_weight * torch.stack(label_losses).sum()
        return losses | (self.ensemble_terms(branches, joint, models, batch, progress) if is_student else {})

    def ensemble_terms(
        self, branches: Sequence[Prediction], joint: Prediction, models: Models, batch: Batch, progress: Progress
    ) -> dict[str, Tensor]:
        """Return the terms that the branches learn from their ensemble, each summed over the branches."""
        terms = [self.terms(branch, joint, batch.labels, progress) for branch in branches]
        with_label = self.variant == "snapshot" and self.replay_label
        names = [name for name in terms[0] if name != "label" or with_label]
        return {name: torch.stack([term[name] for term in terms]).sum() for name in names}

    def divergence(self, student: Tensor, teacher: Tensor, temperature: Temperature, **where: Any) -> Tensor:
        if self.logit_loss == "kl" and self.padding:
            return padded_kl(student, teacher, temperature, self.padding)
        return super().divergence(student, teacher, temperature, **where)

    def warmup_weight(self, progress: Progress) -> float:
        return super().warmup_weight(progress) * ramp_up(progress.epoch, self.ramp)


def batch_views(batch: Batch) -> list[Inputs]:
    """Return all views of a batch's images, the first one first."""
    return [batch.inputs, *(other.inputs for other in batch.others)]


def padded_kl(student: Tensor, teacher: Tensor, temperature: Temperature, padding: float) -> Tensor:
    """Return 1/B sum_b sum_c q (log q - log p_s), q = softmax(z_t/T) + padding; q sums to a little more than one."""
    s, t = softened(student, teacher, temperature)
    return F.kl_div(s.log_softmax(1), t.softmax(1) + padding, reduction="batchmean")
