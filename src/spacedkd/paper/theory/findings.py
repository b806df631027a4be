"""The findings of the theory experiment: the types of theory.json, and sentences that are read off its numbers.

`headline` judges the Lemma and the Theorem in one sentence, `finding` counts one statement. Without torch.
"""

# ruff: noqa: RUF001, formulas are written with the letters of the paper

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from spacedkd.reporting.formatting import MINUS, PLUS_MINUS, join_words, plural, value_range
from spacedkd.runs.schema import Estimate

# theory.json


class StatementResults(TypedDict):
    """Fractions of cases in which a statement held; a case is a problem at a time."""

    held: float
    broken: float
    means: float
    single: float
    problems_held: float
    problems_broken: float
    change: Estimate
    unit: str


class End(TypedDict):
    """The trace of the task's Hessian after the last update, of an interval and of online KD."""

    online: float
    spaced: float
    change: Estimate
    smaller: float


class IntervalResults(TypedDict):
    """One interval against online KD; `verdicts` and `follows` are by window, near convergence or all times."""

    interval: int
    verdicts: dict[str, dict[str, StatementResults] | None]
    follows: dict[str, dict[str, float] | None]
    gap: list[float]
    trace: list[float]
    change: list[float]
    end: End


class SignCauses(TypedDict):
    """Correlations with the targets, and how often the signed sum is above zero."""

    gap_target: float
    bend_target: float
    signed_positive: float


class Example(TypedDict):
    """The gap of a single run, from the step `start` on."""

    start: int
    gap: list[float]


class SettingResults(TypedDict):
    """The results of one setting; lists are over the times."""

    setting: dict[str, Any]
    limit: float
    times: list[int]
    near: list[bool]
    loss: list[float]
    gap: list[float]
    error: list[float]
    linear: float | None
    why: SignCauses | None
    online_trace: list[float]
    intervals: list[IntervalResults]
    example: Example


class TheoryResults(TypedDict):
    """theory.json."""

    near: float
    settings: list[SettingResults]


# The paper's statements

STATEMENTS = {
    "lemma": "Lemma",
    "step": "Step of the proof",
    "theorem_same": "Theorem, one minimum",
    "theorem_own": "Theorem, own minima",
}
MEANINGS = {
    "lemma": "the teacher that is ahead is no further from its own minimum: mean |dᵢ| is no larger",
    "step": "so the sum of dᵢ times tr ∇²f(xᵢ), in which terms of different sign cancel, is no larger either",
    "theorem_same": "so the trace is no larger with the teacher that is ahead, at one and the same student",
    "theorem_own": "so the spaced student's trace is no larger than the online student's, each at its own parameters",
}
SETTING = (
    "Squared error, one number as output, and networks f (student) and g (teacher, with parameters φ) wide enough to "
    "fit every training sample. At its update t an online student learns from the teacher φ(t); a spaced one from "
    "φ(k), where k = ⌈t/s⌉s lies up to s updates ahead. φ* is where the teacher's parameters go."
)
FORMULAS = (
    "Tr H(φ) = mean over i of [ |∇f(xᵢ)|² + βᵢ tr ∇²f(xᵢ) ]",
    "βᵢ = (1−α)(f(xᵢ)−yᵢ) + α(f(xᵢ)−g(xᵢ))",
    "dᵢ(φ) = (φ−φ*)·∇g(xᵢ),  u(φ) = mean |dᵢ(φ)|",
)
GAPS_IN_THE_PROOFS = (
    "The Lemma's own proof says that the teacher's expected loss does not rise near its minimum. That loss is half a "
    "mean of squares, dᵢ²; the Lemma is about the mean of |dᵢ|. The one does not follow from the other: (0.6, 0.6) has "
    "the smaller squares, (1, 0) the smaller absolute values.",
    "The Lemma is about sums of absolute values, the trace about a sum with signs, and the proof passes from the one "
    "to the other. That does not follow: the numbers (1, −1) have the larger absolute values, but (½, ½) have the "
    "larger sum.",
    "At the student's minimum f(xᵢ) = yᵢ, so βᵢ = α(yᵢ − g(xᵢ)) = −α dᵢ, where the paper writes +α dᵢ. With the sign "
    "corrected, a smaller signed sum makes the trace larger, not smaller. The traces on this page are exact and use "
    "neither form.",
    "The first term, |∇f|², is taken to be the same for both students. It is, if both end at the same parameters; two "
    "students that learned from different teachers need not.",
)


