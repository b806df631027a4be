"""How long something lasts, in epochs, steps or percent of a run, and the one place that turns it into steps."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

from spacedkd.errors import UserError, shown

_DURATION = re.compile(r"\s*([-+]?[\w.]+?)\s*(?:(st)|(ep|%)(\+?))\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Duration:
    """A length of training: `1.5ep` (epochs), `586st` (steps) or `100%` (of the run); `1.5ep+` is rounded up.

    >>> Duration.parse("1.5ep").in_steps(391, total=31280), Duration.parse("1.5ep+").in_steps(391, total=31280)
    (586, 587)
    >>> str(Duration.parse("4 ep"))
    '4ep'
    """

    amount: float
    unit: str
    up: bool = field(default=False, repr=False)
    """a part of a step counts as a whole one, where it is dropped otherwise"""

    @classmethod
    def parse(cls, text: Duration | str | int) -> Duration:
        """Read `1.5ep`, `586st` or `100%`; a bare whole number counts steps."""
        if isinstance(text, Duration):
            return text
        if isinstance(text, int) and not isinstance(text, bool) and abs(text) < 10**15:
            return cls(text, "st")
        match = _DURATION.fullmatch(text) if isinstance(text, str) else None
        try:
            amount, unit, up = float(match[1]), (match[2] or match[3]).lower(), bool(match[4])  # type: ignore[index]
        except (TypeError, ValueError):
            raise UserError(f"Cannot read {shown(text)} as a length of training: write 1.5ep, 586st or 50%.") from None
        return cls(amount, unit, up)

    def __post_init__(self) -> None:
        if not math.isfinite(self.amount) or self.amount < 0:
            raise UserError(f"A length of training must be a number from 0 up, got {self}. Write 1.5ep, 586st or 50%.")
        if self.unit == "st" and self.amount != int(self.amount):
            raise UserError(f"Steps are whole, got {self}. Write {math.ceil(self.amount)}st, or use epochs: 1.5ep.")

    def __str__(self) -> str:
        whole = math.isfinite(self.amount) and self.amount == int(self.amount)
        return f"{int(self.amount) if whole else self.amount}{self.unit}{'+' if self.up else ''}"

    def in_steps(self, steps_per_epoch: int, total: int) -> int:
        """This length in steps of a run of `total` steps; it must fit into the run."""
        steps = self.whole_steps(steps_per_epoch, total)
        if steps > total:
            epochs = total / steps_per_epoch
            raise UserError(
                f"{self} is longer than the run of {total} steps ({epochs:g} epochs): use at most {total}st."
            )
        if steps == 0 and self.amount > 0:
            raise UserError(f"{self} is less than one step; an epoch has {steps_per_epoch}. Use 1st or more.")
        return steps

    def as_period(self, steps_per_epoch: int, total: int) -> int:
        """The same for something that happens again and again: at the least every step, at the most once."""
        return min(max(self.whole_steps(steps_per_epoch, total), 1), total)

    def whole_steps(self, steps_per_epoch: int, total: int) -> int:
        """The one place where epochs and percent become steps; a part of a step is dropped, as in the paper's code."""
        whole = {"st": 1, "ep": steps_per_epoch, "%": total / 100}[self.unit]
        # 1e-9 keeps a product such as 0.29 * 100 = 28.999... from losing a step to the binary fraction.
        steps = min(self.amount * whole, 1e15)  # no run is longer, and infinity has no floor
        return math.ceil(steps - 1e-9) if self.up else math.floor(steps + 1e-9)


T = TypeVar("T")


def in_steps(plan: T, steps_per_epoch: int, total: int) -> T:
    """`plan`, a dataclass such as a schedule, with every duration in it written in steps.

    >>> from spacedkd.schedule import Spaced
    >>> in_steps(Spaced("1.5ep"), steps_per_epoch=391, total=31280).interval
    Duration(amount=586, unit='st')
    """

    def convert(value: Any, name: str) -> Any:
        if isinstance(value, Duration):
            try:
                return Duration(value.in_steps(steps_per_epoch, total), "st")
            except UserError as error:
                raise UserError(f"{name.capitalize()} {error}") from None
        if isinstance(value, tuple):
            return tuple(convert(item, name) for item in value)
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{f.name: convert(getattr(value, f.name), f.name) for f in fields(value) if f.init})
        return value

    converted: T = convert(plan, "")
    return converted


def parse_durations(plan: Any, *names: str) -> None:
    """Let a frozen dataclass take '1.5ep' where it keeps a Duration."""
    for name in names:
        value = getattr(plan, name)
        if value is not None:
            object.__setattr__(plan, name, Duration.parse(value))


def steps_of(value: Duration | str | int) -> int:
    """The steps of a duration that is written in steps already."""
    duration = Duration.parse(value)
    if duration.unit != "st":
        raise UserError(
            f"{duration} needs the length of an epoch: call in_steps(schedule, steps_per_epoch, total) first."
        )
    return int(duration.amount)
