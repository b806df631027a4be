"""Pictures of arms: learning curves and losses, alone and on one axis, and results as dots with intervals.

`curves` has a picture for each arm; `accuracy_charts` and `loss_charts` have all arms on one axis, with a `chooser`
that hides some of them; `roles_chart` and `role_losses` have the roles of a single arm. `accuracies` and `gains` set
results side by side, each as a dot and its 95 % interval (`forest`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from spacedkd.comparison.document import Arm
from spacedkd.reporting.charts import (
    MOST_POINTS,
    Axis,
    Line,
    Panel,
    Point,
    Scale,
    apart,
    chart,
    domain,
    dot,
    label,
    rounded,
    thinned,
    tick_values,
    ticks,
)
from spacedkd.reporting.findings import leader_name, method_and_schedule, metric, metric_title
from spacedkd.reporting.formatting import (
    DASH,
    Write,
    bounds,
    decimals,
    estimate,
    mean_and_bounds,
    percent,
    percent_tick,
    plain,
    points,
)
from spacedkd.reporting.html import MANY, SHOWN, Markup, Titled, numbers, tag
from spacedkd.runs.journal import Curve
from spacedkd.runs.result import Run
from spacedkd.runs.schema import Estimate, PairedDifference

COLOURS = 8
"""number of colours for arms; lines of further arms are dashed"""
DASHES = 3
SETTLED = {"accuracy": 0.5, "loss": 0.25}
"""the part of a run after which the axis has room for everything"""
BANDS = 4
"""maximum number of intervals in one picture; those of more lines are in the numbers alone"""
GAIN = Axis("difference, points", decimals(2), zero=True)
LOSS = Axis("loss", lambda value: f"{value:.4g}")


@dataclass(frozen=True)
class ArmPair:
    """An arm and the arm that it is compared with."""

    index: int
    """of the arm on the page, which decides the colour of its lines"""
    name: str
    """of its row or line"""
    arm: Arm
    base: Arm
    difference: PairedDifference | None


def _axis(runs: Sequence[Run]) -> Axis:
    """Return the axis of the metric that runs are judged by; only R² may be below zero."""
    least = float("-inf") if runs[0].spec.task == "regression" else 0
    return Axis(f"{runs[0].spec.metric_title}, %", decimals(2), least=least, most=100)


def _least(arms: Sequence[Arm], values: Iterable[float]) -> float:
    """Return the least value of the metric on an axis, as a part of one; R² below -1 has room where all of it is."""
    if arms[0].first.spec.task != "regression":
        return 0
    return -1 if max(values) > -1 else float("-inf")


def role_colours(roles: Sequence[str]) -> dict[str, str]:
    """Return the style class of each role, by its position in the chain.

    >>> role_colours(["mentor", "helper", "pupil"]), role_colours(["alone"])
    ({'mentor': 'leader', 'helper': 'middle-1', 'pupil': 'student'}, {'alone': 'student'})
    """
    middle = [f"middle-{index % 2 + 1}" for index in range(len(roles) - 2)]
    return dict(zip(roles, ["leader", *middle, "student"][-len(roles) :], strict=True))


def role_legend(arms: Sequence[Arm]) -> list[tuple[str, str]]:
    """Return every role of the page with its class, leaders first."""
    pairs = dict.fromkeys(pair for arm in arms for pair in role_colours(arm.first.roles).items())
    return sorted(pairs, key=lambda pair: ("leader", "middle-1", "middle-2", "student").index(pair[1]))


# Learning curves of each arm.


def curves(arms: Sequence[Arm]) -> list[Titled]:
    """Return the accuracy after each epoch, a picture for each arm, all on the same axes."""
    every = [curve for arm in arms for run in arm.runs for curve in run.accuracy_curves.values()]
    epochs = max(epoch for curve in every for epoch in curve)
    values = [value for curve in every for value in curve.values()]
    area = Panel((0, epochs), rounded(*domain(values, _least(arms, values), 1)))
    return [(arm.label, method_and_schedule(arm.numbers), _curves_of(arm, area)) for arm in arms]


def _curves_of(arm: Arm, area: Panel) -> Markup:
    thin, thick, ends = [], [], []
    class_of = role_colours(arm.first.roles)
    for role in reversed(
        arm.first.roles
    ):  # the dashed leader is drawn over the student, so that both of two equal curves are seen
        by_seed = [run.accuracy_curves[role] for run in arm.runs if role in run.accuracy_curves]
        if len(by_seed) > 1:
            thin += [area.line(_points(curve, area), f"one {class_of[role]}") for curve in by_seed]
        if mean := mean_curve(by_seed):
            thick.append(area.line(_points(mean, area), f"all {class_of[role]}"))
            ends.append((role, max(mean.items())))
    described = ", ".join(f"{role} {percent(value)} % after {plain(epoch)} epochs" for role, (epoch, value) in ends)
    frame = area.frame(ticks(*area.x, whole=area.x[1] > 2), area.percent_ticks(), "epoch", f"{metric([arm])}, %")
    labels = _end_labels([(class_of[role], end) for role, end in ends], area)
    return area.draw(f"Learning curves of {arm.label}: {described}.", frame, *thin, *thick, *labels)


def _end_labels(ends: Sequence[tuple[str, Point]], area: Panel) -> list[Markup]:
    """Return the last value of each line at its end, moved apart where two would touch."""
    heights = apart([area.to_y(value) for _, (_, value) in ends], 13, area.top, area.height - area.bottom)
    return [
        label(percent(value), area.to_x(epoch) + 5, height + 4, class_=f"end {class_}")
        for (class_, (epoch, value)), height in zip(ends, heights, strict=True)
    ]


def mean_curve(by_seed: Sequence[Curve]) -> Curve:
    """Return the mean curve over the epochs at which every seed was measured."""
    shared = sorted(set(by_seed[0]).intersection(*by_seed)) if by_seed else []
    return {epoch: sum(curve[epoch] for curve in by_seed) / len(by_seed) for epoch in shared}


def _points(curve: Curve, area: Panel) -> list[Point]:
    """Return the points of a line; what lies below or above a panel is at its edge, because panels do not clip."""
    low, high = area.y
    return [(x, min(max(y, low), high)) for x, y in thinned(sorted(curve.items()), MOST_POINTS)]


# All arms on one axis.


def arm_key(index: int) -> str:
    """Return the class that shows and hides the lines of an arm, by its index."""
    return f"arm-{index}"


def arm_colour(index: int) -> str:
    """Return the classes that give the lines of an arm their colour and dashes, by its index."""
    return f"k{index % COLOURS} d{index // COLOURS % DASHES}"


def chooser(arms: Sequence[Arm], against: str) -> Markup:
    """Return a check box for each arm, next to its line; of very many arms only a few are shown at first."""
    few = len(arms) <= MANY
    items = []
    for index, arm in enumerate(arms):
        shown = few or index < SHOWN or arm.label == against
        box = tag("input", type="checkbox", id=f"show-{arm_key(index)}", checked="" if shown else None)
        line = tag("path", d="M0 5L30 5", class_=f"all {arm_colour(index)}")
        items.append(tag("label", box, tag("svg", line, viewBox="0 0 30 10", aria_hidden="true"), arm.label))
    return tag("fieldset", tag("legend", "Arms shown"), *items, class_="chooser")


def chooser_style(arms: Sequence[Arm]) -> str:
    """Return the style rules that hide the arms whose box is not ticked: no script is needed for that."""
    keys = map(arm_key, range(len(arms)))
    return "".join(f"body:has(#show-{key}:not(:checked)) g.{key} {{ display: none; }}\n" for key in keys)


def accuracy_charts(arms: Sequence[Arm], against: str) -> Iterator[Titled]:
    """Yield the student's accuracy, the difference to the named arm, and the accuracy of the roles that lead."""
    students = [
        _line(index, arm, [run.accuracy_curves[run.roles[-1]] for run in arm.runs]) for index, arm in enumerate(arms)
    ]
    area = "; area: from the lowest seed to the highest" if len(students) <= BANDS else ""
    yield "Student", f"mean over seeds{area}", _metric_chart("student", arms, students)
    base = next(arm for arm in arms if arm.label == against)
    others = pairs_with(base, arms)
    if drawn := differences(others, f"Difference to {against} after each epoch"):
        interval = "; area: 95 % interval" if len(others) <= BANDS else ""
        yield f"Difference to {against}", f"mean over seeds, paired by seed{interval}", drawn
    leaders = [
        _line(index, arm, [run.accuracy_curves[run.roles[0]] for run in arm.runs])
        for index, arm in enumerate(arms)
        if arm.first.leader is not None and all(run.roles[0] in run.accuracy_curves for run in arm.runs)
    ]
    if leaders:
        name = leader_name([arm.numbers for arm in arms])
        remark = f"mean over seeds{area}; arms with the same one coincide"
        yield name.capitalize(), remark, _metric_chart(name, arms, leaders)


