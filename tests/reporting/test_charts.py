"""The axes and the areas of charts: what is drawn where."""

from __future__ import annotations

import re

import pytest

from spacedkd.reporting.charts import Axis, Line, chart

ACCURACY = Axis("accuracy, %", least=0, most=100)


def axis_of(drawn: str, name: str) -> tuple[float, ...]:
    scale = re.search(rf'data-{name}="([^"]*)"', drawn)
    assert scale is not None
    return tuple(map(float, scale[1].split()))[:2]


@pytest.mark.parametrize(
    ("points", "settled", "x_axis"),
    [
        ([(float(x), 50.0 + x) for x in range(11)], 0.0, (0, 10)),
        ([(float(x), 50.0 + x) for x in range(1, 7)], 0.0, (1, 6)),
        ([(float(x), 10.0 if x < 6 else 80.0 + x) for x in range(11)], 0.6, (5, 10)),  # out of the picture until then
        ([(float(x), 10.0 if x < 1 else 80.0 + x % 3) for x in range(31)], 0.5, (0, 30)),  # hardly any room is lost
        ([(3.0, 50.0)], 0.0, (0, 3)),
    ],
)
def test_the_x_axis_begins_where_a_line_does(
    points: list[tuple[float, float]], settled: float, x_axis: tuple[float, float]
) -> None:
    drawn = chart("Accuracy.", [Line("a", "arm-0", "k0", points)], ACCURACY, settled)
    assert axis_of(drawn, "x") == x_axis


def test_an_area_stays_within_the_axes() -> None:
    points = [(float(x), 10.0 if x < 6 else 80.0 + x) for x in range(11)]
    band = [(x, y - 2, y + 2) for x, y in points]
    drawn = chart("Accuracy.", [Line("a", "arm-0", "k0", points, band)], ACCURACY, 0.6)
    path = re.search(r'<path d="M([^"]*)Z" class="around', drawn)
    scale = re.search(r'data-x="([^"]*)"', drawn)
    assert path is not None
    assert scale is not None
    start, stop = map(float, scale[1].split()[2:])
    xs = [float(place.split()[0]) for place in path[1].split("L")]
    assert start <= min(xs) <= max(xs) <= stop
    assert len(xs) == 2 * 6
