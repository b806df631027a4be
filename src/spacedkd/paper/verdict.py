"""Verdicts: whether the effects of a few seeds are what the paper says.

`judge` judges a difference, `judge_fit` the bend of the `parabola` through the cells of a row, `sentence` a whole
claim; `rule` says in words how. The statistics themselves are those of `evaluation.statistics`.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import variance
from typing import Literal, NamedTuple, TypedDict, get_args

import numpy as np

from spacedkd.config.serialization import to_json
from spacedkd.evaluation.statistics import Difference, confidence_interval, half_width
from spacedkd.runs.schema import Estimate
from spacedkd.runtime.errors import pluralize

# Parabolas through the cells of a row: least squares over seeds, the bend, and where it is highest

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


# Verdicts

Verdict = Literal["agrees", "disagrees", "smaller than the paper's", "cannot tell"]
SMALLER: Verdict = "smaller than the paper's"
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
REPEATS = 3
"""runs that each number of the paper is the mean of"""
RULE = (
    "An effect is the mean difference paired by seed, with its 95 % interval (Student's t). It agrees with the paper "
    "where the interval lies on the paper's side of zero, and disagrees only where it lies on the other side. Where "
    "the interval holds zero, the effect is smaller than the paper's if an effect of the paper's size is ruled out, "
    "with the error of the paper's number counted: the paper's difference minus ours exceeds t (of our interval) "
    "times the root of the sum of both squared standard errors. The paper prints no deviations: its numbers are means "
    "of three repeats, and its released code sets no seeds, so the squared error of its difference is estimated as "
    "the sum of the variances of both arms over our seeds, divided by three. Otherwise the seeds cannot tell. Where "
    "the paper prints no number, its claim gives the side (of a loss the lower one)."
)
NO_GAIN_RULE = (
    "A claim of no gain agrees where the interval holds or lies below zero and its upper end is less than half of the "
    "gain the paper reports of spacing (0.69 of 1.38 points), and disagrees where it lies above zero."
)
NO_COST_RULE = "A claim of no cost agrees where the count is not higher, and disagrees where it is."
FIT_RULE = (
    "A fitted parabola counts as one effect more, the one through all rows as well: its bend downwards, the "
    "coefficient of the square, is judged by the same rule. Where its optimum lies is shown and not judged: that 1.5 "
    "epochs is best is judged by the differences to the other intervals. Optima are looked for among the intervals "
    "that were measured: one at their end may lie beyond it."
)
SUMMARY_RULE = (
    "The average over all rows is judged by the same rule, and only where every row is finished. The least and the "
    "greatest difference are shown and not judged: the extreme of noisy means lies further out than that of the "
    "effects."
)
MANY_RULE = (
    "Each verdict is about its own effect and is not corrected for the number of effects: of those that are not there "
    "at all, 2.5 % agree and 2.5 % disagree by chance. Holm's p beside them is corrected for all judged differences of "
    "the table."
)
NO_GAIN = 0.0138 / 2
"""half of what the paper reports of spacing for ResNet-18 on CIFAR-100: a gain beside it that is none"""


def rule(claims: Collection[str], fitted: bool = False, summarised: bool = False) -> str:
    """Return the rule that verdicts over these claims follow."""
    parts = {
        NO_GAIN_RULE: "no gain" in claims,
        NO_COST_RULE: "no cost" in claims,
        FIT_RULE: fitted,
        SUMMARY_RULE: summarised,
    }
    return " ".join([RULE, *(part for part, needed in parts.items() if needed), MANY_RULE])


class Reported(NamedTuple):
    """A difference of the paper's, as a part of one, with the standard error of a mean of its repeats."""

    difference: float
    error: float | None = None
    """None where our seeds do not show how runs scatter"""


class Judged(NamedTuple):
    """A verdict and its reason."""

    verdict: Verdict
    why: str


def reported_error(arm: Sequence[float], reference: Sequence[float], resolution: float = 0.0) -> float | None:
    """Return the standard error of the paper's difference of two arms whose runs scatter as these do.

    The paper's runs are not paired: sqrt((var(arm) + var(reference)) / 3), and no less than what rounding to whole
    images leaves. None where an arm has fewer than two runs.

    >>> round(reported_error([0.50, 0.52], [0.40, 0.44]), 4)
    0.0183
    """
    if min(len(arm), len(reference)) < 2:
        return None
    return max(math.sqrt((variance(arm) + variance(reference)) / REPEATS), resolution / math.sqrt(6 * REPEATS))


