"""What a distillation method is: who learns, and from which losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from spacedkd.data.stream import Batch

Models = Mapping[str, nn.Module]


class Progress(NamedTuple):
    """Where in the run a turn lies, for what changes during it."""

    step: int
    steps_per_epoch: int
    total_steps: int

    @property
    def epoch(self) -> int:
        """The epoch this step belongs to, counted from 0."""
        return self.step // self.steps_per_epoch


class Ingredients(NamedTuple):
    """What a method builds its models from."""

    network: Callable[[str], nn.Module]
    """a fresh timm network for a role"""
    sample: Tensor
    """two images of the data, for modules that size themselves"""


class Method(Protocol):
    """Roles, the model each of them updates, and the losses they learn from.

    The loop does the rest: it puts the role's model into train mode and all others into eval mode, and updates
    only the role's model. What a role learns *from* is computed under `torch.no_grad()`.
    """

    @property
    def roles(self) -> Sequence[str]:
        """From the one that leads to the one that follows."""
        ...

    @property
    def learners(self) -> Mapping[str, str]:
        """The model each role updates; its namesake unless a method says otherwise.

        The last role's model is the student that is reported and saved.
        """
        return {role: role for role in self.roles}

    def models(self, given: Ingredients) -> dict[str, nn.Module]:
        """Build every model the method needs, by name."""
        ...

    def losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> Mapping[str, Tensor]:
        """The named, weighted losses of one turn; the role learns from their sum."""
        ...

    def take_over(self, role: str, models: Models) -> None:
        """Called when a role begins a stretch of turns, before its first."""
        return
