"""Base class of methods in which several networks learn side by side and teach each other.

Every network takes its turn, from the one that leads to the one that is reported. Predictions of the others are
computed without gradients. Each network has its own initial weights: equal peers would teach each other nothing.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from spacedkd.data.inputs import Inputs
from spacedkd.methods.base import Card, Ingredients, Method, Models
from spacedkd.methods.distillation import Distillation
from spacedkd.models.classifier import Classifier, Prediction
from spacedkd.runtime.errors import UserError
from spacedkd.schedule import Online, Schedule


def peer_roles(peers: int) -> tuple[str, ...]:
    """Return the role names of `peers` networks, leader first; the last is the student that is reported.

    >>> peer_roles(2), peer_roles(4)
    (('teacher', 'student'), ('teacher', 'peer 2', 'peer 3', 'student'))
    """
    if peers < 2:
        raise UserError(f"Peers teach each other, which needs two networks or more; got peers={peers}.")
    return ("teacher", *(f"peer {number}" for number in range(2, peers)), "student")


def make_classifiers(roles: Sequence[str], ingredients: Ingredients) -> dict[str, nn.Module]:
    """Return a classifier for every role, each with initial weights of its own."""
    return {role: Classifier(ingredients.network(role, fresh=True)) for role in roles}


@dataclass(frozen=True)
class Peers(Distillation, Method):
    """Networks that learn from each other's logits, current ones or those from before the round of turns."""

    card = Card("peers")
    feature_weight: float = 0.0
    peers: int = 2
    """how many networks learn together"""
    refresh_peers: bool = True
    """learn from the others as they are, updates just made included; False: as they were before the round of turns"""

    def __post_init__(self) -> None:
        super().__post_init__()
        peer_roles(self.peers)
        if self.feature_weight:
            raise UserError(f"Peers compare logits alone: feature_weight must be 0, got {self.feature_weight:g}.")

    @property
    def roles(self) -> Sequence[str]:
        return peer_roles(self.peers)

    def check_schedule(self, schedule: Schedule) -> None:
        if not self.refresh_peers and schedule != Online():
            raise UserError(
                "With refresh_peers=false a network learns from the others as they were before the round, so spacing "
                "would do nothing: leave out refresh_peers, or leave out the interval."
            )

    def models(self, ingredients: Ingredients) -> dict[str, nn.Module]:
        peers = make_classifiers(self.roles, ingredients)
        for role in filter(self.learns_from_peers, self.roles):
            peers[role] = self.with_learned_temperature(peers[role])
        if self.refresh_peers:
            return peers
        snapshots = {_snapshot_name(role): deepcopy(model) for role, model in peers.items()}
        # A module, so that a run resumed within a round knows who has had a turn in it.
        current_round = nn.Module()
        current_round.register_buffer("had_a_turn", torch.zeros(self.peers, dtype=torch.bool))
        return {**peers, **snapshots, "round": current_round}

    def on_block_start(self, role: str, models: Models) -> None:
        """Copy all networks into their snapshots when a new round begins: when a role has its second turn."""
        if self.refresh_peers:
            return
        had_a_turn, position = cast(Tensor, models["round"].had_a_turn), self.roles.index(role)
        if had_a_turn[position]:
            had_a_turn.zero_()
            for peer in self.roles:
                models[_snapshot_name(peer)].load_state_dict(models[peer].state_dict())
        had_a_turn[position] = True

    def learns_from_peers(self, role: str) -> bool:
        """Return whether a role learns from the others at all."""
        return True

    def others(self, role: str) -> Sequence[str]:
        """Return all roles but this one."""
        return [other for other in self.roles if other != role]

    @torch.no_grad()
    def predict_peer(self, peer: str, models: Models, inputs: Inputs) -> Prediction:
        """Return a peer's prediction for the inputs: of its current weights, or of its snapshot."""
        predictions: Sequence[Prediction] = models[peer if self.refresh_peers else _snapshot_name(peer)](inputs)
        return predictions[0]


def _snapshot_name(role: str) -> str:
    return f"{role} before the round"
