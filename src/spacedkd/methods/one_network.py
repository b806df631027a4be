"""One network that learns in its own way, and how that can be spaced: from itself, or as the teacher of another.

plain      no spacing: one role, one update for each batch; this is the method itself
live       the teacher's part of the network learns s steps, then the whole of it replays them
snapshot   the same, but the replay learns from a frozen copy of the network made when it begins
taught     the teacher learns by the method, and a student network is taught by it as in `kd`: the form the paper
           spaces. Only the teacher's turns advance what the method remembers
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

from torch import nn

from spacedkd.methods.base import Card, Method, Models
from spacedkd.methods.distillation import Distillation
from spacedkd.methods.kd import KD
from spacedkd.runtime.errors import UserError


@dataclass(frozen=True)
class OneNetwork(Distillation, Method):
    """What self-distilling methods share: both roles update the model "network"."""

    card = Card("self", when_spaced={"variant": "live"})
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
        models = {"network": self.equipped(network)}
        return models | ({"snapshot": deepcopy(models["network"])} if self.variant == "snapshot" else {})

    def on_block_start(self, role: str, models: Models) -> None:
        if self.variant == "snapshot" and role == self.roles[-1]:
            models["snapshot"].load_state_dict(models["network"].state_dict())


@dataclass(frozen=True)
class Taught(KD):
    """What methods share by which one network learns alone, from `own_losses`; the weights are a taught student's."""

    card = Card("self", when_spaced={"variant": "taught"})
    variant: Literal["plain", "taught"] = "plain"
    """the method alone, or the method as the teacher of a student"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.teacher_learns:
            raise UserError("This method says how a teacher learns; for one that stands still use --method kd.")

    @property
    def chain(self) -> Sequence[str]:
        return ("student",) if self.variant == "plain" else ("teacher", "student")

    def determined_by(self, role: str) -> Literal["method"]:
        return "method"
