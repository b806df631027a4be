"""The training loop: blocks of turns that roles take, and callbacks that follow them.

A role is trained in this run, or replayed from a trajectory that another run recorded; the loop cannot tell which.
Whatever only follows training (guard, cost, timer, journal, loggers, best student, checkpoint, progress, heartbeat) is
a callback; `session.Session` makes them, in the one order that their guarantees need.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from spacedkd.data.stream import Batch
from spacedkd.runs.checkpoint import Position
from spacedkd.schedule import Turn
from spacedkd.timeline import Block, Timeline

Scores = dict[str, dict[str, float]]
"""split of the data -> head -> accuracy"""


@dataclass
class StepResult:
    """The outcome of one step of a role."""

    losses: Mapping[str, float]
    """by name; the first look at one waits for the device"""
    lr: float
    images: int
    """in the global batch"""
    skipped: str = ""
    """which values were not finite, where the update was undone for that reason"""
    images_per_second: float | None = None
    """from which the role learned of late; the timer fills it in"""


class Event(NamedTuple):
    """The state of a run after a turn, or while it waits; the argument of the function `train(callback=...)` is given.

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
    """of the role's deepest head on the test images, if it was evaluated after this turn"""
    waiting: str = ""
    """what the run waits for, if it does not train because of it"""
    step: int = 0
    """batches the role has come to"""
    steps: int = 0
    """batches it will have come to at its last turn"""
    epochs: float = 0.0
    """epochs of the whole run"""
    losses: Mapping[str, float] = {}
    """of the turn, by name; reading one waits for the device, unless the turn was logged"""
    lr: float | None = None
    """the learning rate of the turn"""
    images_per_second: float | None = None
    """from which the role learned of late, without evaluating and saving"""
    seconds_left: float | None = None
    """until the end of the run at the pace so far, with evaluating and saving"""


EventFunction = Callable[[Event], None]
"""what `train(callback=...)` takes"""


class Role(Protocol):
    """A role of the method as the loop sees it; see `roles.TrainedRole` and `roles.ReplayedRole`."""

    def begin(self, block: Block, previous: str) -> Iterator[str]:
        """Prepare a block, and yield what is waited for until it can start.

        `previous` is the role of the block before it, or the role itself where a block is resumed in its middle.
        """

    def turns(self, block: Block) -> Iterable[Turn]:
        """Return the turns of a block that are taken in this run: all of them, or none where the role is replayed."""

    def step(self, turn: Turn, batches: Iterator[Batch]) -> StepResult:
        """Take one turn: losses of the next batch, backward, optimizer step, moving averages."""

    def evaluate(self, turn: Turn) -> Iterator[tuple[str, Scores]]:
        """Yield the accuracy of the role after a turn, and of what else is evaluated then, by name."""

    def finish(self) -> Iterator[str]:
        """Finish the run for this role, and yield what is waited for until that is done."""


class Callback:
    """A follower of the training loop; every method does nothing unless a subclass overrides it."""

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
        """Called again and again while the run waits before a turn, or, with None, when all turns are taken."""

    def on_stop(self) -> None:
        """Called when the run stops before its end."""

    def on_end(self) -> None:
        """Called when the run has come to its end."""


class StopFlag(Protocol):
    """Whether the run is to stop; equal in all processes (`distributed.CollectiveStop`)."""

    def poll(self) -> bool:
        """Return it after a turn."""

    def poll_waiting(self) -> bool:
        """Return it while the run waits."""


class Plan(Protocol):
    """The part of a `ResolvedRun` that the loop reads."""

    @property
    def timeline(self) -> Timeline: ...

    def evaluates(self, turn: Turn) -> bool: ...


def training_loop(
    run: Plan,
    position: Position,
    roles: Mapping[str, Role],
    batches: Iterator[Batch],
    callbacks: Callback,
    stop: StopFlag,
) -> Iterator[Turn]:
    """Take the turns of a run that are left, and yield each when it is done; end early when `stop` says so."""
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
            stops = stop.poll()
            callbacks.on_step(turn, result)
            if run.evaluates(turn):
                for model, scores in role.evaluate(turn):
                    callbacks.on_evaluate(turn, model, scores)
            callbacks.on_turn_end(turn)
            yield turn
            if stops and number < len(run.timeline):  # after the last turn there is nothing left to stop
                return callbacks.on_stop()
        previous = block.role
    for role in roles.values():
        for waiting in role.finish():
            callbacks.on_wait(None, waiting)
            if stop.poll_waiting():
                return callbacks.on_stop()
    position.turns, position.role = len(run.timeline), previous
    return callbacks.on_end()
