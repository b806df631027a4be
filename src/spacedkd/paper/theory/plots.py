"""The pictures of the theory experiment: the teacher's gap, verdicts, and traces over training."""

import math
from collections.abc import Sequence
from itertools import pairwise

from spacedkd.paper.theory.findings import STATEMENTS, interval_name, share, signed_percent
from spacedkd.report.charts import Panel, Point, Tick, label, rounded, thinned, ticks
from spacedkd.report.formatting import Found
from spacedkd.report.html import Markup, join, tag

MOST_POINTS = 130
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def line_class(place: int) -> str:
    return ("one-of-4", "two-of-4", "three-of-4", "four-of-4")[place % 4]


def power(exponent: float) -> str:
    """A power of ten as an axis writes it.

    >>> power(-3), power(0)
    ('10⁻³', '1')
    """
    return "1" if exponent == 0 else f"10{f'{exponent:.0f}'.translate(_SUPERSCRIPTS)}"


def gaps(one: Found) -> Markup:
    """u over training, of the online teacher and of the spaced ones, on a logarithmic axis."""
    times = one["times"]
    online, *spaced = (
        [(t, math.log10(value)) for t, value in zip(times, of["gap"], strict=True) if value > 0]
        for of in (one, *one["intervals"])
    )
    values = [y for points in (online, *spaced) for _, y in points]
    panel = Panel((0, times[-1]), (math.floor(min(values)), math.ceil(max(values))), right=12)
    frame = panel.frame(_time_ticks(panel), _log_ticks(panel), "student's update t", "teacher gap u, mean over runs")
    ends = f"online from {one['gap'][0]:.2g} to {one['gap'][-1]:.2g}"
    drawn = panel.line(thinned(online, MOST_POINTS), "all online"), _near_mark(panel, one)
    said = f"Teacher gap over training, {one['setting']['name']}: {ends}."
    return panel.draw(said, frame, *_lines(panel, spaced), *drawn)


def _lines(panel: Panel, curves: Sequence[Sequence[Point]]) -> list[Markup]:
    """One for each interval."""
    return [
        panel.line(thinned(points, MOST_POINTS), f"all {line_class(place)}")
        for place, points in enumerate(curves)
        if points
    ]


def _near_mark(panel: Panel, one: Found) -> Markup:
    """Where the stretch that counts as near convergence begins."""
    near = [t for t, is_near in zip(one["times"], one["near"], strict=True) if is_near]
    if not near:
        return Markup()
    x = panel.to_x(near[0])
    return tag("line", class_="mark", x1=x, x2=x, y1=panel.top, y2=panel.height - panel.bottom)


def example(one: Found) -> Markup:
    """A few dozen steps of a single run: u(t) goes up and down, u(k(t)) stays for an interval."""
    start, gap, interval = one["example"]["start"], one["example"]["gap"], one["intervals"][1]["interval"]
    points, last = [*enumerate(gap, start)], start + len(gap) - 1
    ahead = {t: -(-t // interval) * interval for t in range(start + 1, last + 1)}
    held = [(x, gap[k - start]) for t, k in ahead.items() if k <= last for x in (t - 1, t)]
    panel = Panel((start, last), rounded(0, max(gap)), left=44, right=12)
    frame = panel.frame(_time_ticks(panel), ticks(*panel.y, most=5), "student's update t", "teacher gap u, one run")
    rises = sum(b > a for a, b in pairwise(gap))
    words = f"One run near convergence, {one['setting']['name']}: the gap rises at {rises} of {len(gap) - 1} steps."
    return panel.draw(words, frame, panel.line(held, f"all {line_class(1)}"), panel.line(points, "all online"))


def changes(one: Found, near: bool = False) -> Markup:
    """How much larger a spaced student's trace is than the online student's, over training.

    Near convergence without offline, whose differences dwarf all others.
    """
    kept = [place for place, is_near in enumerate(one["near"]) if is_near or not near]
    times = [one["times"][place] for place in kept]
    shown = [interval for interval in one["intervals"] if not near or interval["interval"] < one["setting"]["steps"]]
    curves = [[(one["times"][place], 100 * interval["change"][place]) for place in kept] for interval in shown]
    values = [y for points in curves for _, y in points] + [0.0]
    panel = Panel((times[0] if near else 0, times[-1]), rounded(min(values), max(values)), left=40, right=12)
    frame = panel.frame(_time_ticks(panel), ticks(*panel.y), "student's update t", "trace against online KD, %")
    zero = tag("line", class_="mark", x1=panel.left, x2=panel.width - panel.right, y1=panel.to_y(0), y2=panel.to_y(0))
    ends = ", ".join(
        f"{interval_name(one['setting'], interval['interval'])} {signed_percent(interval['change'][-1])}"
        for interval in shown
    )
    words = f"Trace of spaced students against online KD over training, {one['setting']['name']}; at the end: {ends}."
    return panel.draw(words, frame, zero, *_lines(panel, curves), "" if near else _near_mark(panel, one))


def bars(one: Found) -> Markup:
    """For every statement and interval: how many cases clearly held, were too close to tell, were clearly broken."""
    rows: list[Markup] = []
    top, said = 0.0, []
    judged = [interval for interval in one["intervals"] if interval["verdicts"]["near"]]
    for name, title in STATEMENTS.items():
        rows.append(label(title, 2, top + 14, class_="group"))
        top += 20
        for interval in judged:
            spaced, verdict = interval_name(one["setting"], interval["interval"]), interval["verdicts"]["near"][name]
            rows.append(_bar(spaced, verdict["held"], verdict["broken"], top))
            said.append(f"{title}, {spaced}: held {share(verdict['held'])} %")
            top += 17
        top += 8
    return Panel((0, 1), (0, 1), height=top).draw(f"{one['setting']['name']}. {'; '.join(said)}.", *rows)


def _bar(name: str, held: float, broken: float, top: float) -> Markup:
    start, width = 74.0, 196.0
    pieces, x = [], start
    for kind, value in (("held", held), ("open", 1 - held - broken), ("broken", broken)):
        if value > 0:
            pieces.append(tag("rect", class_=kind, x=x, y=top + 2, width=max(value * width, 0.1), height=12))
        x += value * width
    written = f"{share(held)} / {share(broken)} %"
    return join(label(name, start - 6, top + 12, "end"), *pieces, label(written, start + width + 6, top + 12))


def _time_ticks(panel: Panel) -> list[Tick]:
    return ticks(*panel.x, most=5, whole=True)


def _log_ticks(panel: Panel) -> list[Tick]:
    low, high = (round(value) for value in panel.y)
    step = max(1, -(-(high - low) // 5))
    return [(value, power(value)) for value in range(low, high + 1, step)]
