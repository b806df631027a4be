"""A parabola through accuracies over the interval, and where it is highest."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

DRAWS = 2000


def parabola(by_seed: Mapping[float, Mapping[int, float]]) -> dict[str, Any] | None:
    """Least squares through all seeds' values at each x; the optimum's interval is a bootstrap over seeds.

    An optimum exists where the parabola opens downwards; it is looked for within the x that were measured. None where
    fewer than three x, or no seed, have been measured everywhere.
    """
    places = sorted(by_seed)
    seeds = sorted(set.intersection(*(set(values) for values in by_seed.values()))) if places else []
    if len(places) < 3 or not seeds:
        return None
    x = np.array(places)
    values = np.array([[by_seed[place][seed] for place in places] for seed in seeds])
    coefficients = _fitted(x, values)
    draws = np.random.default_rng(0).integers(len(seeds), size=(DRAWS, len(seeds)))
    optima = [_optimum(x, _fitted(x, values[rows])) for rows in draws] if len(seeds) > 1 else []
    low, high = np.quantile(optima, (0.025, 0.975)) if optima else (None, None)
    return {
        "coefficients": [*map(float, coefficients)],
        "opens": "down" if coefficients[2] < 0 else "up",
        "optimum": float(_optimum(x, coefficients)),
        "low": None if low is None else float(low),
        "high": None if high is None else float(high),
    }


def _fitted(x: np.ndarray, values: np.ndarray) -> np.ndarray:
    """a, b, c of a + b x + c x^2."""
    return np.polynomial.polynomial.polyfit(x, values.mean(0), 2)


def _optimum(x: np.ndarray, coefficients: Sequence[float] | np.ndarray) -> float:
    """Where the parabola is highest, among the x from the least to the greatest."""
    a, b, c = coefficients
    ends = [float(x[0]), float(x[-1])]
    inside = [-b / (2 * c)] if c < 0 and ends[0] <= -b / (2 * c) <= ends[1] else []
    return float(max(ends + inside, key=lambda at: a + b * at + c * at**2))
