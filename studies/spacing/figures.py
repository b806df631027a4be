"""Figures of the study as SVG files: accuracy against interval, with no KD as a band."""

import math
from collections.abc import Iterator, Sequence

from spacedkd.config.serialization import to_json
from spacedkd.reporting.charts import Panel, Tick, label, rounded, ticks
from spacedkd.reporting.formatting import percent_tick
from spacedkd.reporting.html import Markup, tag
from studies.spacing.analysis import MEASURES, Regime

COLOURS = {"last iterate": ("#2563c9", "#7aa7f0"), "average poly:2": ("#c2410c", "#f59e5b")}
"""of a measure, on light and on dark ground"""
STYLE = "\n".join(
    [
        "text{font:13px system-ui,sans-serif;fill:#333}.grid{stroke:#ddd}.axis{stroke:#777}.mean{stroke:none}",
        "@media(prefers-color-scheme:dark){text{fill:#ccc}.grid{stroke:#444}.axis{stroke:#999}}",
        *(
            f".m{number} .mean{{fill:{light}}}.m{number} .confidence,.m{number} path{{stroke:{light};fill:none}}"
            f".m{number} rect{{fill:{light};opacity:.13}}.m{number} .edge{{stroke:{light};stroke-dasharray:5 4}}"
            f"@media(prefers-color-scheme:dark){{.m{number} .mean{{fill:{dark}}}"
            f".m{number} .confidence,.m{number} path,.m{number} .edge{{stroke:{dark}}}.m{number} rect{{fill:{dark}}}}}"
            for number, (light, dark) in enumerate(COLOURS.values())
        ),
    ]
)


def accuracy_against_interval(regime: Regime) -> str:
    """Return the figure of a regime: both measures against the interval in epochs, on a logarithmic axis."""
    points = {
        measure: sorted((math.log10(epochs), arm) for arm, epochs in regime.intervals.items() if arm in arms)
        for measure, arms in regime.accuracies.items()
    }
    xs = [x for of_measure in points.values() for x, _ in of_measure]
    ys = [
        bound
        for measure, of_measure in points.items()
        for arm in [*(arm for _, arm in of_measure), "no KD"]
        if arm in regime.accuracies[measure]
        for bound in _bounds(regime, measure, arm)
    ]
    room = 0.04 * (max(xs) - min(xs))
    size = {"width": 640, "height": 380, "left": 52, "right": 12, "top": 52, "bottom": 46, "letters": 13}
    area = Panel((min(xs) - room, max(xs) + room), rounded(min(ys), max(ys)), **size)
    drawn = [_measure(regime, measure, number, points[measure], area) for number, measure in enumerate(points)]
    x_title = "interval, epochs (online at the left, offline at the right)"
    frame = area.frame(_epochs(xs), ticks(*area.y, percent_tick), x_title, "")
    title = f"Accuracy on test images, percent: {regime.name}"
    content = [tag("style", Markup(STYLE)), label(title, 2, 14), *_legend(), frame, *drawn]
    return f"{area.draw(title, *content, xmlns='http://www.w3.org/2000/svg')}\n"


def _bounds(regime: Regime, measure: str, arm: str) -> tuple[float, float]:
    interval = regime.mean(measure, arm)
    if interval.low is None or interval.high is None:
        return interval.mean, interval.mean
    return interval.low, interval.high


def _measure(regime: Regime, measure: str, number: int, points: Sequence[tuple[float, str]], area: Panel) -> Markup:
    shift = 0.008 * (area.x[1] - area.x[0]) * (-1) ** number  # so that intervals of both measures can be seen
    parts = []
    if "no KD" in regime.accuracies[measure]:
        low, high = _bounds(regime, measure, "no KD")
        top, floor = area.to_y(high), area.to_y(low)
        parts.append(tag("rect", x=area.left, width=area.to_x.stop - area.left, y=top, height=max(floor - top, 1)))
        middle = area.to_y(regime.mean(measure, "no KD").mean)
        parts.append(tag("line", class_="edge", x1=area.left, x2=area.to_x.stop, y1=middle, y2=middle))
    means = [(x + shift, regime.mean(measure, arm).mean) for x, arm in points]
    parts.append(tag("path", d=area.path(means)))
    for (x, arm), (_, mean) in zip(points, means, strict=True):
        estimate = to_json(regime.mean(measure, arm))
        parts.append(area.estimate(x + shift, estimate, f"{arm}: {100 * mean:.2f} %", 4))
    return tag("g", *parts, class_=f"m{number}")


def _legend() -> Iterator[Markup]:
    for number, measure in enumerate(MEASURES.values()):
        x = 10 + 200 * number
        circle = tag("circle", class_="mean", cx=x, cy=31, r=4)
        yield tag("g", circle, class_=f"m{number}")
        yield label(measure, x + 10, 35)
    yield label("bands: no KD", 410, 35)


def _epochs(xs: Sequence[float]) -> list[Tick]:
    """Return a tick for each interval, but for those that would touch the one before."""
    shown: list[Tick] = []
    for x in sorted({*xs}):
        if not shown or x - shown[-1][0] > 0.06 * (max(xs) - min(xs)):
            shown.append((x, f"{10**x:.2g}"))
    return shown
