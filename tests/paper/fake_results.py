"""Results of reproduced tables without training: honest statistics of values of the test's choosing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

from scipy.stats import t as students_t

from spacedkd.evaluation.statistics import confidence_interval, holm, paired_difference, standard_error
from spacedkd.paper.report.findings import VERDICTS

Document = Any
"""a results.json, or a part of it"""
HOSTILE = r"50 % of $x_i & {y} # ~ ^ \ <b>|"


def estimate(values: Sequence[float]) -> Document:
    return asdict(confidence_interval(values)) if values else None


def cell(
    row: str,
    column: str,
    values: Sequence[float] | Mapping[int, float],
    paper: float | None = None,
    against: tuple[str, str] | None = None,
    **changes: Any,
) -> Document:
    """A cell whose differences are filled in by `results`."""
    by_seed = dict(enumerate(values)) if not isinstance(values, Mapping) else dict(values)
    mean = estimate([*by_seed.values()])
    also = {name: estimate([v + up for v in by_seed.values()]) for name, up in (("last", -0.001), ("best", 0.004))}
    return {
        "row": row, "column": column, "metric": "late", "unit": "percent",
        "fingerprint": f"{abs(hash_of(row + column)):012x}", "note": "", "paper": paper,
        "values": {str(seed): value for seed, value in by_seed.items()}, "estimate": mean,
        "also": also if by_seed else {}, "against": list(against) if against else None,
        "difference": None, "paper_difference": None, "verdict": None, "why": "", **changes,
    }  # fmt: skip


def hash_of(text: str) -> int:
    """The same in every process."""
    return sum(ord(letter) * 31**place for place, letter in enumerate(text)) % 16**12


def sign_flip(gains: Sequence[float]) -> float:
    """Over all ways to swap the two of a pair, how often the mean is at least as far from zero."""
    means = [
        abs(math.fsum(s * g for s, g in zip(signs, gains, strict=True)))
        for signs in product((1, -1), repeat=len(gains))
    ]
    return sum(mean >= abs(math.fsum(gains)) - 1e-12 for mean in means) / len(means)


def _compared(one: Document, other: Document) -> None:
    factor = 100 if one["unit"] == "percent" else 1
    if one["paper"] is not None and other["paper"] is not None:
        one["paper_difference"] = round(one["paper"] - other["paper"], 4)
    found = paired_difference(one["values"], other["values"])
    if found is None:
        return
    gains = [one["values"][seed] - other["values"][seed] for seed in one["values"] if seed in other["values"]]
    several = len(gains) > 1
    power = (students_t.ppf(0.975, len(gains) - 1) + students_t.ppf(0.8, len(gains) - 1)) if several else None
    detectable = power * standard_error(gains) if several else None
    one["difference"] = asdict(found) | {
        "sign_flip_p": sign_flip(gains) if several else None,
        "holm_p": None,
        "detectable": detectable,
    }
    one["verdict"], one["why"] = _verdict(one, factor)


def _verdict(one: Document, factor: float) -> tuple[str | None, str]:
    theirs, found = one["paper_difference"], one["difference"]
    if theirs is None:
        return None, ""
    if found["low"] is None or found["low"] <= 0 <= found["high"]:
        return "cannot tell", "the interval includes zero"
    same = (found["mean"] > 0) == (theirs > 0)
    inside = found["low"] <= theirs / factor <= found["high"]
    return ("agrees", "same sign" + (", paper inside" if inside else "")) if same else ("disagrees", "opposite signs")


def results(name: str, cells: Sequence[Document], contrasts: Sequence[Document] = (), **changes: Any) -> Document:
    """All of a results.json."""
    places = {(one["row"], one["column"]): one for one in cells}
    for one in (*cells, *contrasts):
        if one["against"]:
            _compared(one, places[tuple(one["against"])])
    tested = [one["difference"] for one in (*cells, *contrasts) if one["difference"]]
    for found, corrected in zip(tested, holm([found["p"] for found in tested]), strict=True):
        found["holm_p"] = corrected
    verdicts = {word: sum(one["verdict"] == word for one in cells) for word in VERDICTS}
    seeds = sorted({int(seed) for one in cells for seed in one["values"]})
    return {
        "name": name, "title": "Performance of different intervals",
        "claim": "A student learns more from a teacher that is one and a half epochs ahead.",
        "reference": "Tab. extend_main, Fig. main_result b, c",
        "scale": {"name": "cpu", "about": "the first 25 classes of CIFAR-100 at 16 pixels"},
        "recipe": "paper", "command": f"spacedkd reproduce {name} --scale cpu", "date": "2026-11-16",
        "machine": "2 cores, 8 GB", "versions": {"spacedkd": "0.1", "torch": "2.13.0"}, "seeds": seeds,
        "metric": {"name": "late", "title": "test accuracy, mean over the last ten epochs, %"},
        "also": {"last": "test accuracy after the last epoch, %", "best": "best epoch, chosen on the test set, %"},
        "rule": "A cell agrees if the paired 95 % interval of ours lies on the paper's side of zero.",
        "fewest_seeds": 6,
        "rows": list(dict.fromkeys(one["row"] for one in cells)),
        "columns": list(dict.fromkeys(one["column"] for one in cells)),
        "axis": None, "cells": [*cells], "contrasts": [*contrasts], "fits": [], "diverged": [], "missing": 0,
        "cost": {"runs": 42, "shared": 36, "hours": 4.1, "updates": 123456},
        "verdict": {**verdicts, "sentence": "Spacing helps here, too."}, "notes": [], "pictures": [], **changes,
    }  # fmt: skip


R18, R50, DEIT = "ResNet-18, CIFAR-100", "ResNet-50, CIFAR-100", "DeiT-Tiny, Tiny-ImageNet"
INTERVALS = {"online": 0.0, "w/ 0.5": 0.5, "w/ 1.0": 1.0, "w/ 1.5": 1.5, "w/ 2.0": 2.0}
PAPER = {
    R18: dict(zip(("w/o KD", *INTERVALS, "w/ max"), (68.12, 71.05, 72.02, 72.03, 72.43, 72.18, 72.22), strict=True)),
    R50: dict(zip(("w/o KD", *INTERVALS, "w/ max"), (69.62, 71.85, 73.39, 73.25, 73.77, 73.28, 73.35), strict=True)),
}
SCATTER = (0.004, -0.006, 0.001, 0.007, -0.003, -0.003)


def values(mean: float, spread: float = 1.0, seeds: int = 6, turn: int = 0) -> list[float]:
    """Scattered around a mean, for each seed otherwise where `turn` is another."""
    return [mean + spread * SCATTER[(seed + turn) % 6] for seed in range(seeds)]


def intervals(seeds: int = 6) -> Document:
    """One row that agrees, one that is half finished and goes the other way, one that has no number of the paper's."""
    cells = []
    for place, (column, paper) in enumerate(PAPER[R18].items()):
        mean = {"w/o KD": 0.51, "online": 0.532, "w/ max": 0.536}.get(column, 0.54 + 0.002 * place)
        against = None if column == "online" else (R18, "online")
        note = "Printed as s = 1.5, but made with 1.0." if column == "w/ 1.5" else ""
        cells.append(cell(R18, column, values(mean, 0.6, seeds, place), paper, against, note=note))
    for place, (column, paper) in enumerate(PAPER[R50].items()):
        mine = [] if column in ("w/ 2.0", "w/ max") else values(0.56 - 0.006 * place, 0.5, seeds, 2 * place)
        cells.append(cell(R50, column, mine, paper, None if column == "online" else (R50, "online")))
    cells += [cell(DEIT, column, {0: 0.42, 1: 0.43}) for column in ("online", "w/ 1.5")]
    longest = next(one for one in cells if one["row"] == R18 and one["column"] == "w/ 1.5")
    contrast = longest | {"against": [R18, "w/ max"]}
    theirs = {"opens": "down", "coefficients": [0.71, 0.013, -0.005], "optimum": 1.3}
    fit = {
        "row": R18, "rows": [R18], "opens": "down", "coefficients": [0.533, 0.016, -0.0055], "optimum": 1.4545,
        "low": 0.9, "high": 2.0, "within": [0.0, 2.0], "paper": theirs, "verdict": "agrees", "why": "it bends down",
    }  # fmt: skip
    together = {
        "row": "all 2 rows", "rows": [R18, R50], "opens": "down", "coefficients": [-0.004, 0.01, -0.004],
        "optimum": 1.25, "low": None, "high": None, "within": [0.0, 2.0], "paper": theirs, "verdict": None, "why": "",
    }  # fmt: skip
    return results(
        "interval", cells, [contrast], axis={"title": "interval s, epochs", "values": INTERVALS},
        fits=[fit, together], missing=12,
        diverged=[{"row": R50, "column": "w/ 1.0", "seed": 3, "step": 1234}],
        notes=["The paper's numbers are of one run each, or of three: it says both."],
    )  # fmt: skip


