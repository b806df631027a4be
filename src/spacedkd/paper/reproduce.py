"""Tables of the paper made again: which runs they need, training and measuring those, and what they say."""

import os
import platform
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatch
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from spacedkd.comparison.job import Job, read_divergence, read_failure
from spacedkd.config.spec import RunSpec
from spacedkd.evaluation.adversarial import Adversarial
from spacedkd.evaluation.corrupted_images import write_grid
from spacedkd.evaluation.corruptions import Corruptions
from spacedkd.evaluation.instrument import EvaluationSpec, Instrument, Metric
from spacedkd.evaluation.subject import require_pixels
from spacedkd.evaluation.weight_noise import ABSOLUTE_LEVELS, RELATIVE_LEVELS, WeightNoise
from spacedkd.paper import numbers
from spacedkd.paper.cost import hours
from spacedkd.paper.results import Found, results
from spacedkd.paper.scales import SCALES, TITLES, Scale, scale_of
from spacedkd.paper.store import Arm, Store, copy_numbers, versions
from spacedkd.paper.table import Cell, Instruments, Key, Named
from spacedkd.paper.tables import tables
from spacedkd.runs.folder import RunFolder
from spacedkd.runs.result import Run
from spacedkd.runtime.documents import read_json
from spacedkd.runtime.errors import UserError, unknown

# What `spacedkd reproduce` says of every table before anything is made.


def listed(store: Path, recipe: str = "paper", root: str = "data") -> list[dict[str, Any]]:
    """A row for each table: name, claim, networks, data, runs, those other tables need too, cost, what is finished."""
    scales = {name: scale_of(name, recipe, root) for name in SCALES}
    cells = {
        named.name: {name: [*named.table.cells(scale)] for name, scale in scales.items()} for named in tables().values()
    }
    specs = {
        name: {cell.spec.fingerprint(): cell.spec for cell in by_scale["paper"]} for name, by_scale in cells.items()
    }
    asked = Counter(fingerprint for one in specs.values() for fingerprint in one)
    return [
        {
            "name": named.name,
            "claim": named.claim,
            "networks": ", ".join(_networks([*specs[named.name].values()])),
            "data": ", ".join(dict.fromkeys(TITLES[spec.data.source] for spec in specs[named.name].values())),
            "runs": len(specs[named.name]),
            "shared": sum(asked[fingerprint] > 1 for fingerprint in specs[named.name]),
            "cost": {name: _cost(cells[named.name][name], scale) for name, scale in scales.items()},
            "finished": ", ".join(
                filter(
                    None,
                    (_finished(store, scale, named.name, cells[named.name][name]) for name, scale in scales.items()),
                )
            ),
        }
        for named in tables().values()
    ]


def _finished(store: Path, scale: Scale, name: str, cells: Sequence[Cell]) -> str:
    """How many runs of a table there were when it was made last, of all its rows and the usual seeds."""
    try:
        found = read_json(store / scale.folder / name / "results.json")
        runs, every = found["cost"].get("runs", 0), scale.seeds * len({cell.spec.fingerprint() for cell in cells})
        return f"{scale.name} {runs} of {every}" if every else scale.name
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ""


def _cost(cells: Sequence[Cell], scale: Scale) -> str:
    """Of all seeds; the theory, which has no runs, is measured in minutes."""
    return _hours(hours(cells, scale)) if cells else "minutes"


def _hours(count: float) -> str:
    """At least a minute, because a run takes seconds to begin.

    >>> _hours(0.001), _hours(0.5), _hours(12.4), _hours(1234.5)
    ('1 min', '30 min', '12 h', '1234 h')
    """
    return f"{max(1, 60 * count):.0f} min" if count < 2 else f"{count:.0f} h"


def _networks(specs: list[RunSpec]) -> list[str]:
    """The students' networks, as the paper calls them."""
    known = {spec.name: TITLES[name] for name, spec in SCALES["paper"].networks.items()}
    return [*dict.fromkeys(known[spec.network.name] for spec in specs)]


# Tables of the paper made again: which runs they need, training and measuring those, and what they say.

GRID = "corruptions.png"


def chosen(names: Sequence[str]) -> list[Named]:
    """Tables by name; `all` stands for all of them."""
    known = tables()
    for name in names:
        if name not in (*known, "all"):
            raise unknown("table of the paper", name, [*known, "all"])
    return [named for name, named in known.items() if name in names or "all" in names]


