"""The command `theory`: it measures the paper's Lemma and Theorem."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from spacedkd.cli.console import console, say
from spacedkd.cli.flags import flag
from spacedkd.reporting.progress import count_progress


def theory(
    out: Annotated[Path, flag("the folder of theory.json and theory.html", "runs/theory", "FOLDER")] = Path(
        "runs/theory"
    ),
    problems: Annotated[int, flag("problems: each has its own data and first weights", 16, "COUNT")] = 16,
    orders: Annotated[
        int, flag("orders of the data of each problem, over which expectations are taken", 24, "COUNT")
    ] = 24,
    steps: Annotated[
        int, flag("updates of each student at the large learning rate; at the small one twice as many", 1500, "COUNT")
    ] = 1500,
    seed: Annotated[int, flag("decides problems and orders", 0, "NUMBER")] = 0,
) -> None:
    """Measure the paper's Lemma and Theorem in their own setting.

    That setting is squared error, one output and wide networks. Writes theory.json and theory.html in a few minutes.

    Example: spacedkd theory --out runs/theory
    """
    from rich.table import Table

    from spacedkd.paper.theory.experiment import default_settings, measure
    from spacedkd.paper.theory.findings import STATEMENTS, finding, headline
    from spacedkd.paper.theory.page import write_theory
    from spacedkd.runs.folder import make_folder

    settings = default_settings(problems, orders, steps, seed)
    make_folder(out, "--out")
    with count_progress() as progress:
        results = measure(settings, progress)
    flags = {"--out": out, "--problems": problems, "--orders": orders, "--steps": steps, "--seed": seed}
    command = shlex.join(["spacedkd", "theory", *(str(word) for pair in flags.items() for word in pair)])
    write_theory(out, results, command)
    table = Table("statement", "near convergence")
    for name, title in STATEMENTS.items():
        table.add_row(title, finding(results, name))
    console.print(table)
    console.print(headline(results), highlight=False, markup=False)
    say(f"Numbers: {out}/theory.json", f"Page:    {out}/theory.html")
