"""A parabola through accuracies over the interval, and where it is highest."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from spacedkd.evaluation.confidence import confidence_interval
from spacedkd.json_form import to_json

DRAWS = 20_000
ROUNDING = 1e-9
"""a bend that the arithmetic alone may leave behind, where all values are equal"""

BySeed = Mapping[float, Mapping[int, float]]
"""values at each x, by seed"""


def parabola(by_seed: BySeed) -> dict[str, Any] | None:
    """Least squares through all seeds' values at each x; the optimum's interval is a bootstrap.

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
        "opens": _opens(each[:, 2].mean()),
        "optimum": float(_optima(x, each.mean(0, keepdims=True))[0]),
        "low": low,
        "high": high,
        "within": [places[0], places[-1]],
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


def bend_error(rows: Sequence[BySeed], repeats: int) -> float | None:
    """Return the standard error of the bend of the parabola through all rows, each value a mean of so many repeats.

    Repeats are taken to scatter as the seeds of each row at each x do, and to be independent. None where a value has
    fewer than two seeds, or fewer than three x are there.
    """
    places = sorted(set.intersection(*(set(row) for row in rows))) if rows else []
    if len(places) < 3 or any(len(row[x]) < 2 for row in rows for x in places):
        return None
    weights = np.linalg.pinv(np.vander(np.array(places), 3, increasing=True))[2]  # the bend is a sum of the values
    variances = np.array([[np.var([*row[x].values()], ddof=1) for x in places] for row in rows])
    return math.sqrt(float((variances * weights**2).sum()) / repeats) / len(rows)


def _interval(x: np.ndarray, each: np.ndarray) -> tuple[float | None, float | None]:
    """95 % of the optima of parabolas drawn as uncertain as the mean one is; one seed has no interval.

    A parametric bootstrap: coefficients from the multivariate t that few seeds leave of their mean, so that the
    interval of a mean would be Student's. Seeds drawn again from two or three would give a handful of means.
    """
    n = len(each)
    if n < 2:
        return None, None
    chance = np.random.default_rng(0)
    normal = chance.standard_normal((DRAWS, n)) @ (each - each.mean(0)) / math.sqrt(n * (n - 1))
    drawn = each.mean(0) + normal / np.sqrt(chance.chisquare(n - 1, (DRAWS, 1)) / (n - 1))
    low, high = np.quantile(_optima(x, drawn), (0.025, 0.975))
    return float(low), float(high)


def _opens(bend: float) -> str:
    return "nowhere" if abs(bend) <= ROUNDING else "down" if bend < 0 else "up"


def _optima(x: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """Where each a + b x + c x^2 is highest, among the x from the least to the greatest."""
    a, b, c = coefficients.T
    vertex = np.divide(-b, 2 * c, out=np.full_like(b, x[0]), where=c < 0)
    places = np.stack([np.full_like(b, x[0]), np.full_like(b, x[-1]), vertex.clip(x[0], x[-1])])
    highest = (a + b * places + c * places**2).argmax(0, keepdims=True)
    best: np.ndarray = np.take_along_axis(places, highest, 0)[0]
    return best
