"""A store without its networks: what tables are made of, small enough for a repository.

Of every run its spec, its result, what was measured of it and the accuracies of its journal. Tables are made from it as
from the store itself, and runs that it has are not trained again.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spacedkd.documents import read_journal, read_json
from spacedkd.experiments.evaluation_file import FILE as EVALUATION
from spacedkd.files import write_json, write_text
from spacedkd.run import Run
from spacedkd.training.folder import make_folder

TABLES = ("results.json", "table.md")


def copy_numbers(store: Path, runs: Iterable[Run], tables: Iterable[Path], to: Path) -> None:
    """The numbers of runs and tables of a store, under the same names in another folder."""
    make_folder(to, "--numbers")
    _copy(store, to, "store.json")
    for run in runs:
        place = run.folder.relative_to(store)
        make_folder(to / place, "--numbers")
        write_json(to / place / "spec.json", _without_places(run.folder))
        write_text(to / place / "journal.jsonl", "".join(_accuracies(run.folder)))
        _copy(store, to, str(place / "result.json"), str(place / EVALUATION))
    for table in tables:
        make_folder(to / table.relative_to(store), "--numbers")
        _copy(store, to, *(str(table.relative_to(store) / name) for name in TABLES))


def _copy(store: Path, to: Path, *names: str) -> None:
    for name in names:
        if (store / name).exists():
            write_text(to / name, (store / name).read_text(encoding="utf-8"))


def _accuracies(run: Path) -> Iterable[str]:
    lines = read_journal(run / "journal.jsonl", within=run)
    return (json.dumps(line) + "\n" for line in lines if line["event"] == "accuracy")


def _without_places(run: Path) -> dict[str, Any]:
    """A run's spec, with the run whose teacher it followed named as the store has it."""
    spec: dict[str, Any] = read_json(run / "spec.json", within=run)
    if spec["teacher_path"] is not None:
        spec["teacher_path"] = Path("runs", *Path(spec["teacher_path"]).parts[-2:]).as_posix()  # wherever it was then
    return spec
