"""Base classes of methods in which one network distils from itself, and the ways to space them.

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
    """A method whose roles all update the same model, "network": plain, live or snapshot."""

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
        """Return the models of the method: "network", and its copy "snapshot" if the variant has one."""
        models = {"network": self.with_learned_temperature(network)}
        return models | ({"snapshot": deepcopy(models["network"])} if self.variant == "snapshot" else {})

    def on_block_start(self, role: str, models: Models) -> None:
        """Copy the network into the snapshot before the student replays a block."""
        if self.variant == "snapshot" and role == self.roles[-1]:
            models["snapshot"].load_state_dict(models["network"].state_dict())


@dataclass(frozen=True)
class SelfTrainedTeacher(KD):
    """A method in which one network learns alone, from `leader_losses`: plain or taught.

    The options of `KD` are those of the student that it teaches in the variant "taught".
    """

    card = Card("self", when_spaced={"variant": "taught"})
    variant: Literal["plain", "taught"] = "plain"
    """the method alone, or the method as the teacher of a student"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.teacher_learns:
            raise UserError("This method says how a teacher learns; for a frozen teacher use --method kd.")

    @property
    def chain(self) -> Sequence[str]:
        return ("student",) if self.variant == "plain" else ("teacher", "student")

    def determined_by(self, role: str) -> Literal["method"]:
        return "method"