def some(named: Named, scale: Scale, only: str | None) -> list[Cell]:
    """The cells of a table that match a pattern such as resnet18*, and those they are measured against.

    The pattern is of a row, or of its student's network and data: 'deit*', 'resnet18, cifar*', 'l1'.
    """
    found = [*named.table.cells(scale)]
    if only is None:
        return found
    names = {cell.key: (cell.row, ", ".join(scale.names(cell.spec))) for cell in found}
    return with_references(
        found, {key for key, both in names.items() if any(fnmatch(_plain(name), _plain(only)) for name in both)}
    )


def with_references(cells: Sequence[Cell], keys: Collection[Key]) -> list[Cell]:
    """Some cells, those they are measured against, those these are measured against, and so on."""
    kept, further = {*keys}, {*keys}
    while further:
        reached = [cell for cell in cells if cell.key in further]
        further = {key for cell in reached for key in (cell.against, *cell.contrasts) if key is not None} - kept
        kept |= further
    return [cell for cell in cells if cell.key in kept]


def _plain(name: str) -> str:
    """Letters and digits alone, but for the range of a pattern such as [1-3]."""
    return re.sub(r"[-_ ](?![^[]*\])", "", name.lower())


@dataclass(frozen=True)
class Reproduction:
    """Some tables at a scale, from the runs of a store."""

    named: Sequence[Named]
    scale: Scale
    store: Store
    seeds: Sequence[int]
    only: str | None = None
    command: str = ""

    @cached_property
    def cells(self) -> Mapping[str, Sequence[Cell]]:
        """Those asked for, of every table that has some."""
        found = {one.name: some(one, self.scale, self.only) for one in self.named}
        if self.named and self.only is not None and not any(found.values()):
            rows = dict.fromkeys(cell.row for cells in self.every.values() for cell in cells)
            raise UserError(f"No row is like {self.only!r}. There are: {'; '.join(rows)}.")
        return {name: cells for name, cells in found.items() if cells}

    @cached_property
    def every(self) -> Mapping[str, Sequence[Cell]]:
        """All cells of every table, asked for or not."""
        return {one.name: [*one.table.cells(self.scale)] for one in self.named}

    @property
    def without_rows(self) -> list[str]:
        """The tables that have no row like those asked for."""
        return [one.name for one in self.named if one.name not in self.cells]

    @cached_property
    def arms(self) -> Mapping[str, Arm]:
        """Every arm once, under the name of the first cell that asks for it."""
        found: dict[str, Arm] = {}
        known: set[str] = set()
        for cell in (cell for cells in self.cells.values() for cell in cells):
            arm = self.store.arm(cell.spec)
            if arm.fingerprint not in known:
                known.add(arm.fingerprint)
                label = f"{cell.row}, {cell.column}"
                found[f"{label} ({arm.fingerprint[:4]})" if label in found else label] = arm
        return found

    def check_data(self) -> None:
        """Look for every data set before anything is trained; what is missing is said at once."""
        missing = []
        for data in {arm.spec.data.source: arm.spec.data for arm in self.arms.values()}.values():
            try:
                self.store.library.read(data)
            except UserError as error:
                missing.append(str(error))
        if missing:
            raise UserError(" ".join(missing))

    def jobs(self, at_once: int) -> list[Job]:
        """Every run."""
        return self.store.jobs(self.arms, self.seeds, at_once)

    def runs(self, cell: Cell) -> dict[int, Run]:
        """The finished runs of a cell, by seed; also of seeds that are not asked for now."""
        return self.store.runs(self.store.arm(cell.spec))

    def shown(self, named: Named) -> list[Cell]:
        """The cells of a table that are asked for or have runs, and those they are measured against."""
        asked = {cell.key for cell in self.cells.get(named.name, ())}
        every = self.every[named.name]
        return with_references(every, {cell.key for cell in every if cell.key in asked or self.runs(cell)})

    def to_measure(self) -> list[tuple[Path, EvaluationSpec]]:
        """The finished runs whose table needs instruments that were not used on them yet, and those."""
        return [
            (folder, plan_of(needed)) for folder, needed in self._unmeasured() if RunFolder(folder).student.exists()
        ]

    def numbers_alone(self) -> list[Path]:
        """The runs that were not measured, and cannot be, because no network was kept of them."""
        return [*dict.fromkeys(folder for folder, _ in self._unmeasured() if not RunFolder(folder).student.exists())]

    def _unmeasured(self) -> Iterable[tuple[Path, Instruments]]:
        for named in (one for one in self.named if one.table.instruments != Instruments()):
            cells = self.cells.get(named.name, ())
            for folder in dict.fromkeys(run.folder for cell in cells for run in self.runs(cell).values()):
                if not numbers.is_measured(folder, named.table.instruments):
                    yield folder, named.table.instruments

    def results(self, name: str) -> Found:
        """What a table's finished runs say, with where that comes from."""
        named = next(one for one in self.named if one.name == name)
        cells = self.shown(named)
        runs = {cell.key: self.runs(cell) for cell in cells}
        seeds = sorted({*self.seeds, *(seed for found in runs.values() for seed in found)})
        evaluated = cache(numbers.evaluated)

        def read(cell: Cell, metric: str) -> dict[int, Metric]:
            found = {}
            for seed, run in runs[cell.key].items():
                try:
                    found[seed] = numbers.number(run, metric, evaluated)
                except LookupError:  # it was not measured, or has no such head
                    continue
            return found

        different = {run.folder: run for by_seed in runs.values() for run in by_seed.values()}
        arms = {cell.key: self.store.arm(cell.spec).fingerprint for cell in cells}
        found = results(named, cells, read, self.every[name], self.scale.unjudged)
        for written in (*found["cells"], *found["contrasts"]):
            key = written["row"], written["column"]
            written |= {"fingerprint": arms[key], "runs": len(runs[key])}
        return (
            found
            | self.origin()
            | {
                "seeds": seeds,
                "missing": len({*arms.values()}) * len(seeds) - len(different),
                "cost": {
                    "runs": len(different),
                    "shared": sum(run.spec.teacher_path is not None for run in different.values()),
                    "hours": sum(run.seconds for run in different.values()) / 3600,
                    "updates": sum(run.computed["updates"] for run in different.values()),
                },
                "diverged": [*self._diverged(cells, seeds)],
                "failed": [*self._failed(cells, seeds)],
            }
        )

    def copy_numbers(self, to: Path, names: Sequence[str] | None = None) -> None:
        """What the tables are made of, without networks, for another folder; the tables of these names, or all."""
        runs = {run.folder: run for one in self.named for cell in self.shown(one) for run in self.runs(cell).values()}
        made = [self.store.folder / self.scale.folder / name for name in names or [one.name for one in self.named]]
        copy_numbers(self.store.folder, runs.values(), [place for place in made if place.exists()], to)

    def draw(self, name: str, place: Path) -> list[str]:
        """The pictures of a table, drawn beside it: one image under every corruption."""
        instruments = next(one.table.instruments for one in self.named if one.name == name)
        if not instruments.corruptions:
            return []
        data = self.store.library.load(self.store.arm(self.cells[name][0].spec).spec.data)
        pixels = require_pixels(data.test, "Corruptions")
        write_grid(place / GRID, pixels, instruments.corruptions, instruments.severities)
        return [GRID]

    def _diverged(self, cells: Sequence[Cell], seeds: Sequence[int]) -> Iterator[Found]:
        for cell in cells:
            for seed in seeds:
                error = read_divergence(self.store.run_folder(self.store.arm(cell.spec), seed))
                if error is not None:
                    yield {"row": cell.row, "column": cell.column, "seed": seed, "step": error.step}

    def _failed(self, cells: Sequence[Cell], seeds: Sequence[int]) -> Iterator[Found]:
        for cell in cells:
            for seed in seeds:
                line = read_failure(self.store.run_folder(self.store.arm(cell.spec), seed))
                if line is not None:
                    yield {"row": cell.row, "column": cell.column, "seed": seed, "said": line}

    def origin(self) -> Found:
        return {
            "scale": {"name": self.scale.name, "about": self.scale.about},
            "recipe": self.scale.recipe,
            "command": self.command,
            "date": datetime.now(UTC).date().isoformat(),
            "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
            "versions": {**versions(), "python": platform.python_version()},
            "seeds": [*self.seeds],
        }


def plan_of(instruments: Instruments) -> EvaluationSpec:
    """Return what is measured of a run."""
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
