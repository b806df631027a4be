"""Peer collaborative learning (Wu and Gong, AAAI 2021): branches are taught by their ensemble and by each other's past.

As in ONE the network's last stage and classifier are there three times on one trunk. z_f [B, C] are the logits of a
classifier on all branches' features side by side, m_j those of branch j with the moving average of all weights:

    L = CE(z_f, y) + sum_i [ CE(z_i, y) + T^2 KL(z_f -> z_i; T=3) + mean_{j != i} T^2 KL(m_j -> z_i; T=3) ]

z_f and m are detached in the KL. The average, m <- a m + (1 - a) w with a = min(1 - 1/step, 0.999), is brought up to
date at the beginning of each of the leader's turns (of every turn if there is no spacing) but the first, step 0, from
the weights as they then are: at step 1 it is the weights after the first update alone. In a replay it is frozen.
Variants are those of ONE.

The definition is from shaoeric's re-implementation and the paper's abstract. Where we differ, or they leave it open:

    views     they augment the images once for each branch; here all get one view, which keeps the trunk to one pass.
              --set method.own_views=true does as they do, in one pass over all views
    ramp      the re-implementation has ONE's ramp in mind, but divides the epoch by 1, not by 80; here there is none.
              --set method.ramp=80 adds it
    averages  theirs run in training mode; here they are frozen in evaluation mode, so BatchNorm's statistics are
              averaged like the weights
    student   the re-implementation reports the best averaged branch; here it is branch 1 as it is

    spacedkd train --method pcl --interval 4ep
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from spacedkd.data.stream import Batch, View
from spacedkd.methods.base import Ingredients, Losses, Models, Progress
from spacedkd.methods.one import ONE, batch_views
from spacedkd.models.branches import Fusion, Gate
from spacedkd.models.classifier import Prediction
from spacedkd.models.pretrained import move_average
from spacedkd.runtime.errors import check_between


@dataclass(frozen=True)
class PCL(ONE):
    """Branches on one trunk are taught by a classifier of all their features and by each other's averages."""

    paper = "Wu and Gong, Peer Collaborative Learning for Online Knowledge Distillation, AAAI 2021"
    weights = "1 CE of each of 3 branches and the ensemble + 1 T²KL ensemble + 1 T²KL averages (T 3)"
    source = "a re-implementation; spacing and ViTs ours"
    join: ClassVar[type[Gate | Fusion]] = Fusion

    ramp: float = 0.0
    padding: float = 0.0
    peer_weight: float = 1.0
    """of the other branches' averages"""
    decay: float = 0.999
    """how much of the average stays from turn to turn, once there have been enough"""
    own_views: bool = False
    """augment the images once for each branch"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("decay", self.decay, 0, 1)
        check_between("peer_weight", self.peer_weight, 0)

    def models(self, ingredients: Ingredients) -> dict[str, nn.Module]:
        models = super().models(ingredients)
        return {**models, "mean": deepcopy(models["network"])}

    def views(self, role: str, step: int) -> Sequence[View]:
        return [View(step, view) for view in range(self.branches if self.own_views else 1)]

    def losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> Losses:
        if role == self.roles[0] and progress.step > 0 and progress.micro_batch == 0:
            decay = min(1 - 1 / progress.step, self.decay)
            move_average(models["mean"], models["network"], 1 - decay, gather=lambda row: progress.gather(row[None])[0])
        return super().losses(role, models, batch, progress)

    def ensemble_terms(
        self, branches: Sequence[Prediction], joint: Prediction, models: Models, batch: Batch, progress: Progress
    ) -> dict[str, Tensor]:
        terms = super().ensemble_terms(branches, joint, models, batch, progress)
        with torch.no_grad():
            means = models["mean"](*batch_views(batch), joined=False)
        peers = [
            self.logit_term(branch, mean, batch.labels, progress)
            for i, branch in enumerate(branches)
            for j, mean in enumerate(means)
            if i != j
        ]
        return {**terms, "peer": self.peer_weight * torch.stack(peers).sum() / (len(branches) - 1)}
