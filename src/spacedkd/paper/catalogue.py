"""The catalogue of the paper's tables: the claim of each, its runs, an estimate of their cost, and what is finished.

Costs are estimated from the passes of the runs alone; `spacedkd reproduce --plan` measures instead.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from spacedkd.config.spec import NetworkSpec, RunSpec
from spacedkd.paper.scales import SCALES, TITLES, Scale, scale_of
from spacedkd.paper.table import Cell, NamedTable
from spacedkd.paper.tables import tables
from spacedkd.runtime.documents import read_json


class Entry(NamedTuple):
    """An entry of the catalogue: one table, its runs and their cost."""

    name: str
    claim: str
    networks: str
    data: str
    runs: int
    """of one seed at the paper's scale"""
    shared: int
    """those of them that other tables need as well"""
    cost: Mapping[str, str]
    """of all seeds, by scale"""
    finished: str
    """the scales at which the table was made, with the number of runs; empty where it was not"""


def list_tables(store: Path, recipe: str = "paper", root: str = "data") -> list[Entry]:
    """Return an entry for each table of the paper; `store` is the folder that finished tables are looked for in."""
    scales = [scale_of(name, recipe, root) for name in SCALES]
    cells = {named.name: {scale.name: [*named.table.cells(scale)] for scale in scales} for named in tables().values()}
    specs = {name: _distinct_specs(by_scale["paper"]) for name, by_scale in cells.items()}
    needed_by = Counter(fingerprint for by_fingerprint in specs.values() for fingerprint in by_fingerprint)
    return [
        _entry(named, cells[named.name], specs[named.name], needed_by, scales, store) for named in tables().values()
    ]


def _entry(
    named: NamedTable,
    cells: Mapping[str, Sequence[Cell]],
    specs: Mapping[str, RunSpec],
    needed_by: Mapping[str, int],
    scales: Sequence[Scale],
    store: Path,
) -> Entry:
    finished = (_finished(store, scale, named.name, cells[scale.name]) for scale in scales)
    return Entry(
        name=named.name,
        claim=named.claim,
        networks=", ".join(_network_titles(specs.values())),
        data=", ".join(dict.fromkeys(TITLES[spec.data.source] for spec in specs.values())),
        runs=len(specs),
        shared=sum(needed_by[fingerprint] > 1 for fingerprint in specs),
        cost={scale.name: _cost(cells[scale.name], scale) for scale in scales},
        finished=", ".join(filter(None, finished)),
    )


def _distinct_specs(cells: Iterable[Cell]) -> dict[str, RunSpec]:
    """Return the runs of cells by fingerprint: several cells may read the same run."""
    return {cell.spec.fingerprint(): cell.spec for cell in cells}


def _network_titles(specs: Iterable[RunSpec]) -> list[str]:
    """Return the students' networks, as the paper calls them."""
    titles = {spec.name: TITLES[name] for name, spec in SCALES["paper"].networks.items()}
    return [*dict.fromkeys(titles[spec.network.name] for spec in specs)]


def _finished(store: Path, scale: Scale, name: str, cells: Sequence[Cell]) -> str:
    """Return how many runs of a table there were when it was made last, of all its rows and the usual seeds."""
    try:
        results = read_json(store / scale.folder / name / "results.json")
        runs, every = results["cost"].get("runs", 0), scale.seeds * len(_distinct_specs(cells))
        return f"{scale.name} {runs} of {every}" if every else scale.name
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ""


# The estimate of costs

GFLOP = {
    "resnet18_small": 1.11,
    "resnet50_small": 2.60,
    "resnet101_small": 5.02,
    "resnet18x2": 2.2,
    "resnet18x4": 4.44,
    "resnet18x8": 8.87,
    "deit_tiny_patch16_224": 2.5,
    "pit_ti_224": 1.4,
}
"""of one image forward: ResNets at 32x32 pixels and 64 channels, transformers at 224x224"""
SMALL_GFLOP = {"deit_tiny_patch16_224": 0.021, "pit_ti_224": 0.02}
"""of the small forms at 16x16 pixels"""
IMAGES = {"cifar100": 50_000, "tiny-imagenet": 100_000, "imagenet-100": 128_000, "imagenet-1k": 1_281_167}
CLASSES = {"cifar100": 100, "tiny-imagenet": 200, "imagenet-100": 100, "imagenet-1k": 1000}
SIDES = {"cifar100": 32, "tiny-imagenet": 64, "imagenet-100": 224, "imagenet-1k": 224}
SPEED = {"smoke": 2.0, "cpu": 120.0, "paper": 10_000.0}
"""GFLOP a second that are assumed: of two cores, where small batches take most of the time at smoke, and of one large
GPU in float32"""
LEARNS, TEACHES, REPLAYS = 3.0, 1.0, 3.5
"""forward passes a step, a backward pass counted as two: of a network that learns; that is frozen while another learns
from it; of one with exits that learns once more in the replay"""


def _cost(cells: Sequence[Cell], scale: Scale) -> str:
    """Return the cost of all seeds; an experiment, which has no runs, takes minutes."""
    return format_hours(hours(cells, scale)) if cells else "minutes"


def format_hours(count: float) -> str:
    """Return a time as text: at least a minute, because a run takes seconds to begin.

    >>> format_hours(0.001), format_hours(0.5), format_hours(12.4), format_hours(1234.5)
    ('1 min', '30 min', '12 h', '1234 h')
    """
    return f"{max(1, 60 * count):.0f} min" if count < 2 else f"{count:.0f} h"


def hours(cells: Iterable[Cell], scale: Scale) -> float:
    """Return the hours that all runs of a table take, every one trained alone once."""
    return scale.seeds * sum(map(gflop, _distinct_specs(cells).values())) / SPEED[scale.name] / 3600


def gflop(spec: RunSpec) -> float:
    """Return the GFLOP of a whole run."""
    classes = CLASSES.get(spec.data.source, 10)
    images = IMAGES.get(spec.data.source, 899) * (spec.data.class_limit or classes) / classes
    of_student, of_teacher = passes(spec)
    step = of_student * _forward(spec.network, spec) + of_teacher * _forward(spec.teacher or spec.network, spec)
    return step * spec.epochs * (spec.data.train_limit or images)


def passes(spec: RunSpec) -> tuple[float, float]:
    """Return the forward passes of a step through the student's network and through the teacher's."""
    name = spec.method.name
    if name == "none" or (name in ("self-kd", "dlb", "ps-kd") and spec.schedule is None):
        return LEARNS, 0
    if name == "self-kd":
        return LEARNS + REPLAYS, 0
    between = LEARNS + TEACHES if name in ("ban", "takd") else 0  # a network between teacher and student
    return LEARNS + between, LEARNS + TEACHES


def _forward(network: NetworkSpec, spec: RunSpec) -> float:
    """Return the GFLOP of one image forward."""
    side = spec.data.image_size or SIDES.get(spec.data.source, 8)
    if network.name.startswith("resnet"):
        width = float(network.options.get("width", 64))
        return GFLOP[network.name] * (width / 64) ** 2 * (side / 32) ** 2
    return SMALL_GFLOP[network.name] * (side / 16) ** 2 if "img_size" in network.options else GFLOP[network.name]
