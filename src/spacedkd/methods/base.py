"""What a distillation method is: who learns, from which losses, and what is remembered."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from torch import Tensor, nn

from spacedkd.config.spec import NetworkSpec
from spacedkd.data.inputs import Inputs
from spacedkd.data.stream import Batch, View
from spacedkd.schedule import Duration, Schedule

Models = Mapping[str, nn.Module]
Losses = Mapping[str, Tensor]
"""named and weighted; a role learns from their sum"""


class Progress(NamedTuple):
    """Where in the run a turn lies, for what changes during it."""

    step: int
    steps_per_epoch: int
    total_steps: int
    gather: Callable[[Tensor], Tensor] = lambda rows: rows
    """the rows of all processes together, for what must be remembered of the whole batch"""
    part: int = 0
    """of the batch, where an update computes it in parts; what happens once for each update happens with the first"""
    is_replay: Callable[[], bool] = lambda: False
    """whether the turn belongs to a replay: in unspaced training no turn does; a function, because the answer needs a
    look at all turns of the run"""

    @property
    def epoch(self) -> int:
        """The epoch this step belongs to, counted from 0."""
        return self.step // self.steps_per_epoch


class MakeNetwork(Protocol):
    """A new network for a role.

    Roles are known by their place: the last one has the run's own network, and all others have the teacher's, if the
    run has one.
    """

    def __call__(
        self,
        role: str,
        *,
        fresh: bool = False,
        fixed: bool = False,
        like: str | None = None,
        spec: NetworkSpec | None = None,
    ) -> nn.Module:
        """The role's own network, one `like` another role's, or the one `spec` names.

        With `fresh` it gets initial weights of its own even where all roles start from the same ones. A `fixed` one
        will not learn, so it must be trained already, for the classes of the data. Of the others only the first and
        the last role start from trained weights.
        """


class Ingredients(NamedTuple):
    """What a method builds its models from."""

    network: MakeNetwork
    sample: Inputs
    """two items of the data, for modules that size themselves"""
    classes: int = 0
    images: int = 0
    """how many items the training data has"""
    batch_size: int = 0
    """of a whole batch, over all processes"""
    mixed: bool = False
    """whether images are mixtures of two, so that a prediction belongs to no single one"""
    parts: int = 1
    """in how many parts an update computes its batch"""


class Card(NamedTuple):
    """What methods of one family have in common."""

    kind: str
    """who teaches: a teacher, the network itself, or peers"""
    when_spaced: Mapping[str, Any] = {}
    """options that make the method one that can be spaced"""


class Method(Protocol):
    """Roles, the model each of them updates, and the losses they learn from.

    The loop does the rest: it puts the role's model into train mode and all others into eval mode, and updates
    only the role's model. What a role learns *from* is computed under `torch.no_grad()`.
    """

    @property
    def roles(self) -> Sequence[str]:
        """From the one that leads to the one that follows; names are the method's own, places are what counts."""

    @property
    def learners(self) -> Mapping[str, str]:
        """The model each role updates; its namesake unless a method says otherwise.

        The last role's model is the student that is reported and saved.
        """
        return {role: role for role in self.roles}

    @property
    def fixed(self) -> Sequence[str]:
        """Models that are trained already and never learn; they are measured too."""
        return ()

    @property
    def knows_length(self) -> bool:
        """Whether losses depend on how long the run is, `Progress.total_steps`: a run made longer would have others."""
        return False

    def models(self, given: Ingredients) -> dict[str, nn.Module]:
        """Build every model the method needs, by name.

        A model that is nobody's learner stands still. Memory is such a model: its buffers are whatever the method
        writes there, and they are saved with all the others.
        """

    def losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> Losses:
        """The named, weighted losses of one turn; the role learns from their sum."""

    def path(self, role: str) -> Literal["labels", "method"] | None:
        """What decides a role's weights after so many updates, besides the settings of the run.

        "labels" is plain training on them, whatever the method; "method" is the method's options, and who comes before.
        None is a role that listens to one that comes after it: its path cannot be had without them.
        """
        return None

    def views(self, role: str, step: int) -> Sequence[View]:
        """What a turn looks at: `batch` is the first, `batch.others` are the rest."""
        return (View(step),)

    def learns_for(self, role: str) -> Duration:
        """How far into the run a role learns; from then on it stands still and teaches as it is."""
        return Duration(100, "%")

    def check_schedule(self, schedule: Schedule) -> None:
        """Refuse a schedule, written in steps, that the method cannot follow."""
        return

    def take_over(self, role: str, models: Models) -> None:
        """Called when a role begins a stretch of turns, before its first."""
        return
