"""What the paper states about a teacher that is ahead, in plain words, and where its proof deserves a look."""

# ruff: noqa: RUF001, formulas are written with the letters of the paper

from __future__ import annotations

from spacedkd.report.markup import Markup, tag, text
from spacedkd.report.theory_words import MEANINGS, STATEMENTS

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


def stated() -> Markup:
    """The section that says what was to be measured."""
    items = [tag("li", tag("b", text(f"{title}: ")), text(f"{MEANINGS[name]}.")) for name, title in STATEMENTS.items()]
    formulas = [tag("div", text(formula)) for formula in FORMULAS]
    return tag(
        "section",
        tag("h2", text("What is stated"), id="stated"),
        tag("p", text(SETTING)),
        tag("div", *formulas, class_="formula"),
        tag("ol", *items),
        tag("p", text("Three places in the proof deserve a look.")),
        tag("ul", *(tag("li", text(place)) for place in (ABSOLUTE, SIGN, SAME))),
        aria_labelledby="stated",
    )
