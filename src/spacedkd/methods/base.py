"""The protocol of a distillation method: its roles, its models, and the loss of each role.

A method is a frozen dataclass whose fields are its options. The training loop asks it, turn by turn, for the losses of
the role that learns, and does everything else: batches, devices, optimizers, evaluation, checkpoints.

    roles          ("teacher", "student"): from the first to learn a batch to the last
    models(...)    the models by name, built once
    losses(...)    the named losses of one turn; the role learns from their sum

These three are enough: see `examples/own_method.py`. Everything else in `Method` has a default. The smallest method
here is `no_kd.py`, the one most others build on is `kd.py`. A method of this package also has `card`, `paper`,
`weights` and `source`, from which its page in docs/methods is made.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from torch import Tensor, nn

from spacedkd.config.spec import NetworkSpec
from spacedkd.data.inputs import Inputs
from spacedkd.data.stream import Batch, View
from spacedkd.runtime.errors import UserError
from spacedkd.schedule import Duration, Schedule
from spacedkd.task import CLASSIFICATION, Task

Models = Mapping[str, nn.Module]
"""the models of a run by name, as `Method.models` built them"""
Losses = Mapping[str, Tensor]
"""the losses of one turn by name, already weighted; the role learns from their sum"""


class Progress(NamedTuple):
    """The position of a turn in its run, for losses that change over time.

    >>> Progress(step=250, steps_per_epoch=100, total_steps=1000).epoch
    2
    """

    step: int
    """the step whose batch is learned, counted from 0"""
    steps_per_epoch: int
    total_steps: int
    """the length of the run; a method that uses it returns True from `Method.depends_on_length`"""
    gather: Callable[[Tensor], Tensor] = lambda rows: rows
    """concatenates a tensor's rows from all processes, for a memory of the whole batch"""
    micro_batch: int = 0
    """the number of this part of the batch, where gradients are accumulated; work done once per update belongs to 0"""
    is_replay: Callable[[], bool] = lambda: False
    """returns whether this turn is part of a replay, that is, in a block of several turns or with the first role
    ahead of it; False in online training (`Timeline.is_replay`). A function, because the answer needs all turns"""
    task: Task = CLASSIFICATION
    """what is learned: `progress.task.label_loss(logits, labels)` is the loss of the labels in any task"""

    @property
    def epoch(self) -> int:
        """The epoch this step belongs to, counted from 0."""
        return self.step // self.steps_per_epoch


class MakeNetwork(Protocol):
    """A function that returns a new network for a role.

    Roles are known by position: the last role has the run's `network`, all others have its `teacher` network if there
    is one, and else `network` too.
    """

    def __call__(
        self,
        role: str,
        *,
        fresh: bool = False,
        frozen: bool = False,
        like: str | None = None,
        spec: NetworkSpec | None = None,
    ) -> nn.Module:
        """Return a new network.

        role      the role the network is for
        fresh     draw initial weights of its own, even where all roles start from the same ones
        frozen    the network will not learn: refuse one that has no trained weights for the classes of the data
        like      build the network of this other role
        spec      build the network that this spec names

        Of the networks that learn, only those of the first and the last role start from trained weights.
        """


class Ingredients(NamedTuple):
    """The parts a method builds its models from, and the facts of the run they depend on."""

    network: MakeNetwork
    """makes the network of a role: `ingredients.network("student")`"""
    sample: Inputs
    """two items of the data, for modules that take their sizes from an example"""
    classes: int = 0
    """the number of classes"""
    images: int = 0
    """the number of training items: images, or items of a user's dataset"""
    batch_size: int = 0
    """the size of a whole batch, over all processes"""
    mixed: bool = False
    """whether mixup or cutmix makes one image of two, so that a prediction belongs to no single image"""
    micro_batches: int = 1
    """the number of parts a batch is computed in, where gradients are accumulated"""


class Card(NamedTuple):
    """A method's entry in `spacedkd list methods` and on its page in the docs: who teaches, and how it is spaced."""

    kind: str
    """who teaches: a teacher, the network itself, or peers"""
    when_spaced: Mapping[str, Any] = {}
    """options that `--interval` implies, for a method that has only one role without them"""


