"""The verb that measures the theory."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from spacedkd.cli.flag import flag
from spacedkd.experiments.theory import default_settings, measure
from spacedkd.report import theory_words as words
from spacedkd.report.theory_page import write_theory_page
from spacedkd.train.folder import make_folder, write_json

console = Console()


def theory(
    out: Annotated[Path, flag("where numbers and page go", "runs/theory", "FOLDER")] = Path("runs/theory"),
    problems: Annotated[int, flag("kinds of data and first weights", 16, "COUNT")] = 16,
    orders: Annotated[int, flag("orders of the data for each, over which expectations go", 24, "COUNT")] = 24,
    steps: Annotated[int, flag("updates of each student; twice as many at the small rate", 1500, "COUNT")] = 1500,
    seed: Annotated[int, flag("decides all of them", 0)] = 0,
) -> None:
    """Measure the paper's Lemma and Theorem in their own setting: squared error, one output, wide networks.

    Writes theory.json and theory.html; takes a few minutes.

    Example: spacedkd theory --out runs/theory
    """
    settings = default_settings(problems, orders, steps, seed)
    make_folder(out, "--out")
    with _bar() as bar:
        tasks = {one.name: bar.add_task(one.name, total=None) for one in settings}
        found = measure(settings, lambda name, done, total: bar.update(tasks[name], completed=done, total=total))
    write_json(out / "theory.json", found)
    given = {"--out": out, "--problems": problems, "--orders": orders, "--steps": steps, "--seed": seed}
    command = shlex.join(["spacedkd", "theory", *(str(word) for pair in given.items() for word in pair)])
    write_theory_page(out / "theory.html", found, command)
    table = Table("statement", "near convergence")
    for name, title in words.STATEMENTS.items():
        table.add_row(title, words.finding(found, name))
    console.print(table)
    console.print(words.headline(found), highlight=False, markup=False)
    console.print(
        f"Numbers: {out}/theory.json\nPage:    {out}/theory.html", highlight=False, markup=False, soft_wrap=True
    )


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )
