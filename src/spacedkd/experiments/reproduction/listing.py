"""What `spacedkd reproduce` says of every table before anything is made."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spacedkd.documents import read_json
from spacedkd.experiments.paper import tables
from spacedkd.experiments.reproduction.cost import hours
from spacedkd.experiments.reproduction.scales import SCALES, TITLES, Scale, scale_of
from spacedkd.experiments.reproduction.table import Cell
from spacedkd.spec import RunSpec


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
