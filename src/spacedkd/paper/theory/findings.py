"""What the paper states and what the experiment says of it, in sentences; every judgement is read off the numbers."""

# ruff: noqa: RUF001, formulas are written with the letters of the paper

import math
from collections.abc import Sequence

from spacedkd.report.formatting import MINUS, PLUS_MINUS, Found, join_words, plural, value_range

CHANCE = 0.05
"""clear cases up to this part are no more than chance would give"""

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
SQUARES = (
    "The Lemma's own proof says that the teacher's expected loss does not rise near its minimum. That loss is half a "
    "mean of squares, dᵢ²; the Lemma is about the mean of |dᵢ|. The one does not follow from the other: (0.6, 0.6) has "
    "the smaller squares, (1, 0) the smaller absolute values."
)
ABSOLUTE = (
    "The Lemma is about sums of absolute values, the trace about a sum with signs, and the proof passes from the one "
    "to the other. That does not follow: the numbers (1, −1) have the larger absolute values, but (½, ½) have the "
    "larger sum."
)
SIGN = (
    "At the student's minimum f(xᵢ) = yᵢ, so βᵢ = α(yᵢ − g(xᵢ)) = −α dᵢ, where the paper writes +α dᵢ. With the sign "
    "mended, a smaller signed sum makes the trace larger, not smaller. The traces on this page are exact and use "
    "neither form."
)
SAME = (
    "The first term, |∇f|², is taken to be the same for both students. It is, if both end at the same parameters; two "
    "students that learned from different teachers need not."
)


def interval_name(setting: Found, interval: int) -> str:
    """An interval in epochs.

    >>> interval_name({"steps": 90, "samples": 16, "batch_size": 4}, 6)
    '1.5 epochs'
    """
    if interval == setting["steps"]:
        return "offline"
    return plural(interval * setting["batch_size"] / setting["samples"], "epoch")


def signed_percent(part: float) -> str:
    """A part of one in percent with two digits and its sign.

    >>> signed_percent(0.00368), signed_percent(0)
    ('+0.37 %', '0 %')
    """
    return f"{'+' if part > 0 else MINUS if part < 0 else ''}{abs(100 * part):.2g} %"


def with_half(change: Found) -> str:
    """A change in percent and half the width of its 95 % interval, which has two digits.

    >>> with_half({"mean": 0.0297, "low": 0.0158, "high": 0.0437})
    '+3.0 \N{PLUS-MINUS SIGN} 1.4 %'
    """
    if change["low"] is None:
        return signed_percent(change["mean"])
    half = 100 * (change["high"] - change["low"]) / 2
    decimals = max(0, 1 - math.floor(math.log10(half))) if half > 0 else 2
    sign = "+" if change["mean"] > 0 else MINUS
    return f"{sign}{abs(100 * change['mean']):.{decimals}f} {PLUS_MINUS} {half:.{decimals}f} %"


def share(part: float) -> str:
    """How many of a hundred; a part that is not all or nothing is never written as that.

    >>> share(0.004), share(0.5), share(1)
    ('<1', '50', '100')
    """
    if 0 < part < 0.005:
        return "<1"
    return ">99" if 0.995 <= part < 1 else f"{100 * part:.0f}"


def shares(every: Sequence[Found], name: str) -> str:
    """From the smallest to the largest part of this name."""
    return value_range([one[name] for one in every], share)


def verdicts(found: Found, name: str) -> list[Found]:
    """Of every setting and interval that came near convergence."""
    intervals = [interval for one in found["settings"] for interval in one["intervals"]]
    return [near[name] for interval in intervals if (near := interval["verdicts"]["near"])]


def judgement(found: Found, name: str) -> str:
    """Whether a statement was contradicted anywhere, everywhere or here and there."""
    every = verdicts(found, name)
    if not every:
        return "could not be judged"
    held, broken = (max(one[kind] for one in every) > CHANCE for kind in ("held", "broken"))
    if broken:
        return "held in some cases and failed in others" if held else "was contradicted"
    return "was not contradicted" if held else "was neither confirmed nor contradicted"


