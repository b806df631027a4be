"""The command `report`: a page of run folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from spacedkd.cli.console import Command, console, read_commands, say, this_command
from spacedkd.cli.flags import flag
from spacedkd.report.terminal import rich_table
from spacedkd.runtime.errors import UserError

if TYPE_CHECKING:
    from spacedkd.comparison.document import ComparisonDocument


def report(
    runs: Annotated[
        tyro.conf.Positional[tuple[Path, ...]], flag("run folders, or folders that contain runs", metavar="RUN ...")
    ],
    out: Annotated[
        Path | None,
        flag(
            "the page; its numbers are written into a file next to it", "report.html in the first folder", "FILE.html"
        ),
    ] = None,
    against: Annotated[str | None, flag("the arm that all others are compared with", "the first", "NAME")] = None,
) -> None:
    """Make a report page from run folders, and a file of numbers.

    For a folder that contains runs, all of them are taken. Arms that were compared before keep their order, and the arm
    that they were compared with.

    Example: spacedkd report runs/demo --against 'online KD'
    """
    if out is not None and (out.suffix != ".html" or out.is_dir()):
        raise UserError(f"The report is an HTML page: give --out a file name that ends in .html, not {str(out)!r}.")
    if not runs:
        raise UserError("Name at least one run folder, for instance runs/demo.")

    from spacedkd.comparison.document import keep_order, write_comparison
    from spacedkd.comparison.results import compare_runs, find_runs
    from spacedkd.runs.folder import make_folder

    finished, unfinished = find_runs(runs)
    if out is None:
        page, numbers = runs[0] / "report.html", runs[0] / "comparison.json"
    else:
        page, numbers = out, out.with_name(f"{out.stem}-numbers.json")
        make_folder(out.parent, "--out")
    ordered, reference = keep_order(runs[0] / "comparison.json", finished, against)
    comparison = compare_runs(ordered, reference, unfinished)
    write_comparison(numbers, comparison)
    commands = [*read_commands([*(run.resolve() for run in runs), *finished]), this_command()]
    lost = len(comparison["diverged"]) + len(comparison["failed"])
    show_comparison(comparison, page, numbers, commands, len(unfinished) - lost)


def show_comparison(
    comparison: ComparisonDocument, page: Path, numbers: Path, commands: Sequence[Command], unfinished: int = 0
) -> None:
    """Write a comparison as a page, and print its tables."""
    from spacedkd.report import tables
    from spacedkd.report.page import write_page

    write_page(page, comparison, unfinished, commands)
    console.print(*(rich_table(table) for table in tables.comparison_tables(comparison)))
    say(f"Numbers: {numbers}", f"Report:  {page}")