# Numbers as text


def interval_name(setting: Mapping[str, Any], interval: int) -> str:
    """Return an interval in epochs.

    >>> interval_name({"steps": 90, "samples": 16, "batch_size": 4}, 6)
    '1.5 epochs'
    """
    if interval == setting["steps"]:
        return "offline"
    return plural(interval * setting["batch_size"] / setting["samples"], "epoch")


def signed_percent(fraction: float) -> str:
    """Return a fraction in percent with two digits and its sign.

    >>> signed_percent(0.00368), signed_percent(0)
    ('+0.37 %', '0 %')
    """
    return f"{'+' if fraction > 0 else MINUS if fraction < 0 else ''}{abs(100 * fraction):.2g} %"


def format_change(change: Estimate) -> str:
    """Return a change in percent and half the width of its 95 % interval, which has two digits.

    >>> format_change({"mean": 0.0297, "low": 0.0158, "high": 0.0437, "n": 16})
    '+3.0 \N{PLUS-MINUS SIGN} 1.4 %'
    """
    if change["low"] is None or change["high"] is None:
        return signed_percent(change["mean"])
    half = 100 * (change["high"] - change["low"]) / 2
    decimals = max(0, 1 - math.floor(math.log10(half))) if half > 0 else 2
    sign = "+" if change["mean"] > 0 else MINUS
    return f"{sign}{abs(100 * change['mean']):.{decimals}f} {PLUS_MINUS} {half:.{decimals}f} %"


def format_share(fraction: float) -> str:
    """Return a fraction in percent, without the sign; it is 0 or 100 only where it is exactly that.

    >>> format_share(0.004), format_share(0.5), format_share(1)
    ('<1', '50', '100')
    """
    if 0 < fraction < 0.005:
        return "<1"
    return ">99" if 0.995 <= fraction < 1 else f"{100 * fraction:.0f}"


def share_range(results: Sequence[Mapping[str, Any]], name: str) -> str:
    """Return the range of a fraction, from the smallest to the largest, in percent."""
    return value_range([result[name] for result in results], format_share)


def _change_range(changes: Sequence[float]) -> str:
    low = "less than 0.001" if min(changes) < 1e-5 else f"{100 * min(changes):.2g}"
    return f"{low} % to {100 * max(changes):.2g} %"


# Sentences

CHANCE = 0.05
"""clear cases up to this fraction are no more than chance would give"""


def near_convergence(results: TheoryResults, name: str) -> list[StatementResults]:
    """Return the results of a statement near convergence, for every setting and interval that came so far."""
    intervals = [interval for setting in results["settings"] for interval in setting["intervals"]]
    return [verdicts[name] for interval in intervals if (verdicts := interval["verdicts"]["near"])]


def judgement(results: TheoryResults, name: str) -> str:
    """Return whether a statement was contradicted anywhere, everywhere or in some cases."""
    statements = near_convergence(results, name)
    if not statements:
        return "could not be judged"
    held = max(statement["held"] for statement in statements) > CHANCE
    broken = max(statement["broken"] for statement in statements) > CHANCE
    if broken:
        return "held in some cases and failed in others" if held else "was contradicted"
    return "was not contradicted" if held else "was neither confirmed nor contradicted"


def headline(results: TheoryResults) -> str:
    """Return the judgements of the four statements in a few sentences."""
    lemma, step, same, own = (judgement(results, name) for name in STATEMENTS)
    return (
        f"The Lemma {lemma}. The signed inequality that the proof takes from it {step}, as printed; but the proof has "
        f"a sign the wrong way round. The Theorem {same} where both teachers are put before one and the same student, "
        f"and {own} where each student is at its own parameters."
    )


