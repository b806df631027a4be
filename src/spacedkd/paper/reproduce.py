"""Reproduce tables of the paper: plan, train and measure their runs, and write the tables with the paper's numbers.

`reproduce` does all of it. A `Reproduction` has the single steps, which the command line shows one by one:

    reproduction = Reproduction.open(["interval"], scale="smoke", store="reproduction")
    reproduction.plan()
    budget = TimeBudget(hours=2)
    reproduction.train(budget=budget)
    reproduction.measure(budget=budget)
    reproduction.write()
"""

import math
import os
import platform
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fnmatch import fnmatch
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

from spacedkd.comparison import scheduler
from spacedkd.comparison.compare import ComparisonForecast, forecast_jobs
from spacedkd.comparison.job import Job, read_divergence, read_failure
from spacedkd.comparison.pool import JobCallback
from spacedkd.evaluation.adversarial import Adversarial
from spacedkd.evaluation.corrupted_images import write_grid
from spacedkd.evaluation.corruptions import Corruptions
from spacedkd.evaluation.evaluate import evaluate
from spacedkd.evaluation.instrument import EvaluationSpec, Instrument, Metric, Progress, silent
from spacedkd.evaluation.subject import require_pixels
from spacedkd.evaluation.weight_noise import ABSOLUTE_LEVELS, RELATIVE_LEVELS, WeightNoise
from spacedkd.paper import report
from spacedkd.paper.results import (
    IndexedTable,
    LostCell,
    Results,
    evaluated_metrics,
    is_measured,
    read_metric,
    table_results,
)
from spacedkd.paper.scales import Scale, scale_of
from spacedkd.paper.store import Arm, Store, copy_numbers, versions
from spacedkd.paper.table import ACCURACY, AVERAGE, Cell, Instruments, Key, NamedTable, Outcome
from spacedkd.paper.tables import tables
from spacedkd.runs.folder import RunFolder, make_folder
from spacedkd.runs.result import Run
from spacedkd.runs.schema import check
from spacedkd.runtime.documents import read_json
from spacedkd.runtime.errors import Linked, UserError, unknown
from spacedkd.runtime.files import Folder, write_text
from spacedkd.runtime.signals import Stop, Stopped, never_stop

GRID = "corruptions.png"
RESULTS = "results.json"


def reproduce(
    names: Sequence[str],
    *,
    scale: str = "cpu",
    seeds: int | None = None,
    first_seed: int = 0,
    only: str | None = None,
    recipe: str = "paper",
    root: str | Path = "data",
    store: str | Path = "reproduction",
    average: str | None = None,
    max_hours: float | None = None,
    jobs: int | None = None,
    ray: str | None = None,
    numbers: str | Path | None = None,
) -> dict[str, Results]:
    """Reproduce tables of the paper; return their results by name.

    Args:
        names: tables by name; `all` means every table.
        scale: smoke, cpu or paper: the size of networks, images and runs.
        seeds: how many seeds; None takes the scale's number.
        first_seed: the first of them.
        only: a pattern of the rows, for instance `resnet18*`.
        recipe: paper, or official for what the paper's released code does.
        root: the folder that holds the data sets.
        average: an average of the student's weights that every run keeps, such as poly:2; its accuracy gets rows of
            its own.
        store: the folder that runs and tables are kept in. Finished runs in it are not trained again.
        max_hours: stop after this time; 0 trains and measures nothing.
        jobs: runs at a time; None is one for each GPU or core.
        ray: the address of a Ray cluster that trains the runs.
        numbers: a folder that gets what the tables are made of, without networks.
    """
    reproduction = Reproduction.open(
        names,
        scale=scale,
        seeds=seeds,
        first_seed=first_seed,
        only=only,
        recipe=recipe,
        root=root,
        store=store,
        average=average,
    )
    if numbers is not None:
        reproduction.check_export(Path(numbers))
    budget = TimeBudget(max_hours)
    reproduction.train(jobs=jobs, ray=ray, budget=budget)
    reproduction.measure(budget=budget)
    written = reproduction.write(experiments=not budget.is_zero)
    if numbers is not None:
        reproduction.export_numbers(Path(numbers))
    return {table.name: table.results for table in written if table.results is not None}


