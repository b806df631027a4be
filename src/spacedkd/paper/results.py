"""The results of a table: every cell over seeds next to the paper's number, every effect with its verdict.

`table_results` computes them; `Results` is the document that is written as results.json and that all reports read.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from typing import Any, NotRequired, TypedDict

from spacedkd.config.serialization import to_json
from spacedkd.evaluation.instrument import Metric
from spacedkd.evaluation.statistics import FEWEST_SEEDS, confidence_interval, holm, paired_difference, paired_effect
from spacedkd.paper import metrics, verdict
from spacedkd.paper.table import ACCURACY, AVERAGE, Cell, Key, NamedTable, Summary, Table
from spacedkd.paper.verdict import BySeed, Fit, Verdict, around_their_means, bend_error, parabola
from spacedkd.runs.schema import Estimate, PairedDifference

# The document


class Effect(PairedDifference):
    """A paired difference with its further tests, and the smallest difference that the seeds could have shown."""

    sign_flip_p: float | None
    detectable: float | None
    holm_p: float | None


class EffectResult(TypedDict):
    """The difference of a cell to another one, ours and the paper's, with the verdict."""

    against: list[str] | None
    judged: bool
    difference: Effect | None
    paper_difference: float | None
    verdict: Verdict | None
    why: str


class CellResult(EffectResult):
    """A cell: its values by seed, their mean, and the paper's number as printed."""

    row: str
    column: str
    metric: str
    unit: str
    better: str | None
    note: str
    paper: float | None
    values: dict[str, float]
    estimate: Estimate | None
    also: dict[str, Estimate]
    fingerprint: NotRequired[str]
    runs: NotRequired[int]


class FitResult(Fit):
    """The parabola through a row, or through several, next to that through the paper's numbers."""

    row: str
    rows: list[str]
    paper: Fit | None
    verdict: Verdict | None
    why: str


class SummaryResult(TypedDict):
    """A number of the paper's text, next to that of its printed differences and to ours."""

    statement: str
    of: str
    stated: float
    rows: int
    finished: int
    verdict: Verdict | None
    why: str
    printed: float
    printed_row: str | None
    printed_finished: float | None
    ours: Estimate | None
    our_row: str | None


VerdictCounts = TypedDict(
    "VerdictCounts",
    {"agrees": int, "disagrees": int, "smaller than the paper's": int, "cannot tell": int, "sentence": str},
)
"""how many effects have each verdict, and the verdict over the claim"""


class AxisResult(TypedDict):
    """The axis of a figure."""

    title: str
    values: dict[str, float]


class LostCell(TypedDict):
    """A run that diverged (with its step) or failed (with the line that says why)."""

    row: str
    column: str
    seed: int
    step: NotRequired[int]
    said: NotRequired[str]


class TableResults(TypedDict):
    """The part of results.json that the finished runs decide."""

    name: str
    title: str
    claim: str
    reference: str
    metric: dict[str, str]
    """name and title of the main one"""
    also: dict[str, str]
    """titles of further metrics"""
    rule: str
    fewest_seeds: int
    rows: list[str]
    columns: list[str]
    axis: AxisResult | None
    cells: list[CellResult]
    contrasts: list[CellResult]
    fits: list[FitResult]
    summaries: list[SummaryResult]
    verdict: VerdictCounts
    notes: list[str]


class Results(TableResults):
    """A results.json: the results with their provenance."""

    scale: dict[str, str]
    """name, and what it is about"""
    recipe: str
    command: str
    date: str
    machine: str
    versions: dict[str, str]
    seeds: list[int]
    missing: int
    cost: dict[str, Any]
    diverged: list[LostCell]
    failed: NotRequired[list[LostCell]]
    pictures: NotRequired[list[str]]
    pages: NotRequired[list[str]]


class _Scale(TypedDict):
    name: str
    about: str


class _Count(TypedDict):
    n: int


class _IndexedCell(TypedDict):
    estimate: _Count | None


