"""The command `theory`: the paper's Lemma and Theorem, measured."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from spacedkd.cli.console import console, say
from spacedkd.cli.flags import flag
from spacedkd.cli.progress import count_progress


def theory(
    out: Annotated[Path, flag("the folder of theory.json and theory.html", "runs/theory", "FOLDER")] = Path(
        "runs/theory"
    ),
    problems: Annotated[int, flag("problems: each has its own data and first weights", 16, "COUNT")] = 16,
    orders: Annotated[
        int, flag("orders of the data of each problem, over which expectations are taken", 24, "COUNT")
    ] = 24,
    steps: Annotated[
        int, flag("updates of each student; twice as many at the small learning rate", 1500, "COUNT")
    ] = 1500,
    seed: Annotated[int, flag("decides problems and orders", 0, "NUMBER")] = 0,
) -> None:
    """Measure the paper's Lemma and Theorem in their own setting.

    That setting is squared error, one output and wide networks. Writes theory.json and theory.html in a few minutes.

    Example: spacedkd theory --out runs/theory
    """
    from rich.table import Table

    from spacedkd.paper.theory import findings
    from spacedkd.paper.theory.measure import measure
    from spacedkd.paper.theory.page import write_theory_page
    from spacedkd.paper.theory.simulation import default_settings
    from spacedkd.runs.folder import make_folder
    from spacedkd.runtime.files import write_json

    settings = default_settings(problems, orders, steps, seed)
    make_folder(out, "--out")
    with count_progress() as callback:
        measured = measure(settings, callback)
    write_json(out / "theory.json", measured)
    flags = {"--out": out, "--problems": problems, "--orders": orders, "--steps": steps, "--seed": seed}
    command = shlex.join(["spacedkd", "theory", *(str(word) for pair in flags.items() for word in pair)])
    write_theory_page(out / "theory.html", measured, command)
    table = Table("statement", "near convergence")
    for name, title in findings.STATEMENTS.items():
        table.add_row(title, findings.finding(measured, name))
    console.print(table)
    console.print(findings.headline(measured), highlight=False, markup=False)
    say(f"Numbers: {out}/theory.json", f"Page:    {out}/theory.html")
