"""Networks that learn side by side and teach each other.

Every one of them takes its turn, from the one that leads to the one that follows; what the others say is computed
without gradients. Their initial weights are their own: equal peers would have nothing to tell each other.
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
    """The names of so many networks, leader first; the last is the student that is reported.

    >>> peer_roles(2), peer_roles(4)
    (('teacher', 'student'), ('teacher', 'peer 2', 'peer 3', 'student'))
    """
    if peers < 2:
        raise UserError(f"Peers teach each other, which needs two networks or more; got peers={peers}.")
    return ("teacher", *(f"peer {place}" for place in range(2, peers)), "student")


def classifiers(roles: Sequence[str], ingredients: Ingredients) -> dict[str, nn.Module]:
    """A network for every role, each with initial weights of its own."""
    return {role: Classifier(ingredients.network(role, fresh=True)) for role in roles}


@dataclass(frozen=True)
class Peers(Distillation, Method):
    """What methods with peers share: roles, networks, and whom of the others a network hears, now or as it was."""

    card = Card("peers")
    feature_weight: float = 0.0
    peers: int = 2
    """how many networks learn together"""
    refresh_peers: bool = True
    """hear the others as they are, updates just made included; False: as they were when the round of turns began"""

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
                "refresh_peers=false lets a network hear the others as they were before, so spacing would do nothing: "
                "leave it out, or leave out the interval."
            )

    def models(self, ingredients: Ingredients) -> dict[str, nn.Module]:
        peers = classifiers(self.roles, ingredients)
        for role in filter(self.listens, self.roles):
            peers[role] = self.equipped(peers[role])
        if self.refresh_peers:
            return peers
        snapshots = {_snapshot(role): deepcopy(model) for role, model in peers.items()}
        of_round = nn.Module()
        of_round.register_buffer("had_a_turn", torch.zeros(self.peers, dtype=torch.bool))
        return {**peers, **snapshots, "round": of_round}

    def on_block_start(self, role: str, models: Models) -> None:
        """Where a second turn of the same role begins a new round, everybody is copied as they are."""
        if self.refresh_peers:
            return
        had_a_turn, place = cast(Tensor, models["round"].had_a_turn), self.roles.index(role)
        if had_a_turn[place]:
            had_a_turn.zero_()
            for one in self.roles:
                models[_snapshot(one)].load_state_dict(models[one].state_dict())
        had_a_turn[place] = True

    def listens(self, role: str) -> bool:
        """Whether a role learns from the others at all."""
        return True

    def others(self, role: str) -> Sequence[str]:
        return [other for other in self.roles if other != role]

    @torch.no_grad()
    def heard(self, other: str, models: Models, inputs: Inputs) -> Prediction:
        """What another network says of them."""
        said: Sequence[Prediction] = models[other if self.refresh_peers else _snapshot(other)](inputs)
        return said[0]


def _snapshot(role: str) -> str:
    return f"{role} before the round"
