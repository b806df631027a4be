"""A network that learns in its own way, alone or as the teacher of another.

plain      one network, the student; this is the method itself, and there is nothing to space
taught     the teacher learns by the method, and a student network is taught by it as in `kd`: the form the paper
           spaces. Only the teacher's turns advance what the method remembers
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from spacedkd.data.stream import Batch
from spacedkd.errors import UserError
from spacedkd.methods.kd import KD
from spacedkd.methods.method import Models, Progress


@dataclass(frozen=True)
class Taught(KD):
    """What methods by which one network learns share; the weights are those of a taught student's loss."""

    variant: Literal["plain", "taught"] = "plain"
    """the method alone, or the method as the teacher of a student"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.teacher_learns:
            raise UserError("This method says how a teacher learns; for one that stands still use --method kd.")

    @property
    def chain(self) -> Sequence[str]:
        return ("student",) if self.variant == "plain" else ("teacher", "student")

    def losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> Mapping[str, Tensor]:
        if role == self.chain[0]:
            return self.own_losses(role, models, batch, progress)
        return super().losses(role, models, batch, progress)

    def own_losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> Mapping[str, Tensor]:
        """What the method itself learns from."""
        raise NotImplementedError
