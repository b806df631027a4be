"""Averages as functions of the step, against sums that are written out."""

from __future__ import annotations

import numpy as np
import pytest

from spacedkd import RunSpec, UserError
from spacedkd.averages import average_share, parse_average
from spacedkd.config.serialization import from_json, to_json

VALUES = np.random.default_rng(0).normal(size=12)


def averages_of(text: str, values: np.ndarray, steps_per_epoch: int = 3) -> list[float]:
    """Return the average after each value, as a run of so many steps takes it."""
    share = average_share(parse_average(text), steps_per_epoch, len(values))
    average, averages = 0.0, []
    for step, value in enumerate(values):
        average += share(step) * (value - average)
        averages.append(average)
    return averages


@pytest.mark.parametrize("power", [0, 1, 2, 3])
def test_a_polynomial_average_weighs_update_k_by_a_rising_factorial(power: int) -> None:
    weights = np.array([np.prod([k + i for i in range(power)]) for k in range(1, 13)], float)
    expected = [np.average(VALUES[: n + 1], weights=weights[: n + 1]) for n in range(12)]
    np.testing.assert_allclose(averages_of(f"poly:{power}", VALUES), expected, rtol=1e-12)


@pytest.mark.parametrize(("text", "first"), [("swa:50%", 6), ("swa:2ep", 6), ("swa:5st", 7), ("swa:100%", 0)])
def test_swa_is_the_mean_over_the_last_part(text: str, first: int) -> None:
    expected = [VALUES[n] if n < first else VALUES[first : n + 1].mean() for n in range(12)]
    np.testing.assert_allclose(averages_of(text, VALUES), expected, rtol=1e-12)


def test_an_exponential_average_forgets_the_beginning_sooner() -> None:
    average = 0.0
    for step, value in enumerate(VALUES):
        decay = min(0.3, (1 + step) / (10 + step))
        average = decay * average + (1 - decay) * value
    assert averages_of("ema:0.3", VALUES)[-1] == pytest.approx(average, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("poly", "poly:2"),
        ("poly:2.0", "poly:2"),
        (" ema:0.9990 ", "ema:0.999"),
        ("swa", "swa:50%"),
        ("swa:10ep", "swa:10ep"),
    ],
)
def test_a_spec_writes_an_average_in_one_way(text: str, written: str) -> None:
    spec = RunSpec(average=text)
    assert spec.average == written
    assert from_json(RunSpec, to_json(spec)) == spec == RunSpec(average=written)
    assert spec.fingerprint() == RunSpec(average=written).fingerprint() != RunSpec().fingerprint()


def test_a_spec_without_an_average_is_written_as_before() -> None:
    assert not {"average", "average_bn"} & to_json(RunSpec()).keys()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"average": "mean"}, "mean"),
        ({"average": "poly:much"}, "poly:2"),
        ({"average": "poly:-1"}, "-1"),
        ({"average": "poly:nan"}, "nan"),
        ({"average": "ema:1"}, "between 0 and 1"),
        ({"average": "swa:0%"}, "swa"),
        ({"average": "swa:much"}, "much"),
        ({"average": "poly:2", "ema": 0.9}, "two averages"),
        ({"average_bn": "recompute"}, "average_bn"),
        ({"average": "poly:2", "average_bn": "none"}, "average_bn"),
    ],
)
def test_averages_that_mean_nothing_are_refused(fields: dict[str, object], named: str) -> None:
    with pytest.raises(UserError, match=named):
        RunSpec(**fields)  # type: ignore[arg-type]
