"""What a finished run says of itself: read off its journal, so that it can be checked against it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from spacedkd.errors import UserError
from spacedkd.spec import read_spec
from spacedkd.training.folder import RunFolder, write_json


@dataclass(frozen=True)
class Result:
    """A finished run."""

    folder: Path
    accuracy: dict[str, dict[str, dict[str, dict[str, float]]]]
    """role -> part of the data -> head -> last, best, best_epoch"""
    best_chosen_on: str
    cost: dict[str, Any]
    seconds: float
    plan: dict[str, Any]
    """roles, learners, steps_per_epoch, total_steps, test_images"""
    environment: dict[str, Any]

    def student(self, epoch: str = "last", head: str = "final", part: str = "test") -> float:
        """The student's accuracy; of the deepest head after the last epoch on the test images unless told otherwise."""
        return self.accuracy[self.plan["roles"][-1]][part][head][epoch]


def summarise(entries: Iterable[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """Last and best accuracy of every role, part and head, and the part on which the best epoch was chosen.

    The best epoch of a head is its first with the highest accuracy on the held-out images, or, where none were
    held out, on the test images themselves.
    """
    measured: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        if entry["event"] == "accuracy":
            measured.setdefault(entry["role"], []).append(entry)
    judge = "holdout" if any("holdout" in e["accuracy"] for es in measured.values() for e in es) else "test"
    return {role: _role(found, judge) for role, found in measured.items()}, judge


def _role(found: list[dict[str, Any]], judge: str) -> dict[str, dict[str, dict[str, float]]]:
    last: dict[str, dict[str, float]] = found[-1]["accuracy"]
    scores: dict[str, dict[str, dict[str, float]]] = {part: {} for part in last}
    for head in last[judge]:
        best = max(found, key=lambda entry: entry["accuracy"][judge][head])
        for part in last:
            scores[part][head] = {
                "last": last[part][head],
                "best": best["accuracy"][part][head],
                "best_epoch": best["epoch"],
            }
    return scores


def write_result(
    folder: RunFolder, cost: dict[str, Any], seconds: float, plan: dict[str, Any], environment: dict[str, Any]
) -> None:
    accuracy, judge = summarise(folder.entries())
    spec = read_spec(folder.path)
    identity = {"label": spec.label, "seed": spec.seed, "fingerprint": spec.fingerprint()}
    scores = {"accuracy": accuracy, "best_chosen_on": judge}
    circumstances = {"cost": cost, "seconds": seconds, "plan": plan, "environment": environment}
    write_json(folder.result, identity | scores | circumstances)


def read_result(folder: RunFolder) -> Result:
    if not folder.result.exists():
        raise UserError(f"{folder.path} has no finished run. Finish it with: spacedkd train --resume {folder.path}")
    names = [field.name for field in fields(Result) if field.name != "folder"]
    try:
        plain = json.loads(folder.result.read_text(encoding="utf-8"))
        return Result(folder.path, **{name: plain[name] for name in names})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder.result} cannot be read as a result: {error!r}. Resume the run without it.") from None
