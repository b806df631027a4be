"""What a table says: every cell over seeds beside the paper's number, every effect with its verdict; plain JSON."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from typing import Any

from spacedkd.config.serialization import to_json
from spacedkd.evaluation.instrument import Metric
from spacedkd.evaluation.statistics import FEWEST_SEEDS, confidence_interval, holm, paired_difference, paired_effect
from spacedkd.paper import numbers, verdict
from spacedkd.paper.table import ACCURACY, Cell, Key, Named, Summary, Table
from spacedkd.paper.verdict import BySeed, around_their_means, bend_error, parabola

# A parabola through accuracies over the interval, and where it is highest.


# What a table says: every cell over seeds beside the paper's number, every effect with its verdict; plain JSON.

Numbers = Mapping[int, Metric]
"""of a cell's finished runs, by seed"""
NumbersOf = Mapping[Key, Numbers]
Read = Callable[[Cell, str], Numbers]
Found = dict[str, Any]


def results(
    named: Named, cells: Sequence[Cell], read: Read, every: Sequence[Cell] | None = None, unjudged: str = ""
) -> Found:
    """All that the finished runs say; the origin of them is added by whoever knows it.

    `every` are all cells of the table, where some alone are looked at: the claim is about all of them. `unjudged` is
    the reason why no verdicts are given, if there is one.
    """
    table = named.table
    numbers_of = {cell.key: read(cell, cell.metric) for cell in cells}
    by_key = {cell.key: cell for cell in cells}
    written = [_cell(cell, table, numbers_of, by_key, read) for cell in cells]
    written_of = dict(zip(by_key, written, strict=True))
    contrasts = [
        written_of[cell.key] | _effect(cell, by_key[base], table, numbers_of) for cell, base in _contrasts(by_key)
    ]
    compared = [*written, *contrasts]
    corrected = holm([_p(one) for one in compared], _judged(by_key))  # finished or not
    for one, p in zip(compared, corrected, strict=True):
        if one["difference"] is not None:
            one["difference"]["holm_p"] = p
    fits = [*_fits(table, cells, numbers_of)]
    all_cells = {cell.key: cell for cell in every or cells}
    summaries = [_summary(summary, all_cells, by_key, numbers_of) for summary in table.summaries]
    effects = [*compared, *fits, *summaries]
    if unjudged:
        for one in effects:
            one |= {"verdict": None, "why": ""}
    verdicts = [one["verdict"] for one in effects if one["verdict"] is not None]
    main, claims = _main(cells), {table.claims, *(cell.claims for cell in cells if cell.claims)}
    rule = verdict.rule(claims, table.fitted, bool(table.summaries))
    said = verdict.sentence(verdicts, _claimed(table, all_cells))
    return {
        "name": named.name,
        "title": table.title,
        "claim": named.claim,
        "reference": table.reference,
        "metric": {"name": main, "title": numbers.title(main)},
        "also": {name: numbers.title(name) for name in table.also},
        "rule": f"No verdicts are given: {unjudged}." if unjudged else rule,
        "fewest_seeds": FEWEST_SEEDS,
        "rows": [*dict.fromkeys(cell.row for cell in cells)],
        "columns": [*dict.fromkeys(cell.column for cell in cells)],
        "axis": None if table.axis is None else {"title": table.axis.title, "values": dict(table.axis.values)},
        "cells": written,
        "contrasts": contrasts,
        "fits": fits,
        "summaries": summaries,
        "verdict": {
            **{kind: verdicts.count(kind) for kind in verdict.VERDICTS},
            "sentence": f"Not judged: {unjudged}." if unjudged else said,
        },
        "notes": [*table.notes],
    }


def _contrasts(cells: Mapping[Key, Cell]) -> list[tuple[Cell, Key]]:
    """Cells, each with another one that it is measured against as well; the claim is about all of them."""
    return [
        (replace(cell, judged=True), other) for cell in cells.values() for other in cell.contrasts if other in cells
    ]


def _judged(cells: Mapping[Key, Cell]) -> int:
    """How many differences the claim is about."""
    judged = sum(cell.judged and cell.against is not None for cell in cells.values())
    return judged + len(_contrasts(cells))


def _claimed(table: Table, cells: Mapping[Key, Cell]) -> int:
    """How many effects the claim is about: differences, parabolas of rows and that of all of them, averages."""
    rows = len(_fitted_rows(table, cells.values()))
    return _judged(cells) + rows + (rows > 1) + sum(summary.of == "mean" for summary in table.summaries)


def _main(cells: Sequence[Cell]) -> str:
    """The metric of the first cell, or the family of those that differ from cell to cell, as corruptions do."""
    metrics = [*dict.fromkeys(cell.metric for cell in cells)] or [ACCURACY]
    return metrics[0] if len(metrics) == 1 else metrics[0].partition("/")[0]


def _cell(cell: Cell, table: Table, numbers_of: NumbersOf, cells: Mapping[Key, Cell], read: Read) -> Found:
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
        "judged": False,
        "difference": None,
        "paper_difference": None,
        "verdict": None,
        "why": "",
    }
    return found if cell.against is None else found | _effect(cell, cells[cell.against], table, numbers_of)


