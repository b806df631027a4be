"""Verdicts: whether the effects of a few seeds are what the paper says.

`judge` judges a difference, `judge_fit` the bend of a parabola, `sentence` a whole claim; `rule` says in words how. The
statistics themselves are those of `evaluation.statistics`, the fits those of `paper.parabola`.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import variance
from typing import Literal, NamedTuple, get_args

from spacedkd.evaluation.statistics import Difference, half_width
from spacedkd.paper.parabola import ROUNDING, Fit
from spacedkd.runtime.errors import pluralize

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
