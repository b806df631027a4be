"""What stands at the axes of pictures."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from spacedkd.reporting.charts import Axis, Line, chart, ticks
from spacedkd.reporting.formatting import MINUS, THIN_SPACE, percent_tick

SPANS = [(1.588, 1.593), (0.0, 1e-5), (-0.00312, -0.00309), (1234.1, 1234.9), (12.0, 40_000.0)]


def value(words: str) -> float:
    return float(words.replace(MINUS, "-").replace(THIN_SPACE, ""))


@pytest.mark.parametrize(("low", "high"), SPANS)
def test_every_tick_is_called_what_it_is(low: float, high: float) -> None:
    found = ticks(low, high)
    assert len(found) > 2
    assert [value(words) for _, words in found] == [at for at, _ in found]
    assert [value(words) for _, words in ticks(low, high, percent_tick)] == pytest.approx([100 * at for at, _ in found])


@pytest.mark.parametrize(("low", "high"), SPANS)
def test_the_y_axis_of_a_chart_is_evenly_labelled_and_within_the_picture(low: float, high: float) -> None:
    """Losses of 1.588 and 1.593 had five ticks called 1.59."""
    drawn = chart("said", [Line("one", "arm-0", "k0", [(1, low), (2, high)])], Axis("loss"))
    at = re.findall(r'x="([\d.]+)" y="([\d.]+)" text-anchor="end">([^<]*)<', drawn)
    values = [value(words) for _, _, words in at]
    steps = [after - before for before, after in pairwise(values)]
    assert steps == pytest.approx([steps[0]] * len(steps))
    assert steps[0] > 0
    assert all(float(right) >= 5.5 * len(words) for right, _, words in at), "letters of 12 pixels are as wide"