class TimeBudget:
    """A time after which nothing more is begun. None is no limit; 0 hours trains and measures nothing.

    >>> TimeBudget(None).is_over(), TimeBudget(0).is_zero
    (False, True)
    """

    def __init__(self, hours: float | None = None) -> None:
        if hours is not None and not hours >= 0:
            raise UserError(f"--max-hours must be 0 or more, got {hours:g}.")
        self.is_zero = hours == 0
        self._end = math.inf if hours is None else time.monotonic() + 3600 * hours

    def is_over(self) -> bool:
        return time.monotonic() > self._end


class Plan(NamedTuple):
    """The runs of a reproduction, those of them that are finished, and a forecast of the others."""

    runs: int
    finished: int
    forecast: ComparisonForecast | None
    """None where all are finished"""


class Trained(NamedTuple):
    """The runs that diverged or failed, with their errors, and whether the time was up before all were trained."""

    errors: Mapping[Path, UserError]
    out_of_time: bool


class Measured(NamedTuple):
    """The number of runs that were measured, and of those that needed it."""

    measured: int
    needed: int


class WrittenTable(NamedTuple):
    """A table that was written."""

    name: str
    folder: Path
    results: Results | None
    """None where no run of the table was there, so that the table of an earlier time was left as it is"""
    headline: str
    """the verdict over its claim"""
    page: Path
    problem: str = ""
    """why there is no picture of it, where it should have one"""


MeasureProgress = Callable[[int, int], AbstractContextManager[Progress]]
"""opens the progress of one run, from its number and how many there are"""
ExperimentProgress = Callable[[], AbstractContextManager[Callable[[str, int, int], None]]]


def find_tables(names: Sequence[str]) -> list[NamedTable]:
    """Return tables by name; `all` means all of them. An unknown name is refused."""
    every = tables()
    for name in names:
        if name not in (*every, "all"):
            raise unknown("table of the paper", name, [*every, "all"])
    return [named for name, named in every.items() if name in names or "all" in names]


def table_cells(named: NamedTable, scale: Scale) -> list[Cell]:
    """Return the cells of a table at a scale, with those of averages of weights where its runs keep them."""
    cells = [*named.table.cells(scale)]
    return cells if scale.average is None else [*cells, *_of_averages(cells)]


def select_cells(named: NamedTable, scale: Scale, only: str | None) -> list[Cell]:
    """Return the cells of a table that match a pattern such as resnet18*, and those they are measured against.

    The pattern is of a row, or of its student's network and data: 'deit*', 'resnet18, cifar*', 'l1'.
    """
    cells = table_cells(named, scale)
    if only is None:
        return cells
    names = {cell.key: (cell.row, ", ".join(scale.names(cell.spec))) for cell in cells}
    return _with_references(
        cells, {key for key, both in names.items() if any(fnmatch(_plain(name), _plain(only)) for name in both)}
    )


def _of_averages(cells: Sequence[Cell]) -> Iterator[Cell]:
    """Yield the cells of accuracies once more, of the averages of the students' weights: the paper has none."""
    for cell in (cell for cell in cells if cell.metric == ACCURACY):
        against = None if cell.against is None else (_row_of_average(cell.against[0]), cell.against[1])
        row = _row_of_average(cell.row)
        yield replace(cell, row=row, against=against, metric=AVERAGE, paper=None, judged=False, contrasts=())


def _row_of_average(row: str) -> str:
    return f"{row}, average"


def _with_references(cells: Sequence[Cell], keys: Collection[Key]) -> list[Cell]:
    """Return some cells, those they are measured against, those these are measured against, and so on."""
    needed, further = {*keys}, {*keys}
    while further:
        reached = [cell for cell in cells if cell.key in further]
        further = {key for cell in reached for key in (cell.against, *cell.contrasts) if key is not None} - needed
        needed |= further
    return [cell for cell in cells if cell.key in needed]


def _plain(name: str) -> str:
    """Return letters and digits alone, but for the range of a pattern such as [1-3]."""
    return re.sub(r"[-_ ](?![^[]*\])", "", name.lower())


