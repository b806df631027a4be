"""The page of the study, README.md, its figures and results.json, made from the numbers of finished runs."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spacedkd.config.serialization import to_json
from spacedkd.evaluation.statistics import ConfidenceInterval, Effect
from spacedkd.reporting.markdown import grid
from spacedkd.runtime.files import write_json, write_text
from studies.spacing.analysis import MEASURES, PRIMARY, REFERENCES, Regime, Verdict, verdicts
from studies.spacing.arms import Question
from studies.spacing.figures import accuracy_against_interval

TITLES = {
    "q0": "Q0. Generated data (MNIST-1D)",
    "q1": "Q1. Which interval, on images",
    "q2": "Q2. Three times as long, on images",
    "q3": "Q3. Strength, averaged teachers, speed, other first weights",
    "q4": "Q4. Other conditions",
    "q5": "Q5. Self KD, and a teacher that stays ahead",
    "q6": "Q6. All of CIFAR-100",
}
ADVISED = {
    ("q0", "constant"): ("MNIST-1D, a small CNN, 20 epochs", False, "constant", 0.0),
    ("q0", "cosine"): ("MNIST-1D, a small CNN, 20 epochs", False, "cosine", 0.0),
    ("q0", "wrong labels"): ("MNIST-1D, a small CNN, 20 epochs", False, "cosine", 0.2),
    ("q1", "constant"): (
        "25 classes of CIFAR-100 at 16 x 16 pixels, a narrow ResNet-18, 60 epochs",
        True,
        "constant",
        0.0,
    ),
    ("q1", "cosine"): ("25 classes of CIFAR-100 at 16 x 16 pixels, a narrow ResNet-18, 60 epochs", True, "cosine", 0.0),
}
"""a question and a regime that reports cite -> its setting, whether its items are images, its rate, its wrong labels"""
CITED = ("no KD", "online", "1.5", "6", "offline")
"""arms whose average reports cite"""
ENOUGH = 3
"""seeds of a difference that reports cite"""
WITH_FIGURE = 4
"""intervals that a figure needs"""


def write_page(to: Path, asked: Sequence[Question], found: Mapping[str, Sequence[Regime]]) -> None:
    """Write the page, its figures and results.json into a folder."""
    answers = {name: verdicts(regimes) for name, regimes in found.items() if regimes}
    lines = [*_opening(answers), *_left(asked, found)]
    for name, regimes in found.items():
        if regimes:
            lines += _section(to, name, regimes, answers[name])
    write_text(to / "README.md", "\n".join(lines) + "\n", to)
    write_json(to / "results.json", _document(found, answers), to)


def write_advice(file: Path, found: Mapping[str, Sequence[Regime]]) -> None:
    """Write the numbers that reports cite; see `spacedkd.reporting.advice`."""
    cited = [
        _advice(regime, [verdict for verdict in verdicts(of_question) if verdict.regime == regime.name])
        for of_question in found.values()
        for regime in of_question
        if (regime.question, regime.name) in ADVISED
    ]
    write_json(file, {"regimes": [regime for regime in cited if regime["contrasts"]]}, file.parent)


def _advice(regime: Regime, tested: Sequence[Verdict]) -> dict[str, Any]:
    setting, images, rate, label_noise = ADVISED[regime.question, regime.name]
    gains = {arm: regime.gain(arm) for arm in CITED}
    return {
        "setting": setting,
        "images": images,
        "rate": rate,
        "label_noise": label_noise,
        "gains": {arm: _estimate(gain) for arm, gain in gains.items() if gain is not None and gain.n >= ENOUGH},
        "contrasts": [
            {
                "measure": verdict.measure,
                "arm": verdict.arm,
                "against": verdict.against,
                "difference": _estimate(verdict.effect),
                "claim": verdict.word,
            }
            for verdict in tested
            if verdict.effect.n >= ENOUGH
        ],
    }


def _estimate(effect: Effect) -> dict[str, Any]:
    return {"mean": effect.mean, "low": effect.low, "high": effect.high, "n": effect.n}


def _opening(answers: Mapping[str, Sequence[Verdict]]) -> Iterator[str]:
    yield "# What spacing, averaging and time do"
    yield ""
    yield (
        "[PROTOCOL.md](PROTOCOL.md) says how this is measured; it was written before the runs. Accuracies are the mean "
        "over the last evaluations of a run, of the deepest head on the test images, in percent; ± is half of the 95 % "
        "interval over seeds. **Better** and **worse** need p < 0.01 after Holm's correction, a hint needs p < 0.05 "
        "without it."
    )
    yield ""
    yield "## In short"
    yield ""
    for name, of_question in answers.items():
        yield f"**{TITLES[name]}**"
        yield ""
        for verdict in of_question:
            yield f"- {_sentence(verdict)}"
        yield ""


def _sentence(verdict: Verdict) -> str:
    effect, arm, against = verdict.effect, _title(verdict.arm), _title(verdict.against)
    words = {
        "better": f"**{arm} is better than {against}**",
        "worse": f"**{arm} is worse than {against}**",
        "hint: better": f"a hint that {arm} is better than {against}",
        "hint: worse": f"a hint that {arm} is worse than {against}",
        "not told": f"{arm} and {against} are not told apart",
    }[verdict.word]
    return f"{verdict.regime}, {verdict.measure}: {words}: {_effect(effect)} points{_tests(verdict)}."


def _title(arm: str) -> str:
    """Return an arm as it stands in a sentence.

    >>> _title("1.5"), _title("usual strength, 6"), _title("online")
    ('spaced KD by 1.5 epochs', 'spaced KD by 6 epochs (usual strength)', 'online')
    """
    condition, _, name = arm.rpartition(", ")
    text = f"spaced KD by {name} epochs" if name.replace(".", "").isdecimal() else name
    return f"{text} ({condition})" if condition else text


def _tests(verdict: Verdict) -> str:
    effect = verdict.effect
    if effect.p is None:
        return " (one seed)"
    exact = "" if effect.sign_flip_p is None else f", exact p {effect.sign_flip_p:.2g}"
    least = "" if effect.detectable is None else f", detectable {100 * effect.detectable:.2f}"
    return f" (n = {effect.n}, p {effect.p:.2g}, Holm {verdict.p_holm:.2g}{exact}{least})"


def _left(asked: Sequence[Question], found: Mapping[str, Sequence[Regime]]) -> Iterator[str]:
    """Yield what was not run."""
    yield "## What was run"
    yield ""
    rows = []
    for question in asked:
        arms = [arm for regime in found.get(question.name, ()) for arm in regime.accuracies["last iterate"].values()]
        runs = f"{sum(map(len, arms))} of {len(question.arms) * len(question.seeds)}"
        rows.append([question.name, str(len(question.arms)), str(len(question.seeds)), runs])
    yield grid(["question", "arms", "seeds", "runs finished"], rows)
    yield ""
    yield (
        "**A question whose runs are not all finished is interim**: its tests count the seeds that are there, and may "
        "change."
    )
    yield ""
    yield "Of Q5, the rules of timing are not run: in the pilot none of them carried information."
    yield ""


def _section(to: Path, name: str, regimes: Sequence[Regime], answers: Sequence[Verdict]) -> Iterator[str]:
    yield f"## {TITLES[name]}"
    yield ""
    for regime in regimes:
        yield f"### {regime.name}"
        yield ""
        if len(regime.intervals) >= WITH_FIGURE:
            file = f"{name}-{regime.name.replace(' ', '-')}.svg"
            write_text(to / file, accuracy_against_interval(regime), to)
            yield f"![Accuracy against interval, {regime.name}]({file})"
            yield ""
        heads = ["average minus last", "average: minus no KD", "average: minus offline"]
        rows = [_row(regime, arm) for arm in regime.accuracies["last iterate"]]
        yield grid(["arm", "seeds", *MEASURES.values(), *heads], rows)
        yield ""
        without = [
            f"{measure}, minus {against}: {_effect(effect)}"
            for measure in MEASURES.values()
            for against in REFERENCES
            if name == "q1" and (effect := regime.effect(measure, PRIMARY[name], against, without=(0,))) is not None
        ]
        if without:
            yield "Without seed 0, which the pilot had looked at: " + "; ".join(without) + "."
            yield ""


def _row(regime: Regime, arm: str) -> list[str]:
    cells = [_mean(regime.mean(measure, arm)) for measure in MEASURES.values()]
    average = MEASURES["average"]
    differences = [
        "" if arm == against else _effect(regime.effect(average, arm, against)) for against in ("no KD", "offline")
    ]
    return [arm, str(len(regime.accuracies[average][arm])), *cells, _effect(regime.gain(arm)), *differences]


def _mean(interval: ConfidenceInterval) -> str:
    half = "" if interval.high is None else f" ± {100 * (interval.high - interval.mean):.2f}"
    return f"{100 * interval.mean:.2f}{half}"


def _effect(effect: Effect | None) -> str:
    if effect is None:
        return ""
    half = "" if effect.high is None else f" ± {100 * (effect.high - effect.mean):.2f}"
    return f"{100 * effect.mean:+.2f}{half}"


def _document(found: Mapping[str, Sequence[Regime]], answers: Mapping[str, Sequence[Verdict]]) -> dict[str, Any]:
    """Return everything on the page as JSON."""
    return {
        name: {
            "regimes": {regime.name: _regime_document(regime) for regime in regimes},
            "primary": [
                {**verdict._asdict(), "effect": to_json(verdict.effect), "word": verdict.word}
                for verdict in answers[name]
            ],
        }
        for name, regimes in found.items()
        if regimes
    }


def _regime_document(regime: Regime) -> dict[str, Any]:
    return {
        "accuracies": {
            measure: {arm: {str(seed): value for seed, value in seeds.items()} for arm, seeds in arms.items()}
            for measure, arms in regime.accuracies.items()
        },
        "teachers": {str(seed): accuracy for seed, accuracy in regime.teachers.items()},
        "intervals": dict(regime.intervals),
    }
