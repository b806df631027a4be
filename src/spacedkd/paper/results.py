"""The results of a table: every cell over seeds next to the paper's number, every effect with its verdict.

`read_metric` reads a number of a run, and `table_results` compares the numbers. `Results` is the document that is
written as results.json and that all reports read.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from spacedkd.averages import STUDENT_AVERAGE
from spacedkd.config.serialization import to_json
from spacedkd.evaluation import document
from spacedkd.evaluation.instrument import Metric
from spacedkd.evaluation.statistics import FEWEST_SEEDS, confidence_interval, holm, paired_difference, paired_effect
from spacedkd.paper import verdict
from spacedkd.paper.table import ACCURACY, AVERAGE, Cell, Instruments, Key, NamedTable, Summary, Table
from spacedkd.paper.verdict import BySeed, Fit, Verdict, around_their_means, bend_error, parabola
from spacedkd.runs.journal import Curve, read_accuracies
from spacedkd.runs.result import Run, check_journal
from spacedkd.runs.schema import Estimate, PairedDifference
from spacedkd.runtime.errors import UserError

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


# The metrics of a finished run

LATE = 10.0
"""epochs over which the late accuracy is a mean; never more than a quarter of a run"""
CLEAN = "weight_noise/clean/loss"

METRIC_TITLES = {
    "late": "accuracy of the student, deepest head, test images, mean over the last ten epochs (of runs shorter than "
    "40 epochs over their last quarter)",
    "average": "accuracy of the average of the student's weights, deepest head, test images, mean over the last ten "
    "epochs (of runs shorter than 40 epochs over their last quarter)",
    "last": "after the last epoch",
    "best": "at the best epoch, chosen on the test images themselves",
    "ensemble": "all heads together, after the last epoch",
    "ensemble_best": "all heads together, at their best epoch, chosen on the test images themselves",
}


def metric_title(metric: str) -> str:
    """Return the title of a metric, such as `late`, `at/20` or `corruptions/fog/3`."""
    family, _, rest = metric.partition("/")
    if metric in METRIC_TITLES:
        return METRIC_TITLES[metric]
    epoch = f"epoch {rest}" if rest else "some epochs"
    named = {
        "at": f"accuracy of the student, deepest head, test images, after {epoch}",
        "corruptions": "accuracy of the student, deepest head (where a row says so, all heads together), on corrupted "
        "test images, after the last epoch",
        "adversarial": "accuracy of the student, deepest head, on attacked test images, after the last epoch",
        "weight_noise": "accuracy and loss of the student, deepest head, on training images, with noise on its "
        "weights, after the last epoch",
        "cost": "what a run is made of, teacher and student together, counted while it trained",
    }
    return named.get(family, metric)


def read_metric(run: Run, metric: str, evaluated: Callable[[Path], Mapping[str, Metric]]) -> Metric:
    """Return a metric of a run by its name; `evaluated` returns the numbers of the run's evaluation.json.

    Raises LookupError where the run was not measured with that instrument, or has no such head.
    """
    resolution = 1 / run.plan["test_images"]
    if metric in ("late", "average"):
        values = _late(_curve(run) if metric == "late" else _curve_of_average(run), run)
        return Metric(metric_title(metric), sum(values) / len(values), resolution / len(values), "")
    if metric.startswith("at/"):
        return Metric(metric_title(metric), _accuracy_at(run, float(metric[3:])), resolution, "")
    if metric in METRIC_TITLES:
        head, _, best = metric.partition("_")
        whole = run.accuracies[run.roles[-1]]["test"]
        if head != "ensemble":
            return Metric(metric_title(metric), run.score(metric), resolution, "")
        if "ensemble" not in whole:
            raise LookupError(metric)
        return Metric(metric_title(metric), run.score(best or "last", "ensemble"), resolution, "")
    if metric.startswith("cost/"):
        return Metric(metric_title(metric), run.cost[metric.removeprefix("cost/")], 0.0, "", "low", "number")
    if metric.endswith("/rise"):
        loss, clean = (evaluated(run.folder)[name] for name in (metric.removesuffix("/rise") + "/loss", CLEAN))
        return loss._replace(title="rise of the training loss", value=loss.value - clean.value)
    return evaluated(run.folder)[metric]


def evaluated_metrics(folder: Path) -> dict[str, Metric]:
    """Return the numbers of a run's evaluation after its last epoch; none where there is no such evaluation."""
    evaluation = _read_evaluation(folder)
    return {} if evaluation is None else document.metrics(evaluation)


