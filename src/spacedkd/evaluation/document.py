"""evaluation.json: what the instruments found of one network, and the single numbers in it.

It has an entry for each instrument that was ever used on these weights, with its settings in it. Other weights, another
network around them or other data make everything measured before worthless, so it goes.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from spacedkd.runtime.documents import read_json
from spacedkd.runtime.errors import Linked, UserError
from spacedkd.runtime.files import Folder, write_json

# What an evaluation.json must hold, so that tables, comparisons and pages need not look again.

COUNT = "count"
"""a whole number from 1 up"""
_MEAN = {"mean": float, "low": (float,), "high": (float,)}
_BIN = {"low": float, "high": float, "images": int, "confidence": (float,), "accuracy": (float,)}
_HEAD = {
    **{"top1": float, "top5": (float,), "nll": float, "ece": float, "agrees_with_final": float},
    **{"per_class": [(float,)], "reliability": [_BIN]},
}
_PART = {"images": COUNT, "heads": {...: _HEAD}, "bins": int, "class_images": [int], "agreement": {...: float}}
_ATTACK = {"name": str, "epsilon": float, "step": float, "steps": int, "random_start": bool}
_FOUND = {"name": str, "severity": int, "accuracy": {"final": float}}
_LEVEL = {"kind": str, "level": float, "loss": (_MEAN,), "accuracy": _MEAN}
_TRACE = {"method": str, "value": float, "standard_error": float, "stopped": str}
INSTRUMENTS: dict[str, Any] = {
    "accuracy": {"class_names": [str], "models": {...: {...: _PART}}},
    "corruptions": {
        **{"images": COUNT, "names": [str], "severities": [int], "enlarged": int},
        **{"clean": {"final": float}, "mean": {"final": float}, "found": [_FOUND]},
    },
    "adversarial": {
        **{"images": COUNT, "seed": int, "clean": float},
        "attacks": [{"attack": _ATTACK, "accuracy": float}],
    },
    "weight_noise": {
        **{"images": COUNT, "draws": int, "seed": int, "loss": float, "accuracy": float},
        **{"batchnorm": str, "levels": [_LEVEL]},
    },
    "curvature": {
        **{"images": COUNT, "error": float, "batchnorm": str},
        **{"trace": _TRACE, "largest": {"value": float}},
    },
}
"""a kind; (kind,) may be null; [kind] is a list; {name: kind} an object, and {...: kind} one with any names"""


def check(shape: Any, value: Any, where: str) -> None:
    """Complain, with a ValueError, about the first thing that has not its shape."""
    if isinstance(shape, tuple):
        if value is not None:
            check(shape[0], value, where)
    elif isinstance(shape, list):
        for one in _is(value, list, where):
            check(shape[0], one, where)
    elif isinstance(shape, dict):
        _is(value, Mapping, where)
        for name in value if ... in shape else shape:
            if name not in value:
                raise ValueError(f"{where}.{name} is missing")
            check(shape.get(name, shape.get(...)), value[name], f"{where}.{name}")
    elif shape is float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{where} is {value!r}, no number")
    elif shape is int or shape is COUNT:
        if isinstance(value, bool) or not isinstance(value, int) or value < (shape is COUNT) or value > 2**63:
            raise ValueError(f"{where} is {value!r}, no count")
    else:
        _is(value, shape, where)


def _is(value: Any, kind: type[Any], where: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{where} is {value!r}")
    return value


# evaluation.json: what the instruments found of one network, and the single numbers in it.

FILE = "evaluation.json"

Found = Mapping[str, Any]


def write(folder: Path, origin: Found, found: Found) -> dict[str, Any]:
    """Add what was found to the folder's evaluation.json, and return all of it.

    Earlier results of the same weights on the same data stay; all others go.
    """
    before, decide = read(folder), ("weights_digest", "network", "data")
    if before is not None and all(before["origin"].get(name) == origin.get(name) for name in decide):
        found = {**before["instruments"], **found}
    everything = {"origin": origin, "instruments": found}
    write_json(folder / FILE, everything, folder)
    return everything


def read(folder: Path) -> dict[str, Any] | None:
    """A folder's evaluation, if it has one."""
    path = folder / FILE
    if not Folder(folder).exists(path):
        return None
    try:
        found: dict[str, Any] = read_json(path, within=folder)
        if "accuracy" not in found["instruments"]:
            raise KeyError("accuracy")
        for name, instrument in found["instruments"].items():
            if name in INSTRUMENTS:
                check({"measured": {"model": str}} | INSTRUMENTS[name], instrument, name)
        metrics(found)
        return {"origin": dict(found["origin"]), "instruments": found["instruments"]}
    except Linked:
        raise
    except (OSError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read as an evaluation ({error!r}). Delete it to measure again; it may be damaged, or "
            "of another version."
        ) from None


class Metric(NamedTuple):
    """One number, and what it needs to be compared with another network's."""

    title: str
    value: float
    resolution: float
    """accuracies are multiples of one image, or of its part where they are means"""
    settings: str
    """numbers with other settings cannot be compared"""
    better: Literal["high", "low"] | None = "high"
    """None where neither is better in itself"""
    unit: Literal["percent", "number"] = "percent"

    def written(self) -> str:
        return f"{100 * self.value:.1f}" if self.unit == "percent" else f"{self.value:.3g}"


def _number(title: str, value: float, settings: str) -> Metric:
    return Metric(title, value, 0.0, settings, "low", "number")


def usual(measured: Sequence[Metric]) -> Metric:
    """One with the most common settings."""
    settings = Counter(one.settings for one in measured).most_common(1)[0][0]
    return next(one for one in measured if one.settings == settings)