def pairs_with(base: Arm, arms: Sequence[Arm]) -> list[ArmPair]:
    """Return every other arm together with the one that all are compared with."""
    return [
        ArmPair(index, arm.label, arm, base, arm.numbers["difference"])
        for index, arm in enumerate(arms)
        if arm is not base
    ]


def _line(index: int, arm: Arm, curves: Sequence[Curve]) -> Line:
    reached = [(epoch, 100 * value) for epoch, value in mean_curve(curves).items()]
    band = []
    if len(curves) > 1:
        by_epoch = [(epoch, [100 * curve[epoch] for curve in curves]) for epoch, _ in reached]
        band = [(epoch, min(values), max(values)) for epoch, values in by_epoch]
    return Line(arm.label, arm_key(index), arm_colour(index), reached, band)


def _metric_chart(role: str, arms: Sequence[Arm], lines: Sequence[Line]) -> Markup:
    drawn = [line for line in lines if line.points]
    ends = ", ".join(f"{line.name} {line.points[-1][1]:.1f} %" for line in drawn)
    what = f"The {role}'s {metric(arms)} after each epoch"
    bands = len(drawn) <= BANDS
    axis = _axis(arms[0].runs)
    return chart(f"{what}; at the end: {ends}.", drawn, axis, SETTLED["accuracy"], wide=True, bands=bands)


