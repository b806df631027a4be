"""What a table says: every cell over seeds beside the paper's number, every effect with its verdict; plain JSON."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from spacedkd.evaluation.confidence import Difference, confidence_interval, difference, holm
from spacedkd.experiments.evaluation_file import Metric
from spacedkd.experiments.reproduction import numbers, verdict
from spacedkd.experiments.reproduction.fit import parabola
from spacedkd.experiments.reproduction.table import ACCURACY, Cell, Key, Named, Table
from spacedkd.json_form import to_json

Numbers = Mapping[int, Metric]
"""of a cell's finished runs, by seed"""
Read = Callable[[Cell, str], Numbers]
Found = dict[str, Any]


def results(named: Named, cells: Sequence[Cell], read: Read) -> Found:
    """All that the finished runs say; the origin of them is added by whoever knows it."""
    table = named.table
    numbers_of = {cell.key: read(cell, cell.metric) for cell in cells}
    by_key = {cell.key: cell for cell in cells}
    written = [_cell(cell, table, numbers_of, by_key, read) for cell in cells]
    corrected = holm([_p(one) for one in written])
    for one, p in zip(written, corrected, strict=True):
        if one["difference"] is not None:
            one["difference"]["holm_p"] = p
    verdicts = [one["verdict"] for one in written if one["verdict"] is not None]
    metrics = {cell.metric for cell in cells} or {ACCURACY}
    main = metrics.pop() if len(metrics) == 1 else min(metrics).partition("/")[0]
    return {
        "name": named.name,
        "title": table.title,
        "claim": named.claim,
        "reference": table.reference,
        "metric": {"name": main, "title": numbers.title(main)},
        "also": {name: numbers.title(name) for name in table.also},
        "rule": verdict.RULE,
        "fewest_seeds": verdict.FEWEST,
        "rows": [*dict.fromkeys(cell.row for cell in cells)],
        "columns": [*dict.fromkeys(cell.column for cell in cells)],
        "axis": None if table.axis is None else {"title": table.axis.title, "values": dict(table.axis.values)},
        "cells": written,
        "fits": [*_fits(table, cells, numbers_of)] if table.fitted else [],
        "verdict": {
            **{kind: verdicts.count(kind) for kind in ("agrees", "disagrees", "cannot tell")},
            "sentence": verdict.sentence(verdicts),
        },
        "notes": [*table.notes],
    }


def _cell(cell: Cell, table: Table, numbers_of: Mapping[Key, Numbers], cells: Mapping[Key, Cell], read: Read) -> Found:
    measured = numbers_of[cell.key]
    values = {seed: one.value for seed, one in measured.items()}
    others = {name: [one.value for one in read(cell, name).values()] for name in table.also}
    found = {
        "row": cell.row,
        "column": cell.column,
        "metric": cell.metric,
        "unit": next((one.unit for one in measured.values()), "percent"),
        "better": next((one.better for one in measured.values()), "high"),
        "note": cell.note,
        "paper": cell.paper,
        "values": {str(seed): value for seed, value in values.items()},
        "estimate": to_json(confidence_interval([*values.values()])) if values else None,
        "also": {name: to_json(confidence_interval(scores)) for name, scores in others.items() if scores},
        "against": None,
        "difference": None,
        "paper_difference": None,
        "verdict": None,
        "why": "",
    }
    return found if cell.against is None else found | _effect(cell, cells[cell.against], table, numbers_of)


def _effect(cell: Cell, base: Cell, table: Table, numbers_of: Mapping[Key, Numbers]) -> Found:
    """A cell's difference to the one it is measured against, ours and the paper's, and whether they agree."""
    ours, theirs = ({seed: one.value for seed, one in numbers_of[one.key].items()} for one in (cell, base))
    resolution = max((one.resolution for one in numbers_of[cell.key].values()), default=0.0)
    both = cell.paper is not None and base.paper is not None
    paper = round(cell.paper - base.paper, 2) if both else None  # type: ignore[operator]
    gain = difference(ours, theirs, resolution)
    judged = None
    if gain is not None and cell.judged:
        if any(one.better == "low" for one in numbers_of[cell.key].values()):
            gain = Difference(-gain.mean, gain.high and -gain.high, gain.low and -gain.low, gain.p, gain.n)
        judged = verdict.judge(gain, None if paper is None else paper / 100, table.claims)
    return {
        "against": [base.row, base.column],
        "difference": verdict.effect(ours, theirs, resolution),
        "paper_difference": paper,
        "verdict": None if judged is None else judged.verdict,
        "why": "" if judged is None else judged.why,
    }


def _p(cell: Found) -> float | None:
    """The p-value of an effect the claim is about; others are not counted as tests."""
    return cell["difference"]["p"] if cell["verdict"] is not None else None


def _fits(table: Table, cells: Sequence[Cell], numbers_of: Mapping[Key, Numbers]) -> Iterable[Found]:
    assert table.axis is not None
    for row in dict.fromkeys(cell.row for cell in cells):
        places = {cell.column: table.axis.values[cell.column] for cell in cells if cell.column in table.axis.values}
        by_seed = {
            x: {seed: one.value for seed, one in numbers_of[row, column].items()} for column, x in places.items()
        }
        if (fitted := parabola(by_seed)) is not None:
            yield {"row": row, **fitted}
