"""Accuracy against interval: which arms differ in nothing else, so that a line through them means something."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from spacedkd.report.arms import Arm
from spacedkd.report.axes import Panel, Tick, confidence_bar, domain, line, percent_ticks, rounded
from spacedkd.report.markup import Markup, join, tag, text
from spacedkd.report.numbers import bounds, estimate, percent, plain
from spacedkd.report.words import data_name, network_name
from spacedkd.schedule import Spaced


@dataclass(frozen=True)
class Spacing:
    """An arm's place on the interval axis, and what its neighbours there must share with it."""

    arm: Arm
    interval: int
    """in steps; 0 where one network teaches itself at every update"""
    rest: str
    """everything else that decides the numbers"""
    variant: str | None
    """None fits any: plain self KD is the interval 0 of every spaced variant"""
    tail: str | None
    """None fits any: blocks that divide the run leave no tail"""

    @property
    def epochs(self) -> float:
        return self.interval / self.arm.first.steps_per_epoch

    def fits(self, variant: str | None, tail: str | None) -> bool:
        return self.variant in (None, variant) and self.tail in (None, tail)


@dataclass(frozen=True)
class Group:
    """Arms that differ only in their interval, from the shortest to the longest."""

    title: str
    data: str
    spacings: Sequence[Spacing]


def groups(arms: Sequence[Arm]) -> list[Group]:
    """Every set of at least two arms with different intervals and all else equal."""
    placed = [spacing for arm in arms if (spacing := _spacing(arm)) is not None]
    found: dict[tuple[str, ...], Group] = {}
    for rest in dict.fromkeys(spacing.rest for spacing in placed):
        alike = [spacing for spacing in placed if spacing.rest == rest]
        variants = _seen([spacing.variant for spacing in alike])
        for variant, tail in product(variants, _seen([spacing.tail for spacing in alike])):
            members = sorted((s for s in alike if s.fits(variant, tail)), key=lambda s: s.interval)
            if len({spacing.interval for spacing in members}) > 1:
                found.setdefault(tuple(s.arm.label for s in members), _group(members, variant))
    return [*found.values()]


def _group(members: Sequence[Spacing], variant: str | None) -> Group:
    spec = members[0].arm.first.spec
    method = spec.method.name + (f" ({variant})" if variant else "")
    return Group(f"{method}, {network_name(spec.network)}", data_name(spec), members)


def _seen(values: Sequence[str | None]) -> list[str | None]:
    """The distinct values, or only None where nothing else occurs."""
    return [value for value in dict.fromkeys(values) if value is not None] or [None]


def _spacing(arm: Arm) -> Spacing | None:
    """None where the arm has no interval: another kind of schedule, or a single role that nobody teaches."""
    run = arm.first
    if run.interval is None:
        return None
    if run.interval == 0:
        return Spacing(arm, 0, run.all_but_spacing, None, None)
    assert isinstance(run.spec.schedule, Spaced)
    tail = None if run.total_steps % run.interval == 0 else run.spec.schedule.tail
    return Spacing(arm, run.interval, run.all_but_spacing, run.variant, tail)


def interval_panels(found: Sequence[Group]) -> list[Markup]:
    """Accuracy against interval, a picture for each group; groups on the same data share their y axis."""
    return [_interval_panel(group, [other for other in found if other.data == group.data]) for group in found]


def _interval_panel(group: Group, alike: Sequence[Group]) -> Markup:
    arms = [spacing.arm for one in alike for spacing in one.spacings]
    values = [v for arm in arms for v in (*(bounds(arm.numbers["last"]) or ()), *arm.by_seed.values())]
    places = _interval_places(group.spacings)
    margin = 0.08 * (max(places) - min(places))
    panel = Panel((min(places) - margin, max(places) + margin), rounded(*domain(values, 0, 1)), right=12)
    ticks = [Tick(place, _in_epochs(s)) for place, s in zip(places, group.spacings, strict=True)]
    frame = panel.frame(ticks, percent_ticks(panel), "interval, epochs", "accuracy, %")
    means = [(place, s.arm.numbers["last"]["mean"]) for place, s in zip(places, group.spacings, strict=True)]
    dots = [_dot(panel, place, s.arm) for place, s in zip(places, group.spacings, strict=True)]
    words = ", ".join(f"{_in_epochs(s)}: {estimate(s.arm.numbers['last'])} %" for s in group.spacings)
    return panel.draw(
        f"Accuracy against interval in epochs, {group.title}. {words}.",
        frame,
        line(panel.place(means), "all student"),
        *dots,
    )


def to_scale(spacings: Sequence[Spacing]) -> bool:
    """Whether intervals can be told apart on a linear axis; offline is often forty times the next one."""
    intervals = sorted({spacing.epochs for spacing in spacings})
    nearest = min(b - a for a, b in pairwise(intervals))
    return nearest / (intervals[-1] - intervals[0]) > 0.1


def _interval_places(spacings: Sequence[Spacing]) -> list[float]:
    """In epochs, or evenly in their order where epochs would lie on top of each other."""
    if to_scale(spacings):
        return [spacing.epochs for spacing in spacings]
    order = sorted({spacing.interval for spacing in spacings})
    return [float(order.index(spacing.interval)) for spacing in spacings]


def _in_epochs(spacing: Spacing) -> str:
    return "1 step" if spacing.interval == 1 else plain(round(spacing.epochs, 2))


def _dot(panel: Panel, place: float, arm: Arm) -> Markup:
    x = panel.to_x(place)
    seeds = [
        tag(
            "circle",
            tag("title", text(f"seed {seed}: {percent(value)}")),
            class_="seed",
            cx=x + 7,
            cy=panel.to_y(value),
            r=2.2,
        )
        for seed, value in arm.by_seed.items()
    ]
    mean = tag(
        "circle", tag("title", text(arm.label)), class_="mean", cx=x, cy=panel.to_y(arm.numbers["last"]["mean"]), r=4.5
    )
    return join(confidence_bar(panel, x, bounds(arm.numbers["last"])), *seeds, mean)