def _effect(cell: Cell, base: Cell, table: Table, numbers_of: NumbersOf) -> Found:
    """A cell's difference to the one it is measured against, ours and the paper's, and whether they agree."""
    ours, theirs = ({seed: one.value for seed, one in numbers_of[one.key].items()} for one in (cell, base))
    resolution = max((one.resolution for one in numbers_of[cell.key].values()), default=0.0)
    both = cell.paper is not None and base.paper is not None
    paper = round(cell.paper - base.paper, 9) if both else None  # type: ignore[operator]
    gain = paired_difference(ours, theirs, resolution)
    judged = None
    if gain is not None and cell.judged:
        metric = next(iter(numbers_of[cell.key].values()))
        reported = None
        if paper is not None:
            error = verdict.reported_error([*ours.values()], [*theirs.values()], resolution)
            reported = verdict.Reported(paper / (100 if metric.unit == "percent" else 1), error)
        if metric.better == "low":
            gain, reported = gain.negated(), reported and reported._replace(difference=-reported.difference)
        judged = verdict.judge(gain, reported, cell.claims or table.claims)
    return {
        "against": [base.row, base.column],
        "judged": cell.judged,
        "difference": to_json(paired_effect(ours, theirs, resolution)),
        "paper_difference": paper,
        "verdict": None if judged is None else judged.verdict,
        "why": "" if judged is None else judged.why,
    }


def _p(cell: Found) -> float | None:
    """The p-value of an effect the claim is about; others are not counted as tests."""
    return cell["difference"]["p"] if cell["judged"] and cell["difference"] else None


def _summary(summary: Summary, every: Mapping[Key, Cell], cells: Mapping[Key, Cell], numbers_of: NumbersOf) -> Found:
    """A number of the text beside that of the paper's printed differences, and beside ours of the finished rows."""
    printed, ours = {}, {}
    errors: list[float | None] = []
    for cell in every.values():
        if cell.against is None or not fnmatch(cell.row, summary.rows):
            continue
        base = every[cell.against]
        if cell.paper is not None and base.paper is not None:
            printed[cell.row] = round(cell.paper - base.paper, 9)
        if cell.key in cells and base.key in cells:
            mine, theirs = ({seed: one.value for seed, one in numbers_of[key].items()} for key in (cell.key, base.key))
            if shared := sorted(mine.keys() & theirs.keys()):
                ours[cell.row] = {seed: mine[seed] - theirs[seed] for seed in shared}
                errors.append(verdict.reported_error([*mine.values()], [*theirs.values()]))
    found: Found = {**summary._asdict(), "rows": len(printed), "finished": len(ours), "verdict": None, "why": ""}
    found |= {"printed": None, "printed_row": None, "printed_finished": None, "ours": None, "our_row": None}
    if summary.of != "mean":
        extreme = min if summary.of == "least" else max
        found["printed_row"] = extreme(printed, key=lambda row: printed[row])
        found["printed"] = printed[found["printed_row"]]
        if ours:
            means = {row: math.fsum(gains.values()) / len(gains) for row, gains in ours.items()}
            found["our_row"] = extreme(means, key=lambda row: means[row])
            found["ours"] = to_json(confidence_interval([*ours[found["our_row"]].values()]))
            found["printed_finished"] = extreme(printed[row] for row in ours)
        return found
    found["printed"] = math.fsum(printed.values()) / len(printed)
    seeds = sorted(set.intersection(*(set(gains) for gains in ours.values()))) if ours else []
    if seeds:
        means_of = {seed: math.fsum(gains[seed] for gains in ours.values()) / len(ours) for seed in seeds}
        found["ours"] = to_json(confidence_interval([*means_of.values()]))
        found["printed_finished"] = math.fsum(printed[row] for row in ours) / len(ours)
        if len(ours) == len(printed) and (gain := paired_difference(means_of, dict.fromkeys(seeds, 0.0))) is not None:
            known = [error for error in errors if error is not None]
            error = math.hypot(*known) / len(errors) if len(known) == len(errors) else None
            judged = verdict.judge(gain, verdict.Reported(found["printed"] / 100, error), "gain")
            found |= {"verdict": judged.verdict, "why": judged.why}
    return found


def _fits(table: Table, cells: Sequence[Cell], numbers_of: NumbersOf) -> Iterable[Found]:
    """A parabola through each row, and one through all rows that are finished, each around its own mean."""
    rows: dict[str, tuple[BySeed, BySeed]] = {}
    for row in _fitted_rows(table, cells):
        ours, paper = _over_the_axis(table, [cell for cell in cells if cell.row == row], numbers_of)
        if (fitted := parabola(ours)) is not None:
            rows[row] = ours, paper
            yield {"row": row, "rows": [row], **_judged_fit(fitted, parabola(paper), [ours])}
    ours, paper = (around_their_means([both[place] for both in rows.values()]) for place in (0, 1))
    if len(rows) > 1 and (fitted := parabola(ours)) is not None:
        each = [mine for mine, _ in rows.values()]
        yield {"row": f"all {len(rows)} rows", "rows": [*rows], **_judged_fit(fitted, parabola(paper), each)}


def _judged_fit(fitted: Found, paper: Found | None, rows: Sequence[BySeed]) -> Found:
    judged = verdict.judge_fit(fitted, paper, bend_error(rows, verdict.REPEATS))
    return {**fitted, "paper": paper, "verdict": judged.verdict, "why": judged.why}


def _fitted_rows(table: Table, cells: Iterable[Cell]) -> list[str]:
    return [*dict.fromkeys(cell.row for cell in cells)] if table.fitted else []


def _over_the_axis(table: Table, cells: Sequence[Cell], numbers_of: NumbersOf) -> tuple[BySeed, BySeed]:
    """The numbers of a row at their places, ours by seed and the paper's as those of one."""
    assert table.axis is not None
    places = {table.axis.values[cell.column]: cell for cell in cells if cell.column in table.axis.values}
    ours = {x: {seed: one.value for seed, one in numbers_of[cell.key].items()} for x, cell in places.items()}
    return ours, {x: {0: cell.paper / 100} for x, cell in places.items() if cell.paper is not None}
