"""What the runs recorded: the spec, result and journal of each folder, sorted into the comparison's arms."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spacedkd.errors import UserError
from spacedkd.journal import read_journal
from spacedkd.spec import RunSpec, read_spec

Curve = Mapping[float, float]
"""accuracy after each evaluated epoch"""


@dataclass(frozen=True)
class Run:
    """One finished run."""

    spec: RunSpec
    result: Mapping[str, Any]
    curves: Mapping[str, Curve]
    """of the deepest head on the test images, for each role"""

    @property
    def roles(self) -> Sequence[str]:
        """From the one that leads to the one that follows."""
        roles: Sequence[str] = self.result["plan"]["roles"]
        return roles

    @property
    def shares_one_model(self) -> bool:
        """Whether teacher and student are two roles of one network."""
        learners = self.result["plan"]["learners"]
        return len({*learners.values()}) < len(learners)

    @property
    def steps_per_epoch(self) -> int:
        return int(self.result["plan"]["steps_per_epoch"])

    @property
    def total_steps(self) -> int:
        return int(self.result["plan"]["total_steps"])

    @property
    def last(self) -> float:
        """The student's accuracy on the test images, deepest head, after the last epoch."""
        return float(self.result["accuracy"]["student"]["test"]["final"]["last"])


@dataclass(frozen=True)
class Arm:
    """The runs that differ only in their seed, and what the comparison says of them."""

    label: str
    numbers: Mapping[str, Any]
    runs: Sequence[Run]

    @property
    def first(self) -> Run:
        """Stands for all of them where the seed does not matter."""
        return self.runs[0]

    @property
    def how(self) -> str:
        """Its method, and its schedule where more than one role learns."""
        return ", ".join(str(self.numbers[name]) for name in ("method", "schedule") if self.numbers[name])

    @property
    def by_seed(self) -> Mapping[int, float]:
        return {run.spec.seed: run.last for run in self.runs}


def read_arms(comparison: Mapping[str, Any]) -> list[Arm]:
    """The arms in the comparison's order, each with its runs by seed."""
    return [
        Arm(
            arm["label"],
            arm,
            [read_run(Path(one["folder"])) for one in sorted(arm["runs"], key=lambda one: one["seed"])],
        )
        for arm in comparison["arms"]
    ]


def read_run(folder: Path) -> Run:
    for name in ("result.json", "journal.jsonl"):
        if not (folder / name).exists():
            raise UserError(f"{folder} has no finished run: there is no {name}.")
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return Run(read_spec(folder), result, _curves(read_journal(folder / "journal.jsonl")))


def _curves(entries: Iterator[dict[str, Any]]) -> Mapping[str, Curve]:
    curves: dict[str, dict[float, float]] = {}
    for entry in entries:
        if entry["event"] == "accuracy":
            curves.setdefault(entry["role"], {})[entry["epoch"]] = entry["accuracy"]["test"]["final"]
    return curves
