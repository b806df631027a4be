"""Deep mutual learning (Zhang et al., CVPR 2018): peers learn from the labels and from each other.

    network i     CE(z_i, y) + 1/(K-1) sum_j KL(sg z_j -> z_i; T=1)        over the other networks j

z are logits [B, C]; sg is stop-gradient: a network learns from the others, and gets no gradient through their losses.
Each has its own optimizer and they take their turns one after the other, so in the paper's order the next one learns
from the update just made; with `refresh_peers=false` all learn from the others as they were before the round, as in
re-implementations. `peer_reduction=sum` leaves out 1/(K-1), as the authors' TensorFlow code does.

The others predict in evaluation mode; in re-implementations all networks are in training mode.

Spaced, the teacher leads by an interval: it learns a block with the student frozen, CE + KL(sg z_s -> z_t), and is
then frozen while the student replays it, CE + KL(sg z_t -> z_s). `reverse=false` leaves out the first KL: the
leader learns from the labels alone. The student, the last to learn, is reported; the journal has all of them.

    spacedkd train --method dml --interval 1.5ep
    spacedkd train --method dml --set method.peers=4 --set method.refresh_peers=false
"""

from dataclasses import dataclass
from typing import Literal

import torch

from spacedkd.data.stream import Batch
from spacedkd.methods.base import Losses, Models, Progress
from spacedkd.methods.losses import cross_entropy
from spacedkd.methods.peers import Peers


@dataclass(frozen=True)
class DML(Peers):
    """Two networks or more learn side by side, each from the labels and from all the others."""

    paper = "Zhang et al., Deep Mutual Learning, CVPR 2018"
    weights = "1 CE + 1 KL (T 1), mean over the other peers"
    source = "re-implementations; the authors' sum over peers by peer_reduction=sum"

    label_weight: float = 1.0
    logit_weight: float = 1.0
    temperature: float = 1.0
    peer_reduction: Literal["mean", "sum"] = "mean"
    """over the other networks"""
    reverse: bool = True
    """the leader learns from those that follow, too; False: from the labels alone"""

    def learns_from_peers(self, role: str) -> bool:
        return self.reverse or role != self.roles[0]

    def losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> Losses:
        (own,) = models[role](batch.inputs)
        label = cross_entropy(own.logits, batch.labels)
        if not self.learns_from_peers(role):
            return {"label": label}
        losses = {"label": self.label_weight * label} if self.label_weight else {}
        if self.logit_weight:
            peers = (self.predict_peer(other, models, batch.inputs) for other in self.others(role))
            terms = torch.stack([self.logit_term(own, peer, batch.labels, progress) for peer in peers])
            losses["logit"] = self.logit_weight * (terms.mean() if self.peer_reduction == "mean" else terms.sum())
        return losses
