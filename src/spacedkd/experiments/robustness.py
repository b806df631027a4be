"""The evaluations of a comparison's runs side by side: means over seeds, and differences paired by seed."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spacedkd.evaluation.confidence import confidence_interval, difference
from spacedkd.experiments.evaluation_file import Found, Metric, metrics, of_student, read, usual
from spacedkd.json_form import to_json


def compare_evaluations(comparison: Mapping[str, Any]) -> dict[str, Any] | None:
    """Every number that was measured of at least one run, for every arm; None where nothing was measured.

    Only equal settings are compared: those of the arm that differences are taken to, or else the most common ones.
    """
    stale: list[str] = []
    arms = {arm["label"]: _evaluated(arm, stale) for arm in comparison["arms"]}
    if not any(arms.values()):
        return None
    against = comparison["against"]
    comparable = {arm["label"] for arm in comparison["arms"] if arm["difference"] is not None}
    numbers = {label: {seed: metrics(found) for seed, found in runs.items()} for label, runs in arms.items()}
    keys = dict.fromkeys(key for runs in numbers.values() for one in runs.values() for key in one)
    other: list[str] = []
    reference_first = [arms[against], *(runs for label, runs in arms.items() if label != against)]
    compared = {
        "metrics": {key: _metric(key, numbers, against, comparable, other) for key in keys},
        "reliability": {label: _reliability([*runs.values()]) for label, runs in arms.items() if runs},
        "settings": _settings([found for runs in reference_first for found in runs.values()]),
    }
    notes = {
        "Measured before the run was finished, and left out": "; ".join(stale),
        "Measured with other settings, and left out there": ", ".join(dict.fromkeys(other)),
        "Not evaluated": ", ".join(label for label, runs in arms.items() if not runs),
    }
    return {**compared, "notes": [f"{what}: {whom}." for what, whom in notes.items() if whom]}


def _evaluated(arm: Mapping[str, Any], stale: list[str]) -> Mapping[int, Found]:
    """What was measured of the arm's runs as they are now, after their last epoch, by seed."""
    every = {run["seed"]: read(Path(run["folder"])) for run in arm["runs"]}
    done = {seed: found for seed, found in every.items() if found and found["origin"].get("epochs") is not None}
    stale += [f"{arm['label']}, seed {seed}" for seed, found in every.items() if found and seed not in done]
    return done


Numbers = Mapping[str, Mapping[int, Mapping[str, Metric]]]
"""of every arm, by seed and name"""


def _metric(key: str, arms: Numbers, against: str, comparable: set[str], other: list[str]) -> dict[str, Any]:
    measured = {label: {seed: one[key] for seed, one in runs.items() if key in one} for label, runs in arms.items()}
    sample = usual([*measured[against].values()] or [one for found in measured.values() for one in found.values()])
    values: dict[str, dict[int, float]] = {}
    for label, found in measured.items():
        values[label] = {seed: one.value for seed, one in found.items() if one.settings == sample.settings}
        if len(values[label]) < len(found):
            other.append(label)
    gains = {label: difference(values[label], values[against], sample.resolution) for label in comparable}
    return {
        "title": sample.title,
        "unit": sample.unit,
        "better": sample.better,
        "arms": {
            label: {
                "estimate": to_json(confidence_interval([*by_seed.values()])),
                "difference": to_json(gains.get(label)),
                "by_seed": {str(seed): value for seed, value in by_seed.items()},
            }
            for label, by_seed in values.items()
            if by_seed
        },
    }


def _reliability(runs: Sequence[Found]) -> list[dict[str, Any]]:
    """The bins of all seeds together."""
    heads = [of_student(one["instruments"]["accuracy"])["heads"]["final"]["reliability"] for one in runs]
    pooled = []
    for bins in zip(*heads, strict=True):
        images = sum(one["images"] for one in bins)
        means = {
            name: sum(one["images"] * (one[name] or 0.0) for one in bins) / images if images else None
            for name in ("confidence", "accuracy")
        }
        pooled.append({"low": bins[0]["low"], "high": bins[0]["high"], "images": images, **means})
    return pooled


def _settings(found: Sequence[Found]) -> dict[str, str]:
    """How each instrument was set, in words, as the first run that used it has it."""
    used: dict[str, list[Found]] = {}
    for one in found:
        for name, instrument in one["instruments"].items():
            used.setdefault(name, []).append(instrument)
    words: dict[str, Callable[[Found], str]] = {
        "accuracy": lambda of: f"{of_student(of)['images']} test images, deepest head, after the last epoch.",
        "corruptions": _corruption_words,
        "adversarial": _attack_words,
        "weight_noise": lambda of: (
            f"{of['images']} training images as they are, {of['draws']} draws at each level; BatchNorm: "
            f"{of['batchnorm']}. Absolute noise has this deviation everywhere, relative noise this part of a tensor's "
            "root mean square."
        ),
        "curvature": lambda of: (
            f"Hessian of the mean cross-entropy of {of['images']} training images as they are; trace by "
            f"{of['trace']['method']}; BatchNorm: {of['batchnorm']}. {_precision_words(used['curvature'])}"
        ),
    }
    return {name: words[name](instruments[0]) for name, instruments in used.items() if name in words}


def _precision_words(found: Sequence[Found]) -> str:
    """How sure the traces of all runs are."""
    alike = [one for one in found if one["images"] == found[0]["images"]]  # those that are compared
    errors = [one["trace"]["standard_error"] / abs(one["trace"]["value"] or 1) for one in alike]
    asked = " or ".join(f"{100 * error:g}" for error in sorted({one["error"] for one in alike}))
    missed = sum(one["trace"]["stopped"] == "most products" for one in alike)
    short = f", which {missed} of {len(alike)} runs did not reach" if missed else ""
    return (
        f"Standard errors of the traces were {100 * min(errors):.1f} to {100 * max(errors):.1f} %; asked for were at "
        f"most {asked} %{short}."
    )


def _corruption_words(of: Found) -> str:
    enlarged = f" Images were enlarged {of['enlarged']}x while they were corrupted." if of["enlarged"] > 1 else ""
    severities = ", ".join(map(str, of["severities"]))
    return f"{of['images']} test images, {len(of['names'])} corruptions, severities {severities}.{enlarged}"


def _attack_words(of: Found) -> str:
    def words(attack: Found) -> str:
        steps = "1 step" if attack["steps"] == 1 else f"{attack['steps']} steps"
        start = ", random start" if attack["random_start"] else ""
        return f"{attack['name'].upper()}: {steps} of {attack['step'] / attack['epsilon']:g} epsilon{start}"

    kinds = dict.fromkeys(words(one["attack"]) for one in of["attacks"])
    return f"{of['images']} test images; epsilon in pixel values 0 to 255, before normalisation. {'; '.join(kinds)}."
