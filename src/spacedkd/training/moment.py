"""What somebody who watches a run is told."""

from collections.abc import Callable
from typing import NamedTuple


class Moment(NamedTuple):
    """What a callback is told after every turn."""

    turn: int
    turns: int
    role: str
    epoch: float
    accuracy: float | None
    """of the role's deepest head on the test images, when it has just been measured"""
    waiting: str = ""
    """for what, when nothing is learned because of it"""


Callback = Callable[[Moment], None]