@dataclass(frozen=True)
class Reproduction:
    """Tables of the paper at a scale, made from the runs of a store."""

    tables: Sequence[NamedTable]
    scale: Scale
    store: Store
    seeds: Sequence[int]
    only: str | None = None
    """a pattern of the rows"""
    command: str = field(default="", kw_only=True)
    """what was typed, for the pages"""

    @classmethod
    def open(
        cls,
        names: Sequence[str],
        *,
        scale: str = "cpu",
        seeds: int | None = None,
        first_seed: int = 0,
        only: str | None = None,
        recipe: str = "paper",
        root: str | Path = "data",
        store: str | Path = "reproduction",
        average: str | None = None,
        command: str = "",
    ) -> "Reproduction":
        """Return the reproduction of tables by name; a store that was made with other versions is refused."""
        size = scale_of(scale, recipe, str(root), average)
        chosen = range(first_seed, first_seed + (seeds or size.seeds))
        reproduction = cls(find_tables(names), size, Store(store), chosen, only, command=command)
        reproduction.store.check()
        reproduction._refuse_links(Path(store))
        return reproduction

    def _refuse_links(self, folder: Path) -> None:
        if folder.exists():
            Folder(folder).refuse_links((f"{self.scale.folder}/", "store.json", ".lock"))

    # Which runs the tables need

    @property
    def _run_tables(self) -> list[NamedTable]:
        return [named for named in self.tables if named.table.experiment is None]

    @property
    def experiments(self) -> list[NamedTable]:
        """The tables that are measured by an experiment of their own, and have no runs."""
        return [named for named in self.tables if named.table.experiment is not None]

    @cached_property
    def cells(self) -> Mapping[str, Sequence[Cell]]:
        """The cells that match `only`, of every table that has some; a pattern without any row is refused."""
        cells = {named.name: select_cells(named, self.scale, self.only) for named in self._run_tables}
        if self._run_tables and self.only is not None and not any(cells.values()):
            rows = dict.fromkeys(cell.row for every in self._all_cells.values() for cell in every)
            raise UserError(f"No row is like {self.only!r}. There are: {'; '.join(rows)}.")
        return {name: some for name, some in cells.items() if some}

    @cached_property
    def _all_cells(self) -> Mapping[str, Sequence[Cell]]:
        return {named.name: table_cells(named, self.scale) for named in self._run_tables}

    @property
    def without_rows(self) -> list[str]:
        """The tables that have no row like `only`."""
        return [named.name for named in self._run_tables if named.name not in self.cells]

    @cached_property
    def arms(self) -> Mapping[str, Arm]:
        """Every arm once, under the name of the first cell that needs it."""
        arms: dict[str, Arm] = {}
        fingerprints: set[str] = set()
        for cell in (cell for cells in self.cells.values() for cell in cells):
            arm = self.store.arm(cell.spec)
            if arm.fingerprint not in fingerprints:
                fingerprints.add(arm.fingerprint)
                label = f"{cell.row}, {cell.column}"
                arms[f"{label} ({arm.fingerprint[:4]})" if label in arms else label] = arm
        return arms

    def check_data(self) -> None:
        """Refuse to begin where data sets are missing; all of them are named at once."""
        missing = []
        for data in {arm.spec.data.source: arm.spec.data for arm in self.arms.values()}.values():
            try:
                self.store.library.read(data)
            except UserError as error:
                missing.append(str(error))
        if missing:
            raise UserError(" ".join(missing))

    def jobs(self, at_once: int) -> list[Job]:
        """Return every run, as one of `at_once` that train at a time."""
        return self.store.jobs(self.arms, self.seeds, at_once)

    def _at_once(self, jobs: int | None) -> int:
        return scheduler.jobs_at_once(jobs, next(iter(self.arms.values())).spec.engine.accelerator)

    def runs(self, cell: Cell) -> dict[int, Run]:
        """Return the finished runs of a cell, by seed; also those of other seeds than the chosen ones."""
        return self.store.runs(self.store.arm(cell.spec))

    # Plan, train, measure

    def count_runs(self, jobs: int | None = None) -> tuple[int, int]:
        """Return how many runs are finished, and how many there are."""
        every = self.jobs(self._at_once(jobs)) if self.cells else []
        return sum(job.finished for job in every), len(every)

    def plan(self, jobs: int | None = None) -> Plan:
        """Return what the unfinished runs will take; a few steps of every arm are measured for that."""
        if not self.cells:
            return Plan(0, 0, None)
        at_once = self._at_once(jobs)
        every = self.jobs(at_once)
        finished = sum(job.finished for job in every)
        unfinished = {job.label for job in every if not job.finished}
        if not unfinished:
            return Plan(len(every), finished, None)
        self.check_data()
        planned, _ = scheduler.share_arms_teachers(
            [job for job in every if job.label in unfinished], self.store.library
        )
        return Plan(len(every), finished, forecast_jobs(planned, at_once))

    def train(
        self,
        *,
        jobs: int | None = None,
        ray: str | None = None,
        budget: TimeBudget | None = None,
        progress: JobCallback = lambda job, event: None,
        stop: Stop = never_stop,
    ) -> Trained:
        """Train the runs that are not finished.

        Args:
            jobs: runs at a time; None is one for each GPU or core.
            ray: the address of a Ray cluster that trains them.
            budget: when it is over, everything is saved and every run stops.
            progress: called with a job and each of its events.
            stop: called after every turn; where it returns True, everything is saved and Stopped is raised.
        """
        budget = budget or TimeBudget()
        if not self.cells or budget.is_zero:
            return Trained({}, out_of_time=False)
        every = self.jobs(self._at_once(jobs))
        if all(job.finished for job in every):
            return Trained({}, out_of_time=False)
        self.check_data()
        try:
            errors = self.store.train(every, jobs, progress, ray, lambda: stop() or budget.is_over())
        except Stopped:
            if stop():
                raise
            return Trained({}, out_of_time=True)
        return Trained(errors, out_of_time=False)

    def measure(
        self, *, budget: TimeBudget | None = None, progress: MeasureProgress = lambda number, total: nullcontext(silent)
    ) -> Measured:
        """Measure the finished runs with the instruments that their tables need, until the budget is over."""
        budget = budget or TimeBudget()
        needed = [] if budget.is_zero else self.to_measure()
        for number, (folder, instruments) in enumerate(needed, 1):
            if budget.is_over():
                return Measured(number - 1, len(needed))
            with progress(number, len(needed)) as show:
                evaluate(folder, instruments, progress=show)
        return Measured(len(needed), len(needed))

    def to_measure(self) -> list[tuple[Path, EvaluationSpec]]:
        """Return the finished runs that lack instruments their table needs, with those instruments."""
        return [
            (folder, evaluation_spec(needed))
            for folder, needed in self._unmeasured()
            if RunFolder(folder).student.exists()
        ]

    def runs_without_networks(self) -> list[Path]:
        """Return the runs that were not measured and cannot be, because only their numbers were kept."""
        return [*dict.fromkeys(folder for folder, _ in self._unmeasured() if not RunFolder(folder).student.exists())]

    def _unmeasured(self) -> Iterable[tuple[Path, Instruments]]:
        for named in (named for named in self._run_tables if named.table.instruments != Instruments()):
            cells = self.cells.get(named.name, ())
            for folder in dict.fromkeys(run.folder for cell in cells for run in self.runs(cell).values()):
                if not is_measured(folder, named.table.instruments):
                    yield folder, named.table.instruments

    # Results, and the files they are written to

    def results(self, name: str) -> Results:
        """Return the results of a table's finished runs, with their provenance."""
        named = next(named for named in self.tables if named.name == name)
        cells = self._shown_cells(named)
        runs = {cell.key: self.runs(cell) for cell in cells}
        seeds = sorted({*self.seeds, *(seed for by_seed in runs.values() for seed in by_seed)})
        evaluated = cache(evaluated_metrics)

        def read(cell: Cell, metric: str) -> dict[int, Metric]:
            values = {}
            for seed, run in runs[cell.key].items():
                try:
                    values[seed] = read_metric(run, metric, evaluated)
                except LookupError:  # it was not measured, or has no such head
                    continue
            return values

        distinct = {run.folder: run for by_seed in runs.values() for run in by_seed.values()}
        arms = {cell.key: self.store.arm(cell.spec).fingerprint for cell in cells}
        results = table_results(named, cells, read, self._all_cells[name], self.scale.unjudged)
        for cell in (*results["cells"], *results["contrasts"]):
            key = cell["row"], cell["column"]
            cell["fingerprint"], cell["runs"] = arms[key], len(runs[key])
        return cast(
            Results,
            {
                **results,
                **self._provenance(),
                "seeds": seeds,
                "missing": len({*arms.values()}) * len(seeds) - len(distinct),
                "cost": {
                    "runs": len(distinct),
                    "shared": sum(run.spec.teacher_path is not None for run in distinct.values()),
                    "hours": sum(run.seconds for run in distinct.values()) / 3600,
                    "updates": sum(run.computed["updates"] for run in distinct.values()),
                },
                "diverged": [*self._diverged(cells, seeds)],
                "failed": [*self._failed(cells, seeds)],
            },
        )

    def _shown_cells(self, named: NamedTable) -> list[Cell]:
        """Return the cells of a table that match `only` or have runs, and those they are measured against."""
        matching = {cell.key for cell in self.cells.get(named.name, ())}
        every = self._all_cells[named.name]
        return _with_references(every, {cell.key for cell in every if cell.key in matching or self.runs(cell)})

    def _diverged(self, cells: Sequence[Cell], seeds: Sequence[int]) -> Iterator[LostCell]:
        for cell in cells:
            for seed in seeds:
                error = read_divergence(self.store.run_folder(self.store.arm(cell.spec), seed))
                if error is not None:
                    yield {"row": cell.row, "column": cell.column, "seed": seed, "step": error.step}

    def _failed(self, cells: Sequence[Cell], seeds: Sequence[int]) -> Iterator[LostCell]:
        for cell in cells:
            for seed in seeds:
                line = read_failure(self.store.run_folder(self.store.arm(cell.spec), seed))
                if line is not None:
                    yield {"row": cell.row, "column": cell.column, "seed": seed, "said": line}

    def _provenance(self) -> dict[str, Any]:
        return {
            "scale": {"name": self.scale.name, "about": self.scale.about},
            "recipe": self.scale.recipe,
            "command": self.command,
            "date": datetime.now(UTC).date().isoformat(),
            "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
            "versions": {**versions(), "python": platform.python_version()},
            "seeds": [*self.seeds],
        }

    @property
    def folder(self) -> Path:
        """The folder of the tables of this scale in the store."""
        return self.store.folder / self.scale.folder

    def write(
        self,
        *,
        experiments: bool = True,
        on_table: Callable[[WrittenTable], None] = lambda table: None,
        progress: ExperimentProgress = lambda: nullcontext(lambda title, done, total: None),
        on_unreadable: Callable[[Path], None] = lambda path: None,
    ) -> list[WrittenTable]:
        """Write every table in all its forms, and the index over all tables of the scale that are in the store.

        Args:
            experiments: whether tables that have no runs are measured now.
            on_table: called with each table when it is written.
            progress: opens the progress of an experiment.
            on_unreadable: called with each results.json that the index leaves out.
        """
        self.store.begin()
        written = []
        for name in self.cells:
            written.append(self._write_table(name))
            on_table(written[-1])
        for named in self.experiments if experiments else ():
            written.append(self._write_experiment(named, progress))
            on_table(written[-1])
        report.write_index_page(self.folder / "index.html", write_index_markdown(self.folder, on_unreadable))
        return written

    def _write_table(self, name: str) -> WrittenTable:
        folder = self.folder / name
        results = self.results(name)
        page = folder / "index.html"
        if not results["cost"]["runs"] and _has_runs(folder / RESULTS):
            return WrittenTable(name, folder, None, "", page)
        make_folder(folder, "--store")
        problem = ""
        try:
            results["pictures"] = self.draw(name, folder)
        except UserError as error:  # tables are made without the data, too
            results["pictures"], problem = [], str(error)
        report.write_table(folder, results)
        return WrittenTable(name, folder, results, results["verdict"]["sentence"], page, problem)

    def _write_experiment(self, named: NamedTable, progress: ExperimentProgress) -> WrittenTable:
        assert named.table.experiment is not None
        folder = self.folder / named.name
        make_folder(folder, "--store")
        with progress() as callback:
            outcome = named.table.experiment(self.scale, folder, self.command, callback)
        results = self._experiment_results(named, outcome)
        report.write_table(folder, results)
        page = folder / (outcome.pages[0] if outcome.pages else "index.html")
        return WrittenTable(named.name, folder, results, outcome.headline, page)

    def _experiment_results(self, named: NamedTable, outcome: Outcome) -> Results:
        results = table_results(named, [], lambda cell, metric: {})
        unjudged = self.scale.unjudged
        results["verdict"]["sentence"] = f"Not judged: {unjudged}." if unjudged else outcome.headline
        results["notes"] = [*outcome.notes]
        no_runs = {"missing": 0, "cost": {}, "diverged": [], "pictures": [], "pages": [*outcome.pages]}
        return cast(Results, {**results, **self._provenance(), **no_runs})

    def draw(self, name: str, folder: Path) -> list[str]:
        """Draw the pictures of a table into a folder and return their names: one image under every corruption."""
        instruments = next(named.table.instruments for named in self.tables if named.name == name)
        if not instruments.corruptions:
            return []
        data = self.store.library.load(self.store.arm(self.cells[name][0].spec).spec.data)
        pixels = require_pixels(data.test, "Corruptions")
        write_grid(folder / GRID, pixels, instruments.corruptions, instruments.severities)
        return [GRID]

    # A copy of the numbers, without networks

    def check_export(self, to: Path, begin: bool = True) -> None:
        """Refuse a folder that `export_numbers` would spoil; `begin` makes it, so that a bad one shows at once."""
        if to.resolve() == self.store.folder.resolve():
            raise UserError(
                f"--numbers leaves out what the runs in {self.store.folder} are made of: give it another folder than "
                "--store."
            )
        self._refuse_links(to)
        if begin:
            make_folder(to, "--numbers")
            self.store.check_for_numbers(to)

    def export_numbers(self, to: Path, on_unreadable: Callable[[Path], None] = lambda path: None) -> None:
        """Copy the numbers that the tables are made of into another folder, and write the index of its tables."""
        self.copy_numbers(to)
        write_index_markdown(to / self.scale.folder, on_unreadable)

    def copy_numbers(self, to: Path) -> None:
        """Copy the numbers of all shown runs, and the tables, into another folder."""
        shown = (cell for named in self._run_tables for cell in self._shown_cells(named))
        runs = {run.folder: run for cell in shown for run in self.runs(cell).values()}
        folders = [self.folder / named.name for named in self.tables]
        copy_numbers(self.store.folder, runs.values(), [folder for folder in folders if folder.exists()], to)


