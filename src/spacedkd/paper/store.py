"""The store of the runs of all tables: each run once, under the fingerprint of what it computes.

STORE/store.json               the versions it is made with, and the precision
STORE/runs/FINGERPRINT/seedN   a run; the fingerprint is that of seed 0, whichever table needed it first
STORE/SCALE/NAME/              a table: results.json and its pages
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from spacedkd.comparison import scheduler
from spacedkd.comparison.job import Job
from spacedkd.comparison.pool import JobCallback
from spacedkd.config.resolve import best_precision, resolve_spec
from spacedkd.config.spec import PRECISIONS, RunSpec
from spacedkd.data.sources import Library
from spacedkd.evaluation.document import FILE as EVALUATION
from spacedkd.runs.folder import RunFolder, make_folder
from spacedkd.runs.journal import read_journal
from spacedkd.runs.result import Run, check_journal, read_run
from spacedkd.runtime.documents import read_json
from spacedkd.runtime.errors import Linked, UserError
from spacedkd.runtime.files import Folder, write_json, write_text
from spacedkd.runtime.locks import hold
from spacedkd.runtime.signals import Stop, never_stop

PACKAGES = ("spacedkd", "torch", "torchvision", "timm", "numpy")
"""the packages whose versions decide the bits of a run"""


def versions() -> dict[str, str]:
    """Return the installed versions of the packages that decide the bits."""
    return {package: version(package) for package in PACKAGES}


class MadeWith(NamedTuple):
    """The versions and the precision that all runs of a store have in common."""

    versions: dict[str, str]
    """none where nothing is there yet"""
    precision: str
    """of runs that name none"""


@dataclass(frozen=True)
class Arm:
    """A run over seeds, resolved for this store."""

    spec: RunSpec
    """resolved, of seed 0"""
    fingerprint: str


class Store:
    """A folder of runs that tables are made from.

    >>> Store("nowhere").run_folder(Arm(RunSpec(), "0112ca1d854d5da8"), seed=3).as_posix()
    'nowhere/runs/0112ca1d854d5da8/seed3'
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.library = Library()
        self._arms: dict[str, Arm] = {}
        self._runs: dict[Path, Run] = {}

    def check(self, flag: str = "--store") -> None:
        """Refuse a store that was made with other versions; its numbers would not be comparable to the bit."""
        others = {name: text for name, text in self._made_with.versions.items() if versions().get(name) != text}
        if others:
            now = {name: versions().get(name, "none") for name in others}
            raise UserError(
                f"The runs in {self.folder} were made with {_join_versions(others)}, and this is "
                f"{_join_versions(now)}: install those, or begin another store with {flag} FOLDER."
            )

    def check_for_numbers(self, folder: Path) -> None:
        """Refuse a folder whose numbers have other versions or another precision than those of this store."""
        other = Store(folder)
        other.check("--numbers")
        if other._made_with.versions and other._made_with.precision != self._made_with.precision:
            raise UserError(
                f"The runs in {folder} are in {other._made_with.precision}, those in {self.folder} in "
                f"{self._made_with.precision}: give --numbers another folder."
            )

    @cached_property
    def _made_with(self) -> MadeWith:
        """The content of store.json: a store that was begun on another machine keeps its versions and precision."""
        path = self.folder / "store.json"
        if not path.exists():
            return MadeWith({}, best_precision("auto"))
        try:
            written = read_json(path, within=self.folder)
            before = {name: str(written["versions"][name]) for name in PACKAGES}
            precision = written.get("precision", best_precision("auto"))
            if precision not in PRECISIONS:
                raise ValueError(precision)
        except Linked:
            raise
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            raise UserError(
                f"{path} cannot be read: delete it if the runs were made with {_join_versions(versions())}."
            ) from None
        return MadeWith(before, precision)

    def begin(self) -> None:
        """Make the folder and its store.json, unless they are there."""
        make_folder(self.folder, "--store")
        self.check()
        if not (self.folder / "store.json").exists():
            made_with = {"versions": versions(), "precision": self._made_with.precision}
            write_json(self.folder / "store.json", made_with, self.folder)

    def arm(self, spec: RunSpec) -> Arm:
        """Return the arm of a spec; a spec or data that cannot be trained is refused."""
        fingerprint = spec.fingerprint()
        if fingerprint in self._arms:
            return self._arms[fingerprint]
        precision = self._made_with.precision if spec.precision == "auto" else spec.precision
        resolved = resolve_spec(replace(spec, seed=0, precision=precision), library=self.library)
        engine = replace(
            resolved.engine, threads=spec.engine.threads
        )  # how many depends on how many runs train at once
        self._arms[fingerprint] = Arm(replace(resolved, engine=engine), resolved.fingerprint())
        return self._arms[fingerprint]

    def run_folder(self, arm: Arm, seed: int) -> Path:
        """Return the folder of a run, which may not be there."""
        return self.folder / "runs" / arm.fingerprint / f"seed{seed}"

    def runs(self, arm: Arm) -> dict[int, Run]:
        """Return the finished runs of an arm, by seed."""
        folders = sorted((self.folder / "runs" / arm.fingerprint).glob("seed*"))
        for folder in folders:
            if folder not in self._runs and RunFolder(folder).finished():  # after which it does not change
                self._runs[folder] = _read(folder)
        return {run.seed: run for folder in folders if (run := self._runs.get(folder)) is not None}

    def jobs(self, arms: Mapping[str, Arm], seeds: Iterable[int], at_once: int) -> list[Job]:
        """Return the runs of labelled arms, seed by seed, so that a seed that is begun is soon complete."""
        return [
            scheduler.make_job(
                replace(arm.spec, seed=seed, label=label), self.run_folder(arm, seed), at_once, self.library
            )
            for seed in seeds
            for label, arm in arms.items()
        ]

    def train(
        self,
        jobs: Sequence[Job],
        at_once: int | None,
        callback: JobCallback,
        ray: str | None = None,
        stop: Stop = never_stop,
    ) -> dict[Path, UserError]:
        """Train the runs that are not finished; return the errors of those that diverged or failed, by folder.

        Only one command at a time trains in a store.
        """
        self.begin()
        with hold(self.folder / ".lock", within=self.folder):
            return scheduler.run_jobs(jobs, at_once, callback, library=self.library, ray=ray, stop=stop)


