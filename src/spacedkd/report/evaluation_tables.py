"""Evaluations in the terminal: the tables of one network, and a line for each of many."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from spacedkd.evaluation.document import INSTRUMENTS, EvaluationDocument, metrics, most_common
from spacedkd.evaluation.instrument import ResultTable, Value
from spacedkd.report.formatting import estimate, percent
from spacedkd.report.table import LEAST_NAME, Table, group_rows, text_table


def evaluation_tables(evaluation: EvaluationDocument, detailed: bool) -> Iterator[Table]:
    """Yield the tables of every instrument that was used; `detailed` adds the bins of calibration."""
    for instrument in INSTRUMENTS:
        if instrument.name in evaluation["instruments"]:
            yield from map(_to_table, instrument.tables(evaluation["instruments"][instrument.name], detailed))


def _to_table(table: ResultTable) -> Table:
    rows = [[_format(value) for value in row] for row in table.rows]
    return text_table(table.title, table.columns, rows, table.caption, left=table.text_columns)


def _format(value: Value) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return percent(value) if isinstance(value, int | float) else estimate(value)


def describe_origin(evaluation: EvaluationDocument) -> str:
    """Return which weights an evaluation.json is about."""
    origin = evaluation["origin"]
    if "weights" in origin:
        return f"weights: {origin['weights']}"
    if origin["epochs"] is None:
        return f"not finished, after {origin['turns']} of {origin['of_turns']} turns"
    return f"after the last of {origin['epochs']:g} epochs"


def _columns() -> dict[str, str]:
    """Return the metrics that overviews show: key -> title of the column."""
    return {
        f"{instrument.name}/{headline.key}": headline.column
        for instrument in INSTRUMENTS
        for headline in instrument.headlines
        if headline.column
    }


def summary_line(evaluation: EvaluationDocument) -> str:
    """Return the most important numbers of one network, in one line."""
    numbers = metrics(evaluation)
    return ", ".join(f"{column} {numbers[key].format()}" for key, column in _columns().items() if key in numbers)


def summary_table(evaluations: Mapping[Path, EvaluationDocument]) -> Table:
    """Return a table with a line for each network, group_rows by the folder above its own."""
    by_folder = {folder: metrics(evaluation) for folder, evaluation in evaluations.items()}
    columns = _columns()
    measured = {key: [numbers[key] for numbers in by_folder.values() if key in numbers] for key in columns}
    settings = {key: most_common(values).settings for key, values in measured.items() if values}
    above = Path(os.path.commonpath([folder.resolve().parent for folder in by_folder]))
    lines = []
    for folder, numbers in by_folder.items():
        unlike = {key: "*" for key, usual in settings.items() if key in numbers and numbers[key].settings != usual}
        cells = [numbers[key].format() + unlike.get(key, "") if key in numbers else "" for key in settings]
        path = folder.resolve().relative_to(above)
        lines.append(("" if path.parent == Path() else str(path.parent), [path.name, *cells]))
    notes = [
        instrument.headline_note
        for instrument in INSTRUMENTS
        if instrument.headline_note and any(key.startswith(f"{instrument.name}/") for key in settings)
    ]
    if any(cell.endswith("*") for _, cells in lines for cell in cells[1:]):
        notes.append("* measured with other settings or images, so not to be compared")
    heads = ("run", *(columns[key] for key in settings))
    return text_table("the students, deepest head", heads, group_rows(lines), "; ".join(notes), least_width=LEAST_NAME)
