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
from spacedkd.seeds import seed_for
from spacedkd.spec import RunSpec
from spacedkd.train import engine
from spacedkd.train.folder import RunFolder
from spacedkd.train.result import Result, read_result, write_result
from spacedkd.train.run import Run, fill_in, prepare


class Moment(NamedTuple):
    """What somebody watching a run is told."""

    turn: int
    turns: int
    role: str
    epoch: float
    accuracy: float | None
    """of the role's deepest head on the test images, when it has just been measured"""


Watch = Callable[[Moment], None]


def train(
    spec: RunSpec,
    folder: Path | str,
    *,
    resume: bool = False,
    method: Method | None = None,
    watch: Watch = lambda moment: None,
) -> Result:
    """Train one run in its folder, from the beginning or, with `resume`, from where it was left.

    `method` takes a method of your own in place of the one the spec names.
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
        _learn(run, watch)
        return _finish(run)


def _learn(run: Run, watch: Watch) -> None:
    role = ""
    for turn, batch in run.remaining():
        if turn.role != role:
            role = turn.role
            run.begin(role)
        torch.manual_seed(seed_for(run.spec.seed, "masks", role, turn.step, run.fabric.global_rank))
        with run.cost.turn(run.method.learners[role], run.stream.size(turn.step)):
            losses = run.method.losses(role, run.models, batch, run.progress(turn))
            run.learner(role).update(losses, run.lr(turn.step))
        run.position.turns += 1

        accuracy = None
        if turn.step % run.every.log == 0:
            _log(run, turn, losses)
        if (turn.step + 1) % run.every.evaluate == 0 or turn.step == run.last_step[role]:
            accuracy = _evaluate(run, turn)
        if run.position.turns % run.every.save == 0:
            run.save()
        watch(Moment(run.position.turns, run.turn_count, role, (turn.step + 1) / run.stream.steps_per_epoch, accuracy))


def _log(run: Run, turn: Turn, losses: Mapping[str, Tensor]) -> None:
    values = {name: float(loss.detach()) for name, loss in losses.items()}
    run.write({"event": "loss", **_when(run, turn), "lr": run.lr(turn.step), "losses": values})
    for name, value in values.items():
        if not math.isfinite(value):
            raise UserError(
                f"Training diverged: the {turn.role}'s {name} loss is {value} at step {turn.step}. Lower --lr."
            )


def _evaluate(run: Run, turn: Turn) -> float:
    accuracy = run.evaluate(turn.role)
    run.write({"event": "accuracy", **_when(run, turn), "accuracy": accuracy})
    return accuracy["test"]["final"]


def _when(run: Run, turn: Turn) -> dict[str, Any]:
    epoch = (turn.step + 1) / run.stream.steps_per_epoch
    return {"turn": run.position.turns, "role": turn.role, "step": turn.step, "epoch": epoch}


def _finish(run: Run) -> Result:
    run.save()
    if run.fabric.is_global_zero:
        student = run.learner(run.method.roles[-1]).module.network
        build.save(student, run.spec.network, run.data.train, run.folder.student)  # type: ignore[arg-type]
        plan = {
            "roles": [*run.method.roles],
            "learners": dict(run.method.learners),
            "steps_per_epoch": run.stream.steps_per_epoch,
            "total_steps": run.total_steps,
        }
        write_result(run.folder, run.cost.summary(), run.position.seconds, plan, engine.describe(run.fabric))
    run.fabric.barrier()
    return read_result(run.folder)
