"""Collaborative learning (KDCL, Guo et al., CVPR 2020): one soft target is made of all networks' logits.

    network k     0.5 CE(z_k, y) + 0.5 T^2 KL(sg z* -> z_k; T=4),    z* = target(z_1, ..., z_K)

Every network sees the images under an augmentation of its own (`own_views=false`: all the same). z are logits [B, C]
and `target` says how z* is made of them; its own logits are among them, without gradient:

    mean         the mean of the logits; what the re-implementation we know does
    naive        for every image the logits of the network with the smallest cross-entropy
    linear       sum_k w_k z_k with the weights w >= 0, sum w = 1, of smallest cross-entropy over the batch
    min-logit    every network's logits less its logit of the true class, and of those the least, class by class

The last three follow the paper. Its fourth, "general", weighs the networks by their errors on
held-out images after every epoch; it is left out. Linear weights are found for each process's part of a batch.

The networks take their turns one after the other; the others predict in evaluation mode, updates just made included.
With `refresh_peers=false` they predict as they were before the step, as in the re-implementation.

In the paper no network leads. Spaced, the teacher learns a block with the student frozen, and is then frozen while the
student replays it; the target is made of both at any time.

    spacedkd train --method kdcl --interval 1.5ep --set method.target=min-logit
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from spacedkd.data.stream import Batch, View
from spacedkd.methods.base import Losses, Models, Progress
from spacedkd.methods.losses import soft_label, target_class
from spacedkd.methods.peers import Peers
from spacedkd.runtime.errors import UserError


@dataclass(frozen=True)
class KDCL(Peers):
    """Networks that see different views of an image learn from one target made of all their logits."""

    paper = "Guo et al., Online Knowledge Distillation via Collaborative Learning, CVPR 2020"
    weights = "0.5 CE + 0.5 T²KL (T 4) to the mean logits"
    source = "a re-implementation; other targets after the paper"

    label_weight: float = 0.5
    logit_weight: float = 0.5
    temperature: float = 4.0
    temperature_squared: bool = True
    target: Literal["mean", "naive", "linear", "min-logit"] = "mean"
    """how the networks' logits become one target"""
    own_views: bool = True
    """every network sees its own augmentation of the images"""

    def views(self, role: str, step: int) -> Sequence[View]:
        if not self.own_views:
            return (View(step),)
        return [View(step, view=self.roles.index(peer)) for peer in (role, *self.others(role))]

    def losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> Losses:
        (own,) = models[role](batch.inputs)
        others = self.others(role)
        views = [view.inputs for view in batch.others] if self.own_views else [batch.inputs] * len(others)
        if len(views) != len(others):
            raise UserError(
                f"Method kdcl shows each of {self.peers} networks its own view, and this batch has "
                f"{1 + len(batch.others)}: give the others' as Batch.others, or set own_views=false."
            )
        peers = [self.predict_peer(other, models, view) for other, view in zip(others, views, strict=True)]
        logits = torch.stack([own.logits.detach(), *(peer.logits for peer in peers)])
        target = TARGETS[self.target](logits, batch.labels)
        return self.terms(own, own._replace(logits=target), batch.labels, progress)


@torch.no_grad()
def mean_target(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean over the networks: [K, B, C] -> [B, C]."""
    return logits.mean(0)


@torch.no_grad()
def naive_target(logits: Tensor, labels: Tensor) -> Tensor:
    """Return for every image the logits of the network that is best at it: [K, B, C] -> [B, C]."""
    best = torch.stack([F.cross_entropy(z, labels, reduction="none") for z in logits]).argmin(0)
    return logits[best, torch.arange(logits.shape[1], device=logits.device)]


@torch.no_grad()
def min_logit_target(logits: Tensor, labels: Tensor) -> Tensor:
    """Return min_k (z_k - z_k[y]) class by class: [K, B, C] -> [B, C]; 0 at the true class.

    No network has a smaller cross-entropy for any image: it grows with every z - z[y], and here each is the smallest.
    """
    classes = target_class(labels)[None, :, None].expand(len(logits), -1, 1)
    return (logits - logits.gather(2, classes)).amin(0)


@torch.no_grad()
def linear_target(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the convex combination of the networks' logits with the smallest cross-entropy: [K, B, C] -> [B, C]."""
    weights = linear_weights(logits, labels).to(logits.dtype)
    return (weights[:, None, None] * logits).sum(0)


MAX_EXCHANGES, BISECTIONS, TOLERANCE = 100, 40, 1e-10
"""limits of the search for linear weights; 40 bisections reach the precision of float64, the tolerance is per image"""


@torch.no_grad()
def linear_weights(logits: Tensor, labels: Tensor) -> Tensor:
    """Return w [K] on the simplex that minimises CE(sum_k w_k z_k, y) over the batch.

    Frank-Wolfe with pairwise steps and a bisecting line search; the problem is convex. From equal weights, each step
    moves weight from the network with the steepest slope to the one with the least. Two networks need one step.
    """
    z = logits.double()
    y = soft_label(labels, z.shape[2]).to(z)
    w = z.new_full((len(z),), 1 / len(z))
    for _ in range(MAX_EXCHANGES):
        mixed = torch.tensordot(w, z, dims=1)
        slope = (z * (mixed.softmax(1) - y)).sum((1, 2))
        to, away = int(slope.argmin()), int(slope.where(w > 0, -torch.inf).argmax())
        if slope[away] - slope[to] <= TOLERANCE * z.shape[1]:
            break
        amount = _line_search(mixed, z[to] - z[away], y, most=w[away])
        w[to] += amount
        w[away] -= amount
    return w


def _line_search(start: Tensor, direction: Tensor, y: Tensor, most: Tensor) -> Tensor:
    """Return the distance, up to `most`, at which the cross-entropy is smallest along a direction [B, C].

    Its slope at logits z is sum (softmax(z) - y) direction.
    """

    def falls_at(distance: Tensor) -> Tensor:
        return ((start + distance * direction).softmax(1) - y).mul(direction).sum() <= 0

    low, high = torch.zeros_like(most), most
    if falls_at(high):
        return high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        falls = falls_at(middle)
        low, high = torch.where(falls, middle, low), torch.where(falls, high, middle)
    return low


TARGETS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": mean_target,
    "naive": naive_target,
    "linear": linear_target,
    "min-logit": min_logit_target,
}