def losses() -> Document:
    """No axis; percents and plain numbers, lower ones the better; one seed; hostile names."""
    l1, mse, noisy = "L1", "MSE (Sum)", "loss under noise"
    cells = [
        cell(l1, "online", values(0.53), 69.54),
        cell(l1, "spaced", values(0.52, 1, 6, 3), 69.30, (l1, "online")),
        cell(mse, "online", values(0.531), 71.05, note=HOSTILE),
        cell(mse, "spaced", values(0.55, 0.5, 6, 1), 72.43, (mse, "online"), note=HOSTILE),
        cell(HOSTILE, "online", {0: 0.5}, None),
        cell(HOSTILE, "spaced", {0: 0.52}, None, (HOSTILE, "online"), note="One seed."),
        cell(noisy, "online", values(1.31, 3), 1.5, unit="number", metric="weight_noise/loss", better="low"),
        cell(
            noisy, "spaced", values(1.11, 2, 6, 2), 1.2, (noisy, "online"),
            unit="number", metric="weight_noise/loss", better="low",
        ),
    ]  # fmt: skip
    return results("loss", cells, title="Feature losses & more", rows=[l1, mse, HOSTILE, noisy])


def without_cells() -> Document:
    """A claim that is no table, with what such results leave out."""
    found = results("theory", [], notes=["Lemma: it holds"])
    return {name: value for name, value in found.items() if name not in ("missing", "cost", "diverged", "pictures")}
