"""The training loop: blocks of turns that roles take, and callbacks that follow them.

A role is trained in this run, or replayed from a trajectory that another run recorded; the loop cannot tell which.
Whatever only follows training (guard, cost, timer, journal, loggers, best student, recording, targets, checkpoint,
progress, heartbeat, the user's, result) is a callback; `session.Session` makes them, in the order that their guarantees
need.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from spacedkd.data.stream import Batch
from spacedkd.runs.checkpoint import Position
from spacedkd.schedule import Turn
from spacedkd.timeline import Block, Timeline


class Scores(dict[str, dict[str, float]]):
    """The metric that a run is judged by: split of the data -> head -> value. In classification it is the accuracy."""

    def __init__(self, scores: Mapping[str, dict[str, float]] = {}) -> None:
        super().__init__(scores)
        self.metric = "accuracy"
        """name of the metric"""
        self.others: dict[str, dict[str, dict[str, float]]] = {}
        """split -> head -> the task's other metrics by name; empty for classification"""


@dataclass
class StepResult:
    """The outcome of one step of a role."""

    losses: Mapping[str, float]
    """losses by name; reading one synchronises with the device"""
    lr: float
    images: int
    """number of images in the global batch"""
    skipped: str = ""
    """what was not finite ("loss", "gradients", "weights", "optimizer") if the update was skipped for it; else empty"""
    images_per_second: float | None = None
    """training speed of this role over the last 20 s; the timer sets it"""
    loss_scale: float | None = None
    """factor of the role's next loss in 16-mixed; None in other precisions"""


class Event(NamedTuple):
    """The state of a run after a turn, or while it waits: what the function of `train(callback=...)` is called with.

    >>> def callback(event: Event) -> None:
    ...     print(f"{event.role}: epoch {event.epoch:.1f} of {event.epochs:g}")
    """

    turn: int
    """turns that are done, of all roles"""
    turns: int
    """turns of the whole run"""
    role: str
    """the role that has learned"""
    epoch: float
    """passes over the training images that the role has made"""
    accuracy: float | None
    """accuracy of the role's deepest head on the test images, if it was evaluated after this turn"""
    waiting: str = ""
    """snapshot or process that the run waits for; empty while it trains"""
    step: int = 0
    """the step after the one that was learned: where no step is left out, the number of steps the role has done"""
    steps: int = 0
    """what `step` is after the role's last turn"""
    epochs: float = 0.0
    """epochs of the whole run"""
    losses: Mapping[str, float] = {}
    """losses of the turn by name; reading one synchronises with the device, unless the turn was logged"""
    lr: float | None = None
    """learning rate of the turn"""
    images_per_second: float | None = None
    """training speed of this role over the last 20 s, without evaluating and saving"""
    seconds_left: float | None = None
    """estimated seconds until the end of the run, with evaluating and saving"""
    metric: str = "accuracy"
    """title of the metric that `accuracy` is: another one in a task that is not classification"""


EventFunction = Callable[[Event], None]
"""the type of `train(callback=...)`"""


class Role(Protocol):
    """A role of the method as the loop sees it; see `roles.TrainedRole` and `roles.ReplayedRole`."""

    def begin(self, block: Block, previous: str) -> Iterator[str]:
        """Prepare a block; yield a description of what it waits for, again and again, until it can start.

        `previous` is the role of the block before it, or the role itself where a block is resumed in its middle.
        """

    def turns(self, block: Block) -> Iterable[Turn]:
        """Return the turns of a block that are taken in this run: all of them, or none where the role is replayed."""

    def step(self, turn: Turn, batches: Iterator[Batch]) -> StepResult:
        """Take one turn: losses of the next batch, backward, optimizer step, moving averages."""

    def evaluate(self, turn: Turn) -> Iterator[tuple[str, Scores]]:
        """Yield the accuracy of the role after a turn, and of other models that are evaluated then, by name."""

    def finish(self) -> Iterator[str]:
        """Finish the run for this role; yield a description of what it waits for until that is done."""


class Callback:
    """A follower of the training loop; every method does nothing unless a subclass overrides it.

    For one turn the loop calls `before_step`, `on_step`, then `on_evaluate` for each model that is evaluated after this
    turn, then `on_turn_end`. `on_log` and `on_event` are called from within these by other callbacks.
    """

    def before_step(self, turn: Turn) -> None:
        """Called before a role takes a turn."""

    def on_step(self, turn: Turn, result: StepResult) -> None:
        """Called after a role has taken a turn."""

    def on_evaluate(self, turn: Turn, model: str, scores: Scores) -> None:
        """Called for each model that was evaluated after a turn."""

    def writes_weights(self, turn: Turn) -> bool:
        """Return whether `on_turn_end` will write weights of this turn; equal in all processes."""
        return False

    def on_turn_end(self, turn: Turn) -> None:
        """Called when a turn is trained and evaluated."""

    def on_log(self, entry: Mapping[str, Any], images_per_second: float | None) -> None:
        """Called for each entry of the journal."""

    def on_event(self, event: Event) -> None:
        """Called with the progress of the run after every turn, and while it waits."""

    def on_wait(self, turn: Turn | None, waiting: str) -> None:
        """Called repeatedly while the run waits before a turn, or, with None, after the last turn."""

    def on_stop(self) -> None:
        """Called when the run stops before its end."""

    def on_end(self) -> None:
        """Called when the run has come to its end."""


class StopFlag(Protocol):
    """A flag that says whether the run is to stop; equal in all processes (`distributed.CollectiveStop`)."""

    def poll(self) -> bool:
        """Return the flag after a turn."""

    def poll_waiting(self) -> bool:
        """Return the flag while the run waits."""


class RunView(Protocol):
    """The part of a `ResolvedRun` that the loop reads."""

    @property
    def timeline(self) -> Timeline: ...

    def evaluates(self, turn: Turn) -> bool: ...


def training_loop(
    run: RunView,
    position: Position,
    roles: Mapping[str, Role],
    batches: Iterator[Batch],
    callbacks: Callback,
    stop: StopFlag,
) -> Iterator[Turn]:
    """Take the remaining turns of a run, and yield each when it is done; end early when a poll of `stop` is True."""
    previous = position.role
    for block in run.timeline.blocks(after=position.turns):
        role = roles[block.role]
        for waiting in role.begin(block, previous):  # for a snapshot of a teacher that is replayed
            callbacks.on_wait(Turn(block.role, block.steps[0]), waiting)
            if stop.poll_waiting():
                return callbacks.on_stop()
        for number, turn in enumerate(role.turns(block), block.start + 1):
            callbacks.before_step(turn)
            result = role.step(turn, batches)
            position.turns, position.role = number, turn.role
            must_stop = stop.poll()
            callbacks.on_step(turn, result)
            if run.evaluates(turn):
                for model, scores in role.evaluate(turn):
                    callbacks.on_evaluate(turn, model, scores)
            callbacks.on_turn_end(turn)
            yield turn
            if must_stop and number < len(run.timeline):  # after the last turn the run is not stopped but ended
                return callbacks.on_stop()
        previous = block.role
    for role in roles.values():
        for waiting in role.finish():
            callbacks.on_wait(None, waiting)
            if stop.poll_waiting():
                return callbacks.on_stop()
    position.turns, position.role = len(run.timeline), previous
    return callbacks.on_end()
