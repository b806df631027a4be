"""A store without its networks: what tables are made of, small enough for a repository.

Of every run its spec, its result, what was measured of it and the accuracies of its journal. Tables are made from it as
from the store itself, and runs that it has are not trained again.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spacedkd.documents import read_journal, read_json
from spacedkd.experiments.evaluation_file import FILE as EVALUATION
from spacedkd.files import Folder, write_json, write_text
from spacedkd.run import Run, check_journal
from spacedkd.training.folder import make_folder

TABLES = ("results.json", "table.md")


def copy_numbers(store: Path, runs: Iterable[Run], tables: Iterable[Path], to: Path) -> None:
    """The numbers of runs and tables of a store, under the same names in another folder."""
    make_folder(to, "--numbers")
    _copy(store, to, "store.json")
    for run in runs:
        place = run.folder.relative_to(store)
        make_folder(to / place, "--numbers")
        journal = "".join(_accuracies(run))
        write_json(to / place / "spec.json", _without_places(run.folder), to)
        write_text(to / place / "journal.jsonl", journal, to)
        write_json(to / place / "result.json", _with_digest(run, journal), to)
        _copy(store, to, str(place / EVALUATION))
    for table in tables:
        make_folder(to / table.relative_to(store), "--numbers")
        _copy(store, to, *(str(table.relative_to(store) / name) for name in TABLES))


def _copy(store: Path, to: Path, *names: str) -> None:
    for name in names:
        if (store / name).exists():
            with Folder((store / name).parent).reading(store / name) as file:
                write_text(to / name, file.read().decode(), to)


def _with_digest(run: Run, journal: str) -> dict[str, Any]:
    """A run's result with the digest of the journal that goes with it here; its networks stay behind."""
    result: dict[str, Any] = read_json(run.folder / "result.json", within=run.folder)
    if "journal" in run.digests:
        result["digests"] = {"journal": hashlib.sha256(journal.encode()).hexdigest()}
    return result


def _accuracies(run: Run) -> Iterable[str]:
    check_journal(run.folder, run.digests)
    lines = read_journal(run.folder / "journal.jsonl", within=run.folder)
    return (json.dumps(line) + "\n" for line in lines if line["event"] == "accuracy")


def _without_places(run: Path) -> dict[str, Any]:
    """A run's spec, with the run whose teacher it followed named as the store has it."""
    spec: dict[str, Any] = read_json(run / "spec.json", within=run)
    if spec["teacher_path"] is not None:
        spec["teacher_path"] = Path("runs", *Path(spec["teacher_path"]).parts[-2:]).as_posix()  # wherever it was then
    return spec
