"""Schedules on the page: which role learned which step when, and accuracy against interval.

`schedule_section` draws every schedule as lines through turns and steps, small however long the run. `interval_section`
draws accuracy against interval, where arms differ in nothing else.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise, product
from statistics import fmean
from typing import NamedTuple, TypeVar

from spacedkd.comparison.document import Arm
from spacedkd.config.serialization import to_json, value_at
from spacedkd.config.spec import with_extensions
from spacedkd.reporting.charts import (
    Panel,
    Point,
    Tick,
    can_be_told_apart,
    domain,
    label,
    rounded,
    tick_values,
    ticks,
)
from spacedkd.reporting.findings import data_name, metric, metric_title, network_name
from spacedkd.reporting.formatting import (
    DASH,
    bounds,
    count,
    estimate,
    join_words,
    mean_and_bounds,
    percent,
    plain,
    plural,
)
from spacedkd.reporting.html import Markup, Titled, folded, grid, html_table, join, legend, note, numbers, tag
from spacedkd.reporting.plots import role_colours, role_legend
from spacedkd.reporting.table import Cell, Column, Table
from spacedkd.runs.result import Run
from spacedkd.schedule import Schedule, Spaced, interval_of, iter_turns, steps_of, with_defaults
from spacedkd.timeline import Block, group_turns

FINEST = 1.5
"""pixels between two blocks of a role below which they are drawn as one band"""
CROWDED = 24
"""maximum number of blocks that can be read; of more, the first few are drawn again, larger"""
ENLARGED = 3
"""intervals in the enlarged part"""
LINE = 2.6
"""width of a line in pixels"""


@dataclass
class Stroke:
    """An unbroken line of one role through (turn, step)."""

    role: str
    points: list[Point]
    merged: bool = False
    """drawn in place of many blocks with turns of other roles in between"""


@dataclass(frozen=True)
class Timetable:
    """One schedule in steps, and the arms that have it."""

    schedule: Schedule
    arms: Sequence[Arm]

    @property
    def run(self) -> Run:
        return self.arms[0].first

    @property
    def labels(self) -> list[str]:
        return [arm.label for arm in self.arms]

    @property
    def description(self) -> str:
        return self.arms[0].numbers["schedule"] or "every step once"

    @property
    def titles(self) -> tuple[str, str]:
        """The arms and what they share; the other way round where they are too many for a title."""
        if len(self.arms) < 4:
            return join_words(self.labels), self.description
        return f"{self.description}, {plural(len(self.arms), 'arm')}", join_words(self.labels)


def is_drawn(arm: Arm) -> bool:
    """Return whether an arm's turns can be drawn; a report runs no user code, so those of a user's schedule cannot."""
    schedule = arm.first.spec.schedule
    return schedule is None or with_defaults(schedule).is_imported()


def schedule_section(arms: Sequence[Arm]) -> Iterator[Markup]:
    """Yield the pictures of all schedules, and a table of them in steps."""
    drawn = [arm for arm in arms if is_drawn(arm)]
    if drawn:
        yield legend(role_legend(arms), "band")
        caption = (
            "Each line is a stretch of turns in which one role learns: time runs to the right, the data upwards, and a "
            "second line at the same height replays the same batches. In a two-coloured band turns alternate too "
            "fast to draw."
        )
        tables = timetables(drawn)
        yield grid(pictures(tables), caption)
        yield folded("The schedules in steps", html_table(_in_steps(tables)))
    if not_drawn := [arm.label for arm in arms if arm not in drawn]:
        yield note(f"Not drawn: {join_words(not_drawn)}. A report runs no user code.")


def _in_steps(tables: Sequence[Timetable]) -> Table:
    titles = ("Arms", "Schedule", "Interval, steps", "Steps of an epoch", "Steps of each role", "Turns")
    rows = []
    for table in tables:
        run, several = table.run, len(table.run.roles) > 1
        interval = count(run.interval) if several and run.interval is not None else DASH
        steps = (run.steps_per_epoch, run.total_steps, len(run.roles) * run.total_steps)
        rows.append([join_words(table.labels), table.description, interval, *map(count, steps)])
    return Table("", [Column(title, None) for title in titles], [[*map(Cell, row)] for row in rows], name="Schedules")


def timetables(arms: Sequence[Arm]) -> list[Timetable]:
    """Return every distinct schedule, with the arms that have it."""
    by_schedule: dict[str, list[Arm]] = {}
    for arm in arms:
        run = arm.first
        key = json.dumps([to_json(_schedule(run)), [*run.roles], run.steps_per_epoch, run.total_steps])
        by_schedule.setdefault(key, []).append(arm)
    return [Timetable(_schedule(alike[0].first), alike) for alike in by_schedule.values()]


def _schedule(run: Run) -> Schedule:
    """Return the schedule of a run in steps; a single role takes every step once, whatever the interval."""
    schedule = None if run.leader is None else run.spec.schedule
    return with_extensions(schedule or Spaced("100%"), run.spec.extends, run.steps_per_epoch, run.total_steps)


def strokes(blocks: Iterable[Block], finest: float) -> list[Stroke]:
    """Return blocks as lines; those of a role that follow each other by less than `finest` turns become one.

    >>> [(s.role, s.points) for s in strokes([Block("teacher", 0, [0, 1]), Block("student", 2, [0, 1])], 1)]
    [('teacher', [(0, 0), (2, 2)]), ('student', [(2, 0), (4, 2)])]
    """
    lines: list[Stroke] = []
    current: dict[str, Stroke] = {}
    for block in blocks:
        first, last = block.steps[0], block.steps[-1]
        start, end = (block.start, first), (block.start + last + 1 - first, last + 1)
        before = current.get(block.role)
        if before and start[0] - before.points[-1][0] < finest and start[1] == before.points[-1][1]:
            before.merged = True
            if before.points[-1][0] - before.points[-2][0] < finest:
                before.points.pop()
            before.points.append(end)
        else:
            current[block.role] = Stroke(block.role, [start, end])
            lines.append(current[block.role])
    return lines


def pictures(tables: Sequence[Timetable]) -> list[Titled]:
    """Return a picture for each schedule; those with equally long epochs share their axes, so that cost can be seen."""
    drawn = []
    for table in tables:
        alike = [other for other in tables if other.run.steps_per_epoch == table.run.steps_per_epoch]
        drawn.append((*table.titles, _picture(table, alike)))
    return drawn


def _picture(table: Timetable, alike: Sequence[Timetable]) -> Markup:
    run, runs = table.run, [other.run for other in alike]
    most_turns = max(len(other.roles) * other.total_steps for other in runs)
    panel = Panel((0, most_turns), (0, max(other.total_steps for other in runs)), right=14)
    per_epoch = run.steps_per_epoch
    epochs = tick_values(0, panel.y[1] / per_epoch, whole=panel.y[1] > 2 * per_epoch)
    frame = panel.frame(
        ticks(*panel.x, most=4, whole=True),
        [(epoch * per_epoch, plain(epoch)) for epoch in epochs],
        "turn (one optimizer update)",
        "step, in epochs",
    )
    drawn, paths = _draw_turns(table, panel, run.total_steps)
    interval = interval_of(table.schedule)
    if interval is not None and (len(drawn) > CROWDED or any(stroke.merged for stroke in drawn)):
        paths.append(_draw_enlarged(table, steps_of(interval), panel))
    who = " then ".join(run.roles) if len(run.roles) > 1 else f"{run.roles[0]} alone"
    length = f"{plain(run.total_steps / per_epoch)} epochs"
    return panel.draw(f"Turns of {join_words(table.labels)}: {who}, {table.description}, {length}.", frame, *paths)


def _draw_turns(table: Timetable, panel: Panel, steps: int) -> tuple[list[Stroke], list[Markup]]:
    """Return the lines of the first steps, and as markup a path for each role's bands, then for its single blocks.

    A band is wider than those of followers on top of it, so that all show.
    """
    finest = FINEST * (panel.x[1] - panel.x[0]) / (panel.to_x.stop - panel.to_x.start)  # in turns
    drawn = strokes(group_turns(iter_turns(table.schedule, table.run.roles, range(steps))), finest)
    groups: dict[tuple[bool, str], list[Stroke]] = {}
    for stroke in sorted(drawn, key=lambda stroke: not stroke.merged):
        groups.setdefault((stroke.merged, stroke.role), []).append(stroke)
    bands = [alike[0] for (merged, _), alike in groups.items() if merged]
    class_of, paths = role_colours(table.run.roles), []
    for number, alike in enumerate(groups.values()):
        lines = "".join(panel.path(stroke.points) for stroke in alike)
        width = LINE + 4 * sum(_coincide(alike[0], later, finest) for later in bands[number + 1 :])
        paths.append(tag("path", d=lines, class_=f"band {class_of[alike[0].role]}", stroke_width=width))
    return drawn, paths


def _coincide(stroke: Stroke, other: Stroke, finest: float) -> bool:
    """Return whether two bands lie on each other: they begin with the same step, too few turns apart to be seen."""
    (turn, step), (other_turn, other_step) = stroke.points[0], other.points[0]
    return step == other_step and abs(turn - other_turn) < finest


def _draw_enlarged(table: Timetable, interval: int, panel: Panel) -> Markup:
    """Return the first few intervals, in the corner that a run of many small blocks leaves empty."""
    steps = min(ENLARGED * interval, table.run.total_steps)
    start, top = panel.to_x(0.58 * panel.x[1]), panel.to_y(0.46 * panel.y[1])
    end, bottom = panel.to_x.stop - 2, panel.to_y.start - 6
    inner = Panel(
        x=(0, len(table.run.roles) * steps),
        y=(0, steps),
        width=panel.width,
        height=panel.height,
        left=start + 8,
        right=panel.width - end + 8,
        top=top + 20,
        bottom=panel.height - bottom + 7,
    )
    title = f"first {plural(math.ceil(steps / interval), 'interval')}"
    box = tag("rect", class_="inset", x=start, y=top, width=end - start, height=bottom - top, rx=3)
    return tag("g", box, label(title, start + 7, top + 14), *_draw_turns(table, inner, steps)[1])


# Accuracy against interval.

T = TypeVar("T")


class IntervalGroup(NamedTuple):
    """Arms that differ only in their interval, from the shortest to the longest."""

    title: str
    data: str
    arms: Sequence[Arm]

    @property
    def to_scale(self) -> bool:
        return can_be_told_apart(map(interval_in_epochs, self.arms))


def interval_in_epochs(arm: Arm) -> float:
    """Return an arm's interval in epochs; 0 where one network teaches itself at every update."""
    return (arm.first.interval or 0) / arm.first.steps_per_epoch


