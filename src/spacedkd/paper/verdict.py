"""What a few seeds can say of an effect, and whether that is what the paper says."""

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import variance
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from spacedkd.config.serialization import to_json
from spacedkd.evaluation.statistics import Difference, confidence_interval, half_width
from spacedkd.runtime.errors import pluralize

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
    """A difference of the paper's, as a part of one, and the standard error that a mean of its repeats has."""

    difference: float
    error: float | None = None
    """None where our seeds do not show how runs scatter"""


class Judged(NamedTuple):
    """A verdict, and why."""

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


def judge(found: Difference, paper: Reported | None, claims: str) -> Judged:
    """Judge a difference by what the paper says; `paper` is its own, if it prints one."""
    if found.low is None or found.high is None:
        return Judged("cannot tell", "one seed has no interval")
    if claims == "no gain":
        return _no_gain(found.low, found.high)
    if claims == "no cost":
        return _no_cost(found.low, found.high)
    side = math.copysign(1.0, (paper.difference if paper else 0.0) or 1.0)
    low, high = (found.low, found.high) if side > 0 else (-found.high, -found.low)
    smaller = paper is not None and _excludes(found, paper, side)
    if low > 0:
        return Judged("agrees", "the sign is the paper's" + (", and the effect is smaller" if smaller else ""))
    if high < 0:
        return Judged("disagrees", "the sign is the other one")
    if smaller:
        return Judged(SMALLER, "no effect is shown, and one of the paper's size is ruled out")
    return Judged("cannot tell", "the interval holds zero" + ("" if paper is None else _not_excluded(paper)))


def _excludes(found: Difference, paper: Reported, side: float) -> bool:
    """Whether our effect is shown to be less than the paper's, with the errors of both counted."""
    if found.low is None or found.high is None or paper.error is None:
        return False
    half = (found.high - found.low) / 2
    both = math.hypot(half, half_width(paper.error, found.n))  # the same t for both: our seeds alone show the scatter
    return abs(paper.difference) - side * found.mean > both


def _not_excluded(paper: Reported) -> str:
    return ", and one of the paper's size is not ruled out" if paper.difference else ""


def _no_gain(low: float, high: float) -> Judged:
    if low > 0:
        return Judged("disagrees", "there is a gain")
    if high < NO_GAIN:
        return Judged("agrees", "half the gain that the paper reports of spacing is ruled out")
    return Judged("cannot tell", "the interval holds zero and half the gain that the paper reports of spacing")


def _no_cost(low: float, high: float) -> Judged:
    """Of counts turned round, so that above zero is cheaper."""
    if high < 0:
        return Judged("disagrees", "it costs more")
    if low >= 0:
        return Judged("agrees", "it costs no more" if high == 0 else "it costs less")
    return Judged("cannot tell", "it may cost more or less")


def judge_fit(found: Mapping[str, Any], paper: Mapping[str, Any] | None, error: float | None = None) -> Judged:
    """Judge the bend of a parabola by that of the paper's own numbers, as `parabola` gives both.

    `error` is the standard error of the paper's bend. Of the optimum the reason says where it lies.
    """
    mean, low, high = (_unless_rounding(found["bend"][name]) for name in ("mean", "low", "high"))
    if mean is None or low is None or high is None:
        return Judged("cannot tell", "one seed has no interval")
    theirs = None if paper is None or paper["opens"] != "down" else Reported(-paper["coefficients"][2], error)
    judged = judge(Difference(-mean, -high, -low, None, found["bend"]["n"]), theirs, "gain")
    if judged.verdict == "agrees":
        return Judged("agrees", "it bends down" + ("" if theirs is None else _where(found, paper)))
    whys = {
        "disagrees": "it bends up",
        SMALLER: "no bend is shown, and one like the paper's is ruled out",
        "cannot tell": "it may bend either way",
    }
    return Judged(judged.verdict, whys[judged.verdict])


def _where(found: Mapping[str, Any], paper: Mapping[str, Any] | None) -> str:
    assert paper is not None
    inside = found["low"] <= paper["optimum"] <= found["high"]
    return f", {'with' if inside else 'without'} the paper's optimum in its interval"


def _unless_rounding(value: float | None) -> float | None:
    """Zero in place of a bend that the arithmetic alone may have left behind."""
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