def evaluation_spec(instruments: Instruments) -> EvaluationSpec:
    """Return the settings of `spacedkd evaluate` that measure with these instruments."""
    used: list[Instrument] = []
    if instruments.corruptions:
        used.append(Corruptions(only=instruments.corruptions, severities=instruments.severities))
    if instruments.epsilons:
        used.append(Adversarial(attacks=("bim",), epsilon=instruments.epsilons))
    if instruments.noise or instruments.absolute_noise:
        used.append(
            WeightNoise(
                noise=instruments.absolute_noise or ABSOLUTE_LEVELS, relative_noise=instruments.noise or RELATIVE_LEVELS
            )
        )
    return EvaluationSpec(used)


def write_index_markdown(folder: Path, on_unreadable: Callable[[Path], None] = lambda path: None) -> list[Results]:
    """Write index.md over all tables in a folder, and return their results; unreadable ones are left out."""
    make_folder(folder, "--store")
    paths = [folder / name / RESULTS for name in tables()]
    every = [results for path in paths if (results := _read_results(path, on_unreadable)) is not None]
    write_text(folder / "index.md", report.index_markdown(every), folder)
    return every


def _has_runs(path: Path) -> bool:
    results = _read_results(path, lambda path: None) if path.exists() else None
    return results is not None and bool(results.get("cost", {}).get("runs"))


def _read_results(path: Path, on_unreadable: Callable[[Path], None]) -> Results | None:
    """Return a results.json as far as an index needs it; None where it is missing or cannot be read."""
    try:
        results = read_json(path, within=path.parent)
        check(results, IndexedTable)
    except FileNotFoundError:
        return None
    except Linked:
        raise
    except (OSError, ValueError):
        on_unreadable(path)
        return None
    return cast(Results, results)
