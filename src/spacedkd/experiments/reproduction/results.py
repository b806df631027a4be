"""What a table says: every cell over seeds beside the paper's number, every effect with its verdict; plain JSON."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from spacedkd.evaluation.confidence import confidence_interval, difference, holm
from spacedkd.experiments.evaluation_file import Metric
from spacedkd.experiments.reproduction import numbers, verdict
from spacedkd.experiments.reproduction.fit import BySeed, around_their_means, parabola
from spacedkd.experiments.reproduction.table import ACCURACY, Cell, Key, Named, Table
from spacedkd.json_form import to_json

Numbers = Mapping[int, Metric]
"""of a cell's finished runs, by seed"""
Read = Callable[[Cell, str], Numbers]
Found = dict[str, Any]


def results(named: Named, cells: Sequence[Cell], read: Read, every: Sequence[Cell] | None = None) -> Found:
    """All that the finished runs say; the origin of them is added by whoever knows it.

    `every` are all cells of the table, where some alone are looked at: the claim is about all of them.
    """
    table = named.table
    numbers_of = {cell.key: read(cell, cell.metric) for cell in cells}
    by_key = {cell.key: cell for cell in cells}
    written = [_cell(cell, table, numbers_of, by_key, read) for cell in cells]
    written_of = dict(zip(by_key, written, strict=True))
    contrasts = [
        written_of[cell.key] | _effect(cell, by_key[base], table, numbers_of)
        for cell, base in _contrasts(table, by_key)
    ]
    compared = [*written, *contrasts]
    corrected = holm([_p(one) for one in compared], _judged(table, by_key))  # finished or not
    for one, p in zip(compared, corrected, strict=True):
        if one["difference"] is not None:
            one["difference"]["holm_p"] = p
    fits = [*_fits(table, cells, numbers_of)]
    verdicts = [one["verdict"] for one in (*compared, *fits) if one["verdict"] is not None]
    all_cells = {cell.key: cell for cell in every or cells}
    claimed = _judged(table, all_cells) + len(_fitted_rows(table, all_cells.values()))
    main = _main(cells)
    return {
        "name": named.name,
        "title": table.title,
        "claim": named.claim,
        "reference": table.reference,
        "metric": {"name": main, "title": numbers.title(main)},
        "also": {name: numbers.title(name) for name in table.also},
        "rule": verdict.RULE + (verdict.FIT_RULE if table.fitted else ""),
        "fewest_seeds": verdict.FEWEST,
        "rows": [*dict.fromkeys(cell.row for cell in cells)],
        "columns": [*dict.fromkeys(cell.column for cell in cells)],
        "axis": None if table.axis is None else {"title": table.axis.title, "values": dict(table.axis.values)},
        "cells": written,
        "contrasts": contrasts,
        "fits": fits,
        "verdict": {
            **{kind: verdicts.count(kind) for kind in ("agrees", "disagrees", "cannot tell")},
            "sentence": verdict.sentence(verdicts, claimed),
        },
        "notes": [*table.notes],
    }


def _contrasts(table: Table, cells: Mapping[Key, Cell]) -> list[tuple[Cell, Key]]:
    """Cells, each with another one of its row that it is measured against as well; the claim is about all of them."""
    return [
        (replace(cells[row, column], judged=True), (row, other))
        for row in dict.fromkeys(row for row, _ in cells)
        for column, other in table.contrasts
        if (row, column) in cells and (row, other) in cells
    ]


def _judged(table: Table, cells: Mapping[Key, Cell]) -> int:
    """How many effects the claim is about."""
    judged = sum(cell.judged and cell.against is not None for cell in cells.values())
    return judged + len(_contrasts(table, cells))


def _main(cells: Sequence[Cell]) -> str:
    """The metric of the first cell, or the family of those that differ from cell to cell, as corruptions do."""
    metrics = [*dict.fromkeys(cell.metric for cell in cells)] or [ACCURACY]
    return metrics[0] if len(metrics) == 1 else metrics[0].partition("/")[0]


def _cell(cell: Cell, table: Table, numbers_of: Mapping[Key, Numbers], cells: Mapping[Key, Cell], read: Read) -> Found:
    measured = numbers_of[cell.key]
    values = {seed: one.value for seed, one in measured.items()}
    beside = () if cell.metric in table.also else table.also  # such a cell is shown beside another one of its run
    others = {name: [one.value for one in read(cell, name).values()] for name in beside}
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
    paper = round(cell.paper - base.paper, 9) if both else None  # type: ignore[operator]
    gain = difference(ours, theirs, resolution)
    judged = None
    if gain is not None and cell.judged:
        metric = next(iter(numbers_of[cell.key].values()))
        theirs_as_ours = None if paper is None else paper / (100 if metric.unit == "percent" else 1)
        if metric.better == "low":
            gain, theirs_as_ours = gain.turned(), theirs_as_ours and -theirs_as_ours
        judged = verdict.judge(gain, theirs_as_ours, table.claims)
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
    """A parabola through each row, and through all that are finished, which is shown and not judged."""
    rows: dict[str, tuple[BySeed, BySeed]] = {}
    for row in _fitted_rows(table, cells):
        ours, paper = _over_the_axis(table, [cell for cell in cells if cell.row == row], numbers_of)
        if (fitted := parabola(ours)) is not None:
            rows[row] = ours, paper
            theirs = parabola(paper)
            judged = verdict.judge_fit(fitted, theirs)
            yield {"row": row, "rows": [row], **fitted, "paper": theirs, "verdict": judged.verdict, "why": judged.why}
    ours, paper = (around_their_means([both[place] for both in rows.values()]) for place in (0, 1))
    if len(rows) > 1 and (fitted := parabola(ours)) is not None:
        told = {"paper": parabola(paper), "verdict": None, "why": ""}
        yield {"row": f"all {len(rows)} rows", "rows": [*rows], **fitted, **told}


def _fitted_rows(table: Table, cells: Iterable[Cell]) -> list[str]:
    return [*dict.fromkeys(cell.row for cell in cells)] if table.fitted else []


def _over_the_axis(table: Table, cells: Sequence[Cell], numbers_of: Mapping[Key, Numbers]) -> tuple[BySeed, BySeed]:
    """The numbers of a row at their places, ours by seed and the paper's as those of one."""
    assert table.axis is not None
    places = {table.axis.values[cell.column]: cell for cell in cells if cell.column in table.axis.values}
    ours = {x: {seed: one.value for seed, one in numbers_of[cell.key].items()} for x, cell in places.items()}
    return ours, {x: {0: cell.paper / 100} for x, cell in places.items() if cell.paper is not None}