class IndexedTable(TypedDict):
    """The fields of results.json that the index needs, which are checked when it is read."""

    name: str
    title: str
    claim: str
    reference: str
    scale: _Scale
    missing: int
    cost: dict[str, Any]
    cells: list[_IndexedCell]
    verdict: VerdictCounts


# From runs to results

Numbers = Mapping[int, Metric]
"""of a cell's finished runs, by seed"""
NumbersOf = Mapping[Key, Numbers]
Read = Callable[[Cell, str], Numbers]


def table_results(
    named: NamedTable, cells: Sequence[Cell], read: Read, every: Sequence[Cell] | None = None, unjudged: str = ""
) -> TableResults:
    """Return the results of a table's finished runs, without their provenance.

    Args:
        named: the table.
        cells: the cells that are shown.
        read: returns a metric of a cell's finished runs, by seed.
        every: all cells of the table, where `cells` are some of them: the claim is about all.
        unjudged: the reason why no verdicts are given, if there is one.
    """
    table = named.table
    numbers_of = {cell.key: read(cell, cell.metric) for cell in cells}
    by_key = {cell.key: cell for cell in cells}
    results = [_cell_result(cell, table, numbers_of, by_key, read) for cell in cells]
    result_of = dict(zip(by_key, results, strict=True))
    contrasts = [
        _with_effect(result_of[cell.key], _effect(cell, by_key[base], table, numbers_of))
        for cell, base in _contrasts(by_key)
    ]
    compared = [*results, *contrasts]
    corrected = holm([_p(cell) for cell in compared], _count_judged(by_key))  # of all, finished or not
    for cell, p in zip(compared, corrected, strict=True):
        if cell["difference"] is not None:
            cell["difference"]["holm_p"] = p
    fits = [*_fits(table, cells, numbers_of)]
    all_cells = {cell.key: cell for cell in every or cells}
    summaries = [_summary(summary, all_cells, by_key, numbers_of) for summary in table.summaries]
    effects: list[Any] = [*compared, *fits, *summaries]
    if unjudged:
        for effect in effects:
            effect |= {"verdict": None, "why": ""}
    verdicts = [effect["verdict"] for effect in effects if effect["verdict"] is not None]
    main, claims = _main_metric(cells), {table.claims, *(cell.claims for cell in cells if cell.claims)}
    rule = verdict.rule(claims, table.fitted, bool(table.summaries))
    sentence = verdict.sentence(verdicts, _count_claimed(table, all_cells))
    return {
        "name": named.name,
        "title": table.title,
        "claim": named.claim,
        "reference": table.reference,
        "metric": {"name": main, "title": metrics.title(main)},
        "also": {name: metrics.title(name) for name in table.also},
        "rule": f"No verdicts are given: {unjudged}." if unjudged else rule,
        "fewest_seeds": FEWEST_SEEDS,
        "rows": [*dict.fromkeys(cell.row for cell in cells)],
        "columns": [*dict.fromkeys(cell.column for cell in cells)],
        "axis": None if table.axis is None else {"title": table.axis.title, "values": dict(table.axis.values)},
        "cells": results,
        "contrasts": contrasts,
        "fits": fits,
        "summaries": summaries,
        "verdict": {
            "agrees": verdicts.count("agrees"),
            "disagrees": verdicts.count("disagrees"),
            "smaller than the paper's": verdicts.count(verdict.SMALLER),
            "cannot tell": verdicts.count("cannot tell"),
            "sentence": f"Not judged: {unjudged}." if unjudged else sentence,
        },
        "notes": [*table.notes],
    }


def _contrasts(cells: Mapping[Key, Cell]) -> list[tuple[Cell, Key]]:
    """Return cells, each with another one that it is measured against as well; the claim is about all of them."""
    return [
        (replace(cell, judged=True), other) for cell in cells.values() for other in cell.contrasts if other in cells
    ]


def _count_judged(cells: Mapping[Key, Cell]) -> int:
    """Count the differences that the claim is about."""
    judged = sum(cell.judged and cell.against is not None for cell in cells.values())
    return judged + len(_contrasts(cells))


