"""The training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spacedkd.errors import UserError
from spacedkd.methods.method import Method
from spacedkd.models import build
from spacedkd.schedule import Turn
from spacedkd.spec import RunSpec
from spacedkd.training import engine
from spacedkd.training.folder import RunFolder
from spacedkd.training.prepare import fill_in, prepare, shown_by
from spacedkd.training.result import Result, read_result, write_result
from spacedkd.training.run import Run


class Moment(NamedTuple):
    """What somebody watching a run is told."""

    turn: int
    turns: int
    role: str
    epoch: float
    accuracy: float | None
    """of the role's deepest head on the test images, when it has just been measured"""


Callback = Callable[[Moment], None]


def train(
    spec: RunSpec,
    folder: Path | str,
    *,
    resume: bool = False,
    method: Method | None = None,
    callback: Callback = lambda moment: None,
) -> Result:
    """Train one run in its folder, from the beginning or, with `resume`, from where it was left.

    `method` takes a method of your own in place of the one the spec names. Torch is left in deterministic mode, with
    the spec's number of threads and another random state.
    """
    place = RunFolder(folder)
    if not resume:
        place.check_free()
    elif place.spec.exists():
        place.check_holds(fill_in(spec, method))
        if place.finished():
            return read_result(place)
    run = prepare(spec, place, method)
    with run.opened():
        _learn(run, callback)
        return _finish(run)


def _learn(run: Run, callback: Callback) -> None:
    for turn, batch in run.remaining():
        losses = run.take(turn, batch)
        accuracy = None
        finished, last = turn.step + 1, turn.step == run.last_step[turn.role]
        if turn.step % run.every.log == 0 or finished % run.every.save == 0 or last:
            _log(run, turn, losses)
        if finished % run.every.evaluate == 0 or last:
            accuracy = _evaluate(run, turn)
        if finished % run.every.save == 0:
            run.save()
        callback(Moment(run.position.turns, run.turn_count, turn.role, finished / run.stream.steps_per_epoch, accuracy))


def _log(run: Run, turn: Turn, losses: Mapping[str, Tensor]) -> None:
    """Write the losses down, and stop a run that has diverged before it is saved."""
    values = {name: float(loss.detach()) for name, loss in losses.items()}
    run.write({"event": "loss", **_when(run, turn), "lr": run.rate(turn), "losses": values})
    diverged = not all(math.isfinite(value) for value in values.values())
    if run.fabric.all_reduce(torch.tensor(float(diverged), device=run.fabric.device), reduce_op="sum"):
        raise UserError(f"Training diverged: the {turn.role}'s loss is no number at step {turn.step}. Lower --lr.")


def _evaluate(run: Run, turn: Turn) -> float:
    accuracy = run.evaluate(turn.role)
    run.write({"event": "accuracy", **_when(run, turn), "accuracy": accuracy})
    averaged = run.evaluate_average() if turn.role == run.method.roles[-1] else None
    if averaged is not None:
        run.write({"event": "accuracy", **_when(run, turn), "role": "average", "accuracy": averaged})
    return accuracy["test"]["final"]


def _when(run: Run, turn: Turn) -> dict[str, Any]:
    epoch = (turn.step + 1) / run.stream.steps_per_epoch
    return {"turn": run.position.turns, "role": turn.role, "step": turn.step, "epoch": epoch}


def _finish(run: Run) -> Result:
    run.save()
    if run.fabric.is_global_zero:
        student = run.learner(run.method.roles[-1]).module.network
        shown = shown_by(run.data.train)
        build.save(student, run.spec.network, shown, run.folder.student)  # type: ignore[arg-type]
        if run.average is not None:
            build.save(run.average.network, run.spec.network, shown, run.folder.average)  # type: ignore[arg-type]
        plan = {
            "roles": [*run.method.roles],
            "learners": dict(run.method.learners),
            "steps_per_epoch": run.stream.steps_per_epoch,
            "total_steps": run.total_steps,
            "test_images": len(run.data.test.labels),
        }
        write_result(run.folder, run.cost.summary(), run.position.seconds, plan, engine.describe(run.fabric))
    run.fabric.barrier()
    return read_result(run.folder)