def differences(pairs: Iterable[ArmPair], what: str) -> Markup:
    """Return a chart of the differences of arms after each epoch that both were measured at.

    It is empty where no pair shares a seed.
    """
    drawn = [line for line in map(_difference, pairs) if line.points]
    if not drawn:
        return Markup()
    ends = ", ".join(f"{line.name} {points(line.points[-1][1] / 100)}" for line in drawn)
    description = f"{what}, in points; at the end: {ends}."
    return chart(description, drawn, GAIN, SETTLED["accuracy"], wide=True, bands=len(drawn) <= BANDS)


def _difference(pair: ArmPair) -> Line:
    from spacedkd.evaluation.statistics import paired_difference  # scipy's, which only a page that is made needs

    ours, theirs = ({run.seed: run.accuracy_curves[run.roles[-1]] for run in arm.runs} for arm in (pair.arm, pair.base))
    seeds = sorted(ours.keys() & theirs.keys())
    epochs = [{*curves[seed]} for curves in (ours, theirs) for seed in seeds]
    line, band = [], []
    for epoch in sorted(set.intersection(*epochs)) if epochs else []:
        gain = paired_difference(
            {seed: 100 * ours[seed][epoch] for seed in seeds},
            {seed: 100 * theirs[seed][epoch] for seed in seeds},
            resolution=100 * pair.base.first.resolution,
        )
        assert gain is not None, "they share a seed"
        line.append((epoch, gain.mean))
        if gain.low is not None and gain.high is not None:
            band.append((epoch, gain.low, gain.high))
    return Line(pair.name, arm_key(pair.index), arm_colour(pair.index), line, band)


def loss_charts(arms: Sequence[Arm]) -> list[Titled]:
    """Return a picture for each role and term, those of students first; all arms that have the term are in it."""
    lines_of: dict[tuple[str, str], list[Line]] = {}
    behind: dict[tuple[str, str], int] = {}
    for index, arm in enumerate(arms):
        for role, term, curve in _mean_losses(arm):
            behind.setdefault((role, term), len(arm.first.roles) - arm.first.roles.index(role))
            lines_of.setdefault((role, term), []).append(Line(arm.label, arm_key(index), arm_colour(index), curve))
    return [
        (f"{role}: {term}", "", chart(f"The {term} loss of the {role}, mean over seeds.", lines, LOSS, SETTLED["loss"]))
        for (role, term), lines in sorted(lines_of.items(), key=lambda item: behind[item[0]])
    ]