def _read(folder: Path) -> Run:
    """Return a finished run; a run in the folder of another one is refused."""
    run = read_run(folder)
    computes = replace(run.spec, seed=0).fingerprints()
    if folder.parent.name not in computes or folder.name != f"seed{run.seed}":
        raise UserError(f"{folder} holds another run than its name says. Delete it, and that run is trained again.")
    return run


def _join_versions(by_package: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {text}" for name, text in by_package.items())


# A copy without networks: the numbers that tables are made of, small enough for a repository

TABLES = ("results.json", "table.md")


def copy_numbers(store: Path, runs: Iterable[Run], tables: Iterable[Path], to: Path) -> None:
    """Copy the numbers of runs and tables of a store, under the same names, into another folder."""
    make_folder(to, "--numbers")
    _copy(store, to, "store.json")
    for run in runs:
        folder = run.folder.relative_to(store)
        make_folder(to / folder, "--numbers")
        journal = "".join(_accuracies(run))
        write_json(to / folder / "spec.json", _portable_spec(run.folder), to)
        write_text(to / folder / "journal.jsonl", journal, to)
        write_json(to / folder / "result.json", _with_digest(run, journal), to)
        _copy(store, to, str(folder / EVALUATION))
    for table in tables:
        make_folder(to / table.relative_to(store), "--numbers")
        _copy(store, to, *(str(table.relative_to(store) / name) for name in TABLES))


def _copy(store: Path, to: Path, *names: str) -> None:
    for name in names:
        if (store / name).exists():
            with Folder((store / name).parent).reading(store / name) as file:
                write_text(to / name, file.read().decode(), to)


def _with_digest(run: Run, journal: str) -> dict[str, Any]:
    """Return a run's result with the digest of the shortened journal; its networks are not copied."""
    result: dict[str, Any] = read_json(run.folder / "result.json", within=run.folder)
    if "journal" in run.digests:
        result["digests"] = {"journal": hashlib.sha256(journal.encode()).hexdigest()}
    return result


def _accuracies(run: Run) -> Iterable[str]:
    """Return the lines of a run's journal that have accuracies; a damaged journal is refused."""
    check_journal(run.folder, run.digests)
    lines = read_journal(run.folder / "journal.jsonl", within=run.folder)
    return (json.dumps(line) + "\n" for line in lines if line["event"] == "accuracy")


def _portable_spec(run: Path) -> dict[str, Any]:
    """Return a run's spec, with the run that its teacher is replayed from named by its folder in the store."""
    spec: dict[str, Any] = read_json(run / "spec.json", within=run)
    if spec["teacher_path"] is not None:
        spec["teacher_path"] = Path("runs", *Path(spec["teacher_path"]).parts[-2:]).as_posix()  # wherever it was then
    return spec