def is_measured(folder: Path, instruments: Instruments) -> bool:
    """Return whether a run was measured with these after its last epoch; a loss that was not finite counts, too."""
    evaluation = _read_evaluation(folder)
    if evaluation is None:
        return False
    used = {name: evaluation["instruments"].get(name, {}) for name in ("corruptions", "adversarial", "weight_noise")}
    corrupted = {(entry["name"], entry["severity"]) for entry in used["corruptions"].get("found", ())}
    attacks = [entry["attack"] for entry in used["adversarial"].get("attacks", ())]
    noise = {(entry["kind"], entry["level"]) for entry in used["weight_noise"].get("levels", ())}
    return (
        corrupted.issuperset(product(instruments.corruptions, instruments.severities))
        and {attack["epsilon"] for attack in attacks if attack["name"] == "bim"}.issuperset(instruments.epsilons)
        and noise.issuperset(product(("relative",), instruments.noise))
        and noise.issuperset(product(("absolute",), instruments.absolute_noise))
    )


def _read_evaluation(folder: Path) -> document.EvaluationDocument | None:
    """Return the evaluation of a run, if it was made after the last epoch."""
    evaluation = document.read(folder)
    return None if evaluation is None or evaluation["origin"].get("epochs") is None else evaluation


def _curve(run: Run) -> Curve:
    """Return the student's accuracies by epoch; a journal that ends with another one than the result is refused."""
    curve = run.accuracy_curves.get(run.roles[-1], {})
    if not curve or curve[max(curve)] != run.score():
        raise UserError(
            f"{run.folder / 'journal.jsonl'} does not end with the accuracy that result.json has. Delete {run.folder}, "
            "and the run is trained again."
        )
    return curve


def _curve_of_average(run: Run) -> Curve:
    """Return the accuracies of the average of the student's weights by epoch; LookupError where there is none."""
    if not run.keeps_average:
        raise LookupError("average")
    check_journal(run.folder, run.digests)
    entries = (entry for entry in read_accuracies(run.folder) if entry["role"] == STUDENT_AVERAGE)
    return {entry["epoch"]: entry["accuracy"]["test"]["final"] for entry in entries}


def _late(curve: Curve, run: Run) -> list[float]:
    """Return the accuracies of a curve at the evaluations of the last epochs."""
    least = max(curve) - min(LATE, run.spec.epochs / 4)
    return [value for epoch, value in curve.items() if epoch > least + 1e-9]


def _accuracy_at(run: Run, epoch: float) -> float:
    """Return the accuracy at the evaluation that is nearest to an epoch."""
    curve = _curve(run)
    return curve[min(curve, key=lambda other: abs(other - epoch))]


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
    main, claims = _main_metric(cells), {table.claims, *(cell.claims for cell in cells if cell.claims)}
    rule = verdict.rule(claims, table.fitted, bool(table.summaries))
    return {
        "name": named.name,
        "title": table.title,
        "claim": named.claim,
        "reference": table.reference,
        "metric": {"name": main, "title": metric_title(main)},
        "also": {name: metric_title(name) for name in table.also},
        "rule": f"No verdicts are given: {unjudged}." if unjudged else rule,
        "fewest_seeds": FEWEST_SEEDS,
        "rows": [*dict.fromkeys(cell.row for cell in cells)],
        "columns": [*dict.fromkeys(cell.column for cell in cells)],
        "axis": None if table.axis is None else {"title": table.axis.title, "values": dict(table.axis.values)},
        "cells": results,
        "contrasts": contrasts,
        "fits": fits,
        "summaries": summaries,
        "verdict": _count_verdicts(effects, _count_claimed(table, all_cells), unjudged),
        "notes": [*table.notes],
    }


def _count_verdicts(effects: Iterable[Any], claimed: int, unjudged: str) -> VerdictCounts:
    """Return how often each verdict was given, and the sentence about them; `claimed` effects are of the claim."""
    verdicts = [effect["verdict"] for effect in effects if effect["verdict"] is not None]
    return {
        "agrees": verdicts.count("agrees"),
        "disagrees": verdicts.count("disagrees"),
        "smaller than the paper's": verdicts.count(verdict.SMALLER),
        "cannot tell": verdicts.count("cannot tell"),
        "sentence": f"Not judged: {unjudged}." if unjudged else verdict.sentence(verdicts, claimed),
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