def roles_chart(runs: Sequence[Run]) -> Markup:
    """Return a picture of the accuracy of all roles of an arm, whose runs differ in their seed alone."""
    lines = []
    for role, class_ in reversed(role_colours(runs[0].roles).items()):
        curves = [run.accuracy_curves[role] for run in runs if role in run.accuracy_curves]
        by_seed = [[(x, 100 * y) for x, y in curve.items()] for curve in curves]
        mean = [*mean_curve([dict(curve) for curve in by_seed]).items()]
        if mean:
            lines.append(Line(role, f"role-{class_}", class_, mean, seeds=by_seed if len(by_seed) > 1 else ()))
    ends = ", ".join(f"{line.name} {percent(line.points[-1][1] / 100)} %" for line in lines)
    title = runs[0].spec.metric_title
    return chart(f"{title[0].upper()}{title[1:]} after each epoch; at the end: {ends}.", lines, _axis(runs), wide=True)


def role_losses(arm: Arm) -> list[Titled]:
    """Return a picture for each term of the loss, with all roles that have it."""
    class_of, lines_of = role_colours(arm.first.roles), dict[str, list[Line]]()
    for role, term, curve in _mean_losses(arm):
        class_ = class_of[role]
        lines_of.setdefault(term, []).append(Line(role, f"role-{class_}", class_, curve))
    return [(term, "", chart(f"The {term} loss.", lines, LOSS, SETTLED["loss"])) for term, lines in lines_of.items()]


def _mean_losses(arm: Arm) -> Iterator[tuple[str, str, list[tuple[float, float]]]]:
    """Yield role, term and mean curve over seeds of every loss that was logged."""
    every = dict.fromkeys(name for run in arm.runs for name in run.journal.losses)
    for role, term in every:
        logged = [dict(run.journal.losses[role, term].points) for run in arm.runs if (role, term) in run.journal.losses]
        if mean := mean_curve(logged):
            yield role, term, [*mean.items()]


# Results side by side, each as a dot and an interval.


class Row(NamedTuple):
    """One line of a dot-and-interval picture."""

    label: str
    value: Estimate
    seeds: Mapping[int, float]
    paper: float | None = None
    """the paper's value, a hollow mark"""
    group: str = ""
    """the heading above the first line of each group"""

    @property
    def values(self) -> Sequence[float]:
        """All values that are drawn."""
        paper = () if self.paper is None else (self.paper,)
        return (*bounds(self.value), *self.seeds.values(), self.value["mean"], *paper)


class Writing(NamedTuple):
    """The format of a picture's values and ticks, and the range they can lie in."""

    value: Write
    tick: Write
    least: float
    most: float


ACCURACIES = Writing(percent, percent_tick, 0, 1)
GAINS = Writing(points, partial(percent_tick, signed=True), -1, 1)


def accuracies(arms: Sequence[Arm], against: str) -> Markup:
    """Return a picture of the last accuracy of every arm."""
    rows = [Row(arm.label, arm.numbers["last"], arm.by_seed) for arm in arms]
    caption = f"Large dot and line: mean and 95 % interval. Small dots: seeds. Dashed: mean of {against}."
    title = f"{metric_title(arms)} after the last epoch"
    more = _numbers(f"{title}, percent", rows, percent)
    writing = ACCURACIES._replace(least=_least(arms, [row.value["mean"] for row in rows]))
    return forest(title, rows, caption, writing, against=against, more=more)


def _numbers(title: str, rows: Sequence[Row], write: Write) -> Markup:
    """Return the numbers of a dot-and-interval picture, seeds included."""
    seeds = sorted({seed for row in rows for seed in row.seeds})
    heads = ["", "mean", "low", "high", *(f"seed {seed}" for seed in seeds)]
    body = []
    for row in rows:
        by_seed = (write(row.seeds[seed]) if seed in row.seeds else DASH for seed in seeds)
        body.append([row.label, *mean_and_bounds(row.value, write), *by_seed])
    return numbers(title, [(head, None) for head in heads], body)


