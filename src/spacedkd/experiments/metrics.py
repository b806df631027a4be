"""The single numbers of an evaluation by which networks can be compared."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

Unit = Literal["percent", "number"]


class Metric(NamedTuple):
    """One number, and what it needs to be compared with another network's."""

    title: str
    value: float
    unit: Unit
    better: Literal["high", "low"] | None
    """None where neither is better in itself"""
    resolution: float
    """accuracies are multiples of one image"""
    settings: str
    """numbers with other settings cannot be compared"""

    def written(self) -> str:
        return f"{100 * self.value:.1f}" if self.unit == "percent" else f"{self.value:.3g}"


def usual(measured: Sequence[Metric]) -> Metric:
    """One with the most common settings."""
    settings = Counter(one.settings for one in measured).most_common(1)[0][0]
    return next(one for one in measured if one.settings == settings)


def metrics(found: Mapping[str, Any]) -> dict[str, Metric]:
    """Every number of an evaluation.json by a name such as corruptions/fog/3; all of the student's deepest head."""
    readers = {
        "accuracy": _accuracy,
        "corruptions": _corruptions,
        "adversarial": _adversarial,
        "weight_noise": _weight_noise,
        "curvature": _curvature,
    }
    numbers: dict[str, Metric] = {}
    for name, read in readers.items():
        if name in found["instruments"]:
            instrument = found["instruments"][name]
            numbers |= {f"{name}/{key}": metric for key, metric in read(instrument)}
    return numbers


Named = Iterator[tuple[str, Metric]]


def _accuracy(found: Mapping[str, Any]) -> Named:
    student = found["models"][found["measured"]["model"]]["test"]
    images = student["images"]
    heads = student["heads"]

    def share(title: str, value: float, better: Literal["high", "low"] | None = "high") -> Metric:
        return Metric(title, value, "percent", better, 1 / images, f"{images} images")

    yield "top1", share("Top-1", heads["final"]["top1"])
    if heads["final"]["top5"] is not None:
        yield "top5", share("Top-5", heads["final"]["top5"])
    for name in [name for name in heads if name not in ("final", "ensemble")]:
        yield f"head/{name}", share(f"Top-1, head {name}", heads[name]["top1"])
    if "ensemble" in heads:
        yield "ensemble", share("Top-1, ensemble of heads", heads["ensemble"]["top1"])
    for key, title in (("nll", "Negative log-likelihood"), ("ece", "Expected calibration error")):
        bins = f", {student['bins']} bins" if key == "ece" else ""
        yield key, Metric(title, heads["final"][key], "number", "low", 0.0, f"{images} images{bins}")
    for name, value in student["agreement"].items():
        yield f"agreement/{name}", share(f"Agreement with the {name}", value, None)
    for name, value, of in zip(found["class_names"], heads["final"]["per_class"], student["class_images"], strict=True):
        if value is not None:
            yield f"class/{name}", Metric(name, value, "percent", "high", 1 / of, f"{of} images")


def _corruptions(found: Mapping[str, Any]) -> Named:
    images, severities = found["images"], found["severities"]
    shared = f"{images} images, enlarged {found['enlarged']}x"

    def mean(title: str, rows: list[Mapping[str, Any]], settings: str) -> Metric:
        values = [row["accuracy"]["final"] for row in rows]
        return Metric(title, sum(values) / len(values), "percent", "high", 1 / images / len(values), settings)

    yield "clean", Metric("Clean images", found["clean"]["final"], "percent", "high", 1 / images, f"{images} images")
    everything = f"{shared}, {', '.join(found['names'])}, severities {severities}"
    yield "mean", mean("Mean corruption accuracy", found["found"], everything)
    for severity in severities:
        rows = [row for row in found["found"] if row["severity"] == severity]
        yield f"severity/{severity}", mean(f"Severity {severity}", rows, f"{shared}, {', '.join(found['names'])}")
    for name in found["names"]:
        rows = [row for row in found["found"] if row["name"] == name]
        yield name, mean(name.replace("_", " "), rows, f"{shared}, severities {severities}")
        for row in rows:
            yield f"{name}/{row['severity']}", mean(f"{name.replace('_', ' ')} {row['severity']}", [row], shared)


def _adversarial(found: Mapping[str, Any]) -> Named:
    images, seed = found["images"], found["seed"]
    every = json.dumps([one["attack"] for one in found["attacks"]])
    accuracies = [one["accuracy"] for one in found["attacks"]]
    yield "clean", Metric("Without attack", found["clean"], "percent", "high", 1 / images, f"{images} images")
    mean = sum(accuracies) / len(accuracies)
    yield (
        "mean",
        Metric("Mean over attacks", mean, "percent", "high", 1 / images / len(accuracies), f"{images}, {every}"),
    )
    for one in found["attacks"]:
        attack = one["attack"]
        title = f"{attack['name'].upper()}, epsilon {attack['epsilon']:g}"
        settings = f"{images} images, seed {seed}, {json.dumps(attack)}"
        yield (
            f"{attack['name']}/{attack['epsilon']:.12g}",
            Metric(title, one["accuracy"], "percent", "high", 1 / images, settings),
        )


def _weight_noise(found: Mapping[str, Any]) -> Named:
    images = found["images"]
    shared = f"{images} training images, {found['draws']} draws, seed {found['seed']}"
    levels = found["levels"]
    yield "clean/accuracy", Metric("Training accuracy", found["accuracy"], "percent", "high", 1 / images, shared)
    yield "clean/loss", Metric("Training loss", found["loss"], "number", "low", 0.0, shared)
    mean = sum(one["accuracy"]["mean"] for one in levels) / len(levels)
    named = ", ".join(f"{one['kind']} {one['level']:g}" for one in levels)
    yield "mean", Metric("Mean over noise levels", mean, "percent", "high", 0.0, f"{shared}, {named}")
    for one in levels:
        key, title = f"{one['kind']}/{one['level']:.12g}", f"{one['kind']} noise {one['level']:g}"
        yield f"{key}/accuracy", Metric(f"Accuracy, {title}", one["accuracy"]["mean"], "percent", "high", 0.0, shared)
        if one["loss"] is not None:
            yield f"{key}/loss", Metric(f"Loss, {title}", one["loss"]["mean"], "number", "low", 0.0, shared)


def _curvature(found: Mapping[str, Any]) -> Named:
    settings = f"{found['images']} training images, {found['batchnorm']}"
    yield "trace", Metric("Hessian trace", found["trace"]["value"], "number", "low", 0.0, settings)
    yield "largest", Metric("Largest eigenvalue", found["largest"]["value"], "number", "low", 0.0, settings)
