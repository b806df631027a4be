"""Averages of a model's weights over its updates, as functions of the step.

An average takes a share of the newest weights after every update:

    average <- average + share(step) (weights - average)

The share is a pure function of the step, so an average that is resumed continues with the bits it would have had.

>>> average = parse_average("poly:1")
>>> value = 0.0
>>> for step, weight in enumerate([6.0, 3.0, 12.0]):
...     value += average.share(step, total=3) * (weight - value)
>>> value  # (1 * 6 + 2 * 3 + 3 * 12) / 6
8.0
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from spacedkd.runtime.errors import UserError, check_between, format_value, unknown
from spacedkd.schedule import Duration, in_steps, parse_durations, steps_of

Share = Callable[[int], float]
"""the share of the newest weights that an average takes at a step"""


class Average(ABC):
    """An average of a model's weights over its updates; `str` gives the text that a spec has of it."""

    averages_batch_norm = False
    """whether BatchNorm's statistics are averaged like the weights unless a spec says otherwise"""

    @abstractmethod
    def share(self, step: int, total: int) -> float:
        """Return the share of the weights after the update of `step`, counted from 0, in a run of `total` steps."""


@dataclass(frozen=True)
class Polynomial(Average):
    """The polynomial-decay average of Shamir and Zhang (2013): weights after update k count as about k^power.

    The share at update k is (power + 1) / (k + power). A power of 0 is the mean of all weights, 1 counts them in
    proportion to k; the more, the sooner the beginning is forgotten.

    >>> [round(Polynomial(2).share(step, total=4), 3) for step in range(4)]
    [1.0, 0.75, 0.6, 0.5]
    """

    power: float = 2.0

    def __post_init__(self) -> None:
        check_between("The power of a poly average", self.power, 0, 1000)

    def share(self, step: int, total: int) -> float:
        return (self.power + 1) / (step + 1 + self.power)

    def __str__(self) -> str:
        return f"poly:{self.power:.12g}"


@dataclass(frozen=True)
class Exponential(Average):
    """The exponential moving average: average <- d average + (1 - d) weights, d = min(decay, (1 + step) / (10 + step)).

    The smaller d of the first steps keeps the random weights of the beginning from lingering.

    >>> Exponential(0.5).share(0, total=4), Exponential(0.5).share(20, total=40)
    (0.9, 0.5)
    """

    decay: float = 0.999

    averages_batch_norm = True

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1:
            raise UserError(f"ema must be a decay between 0 and 1, for instance 0.999; got {self.decay:g}.")

    def share(self, step: int, total: int) -> float:
        return 1 - min(self.decay, (1 + step) / (10 + step))

    def __str__(self) -> str:
        return f"ema:{self.decay:.12g}"


@dataclass(frozen=True)
class LastPart(Average):
    """The mean of the weights over the last part of a run, as in stochastic weight averaging (Izmailov et al., 2018).

    Before that part begins, the average is the newest weights themselves.

    >>> average = in_steps(LastPart("50%"), steps_per_epoch=2, total=6)
    >>> [round(average.share(step, total=6), 3) for step in range(6)]
    [1.0, 1.0, 1.0, 1.0, 0.5, 0.333]
    """

    length: Duration | str | int = "50%"

    def __post_init__(self) -> None:
        parse_durations(self, "length")
        if Duration.parse(self.length).amount == 0:
            raise UserError("A swa average needs a part of the run to average over, for instance swa:50%.")

    def share(self, step: int, total: int) -> float:
        start = total - steps_of(self.length)
        return 1.0 if step < start else 1 / (step - start + 1)

    def __str__(self) -> str:
        return f"swa:{self.length}"


EXAMPLES = {"poly": "poly:2", "ema": "ema:0.999", "swa": "swa:50%"}
"""the name of each kind of average -> an example, as a spec writes it"""


def parse_average(text: str) -> Average:
    """Return the average that a text names: poly:2, ema:0.999 or swa:50%; without a number it has these.

    >>> parse_average("poly")
    Polynomial(power=2.0)
    >>> str(parse_average("swa:10ep"))
    'swa:10ep'
    """
    name, colon, amount = text.strip().partition(":")
    if name not in EXAMPLES:
        raise unknown("average", name, EXAMPLES)
    amount = amount if colon else EXAMPLES[name].partition(":")[2]
    if name == "swa":
        return LastPart(amount)
    try:
        number = float(amount)
    except ValueError:
        raise UserError(
            f"The average {name} needs a number, for instance {EXAMPLES[name]}; got {format_value(text)}."
        ) from None
    return Polynomial(number) if name == "poly" else Exponential(number)


def average_so_far(text: str) -> Average:
    """Return the average of a teacher that a text names; one that begins late in the run is refused."""
    average = parse_average(text)
    if isinstance(average, LastPart):
        raise UserError(
            f"A student sees its teacher's average all along the run, and {average} begins with its last part: take "
            "poly:2 or ema:0.999."
        )
    return average


def average_share(average: Average, steps_per_epoch: int, total: int) -> Share:
    """Return the share at each step of a run of `total` steps; epochs and percent become steps here."""
    in_run = in_steps(average, steps_per_epoch, total)
    return lambda step: in_run.share(step, total)


BatchNormOfAverage = Literal["recompute", "average"]
"""BatchNorm's statistics of an average: recomputed from training batches, or averaged like the weights"""
STUDENT_AVERAGE = "average"
"""the name of the average of the student's weights among the models of a run"""


def batch_norm_of(average: Average, choice: BatchNormOfAverage | None) -> BatchNormOfAverage:
    """Return what becomes of BatchNorm's statistics; without a choice that is up to the kind of average."""
    return choice or ("average" if average.averages_batch_norm else "recompute")


def teacher_average_name(role: str, average: Average, choice: BatchNormOfAverage | None = None) -> str:
    """Return the name of the average of a teacher's weights among a run's models, and of its snapshots.

    >>> teacher_average_name("teacher", Polynomial(2))
    'teacher average poly-2'
    >>> teacher_average_name("teacher", Polynomial(2), "average")
    'teacher average poly-2 with BatchNorm averaged'
    """
    usual, how = batch_norm_of(average, None), batch_norm_of(average, choice)
    suffix = "" if how == usual else f" with BatchNorm {how.removesuffix('e')}ed"
    return f"{role} average {average}{suffix}".replace(":", "-")


class RoleAverage(NamedTuple):
    """An average of a role's weights that a run keeps."""

    role: str
    average: Average
    batch_norm: BatchNormOfAverage
    share: Share
    """in this run"""
