"""What the instruments found, as tables for the terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from spacedkd.cli.tables import of_scores, percent, with_interval
from spacedkd.experiments.metrics import metrics, usual

Found = Mapping[str, Any]
"""an evaluation.json"""
SUMMARY = {
    "accuracy/top1": "top-1",
    "accuracy/nll": "NLL",
    "accuracy/ece": "ECE",
    "corruptions/mean": "corrupted",
    "adversarial/mean": "attacked",
    "weight_noise/mean": "shaken",
    "curvature/trace": "trace",
}


def origin(found: Found) -> str:
    """Which weights were measured."""
    of = found["origin"]
    if "weights" in of:
        return f"weights: {of['weights']}"
    if of["epochs"] is None:
        return f"not finished, after {of['turns']} of {of['of_turns']} turns"
    return f"after the last of {of['epochs']:g} epochs"


def of_evaluation(found: Found, calibration: bool) -> Iterator[Table]:
    """A table for each instrument."""
    instruments = found["instruments"]
    yield from _accuracy(instruments["accuracy"], calibration)
    for name, table in (
        ("corruptions", _corruptions),
        ("adversarial", _adversarial),
        ("weight_noise", _weight_noise),
        ("curvature", _curvature),
    ):
        if name in instruments:
            yield table(instruments[name])


def _accuracy(found: Found, calibration: bool) -> Iterator[Table]:
    models = found["models"]
    top1 = {
        model: {part: {head: one["top1"] for head, one in of["heads"].items()} for part, of in parts.items()}
        for model, parts in models.items()
    }
    yield of_scores(top1)
    student = models[found["measured"]["model"]]["test"]
    table = _table("the student on the test images", "head", "top-1", "top-5", "NLL", "ECE", "as the deepest head")
    for head, one in student["heads"].items():
        top5 = "" if one["top5"] is None else percent(one["top5"])
        numbers = f"{one['nll']:.3f}", f"{one['ece']:.3f}", percent(one["agrees_with_final"])
        table.add_row(head, percent(one["top1"]), top5, *numbers)
    agreement = [f"chooses what the {name} chooses: {percent(share)} %" for name, share in student["agreement"].items()]
    hardest = sorted((share, name) for name, share in _classes(found, student).items())[:3]
    words = ", ".join(f"{name} {percent(share)}" for share, name in hardest)
    table.caption = Text("; ".join([*agreement, f"hardest classes: {words}"]))
    yield table
    if calibration:
        yield _reliability(student)


def _classes(found: Found, student: Found) -> dict[str, float]:
    pairs = zip(found["class_names"], student["heads"]["final"]["per_class"], strict=True)
    return {name: share for name, share in pairs if share is not None}


def _reliability(student: Found) -> Table:
    table = _table("reliability of the deepest head", "confidence", "images", "mean confidence", "accuracy")
    for one in student["heads"]["final"]["reliability"]:
        if one["images"]:
            span = f"{percent(one['low'])} to {percent(one['high'])}"
            table.add_row(span, str(one["images"]), percent(one["confidence"]), percent(one["accuracy"]))
    table.caption = f"{student['bins']} bins of equal width; ECE is the mean gap, weighted by images"
    return table


def _corruptions(found: Found) -> Table:
    severities = found["severities"]
    table = _table(
        "accuracy on corrupted images, percent", "corruption", *(f"severity {s}" for s in severities), "mean"
    )
    for name in found["names"]:
        row = [one["accuracy"]["final"] for one in found["found"] if one["name"] == name]
        table.add_row(name, *(percent(value) for value in row), percent(sum(row) / len(row)))
    by_severity = [
        [one["accuracy"]["final"] for one in found["found"] if one["severity"] == severity] for severity in severities
    ]
    table.add_row("mean", *(percent(sum(v) / len(v)) for v in by_severity), percent(found["mean"]["final"]))
    if found["enlarged"] > 1:
        table.caption = f"images were enlarged {found['enlarged']}x while they were corrupted, then brought back"
    return table


def _adversarial(found: Found) -> Table:
    epsilons = sorted({one["attack"]["epsilon"] for one in found["attacks"]})
    table = _table("accuracy under attack, percent", "attack", "0", *(f"{epsilon:g}" for epsilon in epsilons))
    for name in dict.fromkeys(one["attack"]["name"] for one in found["attacks"]):
        by_epsilon = {a["attack"]["epsilon"]: a for a in found["attacks"] if a["attack"]["name"] == name}
        values = [percent(by_epsilon[e]["accuracy"]) if e in by_epsilon else "" for e in epsilons]
        table.add_row(_settings([one["attack"] for one in by_epsilon.values()]), percent(found["clean"]), *values)
    table.caption = "columns: epsilon, the most any pixel is changed by, of 0 to 255; deepest head"
    return table


def _settings(attacks: list[Mapping[str, Any]]) -> str:
    first = attacks[0]
    parts = {one["step"] / one["epsilon"] for one in attacks}
    size = f"epsilon x {parts.pop():g}" if len(parts) == 1 else f"{first['step']:g}"
    start = ", random start" if first["random_start"] else ""
    return f"{first['name']} ({first['steps']} x {size}{start})"


def _weight_noise(found: Found) -> Table:
    table = _table(
        f"with noise on the weights, {found['images']} training images", "noise", "level", "loss", "accuracy, percent"
    )
    table.add_row("none", "", f"{found['loss']:.4g}", percent(found["accuracy"]))
    for one in found["levels"]:
        table.add_row(one["kind"], f"{one['level']:g}", _loss(one["loss"]), with_interval(one["accuracy"]))
    table.caption = (
        f"means of {found['draws']} draws ± half their 95 % interval; relative to each tensor's root mean square"
    )
    return table


def _loss(interval: Found | None) -> str:
    if interval is None:
        return "not finite"
    mean = f"{interval['mean']:.4g}"
    return mean if interval["low"] is None else f"{mean} ± {(interval['high'] - interval['low']) / 2:.2g}"


def _curvature(found: Found) -> Table:
    table = _table(f"curvature, {found['images']} training images", "what", "value", "error", "products", "stopped")
    for one in found["traces"].values():
        row = f"{one['value']:.4g}", f"{one['standard_error']:.2g}", str(one["products"]), one["stopped"]
        table.add_row(f"trace, {one['method']}", *row)
    largest = found["largest"]
    row = f"{largest['value']:.4g}", f"{largest['residual']:.2g}", str(largest["products"]), largest["stopped"]
    table.add_row("largest eigenvalue", *row)
    table.caption = f"standard error of a trace, residual of the eigenvalue; BatchNorm: {found['batchnorm']}"
    return table


def line(found: Found) -> str:
    """The most important numbers of one network."""
    numbers = metrics(found)
    return ", ".join(f"{name} {numbers[key].written()}" for key, name in SUMMARY.items() if key in numbers)


def of_many(everything: Mapping[Path, Found]) -> Table:
    """One line for each network."""
    by_folder = {folder: metrics(found) for folder, found in everything.items()}
    columns = {key: [numbers[key] for numbers in by_folder.values() if key in numbers] for key in SUMMARY}
    settings = {key: usual(column).settings for key, column in columns.items() if column}
    table = _table("the students, deepest head", "run", *(SUMMARY[key] for key in settings))
    table.columns[0].overflow, table.columns[0].min_width = "fold", 12
    above = Path(os.path.commonpath([folder.resolve().parent for folder in by_folder]))
    marked = False
    for folder, numbers in by_folder.items():
        cells = []
        for key, most_common in settings.items():
            unlike = key in numbers and numbers[key].settings != most_common
            cells.append(numbers[key].written() + "*" * unlike if key in numbers else "")
            marked |= unlike
        table.add_row(Text(str(folder.resolve().relative_to(above))), *cells)
    notes = []
    if {"corruptions/mean", "adversarial/mean", "weight_noise/mean"} & settings.keys():
        notes.append("mean accuracy, percent: on corrupted images, under attack, with noise on the weights (shaken)")
    if marked:
        notes.append("* measured with other settings or images, so not to be compared")
    table.caption = "; ".join(notes)
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", caption_justify="left")
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place else "left")
    return table
