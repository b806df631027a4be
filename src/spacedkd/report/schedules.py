"""The picture of a schedule: which role learned which step when; it is small, however long the run."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from spacedkd.config.serialization import to_json
from spacedkd.config.spec import with_extensions
from spacedkd.report.arms import Arm, role_colours, role_legend
from spacedkd.report.charts import Panel, Point, label, tick_values, ticks
from spacedkd.report.formatting import DASH, count, join_words, plain, plural
from spacedkd.report.html import Markup, Titled, folded, grid, html_table, legend, note, tag
from spacedkd.report.table import Cell, Column, Table
from spacedkd.runs.result import Run
from spacedkd.schedule import Schedule, Spaced, interval_of, iter_turns, steps_of, with_defaults
from spacedkd.timeline import Block, group_turns

FINEST = 1.5
"""pixels between two blocks of a role below which they are drawn as one band"""
CROWDED = 24
"""so many blocks are too small to be read: the first few are drawn again, larger"""
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
    """stands for many blocks with turns of other roles in between"""


@dataclass(frozen=True)
class Timetable:
    """One schedule in steps, and the arms that followed it."""

    schedule: Schedule
    arms: Sequence[Arm]

    @property
    def run(self) -> Run:
        return self.arms[0].first

    @property
    def labels(self) -> list[str]:
        return [arm.label for arm in self.arms]

    @property
    def words(self) -> str:
        return self.arms[0].numbers["schedule"] or "every step once"

    @property
    def titles(self) -> tuple[str, str]:
        """The arms and what they share; the other way round where they are too many for a title."""
        if len(self.arms) < 4:
            return join_words(self.labels), self.words
        return f"{self.words}, {plural(len(self.arms), 'arm')}", join_words(self.labels)


def is_drawn(arm: Arm) -> bool:
    """Whether an arm's turns are known; those of a user's schedule are not, because a report runs no user code."""
    schedule = arm.first.spec.schedule
    return schedule is None or with_defaults(schedule).is_imported()


def section(arms: Sequence[Arm]) -> Iterator[Markup]:
    """The pictures of all schedules, and what they are in steps."""
    known = [arm for arm in arms if is_drawn(arm)]
    if known:
        yield legend(role_legend(arms), "band")
        caption = (
            "Each line is a stretch of turns in which one role learns: time runs to the right, the data upwards, and a "
            "second line at the same height replays the same batches. In a two-coloured band turns alternate too "
            "fast to draw."
        )
        found = timetables(known)
        yield grid(pictures(found), caption)
        yield folded("The schedules in steps", html_table(_in_steps(found)))
    if own := [arm.label for arm in arms if arm not in known]:
        yield note(f"Not drawn: {join_words(own)}. A report runs no user code.")


def _in_steps(tables: Sequence[Timetable]) -> Table:
    titles = ("Arms", "Schedule", "Interval, steps", "Steps of an epoch", "Steps of each role", "Turns")
    rows = []
    for table in tables:
        run, several = table.run, len(table.run.roles) > 1
        interval = count(run.interval) if several and run.interval is not None else DASH
        steps = (run.steps_per_epoch, run.total_steps, len(run.roles) * run.total_steps)
        rows.append([join_words(table.labels), table.words, interval, *map(count, steps)])
    return Table("", [Column(title, None) for title in titles], [[*map(Cell, row)] for row in rows], name="Schedules")


def timetables(arms: Sequence[Arm]) -> list[Timetable]:
    """Every distinct schedule, with the arms that followed it."""
    found: dict[str, list[Arm]] = {}
    for arm in arms:
        run = arm.first
        key = json.dumps([to_json(_schedule(run)), [*run.roles], run.steps_per_epoch, run.total_steps])
        found.setdefault(key, []).append(arm)
    return [Timetable(_schedule(alike[0].first), alike) for alike in found.values()]


def _schedule(run: Run) -> Schedule:
    """In steps; a single role takes every step once, whatever the interval."""
    asked = None if run.leader is None else run.spec.schedule
    return with_extensions(asked or Spaced("100%"), run.spec.extends, run.steps_per_epoch, run.total_steps)


def strokes(blocks: Iterable[Block], finest: float) -> list[Stroke]:
    """Blocks as lines; those of a role that follow each other by less than `finest` turns become one.

    >>> [(s.role, s.points) for s in strokes([Block("teacher", 0, [0, 1]), Block("student", 2, [0, 1])], 1)]
    [('teacher', [(0, 0), (2, 2)]), ('student', [(2, 0), (4, 2)])]
    """
    done: list[Stroke] = []
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
            done.append(current[block.role])
    return done


def pictures(tables: Sequence[Timetable]) -> list[Titled]:
    """A picture for each schedule; those with equally long epochs share their axes, so that cost can be seen."""
    return [
        (*table.titles, _picture(table, [o for o in tables if o.run.steps_per_epoch == table.run.steps_per_epoch]))
        for table in tables
    ]


def _picture(table: Timetable, alike: Sequence[Timetable]) -> Markup:
    run, runs = table.run, [other.run for other in alike]
    most_turns = max(len(one.roles) * one.total_steps for one in runs)
    panel = Panel((0, most_turns), (0, max(one.total_steps for one in runs)), right=14)
    per_epoch = run.steps_per_epoch
    epochs = tick_values(0, panel.y[1] / per_epoch, whole=panel.y[1] > 2 * per_epoch)
    frame = panel.frame(
        ticks(*panel.x, most=4, whole=True),
        [(epoch * per_epoch, plain(epoch)) for epoch in epochs],
        "turn (one optimizer update)",
        "step, in epochs",
    )
    drawn, paths = _drawn(table, panel, run.total_steps)
    interval = interval_of(table.schedule)
    if interval is not None and (len(drawn) > CROWDED or any(stroke.merged for stroke in drawn)):
        paths.append(_enlarged(table, steps_of(interval), panel))
    who = " then ".join(run.roles) if len(run.roles) > 1 else f"{run.roles[0]} alone"
    length = f"{plain(run.total_steps / per_epoch)} epochs"
    return panel.draw(f"Turns of {join_words(table.labels)}: {who}, {table.words}, {length}.", frame, *paths)


def _drawn(table: Timetable, panel: Panel, steps: int) -> tuple[list[Stroke], list[Markup]]:
    """The first steps: their strokes, and a path for each role's bands, then one for each role's single blocks.

    A band is wider than those of followers on top of it, so that all show.
    """
    finest = FINEST * (panel.x[1] - panel.x[0]) / (panel.to_x.stop - panel.to_x.start)  # in turns
    drawn = strokes(group_turns(iter_turns(table.schedule, table.run.roles, range(steps))), finest)
    groups: dict[tuple[bool, str], list[Stroke]] = {}
    for one in sorted(drawn, key=lambda one: not one.merged):
        groups.setdefault((one.merged, one.role), []).append(one)
    bands = [found[0] for (merged, _), found in groups.items() if merged]
    class_of, paths = role_colours(table.run.roles), []
    for place, found in enumerate(groups.values()):
        lines = "".join(panel.path(one.points) for one in found)
        width = LINE + 4 * sum(_coincide(found[0], later, finest) for later in bands[place + 1 :])
        paths.append(tag("path", d=lines, class_=f"band {class_of[found[0].role]}", stroke_width=width))
    return drawn, paths


def _coincide(one: Stroke, other: Stroke, finest: float) -> bool:
    """Whether two bands lie on each other: they begin with the same step, too few turns apart to be seen."""
    (turn, step), (other_turn, other_step) = one.points[0], other.points[0]
    return step == other_step and abs(turn - other_turn) < finest


def _enlarged(table: Timetable, interval: int, panel: Panel) -> Markup:
    """The first few intervals, in the corner that a run of many small blocks leaves empty."""
    steps = min(ENLARGED * interval, table.run.total_steps)
    left, top = panel.to_x(0.58 * panel.x[1]), panel.to_y(0.46 * panel.y[1])
    right, bottom = panel.to_x.stop - 2, panel.to_y.start - 6
    inner = Panel(
        (0, len(table.run.roles) * steps), (0, steps), panel.width, panel.height,
        left + 8, panel.width - right + 8, top + 20, panel.height - bottom + 7,
    )  # fmt: skip
    words = f"first {plural(math.ceil(steps / interval), 'interval')}"
    box = tag("rect", class_="inset", x=left, y=top, width=right - left, height=bottom - top, rx=3)
    return tag("g", box, label(words, left + 7, top + 14), *_drawn(table, inner, steps)[1])
