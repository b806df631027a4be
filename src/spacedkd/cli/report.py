"""The command `report`: a page of run folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from spacedkd.cli.console import Command, console, read_commands, say, this_command
from spacedkd.cli.flags import flag
from spacedkd.reporting.terminal import rich_table

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
    from spacedkd.reporting.notebook import compare_folders

    made = compare_folders(runs, out, against)
    commands = [*read_commands([*(run.resolve() for run in runs), *made.finished]), this_command()]
    show_comparison(made.comparison, made.page, made.numbers, commands, made.unfinished)


def show_comparison(
    comparison: ComparisonDocument, page: Path, numbers: Path, commands: Sequence[Command], unfinished: int = 0
) -> None:
    """Write a comparison as a page, and print its tables."""
    from spacedkd.reporting import tables
    from spacedkd.reporting.page import write_page

    write_page(page, comparison, unfinished, commands)
    console.print(*(rich_table(table) for table in tables.comparison_tables(comparison)))
    say(f"Numbers: {numbers}", f"Report:  {page}")
