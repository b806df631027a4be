"""What the finished runs say: measures, paired differences, tests and verdicts, as plain documents.

Every number on the page of the study is computed here, from the journals of the runs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spacedkd.evaluation.statistics import ConfidenceInterval, Effect, confidence_interval, holm, paired_effect
from spacedkd.paper.store import Store
from spacedkd.runs.journal import read_accuracies
from spacedkd.runs.result import Run
from studies.spacing.arms import CURVE, Question

MEASURES = {"student": "last iterate", "average": "average poly:2"}
"""the role in a journal -> the measure"""
MEANS_OVER = {"q0": 5}
"""a question -> the evaluations at the end of a run whose mean is the measure; ten elsewhere"""
BETTER, HINT = 0.01, 0.05
"""the corrected p of a claim, and the uncorrected p of a hint"""
REFERENCES = ("online", "offline", "no KD")
PRIMARY = {"q0": "1.5", "q1": "6"}
"""a question whose tests are primary -> the interval that stands for spaced KD in them"""
USUAL = "usual strength"
CONTRASTS: dict[str, Sequence[tuple[str, str]]] = {
    **{name: [(interval, reference) for reference in REFERENCES] for name, interval in PRIMARY.items()},
    "q2": [("1.5", reference) for reference in REFERENCES],
    "q3": [
        *(
            (f"{USUAL}, {interval}", f"{USUAL}, {other}")
            for interval in ("1.5", "6")
            for other in ("online", "offline")
        ),
        *((f"{USUAL}, {arm}", other) for arm in ("1.5", "offline") for other in (arm, "no KD")),
        *((f"averaged teacher, {arm}", arm) for arm in ("1.5", "half", "offline")),
        ("averaged teacher, offline", "no KD"),
        *((f"speed {speed}, 1.5", other) for speed in (2, 4) for other in ("1.5", "offline")),
        *((f"other first weights, {arm}", arm) for arm in ("online", "1.5", "offline")),
    ],
    "q4": [(interval, reference) for interval in ("1.5", "8") for reference in REFERENCES],
    "q5": [
        *(("spaced", other) for other in ("plain", "plain, twice as long", "no KD")),
        ("plain", "no KD"),
        *(("ahead 1.5", other) for other in ("online", "1.5", "offline")),
    ],
    "q6": [("1.5", reference) for reference in REFERENCES],
}
"""a question -> the pairs of arms whose difference is tested, where both were trained"""


class Verdict(NamedTuple):
    """The difference of two arms with its corrected p."""

    regime: str
    measure: str
    arm: str
    against: str
    effect: Effect
    p_holm: float
    primary: bool
    """whether it may be a claim; others are hints at most"""

    @property
    def word(self) -> str:
        """Better, worse, a hint of either, or not told."""
        exact = self.effect.n < 10 or (self.effect.sign_flip_p or 0) < BETTER
        sign = "better" if self.effect.mean > 0 else "worse"
        if self.primary and self.p_holm < BETTER and exact:
            return sign
        return f"hint: {sign}" if (self.effect.p or 1) < HINT else "not told"


@dataclass(frozen=True)
class Regime:
    """The arms of a question that differ in who learns when, not in rate or data."""

    question: str
    name: str
    accuracies: Mapping[str, Mapping[str, Mapping[int, float]]]
    """measure -> arm -> seed -> accuracy"""
    resolution: float
    """one test image"""
    teachers: Mapping[int, float]
    """seed -> the teacher's accuracy, measured as the student's is"""
    intervals: Mapping[str, float]
    """arm -> interval in epochs, of those that are plainly spaced"""
    epochs: float

    def mean(self, measure: str, arm: str) -> ConfidenceInterval:
        """Return the mean over seeds with its interval."""
        return confidence_interval([*self.accuracies[measure][arm].values()])

    def effect(self, measure: str, arm: str, against: str, without: Sequence[int] = ()) -> Effect | None:
        """Return the paired difference of two arms; some seeds may be left out."""
        arms = self.accuracies[measure]
        ours, theirs = (
            {seed: value for seed, value in arms.get(label, {}).items() if seed not in without}
            for label in (arm, against)
        )
        return paired_effect(ours, theirs, self.resolution)

    def gain(self, arm: str) -> Effect | None:
        """Return the average minus the last iterate of an arm."""
        last, average = (self.accuracies[measure].get(arm, {}) for measure in MEASURES.values())
        return paired_effect(average, last, self.resolution)


def mean_of_last(run: Run, role: str, count: int) -> float:
    """Return the mean accuracy of a role over its last evaluations, deepest head, test images."""
    values = [entry["accuracy"]["test"]["final"] for entry in read_accuracies(run.folder) if entry["role"] == role]
    return math.fsum(values[-count:]) / count


def regimes(store: Store, question: Question) -> list[Regime]:
    """Return what is finished of a question, regime by regime; arms are labelled 'regime, arm'."""
    count = MEANS_OVER.get(question.name, 10)
    names = dict.fromkeys(label.partition(", ")[0] for label in question.arms)
    found = []
    for name in names:
        accuracies: dict[str, dict[str, dict[int, float]]] = {measure: {} for measure in MEASURES.values()}
        teachers: dict[int, float] = {}
        intervals: dict[str, float] = {}
        resolution = epochs = 0.0
        for label, spec in question.arms.items():
            regime, _, arm = label.partition(", ")
            if regime != name:
                continue
            runs = store.runs(store.arm(spec))
            epochs = spec.epochs
            for run in runs.values():
                resolution = 1 / run.plan["test_images"]
                if run.interval and arm in CURVE:
                    intervals[arm] = run.interval / run.steps_per_epoch
                if run.leader is not None:
                    teachers.setdefault(run.seed, mean_of_last(run, run.leader, count))
            for role, measure in MEASURES.items():
                if runs:
                    accuracies[measure][arm] = {seed: mean_of_last(run, role, count) for seed, run in runs.items()}
        if any(accuracies.values()):
            found.append(Regime(question.name, name, accuracies, resolution, teachers, intervals, epochs))
    return found


def verdicts(of_question: Sequence[Regime]) -> list[Verdict]:
    """Return the differences that a question tests, corrected together by Holm."""
    question = of_question[0].question
    tests = [
        (regime.name, measure, arm, against, effect)
        for regime in of_question
        for measure in MEASURES.values()
        for arm, against in CONTRASTS[question]
        if (effect := regime.effect(measure, arm, against)) is not None
    ]
    corrected = holm([effect.p for *_, effect in tests])
    return [
        Verdict(name, measure, arm, against, effect, 1.0 if p is None else p, question in PRIMARY)
        for (name, measure, arm, against, effect), p in zip(tests, corrected, strict=True)
    ]
