"""Who learned which step when: a schedule as a picture, small however long the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spacedkd.duration import in_steps, steps_of
from spacedkd.report.arms import Arm, colours
from spacedkd.report.axes import Panel, Point, label, tick_values, ticks
from spacedkd.report.markup import Markup, tag
from spacedkd.report.numbers import count, counted, listed, plain
from spacedkd.run import Run
from spacedkd.schedule import Schedule, Segment, Spaced, segments

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
            return listed(self.labels), self.words
        return f"{self.words}, {counted(len(self.arms), 'arm')}", listed(self.labels)

    @property
    def most_turns(self) -> int:
        return len(self.run.roles) * self.run.total_steps


def timetables(arms: Sequence[Arm]) -> list[Timetable]:
    """Every distinct schedule, with the arms that followed it."""
    found: dict[tuple[object, ...], list[Arm]] = {}
    for arm in arms:
        run = arm.first
        found.setdefault((_schedule(run), *run.roles, run.steps_per_epoch, run.total_steps), []).append(arm)
    return [Timetable(_schedule(alike[0].first), alike) for alike in found.values()]


def _schedule(run: Run) -> Schedule:
    """In steps; a single role takes every step once, whatever the interval."""
    asked = None if run.leader is None else run.spec.schedule
    return in_steps(asked or Spaced("100%"), run.steps_per_epoch, run.total_steps)


def strokes(blocks: Iterable[Segment], finest: float) -> list[Stroke]:
    """Blocks as lines; those of a role that follow each other by less than `finest` turns become one.

    >>> [(s.role, s.points) for s in strokes([Segment("teacher", 0, 0, 1), Segment("student", 2, 0, 1)], 1)]
    [('teacher', [(0, 0), (2, 2)]), ('student', [(2, 0), (4, 2)])]
    """
    done: list[Stroke] = []
    current: dict[str, Stroke] = {}
    for block in blocks:
        start = (block.turn, block.first)
        end = (block.turn + block.last + 1 - block.first, block.last + 1)
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


def pictures(tables: Sequence[Timetable]) -> list[Markup]:
    """A picture for each schedule; those with equally long epochs share their axes, so that cost can be seen."""
    return [
        _picture(table, [other for other in tables if other.run.steps_per_epoch == table.run.steps_per_epoch])
        for table in tables
    ]


def _picture(table: Timetable, alike: Sequence[Timetable]) -> Markup:
    panel = Panel((0, max(t.most_turns for t in alike)), (0, max(t.run.total_steps for t in alike)), right=14)
    per_epoch = table.run.steps_per_epoch
    finest = _finest(panel)
    drawn = _strokes(table, finest, table.run.total_steps)
    epochs = tick_values(0, panel.y[1] / per_epoch, whole=panel.y[1] > 2 * per_epoch)
    frame = panel.frame(
        ticks(*panel.x, count, most=4),
        [(epoch * per_epoch, plain(epoch)) for epoch in epochs],
        "turn (one optimizer update)",
        "step, in epochs",
    )
    class_of = colours(table.run.roles)
    parts = [frame, *_paths(drawn, finest, panel, class_of)]
    if isinstance(table.schedule, Spaced) and (len(drawn) > CROWDED or any(s.merged for s in drawn)):
        parts.append(_enlarged(table, table.schedule, panel, class_of))
    return panel.draw(_description(table), *parts)


def _strokes(table: Timetable, finest: float, steps: int) -> list[Stroke]:
    return strokes(segments(table.schedule.turns(table.run.roles, range(steps))), finest)


def _finest(panel: Panel) -> float:
    """The shortest gap that can be seen, in turns."""
    return FINEST * (panel.x[1] - panel.x[0]) / (panel.to_x.stop - panel.to_x.start)


def _paths(drawn: Sequence[Stroke], finest: float, panel: Panel, class_of: Mapping[str, str]) -> list[Markup]:
    """One path for each role and kind; a band is wider than those of followers on top of it, so that all show."""

    def path(role: str, found: Sequence[Stroke], width: float) -> Markup:
        lines = "".join(panel.path(one.points) for one in found)
        return tag("path", d=lines, class_=f"band {class_of[role]}", stroke_width=width)

    bands: dict[str, list[Stroke]] = {}
    blocks: dict[str, list[Stroke]] = {}
    for one in drawn:
        (bands if one.merged else blocks).setdefault(one.role, []).append(one)
    paths = []
    for place, (role, found) in enumerate(bands.items()):
        covering = sum(_coincide(found[0], later[0], finest) for later in [*bands.values()][place + 1 :])
        paths.append(path(role, found, LINE + 4 * covering))
    return paths + [path(role, found, LINE) for role, found in blocks.items()]


def _coincide(one: Stroke, other: Stroke, finest: float) -> bool:
    """Whether two bands lie on each other: they begin with the same step, too few turns apart to be seen."""
    (turn, step), (other_turn, other_step) = one.points[0], other.points[0]
    return step == other_step and abs(turn - other_turn) < finest


def _enlarged(table: Timetable, schedule: Spaced, panel: Panel, class_of: Mapping[str, str]) -> Markup:
    """The first few intervals, in the corner that a run of many small blocks leaves empty."""
    steps = min(ENLARGED * steps_of(schedule.interval), table.run.total_steps)
    left, top = panel.to_x(0.58 * panel.x[1]), panel.to_y(0.46 * panel.y[1])
    right, bottom = panel.to_x.stop - 2, panel.to_y.start - 6
    inner = Panel(
        (0, len(table.run.roles) * steps), (0, steps), panel.width, panel.height,
        left + 8, panel.width - right + 8, top + 20, panel.height - bottom + 7,
    )  # fmt: skip
    epochs = steps / table.run.steps_per_epoch
    words = f"first {plain(epochs)} epochs" if epochs >= 0.5 else f"first {counted(steps, 'step')}"
    box = tag("rect", class_="inset", x=left, y=top, width=right - left, height=bottom - top, rx=3)
    finest = _finest(inner)
    paths = _paths(_strokes(table, finest, steps), finest, inner, class_of)
    return tag("g", box, label(words, left + 7, top + 14), *paths)


def _description(table: Timetable) -> str:
    run = table.run
    who = " then ".join(run.roles) if len(run.roles) > 1 else f"{run.roles[0]} alone"
    epochs = plain(run.total_steps / run.steps_per_epoch)
    return f"Turns of {listed(table.labels)}: {who}, {table.words}, {epochs} epochs."
