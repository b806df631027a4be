"""The verb that measures the theory."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from rich.table import Table

from spacedkd.cli.console import console, say
from spacedkd.cli.flag import flag
from spacedkd.cli.progress import count_progress
from spacedkd.theory import words
from spacedkd.theory.measure import default_settings, measure
from spacedkd.theory.page import write_theory_page
from spacedkd.training.folder import make_folder, write_json


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
    with count_progress(console) as callback:
        found = measure(settings, callback)
    write_json(out / "theory.json", found)
    given = {"--out": out, "--problems": problems, "--orders": orders, "--steps": steps, "--seed": seed}
    command = shlex.join(["spacedkd", "theory", *(str(word) for pair in given.items() for word in pair)])
    write_theory_page(out / "theory.html", found, command)
    table = Table("statement", "near convergence")
    for name, title in words.STATEMENTS.items():
        table.add_row(title, words.finding(found, name))
    console.print(table)
    console.print(words.headline(found), highlight=False, markup=False)
    say(f"Numbers: {out}/theory.json\nPage:    {out}/theory.html")