def _count_claimed(table: Table, cells: Mapping[Key, Cell]) -> int:
    """Count the effects that the claim is about: differences, parabolas of rows and that of all of them, averages."""
    rows = len(_fitted_rows(table, cells.values()))
    return _count_judged(cells) + rows + (rows > 1) + sum(summary.of == "mean" for summary in table.summaries)


def _main_metric(cells: Sequence[Cell]) -> str:
    """Return the metric of the first cell, or the family of those that differ from cell to cell, as corruptions do."""
    names = [*dict.fromkeys(cell.metric for cell in cells)] or [ACCURACY]
    return names[0] if len(names) == 1 else names[0].partition("/")[0]


def _values(numbers: Numbers) -> dict[int, float]:
    return {seed: metric.value for seed, metric in numbers.items()}


def _cell_result(cell: Cell, table: Table, numbers_of: NumbersOf, cells: Mapping[Key, Cell], read: Read) -> CellResult:
    numbers = numbers_of[cell.key]
    values = _values(numbers)
    beside = () if cell.metric in table.also else table.also  # such a cell is shown beside another one of its run
    others = {name: [*_values(read(cell, name)).values()] for name in beside}
    result: CellResult = {
        "row": cell.row,
        "column": cell.column,
        "metric": cell.metric,
        "unit": next((metric.unit for metric in numbers.values()), "percent"),
        "better": next((metric.better for metric in numbers.values()), "high"),
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
    return (
        result if cell.against is None else _with_effect(result, _effect(cell, cells[cell.against], table, numbers_of))
    )


def _with_effect(cell: CellResult, effect: EffectResult) -> CellResult:
    """Return a copy of a cell that is measured against another one."""
    return {**cell, **effect}


def _effect(cell: Cell, base: Cell, table: Table, numbers_of: NumbersOf) -> EffectResult:
    """Return a cell's difference to the one it is measured against, ours and the paper's, and whether they agree."""
    ours, theirs = _values(numbers_of[cell.key]), _values(numbers_of[base.key])
    resolution = max((metric.resolution for metric in numbers_of[cell.key].values()), default=0.0)
    paper = None if cell.paper is None or base.paper is None else round(cell.paper - base.paper, 9)
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


def _p(cell: CellResult) -> float | None:
    """Return the p-value of an effect the claim is about; others are not counted as tests."""
    return cell["difference"]["p"] if cell["judged"] and cell["difference"] else None


def _summary(
    summary: Summary, every: Mapping[Key, Cell], cells: Mapping[Key, Cell], numbers_of: NumbersOf
) -> SummaryResult:
    """Return a number of the text next to that of the paper's printed differences, and to ours."""
    printed: dict[str, float] = {}
    ours: dict[str, dict[int, float]] = {}
    errors: list[float | None] = []
    for cell in every.values():
        if cell.against is None or not fnmatch(cell.row, summary.rows):
            continue
        base = every[cell.against]
        if cell.paper is not None and base.paper is not None:
            printed[cell.row] = round(cell.paper - base.paper, 9)
        if cell.key in cells and base.key in cells:
            mine, theirs = _values(numbers_of[cell.key]), _values(numbers_of[base.key])
            if shared := sorted(mine.keys() & theirs.keys()):
                ours[cell.row] = {seed: mine[seed] - theirs[seed] for seed in shared}
                errors.append(verdict.reported_error([*mine.values()], [*theirs.values()]))
    result: SummaryResult = {
        "statement": summary.statement,
        "of": summary.of,
        "stated": summary.stated,
        "rows": len(printed),
        "finished": len(ours),
        "verdict": None,
        "why": "",
        "printed": math.nan,
        "printed_row": None,
        "printed_finished": None,
        "ours": None,
        "our_row": None,
    }
    if summary.of == "mean":
        _add_mean(result, printed, ours, errors)
    else:
        _add_extreme(result, printed, ours, min if summary.of == "least" else max)
    return result


def _add_extreme(
    result: SummaryResult,
    printed: Mapping[str, float],
    ours: Mapping[str, Mapping[int, float]],
    extreme: Callable[..., Any],
) -> None:
    """Write the row of the least or greatest difference, of the paper's and of ours."""
    row = extreme(printed, key=lambda row: printed[row])
    result["printed"], result["printed_row"] = printed[row], row
    if ours:
        means = {row: math.fsum(gains.values()) / len(gains) for row, gains in ours.items()}
        our_row = extreme(means, key=lambda row: means[row])
        result["our_row"] = our_row
        result["ours"] = to_json(confidence_interval([*ours[our_row].values()]))
        result["printed_finished"] = extreme(printed[row] for row in ours)


def _add_mean(
    result: SummaryResult,
    printed: Mapping[str, float],
    ours: Mapping[str, Mapping[int, float]],
    errors: Sequence[float | None],
) -> None:
    """Write the average difference, and the verdict where every row is finished."""
    result["printed"] = math.fsum(printed.values()) / len(printed)
    seeds = sorted(set.intersection(*(set(gains) for gains in ours.values()))) if ours else []
    if not seeds:
        return
    means = {seed: math.fsum(gains[seed] for gains in ours.values()) / len(ours) for seed in seeds}
    result["ours"] = to_json(confidence_interval([*means.values()]))
    result["printed_finished"] = math.fsum(printed[row] for row in ours) / len(ours)
    gain = paired_difference(means, dict.fromkeys(seeds, 0.0))
    if len(ours) == len(printed) and gain is not None:
        estimated = [error for error in errors if error is not None]
        error = math.hypot(*estimated) / len(errors) if len(estimated) == len(errors) else None
        judged = verdict.judge(gain, verdict.Reported(result["printed"] / 100, error), "gain")
        result["verdict"], result["why"] = judged.verdict, judged.why


def _fits(table: Table, cells: Sequence[Cell], numbers_of: NumbersOf) -> Iterator[FitResult]:
    """Yield a parabola through each row, and one through all rows that are finished, each around its own mean."""
    rows: dict[str, tuple[BySeed, BySeed]] = {}
    for row in _fitted_rows(table, cells):
        ours, paper = _over_the_axis(table, [cell for cell in cells if cell.row == row], numbers_of)
        if (fit := parabola(ours)) is not None:
            rows[row] = ours, paper
            yield _judged_fit(row, [row], fit, parabola(paper), [ours])
    if len(rows) > 1:
        each = [mine for mine, _ in rows.values()]
        paper = around_their_means([theirs for _, theirs in rows.values()])
        if (fit := parabola(around_their_means(each))) is not None:
            yield _judged_fit(f"all {len(rows)} rows", [*rows], fit, parabola(paper), each)


def _judged_fit(row: str, rows: list[str], fit: Fit, paper: Fit | None, ours: Sequence[BySeed]) -> FitResult:
    judged = verdict.judge_fit(fit, paper, bend_error(ours, verdict.REPEATS))
    return {"row": row, "rows": rows, **fit, "paper": paper, "verdict": judged.verdict, "why": judged.why}


def _fitted_rows(table: Table, cells: Iterable[Cell]) -> list[str]:
    return [*dict.fromkeys(cell.row for cell in cells if cell.metric != AVERAGE)] if table.fitted else []


def _over_the_axis(table: Table, cells: Sequence[Cell], numbers_of: NumbersOf) -> tuple[BySeed, BySeed]:
    """Return the numbers of a row at their x, ours by seed and the paper's as those of one seed."""
    assert table.axis is not None
    by_x = {table.axis.values[cell.column]: cell for cell in cells if cell.column in table.axis.values}
    ours = {x: _values(numbers_of[cell.key]) for x, cell in by_x.items()}
    return ours, {x: {0: cell.paper / 100} for x, cell in by_x.items() if cell.paper is not None}