def judge(ours: Difference, paper: Reported | None, claims: str) -> Judged:
    """Judge our difference by what the paper claims of it; `paper` is its own difference, if it prints one.

    >>> judge(Difference(0.010, 0.002, 0.018, 0.02, 6), Reported(0.0138), "gain").verdict
    'agrees'
    """
    if ours.low is None or ours.high is None:
        return Judged("cannot tell", "one seed has no interval")
    if claims == "no gain":
        return _judge_no_gain(ours.low, ours.high)
    if claims == "no cost":
        return _judge_no_cost(ours.low, ours.high)
    side = math.copysign(1.0, (paper.difference if paper else 0.0) or 1.0)
    low, high = (ours.low, ours.high) if side > 0 else (-ours.high, -ours.low)
    smaller = paper is not None and _rules_out(ours, paper, side)
    if low > 0:
        return Judged("agrees", "the sign is the paper's" + (", and the effect is smaller" if smaller else ""))
    if high < 0:
        return Judged("disagrees", "the sign is the other one")
    if smaller:
        return Judged(SMALLER, "no effect is shown, and one of the paper's size is ruled out")
    return Judged("cannot tell", "the interval holds zero" + ("" if paper is None else _not_excluded(paper)))


def _rules_out(ours: Difference, paper: Reported, side: float) -> bool:
    """Return whether our effect is shown to be less than the paper's, with the errors of both counted."""
    if ours.low is None or ours.high is None or paper.error is None:
        return False
    half = (ours.high - ours.low) / 2
    both = math.hypot(half, half_width(paper.error, ours.n))  # the same t for both: our seeds alone show the scatter
    return abs(paper.difference) - side * ours.mean > both


def _not_excluded(paper: Reported) -> str:
    return ", and one of the paper's size is not ruled out" if paper.difference else ""


def _judge_no_gain(low: float, high: float) -> Judged:
    if low > 0:
        return Judged("disagrees", "there is a gain")
    if high < NO_GAIN:
        return Judged("agrees", "half the gain that the paper reports of spacing is ruled out")
    return Judged("cannot tell", "the interval holds zero and half the gain that the paper reports of spacing")


def _judge_no_cost(low: float, high: float) -> Judged:
    """Judge the interval of a negated count: above zero is cheaper."""
    if high < 0:
        return Judged("disagrees", "it costs more")
    if low >= 0:
        return Judged("agrees", "it costs no more" if high == 0 else "it costs less")
    return Judged("cannot tell", "it may cost more or less")


def judge_fit(ours: Fit, paper: Fit | None, error: float | None = None) -> Judged:
    """Judge the bend of a parabola by that of the paper's own numbers.

    `error` is the standard error of the paper's bend. The reason says where the optimum lies.
    """
    bend = ours["bend"]
    mean, low, high = (_without_rounding(value) for value in (bend["mean"], bend["low"], bend["high"]))
    if mean is None or low is None or high is None:
        return Judged("cannot tell", "one seed has no interval")
    theirs = None if paper is None or paper["opens"] != "down" else Reported(-paper["coefficients"][2], error)
    judged = judge(Difference(-mean, -high, -low, None, bend["n"]), theirs, "gain")
    if judged.verdict == "agrees":
        inside = ""
        if theirs is not None and paper is not None and ours["low"] is not None and ours["high"] is not None:
            contains = ours["low"] <= paper["optimum"] <= ours["high"]
            inside = f", {'with' if contains else 'without'} the paper's optimum in its interval"
        return Judged("agrees", f"it bends down{inside}")
    whys = {
        "disagrees": "it bends up",
        SMALLER: "no bend is shown, and one like the paper's is ruled out",
        "cannot tell": "it may bend either way",
    }
    return Judged(judged.verdict, whys[judged.verdict])


def _without_rounding(value: float | None) -> float | None:
    """Return a number, or zero in place of a bend that rounding alone may have produced."""
    return 0.0 if value is not None and abs(value) <= ROUNDING else value


def sentence(verdicts: Sequence[Verdict], claimed: int) -> str:
    """Return the verdict over a whole claim, from those of its effects; `claimed` is how many it has, run or not.

    >>> sentence(["agrees", "cannot tell"], 10)
    'Seen in part: of 10 effects 1 agrees, 0 disagree, 1 cannot be told, 8 were not run.'
    """
    if not verdicts:
        return "Nothing to judge yet."
    count = {kind: verdicts.count(kind) for kind in VERDICTS}
    missing = claimed - len(verdicts)
    told = [
        f"of {pluralize(claimed, 'effect')} {_verb(count['agrees'], 'agree')}",
        _verb(count["disagrees"], "disagree"),
        *([f"{count[SMALLER]} {'is' if count[SMALLER] == 1 else 'are'} {SMALLER}"] if count[SMALLER] else []),
        f"{count['cannot tell']} cannot be told",
        *([f"{missing} {'was' if missing == 1 else 'were'} not run"] if missing else []),
    ]
    return f"{_summary(count, claimed)}: {', '.join(told)}."


def _summary(count: Mapping[Verdict, int], claimed: int) -> str:
    if count["agrees"] and count["disagrees"]:
        return "Mixed"
    if count["agrees"]:
        return "Seen" if count["agrees"] == claimed else "Seen in part"
    if count["disagrees"]:
        return "Not what the paper says" if count["disagrees"] == claimed else "Contradicted in part"
    if count[SMALLER]:
        return "Smaller than the paper's" if count[SMALLER] == claimed else "Smaller than the paper's in part"
    return "Cannot be told from these seeds"


def _verb(number: int, verb: str) -> str:
    return f"{number} {verb}{'s' if number == 1 else ''}"
