"""What a few seeds can say of an effect, and whether that is what the paper says."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from scipy.special import nctdtrinc, stdtrit

from spacedkd.errors import counted
from spacedkd.evaluation.confidence import Difference, difference, standard_error
from spacedkd.experiments.reproduction.fit import ROUNDING
from spacedkd.json_form import to_json

POWER = 0.8
FEWEST = 6
"""seeds without which the exact test cannot reach p < 0.05: with all signs equal p is 2 / 2^n"""
CHANGES = 16
"""seeds up to which all changes of sign are counted"""

Verdict = Literal["agrees", "disagrees", "cannot tell"]
RULE = (
    "An effect is the mean difference paired by seed, with its 95 % interval (Student's t). It agrees with the paper "
    "where the interval leaves out zero on the paper's side. It disagrees where the interval leaves out zero on the "
    "other side, or holds zero and leaves out the paper's difference. Otherwise the seeds cannot tell. Where the paper "
    "gives no number, its claim gives the side (of a loss the lower one). A claim of no gain agrees where the interval "
    "holds or lies below zero and its upper end is less than half of the gain the paper reports of spacing (0.69 of "
    "1.38 points), and disagrees where it lies above zero."
)
FIT_RULE = (
    " A fitted parabola counts as one effect more. It agrees where it bends down, as the interval of its bend shows, "
    "and the interval of its optimum holds that of the paper's own numbers. It disagrees where it is shown to bend up, "
    "or to bend down with an optimum elsewhere. Otherwise the seeds cannot tell. Optima are looked for among the "
    "intervals that were measured: one at their end may lie beyond it."
)
NO_GAIN = 0.0138 / 2
"""half of what the paper reports of spacing for ResNet-18 on CIFAR-100: a gain beside it that is none"""


class Judged(NamedTuple):
    """A verdict, and why."""

    verdict: Verdict
    why: str


def judge(found: Difference, paper: float | None, claims: str) -> Judged:
    """Whether a difference is what the paper says; `paper` is its own, as a part of one, if there is one."""
    if found.low is None or found.high is None:
        return Judged("cannot tell", "one seed has no interval")
    if claims == "no gain":
        return _no_gain(found.low, found.high)
    side = math.copysign(1.0, paper or 1.0)
    low, high = (found.low, found.high) if side > 0 else (-found.high, -found.low)
    if low > 0:
        beyond = "" if paper is None or low <= abs(paper) <= high else _beside(low > abs(paper))
        return Judged("agrees", f"the sign is the paper's{beyond}")
    if high < 0:
        return Judged("disagrees", "the sign is the other one")
    if paper is not None and high < abs(paper):
        return Judged("disagrees", "no effect is shown, and one of the paper's size is ruled out")
    return Judged("cannot tell", "the interval holds zero" + ("" if paper is None else " and the paper's difference"))


def _beside(larger: bool) -> str:
    return ", and the effect is larger" if larger else ", and the effect is smaller"


def _no_gain(low: float, high: float) -> Judged:
    if low > 0:
        return Judged("disagrees", "there is a gain")
    if high < NO_GAIN:
        return Judged("agrees", "half the gain that the paper reports of spacing is ruled out")
    return Judged("cannot tell", "the interval holds zero and half the gain that the paper reports of spacing")


def judge_fit(found: Mapping[str, Any], paper: Mapping[str, Any] | None) -> Judged:
    """Whether a parabola is the arch of the paper's own numbers, as `parabola` gives both."""
    low, high = found["bend"]["low"], found["bend"]["high"]
    if low is None or high is None:
        return Judged("cannot tell", "one seed has no interval")
    if low > ROUNDING:
        return Judged("disagrees", "it bends up")
    if high >= -ROUNDING:
        return Judged("cannot tell", "it may bend either way")
    if paper is None or found["low"] <= paper["optimum"] <= found["high"]:
        return Judged(
            "agrees", "it bends down" + ("" if paper is None else ", with the paper's optimum in its interval")
        )
    return Judged("disagrees", "it bends down, with its optimum elsewhere")


def effect(arm: Mapping[int, float], reference: Mapping[int, float], resolution: float) -> dict[str, Any] | None:
    """The difference of two arms paired by seed, and all that is said of it; None where they share no seed."""
    found = difference(arm, reference, resolution)
    if found is None:
        return None
    gains = [arm[seed] - reference[seed] for seed in sorted(arm.keys() & reference.keys())]
    return {**to_json(found), "sign_flip_p": sign_flip(gains), "detectable": detectable(gains, resolution)}


def sign_flip(gains: Sequence[float]) -> float | None:
    """The p-value of the mean when every gain could as well have had the other sign: exact, of many seeds drawn.

    >>> sign_flip([1.0, 2.0, 3.0, 0.5, 1.5, 0.1]) == 2 / 2**6
    True
    """
    if len(gains) < 2:
        return None
    if len(gains) > CHANGES:
        from scipy.stats import permutation_test

        drawn = permutation_test(
            (gains,), lambda x, axis: x.mean(axis), permutation_type="samples", n_resamples=99_999, rng=0
        )
        return float(drawn.pvalue)
    reached = abs(math.fsum(gains)) - 1e-12
    signs = itertools.product((1, -1), repeat=len(gains))
    sums = (math.fsum(sign * gain for sign, gain in zip(one, gains, strict=True)) for one in signs)
    return float(sum(abs(total) >= reached for total in sums) / 2 ** len(gains))


def detectable(gains: Sequence[float], resolution: float) -> float | None:
    """The smallest difference that seeds which scatter like these would have shown four times of five."""
    n = len(gains)
    if n < 2:
        return None
    error = max(standard_error(gains), resolution / math.sqrt(6 * n))
    return float(nctdtrinc(n - 1, 1 - POWER, stdtrit(n - 1, 0.975))) * error  # of the noncentral t


def sentence(verdicts: Sequence[Verdict], claimed: int) -> str:
    """The verdict over a whole claim, from those of its effects; `claimed` is how many it has, run or not.

    >>> sentence(["agrees", "cannot tell"], 10)
    'Seen in part: of 10 effects 1 agrees, 0 disagree, 1 cannot be told, 8 were not run.'
    """
    if not verdicts:
        return "Nothing to judge yet."
    count = {kind: verdicts.count(kind) for kind in ("agrees", "disagrees", "cannot tell")}
    missing = claimed - len(verdicts)
    said = f"of {counted(claimed, 'effect')} {_verb(count['agrees'], 'agree')}, "
    said += f"{_verb(count['disagrees'], 'disagree')}, {count['cannot tell']} cannot be told"
    said += f", {missing} {'was' if missing == 1 else 'were'} not run" if missing else ""
    if count["agrees"] and not count["disagrees"]:
        how = "Seen" if count["agrees"] == claimed else "Seen in part"
    elif count["disagrees"] and not count["agrees"]:
        how = "Not what the paper says" if count["disagrees"] == claimed else "Contradicted in part"
    else:
        how = "Mixed" if count["agrees"] else "Cannot be told from these seeds"
    return f"{how}: {said}."


def _verb(number: int, verb: str) -> str:
    return f"{number} {verb}{'s' if number == 1 else ''}"