def gains(title: str, pairs: Iterable[ArmPair], caption: str) -> Markup:
    """Return a picture of the differences of pairs around zero; nothing where there are none."""
    rows, writing = [], GAINS
    for pair in pairs:
        if pair.difference is not None:
            ours, theirs = pair.arm.by_seed, pair.base.by_seed
            seeds = {seed: ours[seed] - theirs[seed] for seed in ours if seed in theirs}
            rows.append(Row(pair.name, pair.difference, seeds))
            if pair.arm.first.spec.task == "regression":  # R² may differ by more than one
                writing = writing._replace(least=float("-inf"), most=float("inf"))
    return forest(title, rows, caption, writing, more=_numbers(title, rows, points)) if rows else Markup()


def forest(
    title: str,
    rows: Sequence[Row],
    caption: str,
    writing: Writing = GAINS,
    *,
    against: str | None = None,
    values: Sequence[float] = (),
    more: str = "",
) -> Markup:
    """Return a picture with a dot and an interval for each row, and small dots for its seeds.

    A dashed line is at the mean of the row `against`.
    Without such a row they are differences around zero. The axis has room for all `values` where pictures share it.
    Places are in percent of the width, so that the picture fits any screen and its text keeps its size.
    """
    signed, mark = against is None, next((row.value["mean"] for row in rows if row.label == against), 0.0)
    shown = [value for row in rows for value in row.values]
    scale = Scale(*domain([*shown, *values, mark], writing.least, writing.most), 2, 98)
    marks = {tick: writing.tick(tick) for tick in tick_values(scale.low, scale.high)}
    lines = [_upright(_across(scale, tick), "grid") for tick in marks] + [_upright(_across(scale, mark), "mark")]
    written = [writing.value(row.value["mean"]) if signed else estimate(row.value) for row in rows]
    drawn = []
    for row, number, before in zip(rows, written, (None, *rows), strict=False):
        if row.group and (before is None or before.group != row.group):
            drawn.append(tag("div", row.group, class_="group-name"))
        name, value = tag("span", row.label, class_="name"), tag("span", number, class_="value")
        strip = _strip([*lines, *_marks(row, scale, writing.value)])
        drawn.append(tag("div", name, strip, value, class_="row named" if row.label == against else "row"))
    labels = [label(words, f"{scale(tick):.2f}%", 13, "middle") for tick, words in marks.items()]
    axis = tag("div", _strip(labels), class_="row axis-row")
    unit = "" if signed else " %"
    names = [f"{row.group}: {row.label}" if row.group else row.label for row in rows]
    spoken = "; ".join(f"{name} {number}{unit}" for name, number in zip(names, written, strict=True))
    class_ = "forest narrow" if signed else "forest"
    picture = tag("div", *drawn, axis, class_=class_, role="img", aria_label=f"{title}: {spoken}.")
    return tag("figure", tag("h3", title if signed else f"{title}, %"), picture, tag("figcaption", caption), more)


def _across(scale: Scale, value: float) -> str:
    """Return the place of a value on a strip; what lies beyond its ends is at them, because strips do not clip."""
    return f"{min(max(scale(value), 0), 100):.2f}%"


def _upright(x: str, class_: str) -> Markup:
    return tag("line", class_=class_, x1=x, x2=x, y1=0, y2="100%")


def _marks(row: Row, scale: Scale, write: Write) -> Iterator[Markup]:
    if interval := bounds(row.value):
        low, high = (_across(scale, value) for value in interval)
        yield tag("line", class_="confidence", x1=low, x2=high, y1=12, y2=12)
    yield dot("mean", _across(scale, row.value["mean"]), 12, 4.5)
    for seed, value in row.seeds.items():
        yield dot("seed", _across(scale, value), 24, 2.4, f"seed {seed}: {write(value)}")
    if row.paper is not None:
        yield dot("hollow", _across(scale, row.paper), 12, 5, f"paper: {write(row.paper)}")


def _strip(marks: Sequence[Markup]) -> Markup:
    """Return a drawing as high as its row, so that the lines of the grid run on through a label of several lines."""
    return tag("span", tag("svg", *marks), class_="strip")