def interval_text(arm: Arm) -> str:
    """Return an arm's interval in the unit it was given in, which is named unless it is epochs."""
    interval = interval_of(arm.first.spec.schedule)
    if not arm.first.interval or interval is None:
        return "0"
    if interval.unit == "ep":
        return f"{interval.amount:g}"
    if interval.unit == "st":
        return plural(interval.amount, "step")
    return "offline" if interval.amount == 100 else f"{interval.amount:g} %"


def interval_groups(arms: Sequence[Arm]) -> list[IntervalGroup]:
    """Return every set of at least two arms with different intervals and all else equal."""
    by_rest: dict[str, list[Arm]] = {}
    for arm in arms:
        if arm.first.interval is not None:
            by_rest.setdefault(arm.first.all_but_spacing, []).append(arm)
    groups: dict[tuple[str, ...], IntervalGroup] = {}
    for alike in by_rest.values():
        kinds = [_kind(arm) for arm in alike]
        for variant, tail in product(*map(_distinct, zip(*kinds, strict=True))):
            fits = [mine in (None, variant) and ending in (None, tail) for mine, ending in kinds]
            members = sorted(compress(alike, fits), key=interval_in_epochs)
            if len({*map(interval_in_epochs, members)}) > 1:
                groups.setdefault(tuple(arm.label for arm in members), _group(members, variant))
    return [*groups.values()]


