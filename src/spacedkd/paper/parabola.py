"""The parabola through the cells of a row: least squares over seeds, its bend, and where it is highest."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

import numpy as np

from spacedkd.config.serialization import to_json
from spacedkd.evaluation.statistics import confidence_interval
from spacedkd.runs.schema import Estimate

DRAWS = 20_000
"""parabolas that the interval of an optimum is read off"""
ROUNDING = 1e-9
"""a bend that rounding alone may produce, where all values are equal"""

BySeed = Mapping[float, Mapping[int, float]]
"""values at each x, by seed"""


class Fit(TypedDict):
    """A parabola a + b x + c x^2; `bend` is c with the interval of its mean over seeds."""

    coefficients: list[float]
    bend: Estimate
    opens: Literal["up", "down", "nowhere"]
    optimum: float
    """the x of its highest point among those that were measured"""
    low: float | None
    """ends of the optimum's 95 % interval; None where one seed gives none"""
    high: float | None
    within: list[float]
    """the least and the greatest x"""


def parabola(by_seed: BySeed) -> Fit | None:
    """Fit a parabola by least squares through all seeds' values at each x.

    An optimum exists where the parabola opens downwards; it is looked for within the x that were measured. Returns None
    where fewer than three x, or no seed, have been measured everywhere.
    """
    xs = sorted(by_seed)
    seeds = sorted(set.intersection(*(set(values) for values in by_seed.values()))) if xs else []
    if len(xs) < 3 or not seeds:
        return None
    x = np.array(xs)
    values = np.array([[by_seed[x][seed] for x in xs] for seed in seeds])
    each = np.polynomial.polynomial.polyfit(x, values.T, 2).T  # least squares is linear: the mean fit is the fit
    low, high = _optimum_interval(x, each)
    return {
        "coefficients": each.mean(0).tolist(),
        "bend": to_json(confidence_interval(each[:, 2].tolist())),
        "opens": _direction(each[:, 2].mean()),
        "optimum": float(_optima(x, each.mean(0, keepdims=True))[0]),
        "low": low,
        "high": high,
        "within": [xs[0], xs[-1]],
    }


def around_their_means(rows: Sequence[BySeed]) -> BySeed:
    """Return the values of several rows as those of one: distances from each row's own mean, averaged over the rows.

    For rows with the same x, the parabola through it is that through all of them, each moved to a height of its own.
    """
    xs = set.intersection(*(set(row) for row in rows)) if rows else set()
    seeds = set.intersection(*(set(row[x]) for row in rows for x in xs)) if xs else set()

    def distance(row: BySeed, x: float, seed: int) -> float:
        return row[x][seed] - math.fsum(row[other][seed] for other in xs) / len(xs)

    return {x: {seed: math.fsum(distance(row, x, seed) for row in rows) / len(rows) for seed in seeds} for x in xs}


def bend_error(rows: Sequence[BySeed], repeats: int) -> float | None:
    """Return the standard error of the bend of the parabola through all rows, each value a mean of so many repeats.

    Repeats are taken to scatter as the seeds of each row at each x do, and to be independent. None where a value has
    fewer than two seeds, or fewer than three x are there.
    """
    xs = sorted(set.intersection(*(set(row) for row in rows))) if rows else []
    if len(xs) < 3 or any(len(row[x]) < 2 for row in rows for x in xs):
        return None
    weights = np.linalg.pinv(np.vander(np.array(xs), 3, increasing=True))[2]  # the bend is a sum of the values
    variances = np.array([[np.var([*row[x].values()], ddof=1) for x in xs] for row in rows])
    return math.sqrt(float((variances * weights**2).sum()) / repeats) / len(rows)


def _optimum_interval(x: np.ndarray, each: np.ndarray) -> tuple[float | None, float | None]:
    """Return the ends between which 95 % of the optima of parabolas lie that are as uncertain as the mean one.

    A parametric bootstrap: coefficients from the multivariate t that few seeds leave of their mean, so that the
    interval of a mean would be Student's. Seeds drawn again from two or three would give a handful of means. One seed
    has no interval.
    """
    n = len(each)
    if n < 2:
        return None, None
    chance = np.random.default_rng(0)
    normal = chance.standard_normal((DRAWS, n)) @ (each - each.mean(0)) / math.sqrt(n * (n - 1))
    drawn = each.mean(0) + normal / np.sqrt(chance.chisquare(n - 1, (DRAWS, 1)) / (n - 1))
    low, high = np.quantile(_optima(x, drawn), (0.025, 0.975))
    return float(low), float(high)


def _direction(bend: float) -> Literal["up", "down", "nowhere"]:
    return "nowhere" if abs(bend) <= ROUNDING else "down" if bend < 0 else "up"


def _optima(x: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """Return the x at which each a + b x + c x^2 is highest, among those from the least to the greatest."""
    a, b, c = coefficients.T
    vertex = np.divide(-b, 2 * c, out=np.full_like(b, x[0]), where=c < 0)
    candidates = np.stack([np.full_like(b, x[0]), np.full_like(b, x[-1]), vertex.clip(x[0], x[-1])])
    highest = (a + b * candidates + c * candidates**2).argmax(0, keepdims=True)
    best: np.ndarray = np.take_along_axis(candidates, highest, 0)[0]
    return best
