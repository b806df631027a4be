"""TSB-like, a reconstruction: temporal-spatial boosting (Li et al., WACV 2022) made from a one-line description.

There is no public code of it. The Spaced KD paper says that a temporal accumulator and a spatial integrator
make better teachers of peers; the rest is a guess of ours, and results must say so. The nearest method with a known
definition is `pcl` (peer collaborative learning): use that where a sourced one is needed.

Of every training image i, each of K peers has an accumulated prediction `M_k[i]` [C], with n_i the visits so far:

    temporal    M_k[i] <- mu M_k[i] + (1 - mu) softmax(z_k / T),    m_k[i] = M_k[i] / (1 - mu^n_i),    mu = 0.6
    spatial     q_k = sum over j != k of w_j m_j,    w uniform, or "confidence": softmax over j of -CE(m_j, y)
    loss        CE(z_k, y) + r(e) T^2 KL(sg q_k -> softmax(z_k / T)),    T = 3

r(e) = exp(-5 (1 - e/80)^2) over the first 80 epochs (`ramp`), then 1; in a run of 80 epochs or fewer the ramp takes
half of the run, so that it ends within it. q_k is a probability already and is not softened again. The KL is a mean
over the batch; an image that was not visited yet adds nothing to it.

The memory belongs to the leader. In the leader's turn all peers predict the batch, every accumulator takes in one
prediction (the leader's from its own training pass, the others' from evaluation mode), and only then is the target
made; the turns of later roles read and never write. So a bank is written once for each visit of an image, however
often the image is replayed; interval one step is online; and the memory of a student that lags behind has the
predictions it makes while it lags. In a replay the peers that have learned since, those ahead of role k, predict once
more, frozen at the start of the block, and the prediction counts as one more visit that is not written:

    replay      m_j[i] = (mu M_j[i] + (1 - mu) softmax(z_j / T)) / (1 - mu^(n_i + 1))

    spacedkd train --method tsb-like --interval 1.5ep
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spacedkd.config.serialization import check_fields
from spacedkd.data.stream import Batch
from spacedkd.methods.base import Card, Ingredients, Losses, Method, Models, Progress
from spacedkd.methods.distillation import ramp_up
from spacedkd.methods.losses import cross_entropy, soft_label
from spacedkd.methods.memory import Bank, check_indices, make_bank
from spacedkd.methods.peers import make_classifiers, peer_roles
from spacedkd.runtime.errors import UserError, check_between


@dataclass(frozen=True)
class TSB(Method):
    """RECONSTRUCTION: peers learn from each other's predictions accumulated over time; sourced neighbour: pcl."""

    card = Card("peers")
    paper = "Li et al., Online Knowledge Distillation by Temporal-Spatial Boosting, WACV 2022"
    weights = "1 CE + ramped 1 T²KL (T 3), mu 0.6"
    source = "a reconstruction from one line about the paper; the sourced neighbour is pcl"

    peers: int = 2
    """how many networks learn together"""
    mu: float = 0.6
    """how much of the accumulated prediction stays when a new one comes in"""
    temperature: float = 3.0
    """logits are divided by it before they are accumulated and compared"""
    spatial: Literal["uniform", "confidence"] = "uniform"
    """how the other peers are weighted"""
    ramp: float = 80.0
    """epochs over which the soft loss rises to its weight; half of the run, where it is no longer than that"""

    def __post_init__(self) -> None:
        check_fields(self)
        peer_roles(self.peers)
        if not 0 <= self.mu < 1:
            raise UserError(f"mu must be from 0 up to (not including) 1, got {self.mu:g}.")
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise UserError(f"temperature must be above 0 and finite, got {self.temperature:g}. The default is 3.")
        check_between("ramp", self.ramp, 0)

    @property
    def roles(self) -> Sequence[str]:
        return peer_roles(self.peers)

    @property
    def depends_on_length(self) -> bool:
        return self.ramp > 0

    def models(self, ingredients: Ingredients) -> dict[str, nn.Module]:
        memories = {memory_name(role): make_bank(ingredients, "tsb-like") for role in self.roles}
        return {**make_classifiers(self.roles, ingredients), **memories}

    def losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> Losses:
        check_indices(batch.indices, "tsb-like")
        (own,) = models[role](batch.inputs)
        if role == self.roles[0]:
            self._remember(role, own.logits, models, batch, progress)
        ahead = self.roles[: self.roles.index(role)] if progress.is_replay() else ()
        others = [other for other in self.roles if other != role]
        memories = torch.stack([self._recall(other, models, batch, predicts=other in ahead) for other in others])
        target = memories.mean(0) if self.spatial == "uniform" else confidence_weighted(memories, batch.labels)
        visited = memories.sum(2).gt(0).all(0)
        log_p = (own.logits / self.temperature).log_softmax(1)
        divergences = F.kl_div(log_p, target, reduction="none").sum(1)
        soft = self.temperature**2 * (divergences * visited).mean()
        return {"label": cross_entropy(own.logits, batch.labels), "logit": self._ramp(progress) * soft}

    def _ramp(self, progress: Progress) -> float:
        """Return the factor on the soft loss at this step."""
        epochs = progress.total_steps / progress.steps_per_epoch
        # A run of one epoch at most has no later one in which the ramp could be higher: there it rises with the steps.
        epoch = progress.epoch if epochs > 1 else progress.step / progress.steps_per_epoch
        return ramp_up(epoch, self.ramp if self.ramp < epochs else epochs / 2)

    @torch.no_grad()
    def _recall(self, other: str, models: Models, batch: Batch, predicts: bool) -> Tensor:
        """Return the accumulated prediction of another peer, [B, C]; with its current one if it `predicts` again."""
        bank = cast(Bank, models[memory_name(other)])
        assert batch.indices is not None
        if not predicts:
            return unbiased_mean(bank, batch.indices, self.mu)
        p = (models[other](batch.inputs)[0].logits / self.temperature).softmax(1)
        rows = bank.read(batch.indices)
        visits = bank.count_visits(batch.indices).to(rows.dtype)[:, None] + 1
        accumulated: Tensor = self.mu * rows + (1 - self.mu) * p.to(rows.dtype)
        return accumulated / (1 - self.mu**visits)

    @torch.no_grad()
    def _remember(self, leader: str, own: Tensor, models: Models, batch: Batch, progress: Progress) -> None:
        """Add every peer's current prediction of the batch to its memory."""
        for role in self.roles:
            logits = own if role == leader else models[role](batch.inputs)[0].logits
            bank = cast(Bank, models[memory_name(role)])
            p = (logits / self.temperature).softmax(1)
            bank.write(batch.indices, self.mu * bank.read(batch.indices) + (1 - self.mu) * p, progress)


def memory_name(role: str) -> str:
    """Return the name of a peer's bank among the models."""
    return f"memory of {role}"


def unbiased_mean(bank: Bank, indices: Tensor, mu: float) -> Tensor:
    """Return m = M / (1 - mu^n): the running mean without its bias towards zero; zeros for images without a visit."""
    rows = bank.read(indices)
    visits = bank.count_visits(indices).to(rows.dtype)[:, None]
    return torch.where(visits > 0, rows / (1 - mu**visits), 0)


def confidence_weighted(memories: Tensor, labels: Tensor) -> Tensor:
    """Return sum_j w_j m_j with w the softmax over the networks of -CE(m_j, y): [K, B, C] -> [B, C]."""
    y = soft_label(labels, memories.shape[2])
    scores = (memories.clamp_min(torch.finfo(memories.dtype).tiny).log() * y).sum(2)
    return (scores.softmax(0)[:, :, None] * memories).sum(0)