class Method(Protocol):
    """A distillation method: roles, the model each role updates, and the losses it learns from.

    In a turn the training loop puts the role's model into train mode and all others into eval mode, calls `losses`,
    and updates the role's model alone. Compute what a role learns *from* under `torch.no_grad()`:

        @dataclass(frozen=True)
        class LogitMatching(Method):
            roles = ("teacher", "student")
            weight: float = 1.0  # an option: --set method.weight=0.5

            def models(self, ingredients):
                return {role: Classifier(ingredients.network(role)) for role in self.roles}

            def losses(self, role, models, batch, progress):
                (own,) = models[role](batch.inputs)
                losses = {"label": cross_entropy(own.logits, batch.labels)}
                if role == "student":
                    with torch.no_grad():
                        (teacher,) = models["teacher"](batch.inputs)
                    losses["logit"] = self.weight * mse_loss(own.logits, teacher.logits)
                return losses
    """

    if TYPE_CHECKING:
        # A method has these as class attributes, or as properties where they depend on its options. Type checkers take
        # both only for Any: pyright refuses an attribute in place of a property, and mypy the other way round.
        roles: Any
        learners: Any = {}
        tasks: Any = ("classification",)
        frozen: Any = ()
        depends_on_length: Any = False
    else:

        @property
        def roles(self) -> Sequence[str]:
            """Return the roles, from the one that learns a block first to the one that replays it last.

            Names are free; positions count: the first of several leads, the last is the student.
            """

        @property
        def learners(self) -> Mapping[str, str]:
            """Return the name of the model each role updates; by default the model has the role's name.

            The last role's model is the student that is reported and saved.
            """
            return {role: role for role in self.roles}

        @property
        def tasks(self) -> Sequence[str]:
            """Return the tasks that the method can learn (`spacedkd.task`), as an attribute of its own class."""
            return ("classification",)

        @property
        def frozen(self) -> Sequence[str]:
            """Return the names of trained models that never learn; they are evaluated like the others."""
            return ()

        @property
        def depends_on_length(self) -> bool:
            """Return whether losses depend on `Progress.total_steps`: then a run cannot be extended exactly."""
            return False

    def models(self, ingredients: Ingredients) -> dict[str, nn.Module]:
        """Build every model the method needs, by name.

        A model that no role updates stays frozen. A memory is such a model: the method writes its buffers, and they
        are saved and restored like those of all others.
        """

    def losses(self, role: str, models: Models, batch: Batch, progress: Progress) -> Losses:
        """Return the named, weighted losses of one turn; the role learns from their sum."""

    def determined_by(self, role: str) -> Literal["labels", "method"] | None:
        """Return what determines a role's weights at each update, besides the settings of the run.

        "labels"  plain training on the labels, whatever the method: runs of different methods may share this teacher
        "method"  the method's options, and the roles before this one
        None      a later role too: the weights cannot be recorded apart from it
        """
        return None

    def views(self, role: str, step: int) -> Sequence[View]:
        """Return the augmented batches a turn needs: the first becomes `batch`, the rest `batch.others`."""
        return (View(step),)

    def learns_for(self, role: str) -> Duration:
        """Return how far into the run a role learns; from then on its model is frozen and only teaches."""
        return Duration(100, "%")

    def check_task(self, task: str) -> None:
        """Raise `UserError` for a task that the method cannot learn: one that its own `tasks` does not name.

        `tasks` is not inherited: a class that overrides the losses of another may know classes alone.
        """
        tasks = vars(type(self)).get("tasks", ("classification",))
        if task not in tasks:
            raise UserError(
                f"Method {type(self).__name__} learns {', '.join(tasks)}, not task {task}. Methods none, kd, hinton, "
                'eskd, takd, ban do; one of yours names its own: tasks = ("classification", "regression", "dense").'
            )

    def check_schedule(self, schedule: Schedule) -> None:
        """Raise `UserError` for a schedule, written in steps, that the method cannot use."""
        return

    def on_block_start(self, role: str, models: Models) -> None:
        """Run before the first turn of every block that `role` learns in this run; to copy a teacher, for instance."""
        return
