"""A parabola through accuracies over the interval, and where it is highest."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtrit

from spacedkd.evaluation.confidence import confidence_interval
from spacedkd.json_form import to_json

DRAWS = 2000

BySeed = Mapping[float, Mapping[int, float]]
"""values at each x, by seed"""


def parabola(by_seed: BySeed) -> dict[str, Any] | None:
    """Least squares through all seeds' values at each x; the optimum's interval is a bootstrap over seeds.

    An optimum exists where the parabola opens downwards; it is looked for within the x that were measured. `bend` is
    the coefficient of x^2 with the interval of its mean over seeds. None where fewer than three x, or no seed, have
    been measured everywhere.
    """
    places = sorted(by_seed)
    seeds = sorted(set.intersection(*(set(values) for values in by_seed.values()))) if places else []
    if len(places) < 3 or not seeds:
        return None
    x = np.array(places)
    values = np.array([[by_seed[place][seed] for place in places] for seed in seeds])
    each = np.polynomial.polynomial.polyfit(x, values.T, 2).T  # least squares is linear: the mean fit is the fit
    low, high = _interval(x, each)
    return {
        "coefficients": each.mean(0).tolist(),
        "bend": to_json(confidence_interval(each[:, 2].tolist())),
        "opens": "down" if each[:, 2].mean() < 0 else "up",
        "optimum": _optimum(x, each.mean(0)),
        "low": low,
        "high": high,
    }


def around_their_means(rows: Sequence[BySeed]) -> BySeed:
    """The values of several rows as those of one: each row's distances from its own mean, averaged over the rows.

    Of rows with the same x the parabola through it is that through all of them, each moved to a height of its own.
    """
    places = set.intersection(*(set(row) for row in rows)) if rows else set()
    seeds = set.intersection(*(set(row[x]) for row in rows for x in places)) if places else set()

    def away(row: BySeed, x: float, seed: int) -> float:
        return row[x][seed] - math.fsum(row[place][seed] for place in places) / len(places)

    return {x: {seed: math.fsum(away(row, x, seed) for row in rows) / len(rows) for seed in seeds} for x in places}


def _interval(x: np.ndarray, each: np.ndarray) -> tuple[float | None, float | None]:
    """95 % of the optima of seeds drawn again and again; one seed has no interval.

    Drawing from few seeds scatters less than few seeds do, so their distances from the mean are widened as far as makes
    the interval of a mean Student's.
    """
    n = len(each)
    if n < 2:
        return None, None
    wider = math.sqrt(n / (n - 1)) * stdtrit(n - 1, 0.975) / ndtri(0.975)
    widened = each.mean(0) + wider * (each - each.mean(0))
    draws = np.random.default_rng(0).integers(n, size=(DRAWS, n))
    low, high = np.quantile([_optimum(x, widened[rows].mean(0)) for rows in draws], (0.025, 0.975))
    return float(low), float(high)


def _optimum(x: np.ndarray, coefficients: Sequence[float] | np.ndarray) -> float:
    """Where a + b x + c x^2 is highest, among the x from the least to the greatest."""
    a, b, c = coefficients
    ends = [float(x[0]), float(x[-1])]
    inside = [-b / (2 * c)] if c < 0 and ends[0] <= -b / (2 * c) <= ends[1] else []
    return float(max(ends + inside, key=lambda at: a + b * at + c * at**2))
