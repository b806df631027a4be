"""Measured numbers, all arms side by side: tables with a line for each number, pictures of how accuracy falls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spacedkd.report import Arm
from spacedkd.report.axes import Panel, domain, rounded
from spacedkd.report.markup import NOTHING, Markup, framed_table, panel, tag, text
from spacedkd.report.numbers import DASH, MINUS, PLUS_MINUS, bounds, count, percent, plain, points
from spacedkd.report.words import how, verdict


@dataclass(frozen=True)
class Measure:
    """One number as all arms have it."""

    title: str
    unit: str
    """percent or number"""
    better: str | None
    """high, low, or None where neither is"""
    arms: Mapping[str, Mapping[str, Any]]

    def written(self, value: float, near: float) -> str:
        """A value with as many decimals as give the number `near` three digits; percent always with one."""
        if self.unit == "percent":
            return percent(value)
        return count(value) if abs(near) >= 1000 else f"{value:.{_decimals(near)}f}".replace("-", MINUS)

    def signed(self, value: float, near: float) -> str:
        if self.unit == "percent":
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


def table(name: str, shown: Sequence[Measure], arms: Sequence[Arm], against: str) -> Markup:
    """A line for each measure; arms that have none of them get no column."""
    columns = [arm for arm in arms if any(arm.label in one.arms for one in shown)]
    heads = ["", *(f"{arm.label} (reference)" if arm.label == against else arm.label for arm in columns)]
    rows = [[_title(one), *(_cell(one, one.arms.get(arm.label)) for arm in columns)] for one in shown]
    return framed_table(name, heads, rows)


def _title(measure: Measure) -> Markup:
    unit = ", %" if measure.unit == "percent" else ""
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
    below = [] if difference is None else [_difference(measure, difference, near)]
    return tag("td", tag("b", text(measure.written(near, near))), tag("span", text(half), class_="half"), *below)


def _difference(measure: Measure, difference: Mapping[str, Any], near: float) -> Markup:
    gain = measure.signed(difference["mean"], near)
    if difference["low"] is None:
        return tag("small", text(f"{gain} (one seed)"))
    judged = measure.judged(difference)
    bounds = f" ({measure.signed(difference['low'], near)} to {measure.signed(difference['high'], near)})"
    mean = text(gain) if judged is None else tag("b", text(f"{gain} {judged}"), class_=judged)
    return tag("small", mean, tag("span", text(bounds), class_="range"))


def levels_panels(
    arms: Sequence[Arm], against: str, at: Mapping[float, Measure], x_title: str, y_title: str
) -> list[Markup]:
    """A picture for each arm that was measured at the levels of the reference, all on the same axes.

    Levels lie evenly in their order. Where the reference was not measured, the first arm that was takes its place.
    """
    of = {arm.label: [level for level in sorted(at) if arm.label in at[level].arms] for arm in arms}
    levels = next((mine for mine in (of[against], *of.values()) if len(mine) > 1), [])
    if not levels:
        return []
    found = {
        label: [at[level].arms[label]["estimate"] for level in levels]
        for label, mine in of.items()
        if {*levels} <= {*mine}
    }
    values = [v for estimates in found.values() for one in estimates for v in (one["mean"], *(bounds(one) or ()))]
    area = Panel((-0.2, len(levels) - 0.8), rounded(*domain(values, 0, 1)), right=14)
    frame = area.frame([*enumerate(map(plain, levels))], area.percent_ticks(), x_title, y_title)
    means = {label: [(place, one["mean"]) for place, one in enumerate(estimates)] for label, estimates in found.items()}
    dashed = area.line(means[against], "all leader") if against in means else NOTHING

    def picture(label: str) -> Markup:
        dots = [
            area.estimate(place, one, f"{at[level].title}: {percent(one['mean'])} %", 3.6)
            for place, (level, one) in enumerate(zip(levels, found[label], strict=True))
        ]
        said = ", ".join(f"{plain(level)}: {percent(y)} %" for level, (_, y) in zip(levels, means[label], strict=True))
        lines = NOTHING if label == against else dashed, area.line(means[label], "all student")
        return area.draw(f"Accuracy of {label} at each level. {said}.", frame, *lines, *dots)

    return [panel(arm.label, how(arm.numbers), picture(arm.label)) for arm in arms if arm.label in found]
