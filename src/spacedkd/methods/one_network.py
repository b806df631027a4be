"""One network that is teacher and student in one, and the ways in which its learning can be spaced.

plain      no spacing: one role, one update for each batch
live       the teacher's part of the network learns s steps, then the whole of it replays them
snapshot   the same, but the replay learns from a frozen copy of the network made when it begins
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

from torch import nn

from spacedkd.methods.distillation import Distillation
from spacedkd.methods.method import Method, Models


@dataclass(frozen=True)
class OneNetwork(Distillation, Method):
    """What self-distilling methods share: both roles update the model "network"."""

    variant: Literal["plain", "live", "snapshot"] = "plain"
    """whether and how it is spaced"""

    @property
    def roles(self) -> Sequence[str]:
        return ("student",) if self.variant == "plain" else ("teacher", "student")

    @property
    def learners(self) -> Mapping[str, str]:
        return dict.fromkeys(self.roles, "network")

    def with_snapshot(self, network: nn.Module) -> dict[str, nn.Module]:
        """The models of a method that has one network, and a copy of it where the variant needs one."""
        network = self.equipped(network)
        return (
            {"network": network, "snapshot": deepcopy(network)} if self.variant == "snapshot" else {"network": network}
        )

    def take_over(self, role: str, models: Models) -> None:
        if self.variant == "snapshot" and role == self.roles[-1]:
            models["snapshot"].load_state_dict(models["network"].state_dict())