def headline(found: Found) -> str:
    """The four judgements in one sentence."""
    lemma, step, same, own = (judgement(found, name) for name in STATEMENTS)
    return (
        f"The Lemma {lemma}. The signed inequality that the proof takes from it {step}, as printed; but the proof has "
        f"a sign the wrong way round. The Theorem {same} where both teachers are put before one and the same student, "
        f"and {own} where each student is at its own parameters."
    )


def finding(found: Found, name: str) -> str:
    """How often a statement clearly held and clearly failed."""
    every = verdicts(found, name)
    if not every:
        return "No teacher came near convergence: give the experiment more steps."
    held, broken = shares(every, "held"), shares(every, "broken")
    return f"clearly held in {held} % of cases, clearly broken in {broken} %, the rest too close to tell"


def follow_up(found: Found) -> str:
    """What became of the proof's step where its premise was true."""
    every = [near for one in found["settings"] for of in one["intervals"] if (near := of["follows"]["near"])]
    if not every:
        return "The Lemma's inequality was not seen near convergence."
    return (
        f"Taking only the cases in which the Lemma's inequality holds between the means, the step as printed holds in "
        f"{shares(every, 'step')} % of them, depending on setting and interval, and the Theorem's inequality at one "
        f"minimum in {shares(every, 'theorem_same')} %. Were the first a consequence of the Lemma, it would be 100 %, "
        "but for noise in the means."
    )


def by_problem(found: Found, name: str) -> str:
    """How many problems say yes and no when all times near convergence are averaged."""
    held, broken = (shares(verdicts(found, name), f"problems_{kind}") for kind in ("held", "broken"))
    return f"{STATEMENTS[name]}: clearly held for {held} % of problems, clearly broken for {broken} %."


def why(found: Found) -> str:
    """Where the sign of the signed sum comes from."""
    every = [one["why"] for one in found["settings"] if one["why"]]
    if not every:
        return ""
    gap, bend = ([one[name] for one in every] for name in ("gap_target", "bend_target"))
    with_gap, with_bend = (value_range(values, lambda r: f"{r:.2f}".replace("-", MINUS)) for values in (gap, bend))
    said = (
        f"The signed sum is above zero in {shares(every, 'signed_positive')} % of runs and times near convergence. "
        f"With the targets, what is left of the teacher's error has a correlation of {with_gap}, and tr ∇²f one of "
        f"{with_bend}."
    )
    if max(gap) < 0 and max(bend) < 0:
        said += (
            " Both go against the targets, so their product is mostly positive and shrinks as the teacher learns. That "
            "gives the signed inequality its direction here; the Lemma alone does not."
        )
    return said


def sizes(found: Found) -> str:
    """How much of a trace is at stake."""
    same, own = (
        [abs(one["change"]["mean"]) for one in verdicts(found, name)] for name in ("theorem_same", "theorem_own")
    )
    if not same:
        return ""
    return (
        f"Exchanging the teacher at one minimum changes the trace by {_range(same)} on average. The students' own "
        "parameters differ too, and with them the first term, which the proof takes to be equal: at its own "
        f"parameters a spaced student's trace differs from the online student's by {_range(own)}."
    )


def _range(values: list[float]) -> str:
    low = "less than 0.001" if min(values) < 1e-5 else f"{100 * min(values):.2g}"
    return f"{low} % to {100 * max(values):.2g} %"


def ends(found: Found) -> list[str]:
    """One sentence for each setting: which intervals ended flatter than online KD, which sharper."""
    sentences = []
    for one in found["settings"]:
        groups: dict[str, list[str]] = {"smaller": [], "larger": [], "not clearly different": []}
        for interval in one["intervals"]:
            change = interval["end"]["change"]
            clear = change["low"] is not None and (change["low"] > 0 or change["high"] < 0)
            kind = ("larger" if change["mean"] > 0 else "smaller") if clear else "not clearly different"
            name = interval_name(one["setting"], interval["interval"])
            groups[kind].append(f"{name} ({signed_percent(change['mean'])})")
        said = "; ".join(f"{kind} for {join_words(names)}" for kind, names in groups.items() if names)
        sentences.append(f"{one['setting']['name']}: against online KD the trace at the end is {said}.")
    return sentences