def metrics(found: Found) -> dict[str, Metric]:
    """Every number of an evaluation.json by a name such as corruptions/fog/3.

    All are of the student's deepest head, but those that name another one, as corruptions/fog/3/ensemble does.
    """
    readers = {
        "accuracy": _accuracy,
        "corruptions": _corruptions,
        "adversarial": _adversarial,
        "weight_noise": _weight_noise,
        "curvature": _curvature,
    }
    used = {name: read(found["instruments"][name]) for name, read in readers.items() if name in found["instruments"]}
    return {f"{name}/{key}": metric for name, numbers in used.items() for key, metric in numbers}


def of_student(accuracy: Found) -> Found:
    """What the accuracy instrument says of the student on the test images."""
    student: Found = accuracy["models"][accuracy["measured"]["model"]]["test"]
    return student


Named = Iterator[tuple[str, Metric]]


def _accuracy(found: Found) -> Named:
    student = of_student(found)
    images, heads = student["images"], student["heads"]
    final, of_all = heads["final"], (1 / images, f"{images} images")
    yield "top1", Metric("Top-1", final["top1"], *of_all)
    if final["top5"] is not None:
        yield "top5", Metric("Top-5", final["top5"], *of_all)
    for name in [name for name in heads if name not in ("final", "ensemble")]:
        yield f"head/{name}", Metric(f"Top-1, head {name}", heads[name]["top1"], *of_all)
    if "ensemble" in heads:
        yield "ensemble", Metric("Top-1, ensemble of heads", heads["ensemble"]["top1"], *of_all)
    yield "nll", _number("Negative log-likelihood", final["nll"], f"{images} images")
    yield "ece", _number("Expected calibration error", final["ece"], f"{images} images, {student['bins']} bins")
    for name, value in student["agreement"].items():
        yield f"agreement/{name}", Metric(f"Agreement with the {name}", value, *of_all, better=None)
    for name, value, of in zip(found["class_names"], final["per_class"], student["class_images"], strict=True):
        if value is not None:
            yield f"class/{name}", Metric(name, value, 1 / of, f"{of} images")


def _corruptions(found: Found) -> Named:
    images, severities, names = found["images"], found["severities"], ", ".join(found["names"])
    shared = f"{images} images, enlarged {found['enlarged']}x"

    def mean(title: str, rows: list[Found], settings: str, head: str = "final") -> Metric:
        values = [row["accuracy"][head] for row in rows]
        return Metric(title, sum(values) / len(values), 1 / images / len(values), settings)

    yield "clean", Metric("Clean images", found["clean"]["final"], 1 / images, f"{images} images")
    yield "mean", mean("Mean corruption accuracy", found["found"], f"{shared}, {names}, severities {severities}")
    for severity in severities:
        rows = [row for row in found["found"] if row["severity"] == severity]
        yield f"severity/{severity}", mean(f"Severity {severity}", rows, f"{shared}, {names}")
    for name in found["names"]:
        rows, title = [row for row in found["found"] if row["name"] == name], name.replace("_", " ")
        yield name, mean(title, rows, f"{shared}, severities {severities}")
        for row in rows:
            key, words = f"{name}/{row['severity']}", f"{title} {row['severity']}"
            yield key, mean(words, [row], shared)
            if "ensemble" in row["accuracy"]:
                yield f"{key}/ensemble", mean(f"{words}, ensemble of heads", [row], shared, "ensemble")


def _adversarial(found: Found) -> Named:
    images, attacks = found["images"], found["attacks"]
    yield "clean", Metric("Without attack", found["clean"], 1 / images, f"{images} images")
    mean = sum(one["accuracy"] for one in attacks) / len(attacks)
    every = json.dumps([one["attack"] for one in attacks])
    yield "mean", Metric("Mean over attacks", mean, 1 / images / len(attacks), f"{images}, {every}")
    for one in attacks:
        name, epsilon = one["attack"]["name"], one["attack"]["epsilon"]
        settings = f"{images} images, seed {found['seed']}, {json.dumps(one['attack'])}"
        title = f"{name.upper()}, epsilon {epsilon:g}"
        yield f"{name}/{epsilon:.12g}", Metric(title, one["accuracy"], 1 / images, settings)


def _weight_noise(found: Found) -> Named:
    images, levels = found["images"], found["levels"]
    shared = f"{images} training images, {found['draws']} draws, seed {found['seed']}"
    yield "clean/accuracy", Metric("Training accuracy", found["accuracy"], 1 / images, shared)
    yield "clean/loss", _number("Training loss", found["loss"], shared)
    mean = sum(one["accuracy"]["mean"] for one in levels) / len(levels)
    named = ", ".join(f"{one['kind']} {one['level']:g}" for one in levels)
    step = 1 / images / found["draws"]
    yield "mean", Metric("Mean over noise levels", mean, step / len(levels), f"{shared}, {named}")
    for one in levels:
        key, title = f"{one['kind']}/{one['level']:.12g}", f"{one['kind']} noise {one['level']:g}"
        yield f"{key}/accuracy", Metric(f"Accuracy, {title}", one["accuracy"]["mean"], step, shared)
        if one["loss"] is not None:
            yield f"{key}/loss", _number(f"Loss, {title}", one["loss"]["mean"], shared)


def _curvature(found: Found) -> Named:
    settings = f"{found['images']} training images, {found['batchnorm']}"
    yield "trace", _number("Hessian trace", found["trace"]["value"], settings)
    yield "largest", _number("Largest eigenvalue", found["largest"]["value"], settings)