def finding(results: TheoryResults, name: str) -> str:
    """Return how often a statement clearly held and clearly failed."""
    statements = near_convergence(results, name)
    if not statements:
        return "No teacher came near convergence: give the experiment more steps."
    held, broken = share_range(statements, "held"), share_range(statements, "broken")
    return f"clearly held in {held} % of cases, clearly broken in {broken} %, the rest too close to tell"


def problem_finding(results: TheoryResults, name: str) -> str:
    """Return for how many problems a statement held and failed, averaged over all times near convergence."""
    statements = near_convergence(results, name)
    held, broken = share_range(statements, "problems_held"), share_range(statements, "problems_broken")
    return f"{STATEMENTS[name]}: clearly held for {held} % of problems, clearly broken for {broken} %."


def conclusion_finding(results: TheoryResults) -> str:
    """Return how often the proof's step held where its premise, the Lemma's inequality, was true."""
    intervals = [interval for setting in results["settings"] for interval in setting["intervals"]]
    conclusions = [fractions for interval in intervals if (fractions := interval["follows"]["near"])]
    if not conclusions:
        return "The Lemma's inequality was not seen near convergence."
    return (
        f"Taking only the cases in which the Lemma's inequality holds between the means, the step as printed holds in "
        f"{share_range(conclusions, 'step')} % of them, depending on setting and interval, and the Theorem's "
        f"inequality at one minimum in {share_range(conclusions, 'theorem_same')} %. Were the first a consequence of "
        "the Lemma, it would be 100 %, but for noise in the means."
    )


def sign_finding(results: TheoryResults) -> str:
    """Return where the sign of the signed sum comes from; empty where no teacher came near convergence."""
    causes = [setting["why"] for setting in results["settings"] if setting["why"]]
    if not causes:
        return ""
    gap = [cause["gap_target"] for cause in causes]
    hessian_trace = [cause["bend_target"] for cause in causes]
    sentences = (
        f"The signed sum is above zero in {share_range(causes, 'signed_positive')} % of runs and times near "
        f"convergence. With the targets, what is left of the teacher's error has a correlation of "
        f"{_correlation_range(gap)}, and tr ∇²f one of {_correlation_range(hessian_trace)}."
    )
    if max(gap) < 0 and max(hessian_trace) < 0:
        sentences += (
            " Both go against the targets, so their product is mostly positive and shrinks as the teacher learns. That "
            "gives the signed inequality its direction here; the Lemma alone does not."
        )
    return sentences


def _correlation_range(values: Sequence[float]) -> str:
    return value_range(values, lambda value: f"{value:.2f}".replace("-", MINUS))


def size_finding(results: TheoryResults) -> str:
    """Return by how much the traces differ; empty where no teacher came near convergence."""
    same = [abs(statement["change"]["mean"]) for statement in near_convergence(results, "theorem_same")]
    own = [abs(statement["change"]["mean"]) for statement in near_convergence(results, "theorem_own")]
    if not same:
        return ""
    return (
        f"Exchanging the teacher at one minimum changes the trace by {_change_range(same)} on average. The students' "
        "own parameters differ too, and with them the first term, which the proof takes to be equal: at its own "
        f"parameters a spaced student's trace differs from the online student's by {_change_range(own)}."
    )


def end_findings(results: TheoryResults) -> list[str]:
    """Return a sentence for each setting: which intervals ended flatter than online KD, which sharper."""
    return [_end_finding(setting) for setting in results["settings"]]


def _end_finding(results: SettingResults) -> str:
    groups: dict[str, list[str]] = {"smaller": [], "larger": [], "not clearly different": []}
    for interval in results["intervals"]:
        change = interval["end"]["change"]
        low, high = change["low"], change["high"]
        is_clear = low is not None and high is not None and (low > 0 or high < 0)
        kind = ("larger" if change["mean"] > 0 else "smaller") if is_clear else "not clearly different"
        name = interval_name(results["setting"], interval["interval"])
        groups[kind].append(f"{name} ({signed_percent(change['mean'])})")
    comparison = "; ".join(f"{kind} for {join_words(names)}" for kind, names in groups.items() if names)
    return f"{results['setting']['name']}: against online KD the trace at the end is {comparison}."