def _group(members: Sequence[Arm], variant: str | None) -> IntervalGroup:
    spec = members[0].first.spec
    method = spec.method.name + (f" ({variant})" if variant else "")
    return IntervalGroup(f"{method}, {network_name(spec.network)}", data_name(spec), members)


def _kind(arm: Arm) -> tuple[str | None, str | None]:
    """Return what neighbours on the interval axis must share: the variant, and how the schedule ends.

    None fits any: plain self KD is the interval 0 of every spaced variant, and blocks that divide the run have no tail.
    """
    run = arm.first
    if not run.interval:
        return None, None
    return run.variant, value_at(run.spec, "schedule.tail") if run.total_steps % run.interval else None


def _distinct(values: Iterable[str | None]) -> list[str | None]:
    """Return the distinct values, or only None where nothing else occurs."""
    return [value for value in dict.fromkeys(values) if value is not None] or [None]


def interval_section(arms: Sequence[Arm]) -> Iterator[Markup]:
    """Yield a picture for each group, or nothing where no arms differ in the interval alone."""
    groups = interval_groups(arms)
    if not groups:
        return
    panels = []
    for group in groups:
        alike = [other for other in groups if other.data == group.data]
        panels.append((group.title, group.data, _interval_picture(group, alike)))
    caption = (
        "Arms that differ in nothing but the interval. Large dot and line: mean over seeds and its 95 % interval; "
        "small dots: seeds. Interval 0 is self KD without spacing; one step is online KD. "
    )
    if not all(group.to_scale for group in groups):
        caption += "Where intervals differ too much for one scale they are evenly spread in their order. "
    if faster := [arm.label for arm in arms if _has_speed(arm)]:
        caption += f"Left out, because with a speed the same interval is another schedule: {join_words(faster)}."
    yield grid(panels, caption)


