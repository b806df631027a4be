"""A run that is set up but written nowhere, to be taken one turn at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from spacedkd import RunSpec
from spacedkd.config.objects import Objects
from spacedkd.config.resolve import resolve
from spacedkd.runs.folder import RunFolder
from spacedkd.training import Event
from spacedkd.training.session import Session
from spacedkd.training.state import TrainingState, build_state


def ready(spec: RunSpec, objects: Objects | None = None) -> TrainingState:
    return build_state(resolve(spec, objects))


def turn_by_turn(setup: TrainingState) -> Iterator[Event]:
    """Every turn of the run; between two of them the models can be looked at."""
    events: list[Event] = []
    for _ in Session(setup, RunFolder(Path("nowhere")), callback=events.append).turns():
        yield events.pop()


def state(setup: TrainingState) -> dict[str, Tensor]:
    """Copies of everything all models and optimizers hold, by model/key."""
    found = {
        f"{name}/{key}": value for name, module in setup.modules().items() for key, value in module.state_dict().items()
    }
    for name, learner in setup.learners.items():
        for index, slots in learner.optimizer.state_dict()["state"].items():
            found |= {f"{name}/optimizer/{index}/{key}": slot for key, slot in slots.items()}
    return {key: value.clone() for key, value in found.items() if isinstance(value, Tensor)}


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """What is not the same, to the bit."""
    return {key for key in after if key not in before or not after[key].equal(before[key])}
