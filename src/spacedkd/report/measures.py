"""Measured numbers, all arms side by side: tables with a line for each number, pictures of how accuracy falls."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spacedkd.report import Arm
from spacedkd.report.axes import Panel, domain, rounded
from spacedkd.report.markup import Markup, grid, html_table, join, numbers, tag
from spacedkd.report.numbers import DASH, MINUS, PLUS_MINUS, Found, bounds, count, percent, plain, points, three_digits
from spacedkd.report.table import Cell, Column, Table
from spacedkd.report.words import how, verdict

LEVELS = "Solid: mean of the arm over seeds, with its 95 % interval. Dashed: mean of {}. Levels are evenly spread."


@dataclass(frozen=True)
class Measure:
    """One number as all arms have it."""

    title: str
    unit: str
    """percent or number"""
    better: str | None
    """high, low, or None where neither is"""
    arms: Mapping[str, Found]

    def written(self, value: float, near: float) -> str:
        """A value with as many decimals as give the number `near` three digits; percent always with one."""
        if self.unit == "percent":
            return percent(value)
        return count(value) if abs(near) >= 1000 else f"{value:.{three_digits(near)}f}".replace("-", MINUS)

    def signed(self, value: float, near: float) -> str:
        if self.unit == "percent":
            return points(value)
        return ("+" if value > 0 else "") + self.written(value, near)

    def judged(self, difference: Found) -> str | None:
        """`better` or `worse` where the whole interval is on one side of zero and one side is the better one."""
        found = verdict(difference)
        if found not in ("better", "worse") or self.better is None:
            return None
        if self.better == "high":
            return found
        return "worse" if found == "better" else "better"

    def cell(self, label: str) -> Cell:
        """What an arm has of it, and below how far that is from the reference."""
        if label not in self.arms:
            return Cell(DASH, absent=True)
        value, difference = self.arms[label]["estimate"], self.arms[label]["difference"]
        near = value["mean"]
        half = f" {PLUS_MINUS} {self.written((value['high'] - value['low']) / 2, near)}" if bounds(value) else ""
        below = None if difference is None else self._difference(difference, near)
        return Cell(self.written(near, near), half=half, strong=True, below=below)

    def _difference(self, difference: Found, near: float) -> str:
        gain = self.signed(difference["mean"], near)
        if not bounds(difference):
            return f"{gain} (one seed)"
        judged = self.judged(difference)
        interval = " to ".join(self.signed(bound, near) for bound in bounds(difference))
        mean = gain if judged is None else tag("b", f"{gain} {judged}", class_=judged)
        return join(mean, tag("span", f" ({interval})", class_="range"))


class Evaluation(NamedTuple):
    """What was measured, of whom, and whom the others are compared with."""

    found: Found
    measured: Mapping[str, Measure]
    arms: Sequence[Arm]
    against: str

    def of(self, instrument: str) -> dict[str, Measure]:
        return {key: one for key, one in self.measured.items() if key.startswith(f"{instrument}/")}

    def table(self, name: str, measures: Iterable[Measure]) -> Markup:
        """A line for each measure; arms that have none of them get no column."""
        shown = [*measures]
        labels = [arm.label for arm in self.arms if any(arm.label in one.arms for one in shown)]
        heads = ["", *(f"{label} (reference)" if label == self.against else label for label in labels)]
        rows = []
        for one in shown:
            unit, hint = ", %" if one.unit == "percent" else "", "lower is better" if one.better == "low" else None
            rows.append([Cell(one.title + unit, below=hint), *map(one.cell, labels)])
        return html_table(Table(name, [Column(head, None) for head in heads], rows, name=name))

    def response(self, of: str, clean: str, x_title: str, said: str, y_title: str = "accuracy, %") -> Markup:
        """How accuracy falls with the levels of the measures `of`/level, from the clean measure on.

        A picture for each arm that was measured at the levels of the reference, all on the same axes; levels lie evenly
        in their order. Where the reference was not measured, the first arm that was takes its place.
        """
        at = {0.0: self.measured[clean]}
        at |= {float(key.split("/")[2]): one for key, one in self.of(of).items() if not key.endswith("/loss")}
        had = {arm.label: [level for level in sorted(at) if arm.label in at[level].arms] for arm in self.arms}
        levels = next((mine for mine in (had[self.against], *had.values()) if len(mine) > 1), [])
        if not levels:
            return Markup()
        found = {
            label: [at[level].arms[label]["estimate"] for level in levels]
            for label, mine in had.items()
            if {*levels} <= {*mine}
        }
        values = [v for estimates in found.values() for one in estimates for v in (one["mean"], *bounds(one))]
        area = Panel((-0.2, len(levels) - 0.8), rounded(*domain(values, 0, 1)), right=14)
        frame = area.frame([*enumerate(map(plain, levels))], area.percent_ticks(), x_title, y_title)
        lines = {label: [(place, one["mean"]) for place, one in enumerate(mine)] for label, mine in found.items()}
        dashed = area.line(lines[self.against], "all leader") if self.against in lines else ""

        def picture(label: str) -> Markup:
            means = [percent(one["mean"]) for one in found[label]]
            dots = [
                area.estimate(place, one, f"{at[level].title}: {mean} %", 3.6)
                for place, (level, one, mean) in enumerate(zip(levels, found[label], means, strict=True))
            ]
            reached = ", ".join(f"{plain(level)}: {mean} %" for level, mean in zip(levels, means, strict=True))
            drawn = "" if label == self.against else dashed, area.line(lines[label], "all student")
            said = f"Accuracy of {label} at each level. {reached}."
            return join(area.draw(said, frame, *drawn, *dots), _numbers(said, x_title, levels, found[label]))

        pictures = [(arm.label, how(arm.numbers), picture(arm.label)) for arm in self.arms if arm.label in found]
        return grid(pictures, f"{said} {LEVELS.format(self.against)}")


def _numbers(said: str, x_title: str, levels: Sequence[float], reached: Sequence[Found]) -> Markup:
    heads = (x_title, "mean, %", "low, %", "high, %")
    rows = (
        [plain(level), percent(one["mean"]), *(map(percent, bounds(one)) if bounds(one) else (DASH, DASH))]
        for level, one in zip(levels, reached, strict=True)
    )
    return numbers(said, [(head, None) for head in heads], rows)
