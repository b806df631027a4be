"""evaluation.json: what the instruments found of one network.

It has an entry for each instrument that was ever used on these weights, with its settings in it. Other weights, another
network around them or other data make everything measured before worthless, so it goes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spacedkd.errors import UserError
from spacedkd.experiments.metrics import metrics
from spacedkd.training.folder import write_json
from spacedkd.training.saved import Saved

FILE = "evaluation.json"
_DECIDE = ("weights_digest", "network", "data")
"""what of its origin decides what is measured"""


def write(folder: Path, saved: Saved, found: Mapping[str, Any]) -> dict[str, Any]:
    """Add what was found to the folder's evaluation.json, and return all of it.

    Earlier results of the same weights on the same data stay; all others go.
    """
    before = read(folder)
    same = before is not None and all(before["origin"].get(name) == saved.origin.get(name) for name in _DECIDE)
    kept = before["instruments"] if before is not None and same else {}
    everything = {"origin": saved.origin, "instruments": {**kept, **found}}
    write_json(folder / FILE, everything)
    return everything


def read(folder: Path) -> dict[str, Any] | None:
    """A folder's evaluation, if it has one."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if "accuracy" not in found["instruments"]:
            raise KeyError("accuracy")
        for name, metric in metrics(found).items():
            if not isinstance(metric.value, int | float):
                raise TypeError(f"{name} is no number")
        return {"origin": dict(found["origin"]), "instruments": found["instruments"]}
    except (OSError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read as an evaluation ({error!r}). Delete it to measure again; it may be damaged, or "
            "of another version."
        ) from None
