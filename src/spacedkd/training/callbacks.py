"""What a callback is told after every turn."""

import math
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from spacedkd.config.resolve import ResolvedRun
from spacedkd.runs.checkpoint import Position

# How fast a run goes, by the clock of the process that trains it; nothing of this is in the journal.

MEMORY_SECONDS = 20.0
"""of learning, after which little is remembered of how fast it was before"""


class Speed:
    """Images a second of each role, and the seconds a run will still take.

    No device is waited for: where one computes beside the host, losses that are written down keep them together.
    """

    def __init__(self, left: Mapping[str, int]) -> None:
        """Of the turns that are `left` to each role."""
        self.left = Counter(left)
        self._taken: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}
        self._images: dict[str, tuple[float, float]] = {}
        self._began = self._ended = time.monotonic()

    def begin(self) -> None:
        """A turn begins."""
        self._began = time.monotonic()

    def learned(self, role: str, images: int) -> float:
        """A turn of a role has learned from so many images; gives its images a second."""
        took = time.monotonic() - self._began
        seen, seconds = self._images.get(role, (0.0, 0.0))
        keep = math.exp(-took / MEMORY_SECONDS)
        seen, seconds = seen * keep + images, seconds * keep + took
        self._images[role] = seen, seconds
        return seen / max(seconds, 1e-9)

    def ended(self, role: str) -> float:
        """A turn of a role has come to its end, with all that was done after it; gives the seconds that are left."""
        now = time.monotonic()
        self._seconds[role] = self._seconds.get(role, 0.0) + now - self._ended
        self._taken[role] += 1
        self.left[role] -= 1
        self._ended = now
        return self.seconds_left()

    def waited(self) -> None:
        """What has gone by since the last turn was no work of ours."""
        self._ended = time.monotonic()

    def seconds_left(self) -> float:
        """A role that has not learned yet is taken to be as fast as the others are."""
        usual = sum(self._seconds.values()) / max(self._taken.total(), 1)
        pace = {role: self._seconds[role] / self._taken[role] for role in self._taken}
        return sum(count * pace.get(role, usual) for role, count in self.left.items() if count > 0)


# What a callback is told after every turn.


class LossValues(Mapping[str, float]):
    """A turn's losses by name, copied from the device when somebody first looks at one: training waits for nothing."""

    def __init__(self, found: Mapping[str, Tensor]) -> None:
        self._found: Mapping[str, Any] = {name: loss.detach() for name, loss in found.items()}

    def __getitem__(self, name: str) -> float:
        if isinstance(self._found[name], Tensor):
            self._found = {name: float(loss) for name, loss in self._found.items()}
        return float(self._found[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> Any:  # to another process
        return dict, (dict(self),)


class Event(NamedTuple):
    """What a callback is told after every turn."""

    turn: int
    """turns done, of all roles"""
    turns: int
    """of the whole run"""
    role: str
    """who has learned"""
    epoch: float
    """passes over the training images that the role has made"""
    accuracy: float | None
    """of the role's deepest head on the test images, when it has just been measured"""
    waiting: str = ""
    """for what, when nothing is learned because of it"""
    step: int = 0
    """batches the role has come to"""
    steps: int = 0
    """that it will have come to at its last turn"""
    epochs: float = 0.0
    """of the whole run"""
    losses: Mapping[str, float] = {}
    """of the turn, by name; looking at them waits for the device, unless they were just written down"""
    lr: float | None = None
    """the learning rate of the turn"""
    images_per_second: float | None = None
    """that the role learns from, of late; evaluating and saving do not count"""
    seconds_left: float | None = None
    """until the end of the run, at the pace of each role so far, with evaluating and saving"""


Callback = Callable[[Event], None]


class Events:
    """The moments of a run that is going on, with its clock."""

    def __init__(self, plan: ResolvedRun, position: Position, followed: Container[str] = ()) -> None:
        """Roles that are `followed` learn elsewhere, and take no time here."""
        self._plan, self._position, self._ends = plan, position, plan.timeline.ends()
        done = plan.updates(position.turns)
        left = {role: count - done[role] for role, count in plan.timeline.counts().items() if role not in followed}
        self.speed = Speed(left)

    def __call__(self, role: str, step: int, accuracy: float | None = None, waiting: str = "", *facts: Any) -> Event:
        """After so many steps of a role; the facts are those that a moment has last."""
        if waiting:
            self.speed.waited()
        plan = self._plan
        where = (self._position.turns, len(plan.timeline), role, step / plan.steps_per_epoch, accuracy, waiting)
        return Event(*where, step, self._ends[role], plan.total_steps / plan.steps_per_epoch, *facts)
