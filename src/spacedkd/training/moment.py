"""What a callback is told after every turn."""

from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from spacedkd.training.checkpoint import Position
from spacedkd.training.plan import Plan
from spacedkd.training.speed import Speed


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


class Moment(NamedTuple):
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


Callback = Callable[[Moment], None]


class Moments:
    """The moments of a run that is going on, with its clock."""

    def __init__(self, plan: Plan, position: Position, followed: Container[str] = ()) -> None:
        """Roles that are `followed` learn elsewhere, and take no time here."""
        self._plan, self._position, self._ends = plan, position, plan.turns.ends()
        done = plan.updates(position.turns)
        left = {role: count - done[role] for role, count in plan.turns.counts().items() if role not in followed}
        self.speed = Speed(left)

    def __call__(self, role: str, step: int, accuracy: float | None = None, waiting: str = "", *facts: Any) -> Moment:
        """After so many steps of a role; the facts are those that a moment has last."""
        if waiting:
            self.speed.waited()
        plan = self._plan
        where = (self._position.turns, len(plan.turns), role, step / plan.steps_per_epoch, accuracy, waiting)
        return Moment(*where, step, self._ends[role], plan.total_steps / plan.steps_per_epoch, *facts)
