"""A teacher that is ahead has a lower risk (Lemma), and its student ends in flatter minima (Theorem).

Measured where they are stated, on wide networks with squared error; see docs/theory.md. It has no cells: the numbers
are those of `spacedkd theory`.

Cost of all seeds: minutes at smoke, minutes at cpu, minutes at paper.

    spacedkd reproduce theory --scale cpu
"""

from collections.abc import Callable
from pathlib import Path

from spacedkd.paper.scales import Scale
from spacedkd.paper.table import Outcome, Table

SIZES = {"smoke": (2, 2, 60), "cpu": (16, 24, 1500), "paper": (16, 24, 1500)}
"""problems, orders of the data and steps at each scale"""


def measure_theory(scale: Scale, folder: Path, command: str, progress: Callable[[str, int, int], None]) -> Outcome:
    """Measure the Lemma and the Theorem; write theory.json and theory.html into the folder."""
    from spacedkd.paper.theory.experiment import (
        default_settings,
        measure,
    )  # torch, which a list of tables does not need
    from spacedkd.paper.theory.findings import STATEMENTS, finding, headline
    from spacedkd.paper.theory.page import write_theory

    problems, orders, steps = SIZES[scale.name]
    results = measure(default_settings(problems, orders, steps, seed=0), progress)
    write_theory(folder, results, command)
    notes = [f"{title}: {finding(results, name)}" for name, title in STATEMENTS.items()]
    return Outcome(headline(results), notes, ["theory.html"])


TABLE = Table("Lemma and Theorem", "sec. kd_theory", 14, lambda scale: (), experiment=measure_theory)