def _has_speed(arm: Arm) -> bool:
    schedule = arm.first.spec.schedule
    return schedule is not None and with_defaults(schedule).has_speed()


def _interval_picture(group: IntervalGroup, alike: Sequence[IntervalGroup]) -> Markup:
    """Return the picture of a group, which shares its y axis with the `alike` ones, on the same data.

    Intervals that are too close to each other are placed evenly, in their order.
    """
    every = [arm for other in alike for arm in other.arms]
    values = [value for arm in every for value in (*bounds(arm.numbers["last"]), *arm.by_seed.values())]
    intervals = [interval_in_epochs(arm) for arm in group.arms]
    order = sorted({*intervals})
    positions = intervals if group.to_scale else [order.index(interval) for interval in intervals]
    margin = 0.08 * (max(positions) - min(positions))
    area = Panel((min(positions) - margin, max(positions) + margin), rounded(*domain(values, 0, 1)), right=12)
    names = [*map(interval_text, group.arms)]
    results = [arm.numbers["last"] for arm in group.arms]
    spoken = ", ".join(f"{name}: {estimate(last)} %" for name, last in zip(names, results, strict=True))
    means = _by_position(positions, [last["mean"] for last in results])
    title = f"{metric_title(group.arms)} against interval, {group.title}. {spoken}."
    picture = area.draw(
        title,
        area.frame(
            _ticks(area, _by_position(positions, names)),
            area.percent_ticks(),
            "interval, epochs",
            f"{metric(group.arms)}, %",
        ),
        area.line([(position, fmean(at_once)) for position, at_once in means.items()], "all student"),
        *(
            area.estimate(position, last, arm.label, 4.5, arm.by_seed)
            for position, arm, last in zip(positions, group.arms, results, strict=True)
        ),
    )
    return join(picture, _interval_numbers(title, group))


def _ticks(area: Panel, names: Mapping[float, Sequence[str]]) -> list[Tick]:
    """Return a tick with all names of each interval; where neighbours would touch, with the shortest of each."""
    ticks = [(position, " = ".join(dict.fromkeys(texts))) for position, texts in names.items()]
    for (position, text), (following, other) in pairwise(ticks):
        if area.to_x(following) - area.to_x(position) < area.letter * (len(text) + len(other) + 1) / 2:
            return [(position, min(texts, key=len)) for position, texts in names.items()]
    return ticks


def _by_position(positions: Iterable[float], values: Iterable[T]) -> dict[float, list[T]]:
    """Return the values at each position: the same interval may have been given in several ways.

    >>> _by_position([0.2, 1.4, 1.4], "abc")
    {0.2: ['a'], 1.4: ['b', 'c']}
    """
    gathered: dict[float, list[T]] = {}
    for position, value in zip(positions, values, strict=True):
        gathered.setdefault(position, []).append(value)
    return gathered


def _interval_numbers(title: str, group: IntervalGroup) -> Markup:
    heads = ["interval", "in steps", "arm", "mean, %", "low, %", "high, %"]
    rows = [
        [interval_text(arm), str(arm.first.interval or 0), arm.label, *mean_and_bounds(arm.numbers["last"], percent)]
        for arm in group.arms
    ]
    return numbers(title, [(head, None) for head in heads], rows)
