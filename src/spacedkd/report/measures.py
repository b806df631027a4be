"""Tables of measured numbers: a line for each number, a column for each arm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spacedkd.report.arms import Arm
from spacedkd.report.markup import Markup, framed_table, tag, text
from spacedkd.report.numbers import DASH, MINUS, PLUS_MINUS, count, percent, points
from spacedkd.report.words import verdict


@dataclass(frozen=True)
class Measure:
    """One number as all arms have it."""

    title: str
    is_percent: bool
    better: str | None
    """high, low, or None where neither is"""
    arms: Mapping[str, Mapping[str, Any]]

    def written(self, value: float, near: float) -> str:
        """A value with as many decimals as give the number `near` three digits; percent always with one."""
        if self.is_percent:
            return percent(value)
        return count(value) if abs(near) >= 1000 else f"{value:.{_decimals(near)}f}".replace("-", MINUS)

    def signed(self, value: float, near: float) -> str:
        if self.is_percent:
            return points(value)
        return ("+" if value > 0 else "") + self.written(value, near)

    def judged(self, difference: Mapping[str, Any]) -> str | None:
        """`better` or `worse` where the whole interval is on one side of zero and one side is the better one."""
        found = verdict(difference)
        if found not in ("better", "worse") or self.better is None:
            return None
        if self.better == "high":
            return found
        return "worse" if found == "better" else "better"


def _decimals(near: float) -> int:
    """How many decimals three digits take.

    >>> [_decimals(number) for number in (153.0, 31.1, 0.32, 0.0181, 0)]
    [0, 1, 3, 4, 3]
    """
    return max(0, 2 - math.floor(math.log10(abs(near)))) if near else 3


def measures(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, Measure]:
    return {
        key: Measure(one["title"], one["unit"] == "percent", one["better"], one["arms"]) for key, one in metrics.items()
    }


def table(name: str, shown: Sequence[Measure], arms: Sequence[Arm], against: str) -> Markup:
    """A line for each measure; arms that have none of them get no column."""
    columns = [arm for arm in arms if any(arm.label in one.arms for one in shown)]
    heads = ["", *(f"{arm.label} (reference)" if arm.label == against else arm.label for arm in columns)]
    rows = [[_title(one), *(_cell(one, one.arms.get(arm.label)) for arm in columns)] for one in shown]
    return framed_table(name, heads, rows)


def _title(measure: Measure) -> Markup:
    unit = ", %" if measure.is_percent else ""
    hint = [tag("small", text("lower is better"))] if measure.better == "low" else []
    return tag("th", text(measure.title + unit), *hint, scope="row")


def _cell(measure: Measure, found: Mapping[str, Any] | None) -> Markup:
    if found is None:
        return tag("td", text(DASH), class_="none")
    value, difference = found["estimate"], found["difference"]
    near = value["mean"]
    half = ""
    if value["low"] is not None:
        half = f" {PLUS_MINUS} {measure.written((value['high'] - value['low']) / 2, near)}"
    mean = tag("b", text(measure.written(near, near)))
    below = [] if difference is None else [_difference(measure, difference, near)]
    return tag("td", mean, tag("span", text(half), class_="half"), *below)


def _difference(measure: Measure, difference: Mapping[str, Any], near: float) -> Markup:
    gain = measure.signed(difference["mean"], near)
    if difference["low"] is None:
        return tag("small", text(f"{gain} (one seed)"))
    judged = measure.judged(difference)
    bounds = f" ({measure.signed(difference['low'], near)} to {measure.signed(difference['high'], near)})"
    mean = text(gain) if judged is None else tag("b", text(f"{gain} {judged}"), class_=judged)
    return tag("small", mean, tag("span", text(bounds), class_="range"))
