"""What the instruments found of single networks, as tables for the terminal."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from spacedkd.evaluation.document import metrics, of_student, usual
from spacedkd.report.formatting import Found, estimate, percent
from spacedkd.report.table import LEAST_NAME, Table, group_rows, text_table

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
    """Which weights an evaluation.json is about."""
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
    tables = {
        "corruptions": _corruptions,
        "adversarial": _adversarial,
        "weight_noise": _weight_noise,
        "curvature": _curvature,
    }
    yield from (table(instruments[name]) for name, table in tables.items() if name in instruments)


def _accuracy(found: Found, calibration: bool) -> Iterator[Table]:
    yield _top1(found["models"])
    student = of_student(found)
    rows = []
    for head, one in student["heads"].items():
        top5 = "" if one["top5"] is None else percent(one["top5"])
        numbers = f"{one['nll']:.3f}", f"{one['ece']:.3f}", percent(one["agrees_with_final"])
        rows.append([head, percent(one["top1"]), top5, *numbers])
    agreement = [f"chooses what the {name} chooses: {percent(share)} %" for name, share in student["agreement"].items()]
    classes = zip(student["heads"]["final"]["per_class"], found["class_names"], strict=True)
    hardest = sorted((share, name) for share, name in classes if share is not None)[:3]
    words = ", ".join(f"{name} {percent(share)}" for share, name in hardest)
    columns = ("head", "top-1", "top-5", "NLL", "ECE", "as the deepest head")
    caption = "; ".join([*agreement, f"hardest classes: {words}"])
    yield text_table("the student on the test images", columns, rows, caption)
    if calibration:
        yield _reliability(student)


def _top1(models: Found) -> Table:
    """Every model on every part of the data, a column for each head."""
    parts = [(model, part, of["heads"]) for model, parts in models.items() for part, of in parts.items()]
    heads = list(dict.fromkeys(head for _, _, found in parts for head in found))
    rows = [
        [model, part, *(percent(found[head]["top1"]) if head in found else "" for head in heads)]
        for model, part, found in parts
    ]
    return text_table("accuracy in percent", ("model", "images", *heads), rows, left=2)


def _reliability(student: Found) -> Table:
    rows = []
    for one in (found for found in student["heads"]["final"]["reliability"] if found["images"]):
        low, high, *means = (percent(one[name]) for name in ("low", "high", "confidence", "accuracy"))
        rows.append([f"{low} to {high}", str(one["images"]), *means])
    columns = ("confidence", "images", "mean confidence", "accuracy")
    caption = f"{student['bins']} bins of equal width; ECE is the mean gap, weighted by images"
    return text_table("reliability of the deepest head", columns, rows, caption)


def _corruptions(found: Found) -> Table:
    names, severities = found["names"], found["severities"]
    accuracy = {(one["name"], one["severity"]): one["accuracy"]["final"] for one in found["found"]}
    by_name = {name: [accuracy[name, severity] for severity in severities] for name in names}
    means = [sum(values) / len(names) for values in zip(*by_name.values(), strict=True)]
    rows = [[name, *map(percent, (*values, sum(values) / len(values)))] for name, values in by_name.items()]
    rows.append(["mean", *map(percent, (*means, found["mean"]["final"]))])
    columns = ("corruption", *(f"severity {severity}" for severity in severities), "mean")
    enlarged = f"images were enlarged {found['enlarged']}x while they were corrupted, then brought back"
    caption = enlarged if found["enlarged"] > 1 else ""
    return text_table("accuracy on corrupted images, percent", columns, rows, caption)


def _adversarial(found: Found) -> Table:
    epsilons = sorted({one["attack"]["epsilon"] for one in found["attacks"]})
    rows = []
    for name in dict.fromkeys(one["attack"]["name"] for one in found["attacks"]):
        by_epsilon = {a["attack"]["epsilon"]: a for a in found["attacks"] if a["attack"]["name"] == name}
        values = [percent(by_epsilon[e]["accuracy"]) if e in by_epsilon else "" for e in epsilons]
        rows.append([_settings([one["attack"] for one in by_epsilon.values()]), percent(found["clean"]), *values])
    columns = ("attack", "0", *(f"{epsilon:g}" for epsilon in epsilons))
    caption = "columns: epsilon, the most any pixel is changed by, of 0 to 255; deepest head"
    return text_table("accuracy under attack, percent", columns, rows, caption)


def _settings(attacks: list[Found]) -> str:
    first = attacks[0]
    parts = {one["step"] / one["epsilon"] for one in attacks}
    size = f"epsilon x {parts.pop():g}" if len(parts) == 1 else f"{first['step']:g}"
    start = ", random start" if first["random_start"] else ""
    return f"{first['name']} ({first['steps']} x {size}{start})"


def _weight_noise(found: Found) -> Table:
    rows = [["none", "", f"{found['loss']:.4g}", percent(found["accuracy"])]]
    rows += [
        [one["kind"], f"{one['level']:g}", _loss(one["loss"]), estimate(one["accuracy"])] for one in found["levels"]
    ]
    title = f"with noise on the weights, {found['images']} training images"
    caption = f"means of {found['draws']} draws ± half their 95 % interval; relative to each tensor's root mean square"
    return text_table(title, ("noise", "level", "loss", "accuracy, percent"), rows, caption)


def _loss(found: Found | None) -> str:
    if found is None:
        return "not finite"
    mean = f"{found['mean']:.4g}"
    return mean if found["low"] is None else f"{mean} ± {(found['high'] - found['low']) / 2:.2g}"


def _curvature(found: Found) -> Table:
    largest = found["largest"]
    named = [(f"trace, {one['method']}", one, one["standard_error"]) for one in found["traces"].values()]
    named.append(("largest eigenvalue", largest, largest["residual"]))
    rows = [
        [name, f"{one['value']:.4g}", f"{error:.2g}", str(one["products"]), one["stopped"]]
        for name, one, error in named
    ]
    title = f"curvature, {found['images']} training images"
    caption = f"standard error of a trace, residual of the eigenvalue; BatchNorm: {found['batchnorm']}"
    return text_table(title, ("what", "value", "error", "products", "stopped"), rows, caption)


def line(found: Found) -> str:
    """The most important numbers of one network."""
    numbers = metrics(found)
    return ", ".join(f"{name} {numbers[key].written()}" for key, name in SUMMARY.items() if key in numbers)


def of_many(everything: Mapping[Path, Found]) -> Table:
    """One line for each network."""
    by_folder = {folder: metrics(found) for folder, found in everything.items()}
    columns = {key: [numbers[key] for numbers in by_folder.values() if key in numbers] for key in SUMMARY}
    settings = {key: usual(column).settings for key, column in columns.items() if column}
    above = Path(os.path.commonpath([folder.resolve().parent for folder in by_folder]))
    lines = []
    for folder, numbers in by_folder.items():
        unlike = {key: "*" for key, usually in settings.items() if key in numbers and numbers[key].settings != usually}
        cells = [numbers[key].written() + unlike.get(key, "") if key in numbers else "" for key in settings]
        place = folder.resolve().relative_to(above)
        lines.append(("" if place.parent == Path() else str(place.parent), [place.name, *cells]))
    notes = []
    if {"corruptions/mean", "adversarial/mean", "weight_noise/mean"} & settings.keys():
        notes.append("mean accuracy, percent: on corrupted images, under attack, with noise on the weights (shaken)")
    if any(cell.endswith("*") for _, cells in lines for cell in cells[1:]):
        notes.append("* measured with other settings or images, so not to be compared")
    named = ("run", *(SUMMARY[key] for key in settings))
    caption = "; ".join(notes)
    return text_table("the students, deepest head", named, group_rows(lines), caption, least_width=LEAST_NAME)
