"""The training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from spacedkd.data.sources import Library
from spacedkd.data.stream import Batch, batches
from spacedkd.errors import UserError
from spacedkd.learning_rate import LearningRate
from spacedkd.methods.method import Method
from spacedkd.run import Run, read_run
from spacedkd.schedule import Turn
from spacedkd.seeds import seed_for
from spacedkd.spec import RunSpec, read_spec
from spacedkd.training import engine
from spacedkd.training.folder import RunFolder
from spacedkd.training.learner import Losses
from spacedkd.training.objects import Objects
from spacedkd.training.plan import fill_in, make_plan
from spacedkd.training.recorder import Recorder
from spacedkd.training.setup import Setup, measure, set_up
from spacedkd.training.together import together


class Moment(NamedTuple):
    """What a callback is told after every turn."""

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
    network: Callable[..., nn.Module] | None = None,
    teacher: Callable[..., nn.Module] | None = None,
    data: tuple[Any, Any] | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    optimizer: Callable[[Iterable[tuple[str, nn.Parameter]]], torch.optim.Optimizer] | None = None,
    lr: LearningRate | None = None,
    method: Method | None = None,
    callback: Callback = lambda moment: None,
) -> Run:
    """Train one run in its folder, from the beginning or, with `resume`, from where it was left.

    What the spec names can be given as an object instead: functions that make the network and the teacher's network,
    a pair of torch datasets to train and to test on (with a `collate` for their items), a function of named parameters
    that makes an optimizer, the learning rate as a function of the step, a method. Torch is left in deterministic mode,
    with the spec's number of threads and another random state.
    """
    if not isinstance(spec, RunSpec):
        raise UserError(f"The spec must be a RunSpec, got {spec!r}. One of defaults is RunSpec(), or read_spec(FILE).")
    objects = Objects(network, teacher, data, collate, optimizer, lr, method)
    return train_run(spec, RunFolder(folder), resume, objects, callback)


def train_run(
    spec: RunSpec,
    folder: RunFolder,
    resume: bool,
    objects: Objects,
    callback: Callback,
    library: Library | None = None,
) -> Run:
    """The same; a `library` keeps the data for the next run of this process."""
    library = library or Library()
    if not resume:
        folder.check_free()
    elif folder.spec.exists():
        held = read_spec(folder.path)
        if folder.finished() and spec == held:
            return read_run(folder.path)
        objects.check(held.objects, str(folder.path))
        folder.check_holds(fill_in(spec, objects, library))
        if folder.finished():
            return read_run(folder.path)
    setup, is_new = set_up(make_plan(spec, objects, library)), not folder.spec.exists()
    recorder = Recorder(setup, folder)
    try:
        with together(setup.fabric, f"spacedkd train --resume {folder.path}"), recorder.opened():
            for moment in learn(setup, recorder):
                callback(moment)
            recorder.finish()
    except UserError:
        if is_new and recorder.position.turns == 0:  # a mistake that shows at the first step takes no folder
            folder.discard()
        raise
    return read_run(folder.path)


def learn(setup: Setup, recorder: Recorder) -> Iterator[Moment]:
    """Take the turns that are left, one after the other."""
    plan, fabric, position = setup.plan, setup.fabric, recorder.position
    student, gather = plan.method.roles[-1], partial(engine.gather_rows, fabric)
    views = (plan.views(turn) for turn in plan.turns.after(position.turns))
    seen = batches(setup.stream, views, plan.spec.engine.workers)

    def losses(turn: Turn, batch: Batch) -> Losses:
        engine.seed(fabric.device, seed_for(plan.spec.seed, "masks", *turn, fabric.global_rank))
        return plan.method.losses(turn.role, setup.models, batch, plan.progress(turn.step, gather))

    learning = None
    for turn, shown in zip(plan.turns.after(position.turns), seen, strict=True):
        role, step = turn
        batch = shown.to(fabric.device, setup.channels_last)

        if role != learning:
            setup.begin(role)
            if role != position.role:  # equal when a stretch of turns is resumed in its middle
                plan.method.take_over(role, setup.models)
                setup.share_frozen(position.role)
            learning = position.role = role

        lr, size = plan.lr(turn), setup.stream.size(step)
        with recorder.cost.turn(plan.method.learners[role], size):
            # Ranks average their gradients, so a rank with a larger part of the batch must count for more.
            share = len(batch.labels) * fabric.world_size / size
            found = setup.learner(role).update(partial(losses, turn, batch), lr, share)
            setup.move_along(role, step, lr)
        position.turns += 1

        finished, last, accuracy = step + 1, step == plan.last_step[role], None
        if step % plan.every.log == 0 or finished % plan.every.save == 0 or last:
            values = {name: float(loss.detach()) for name, loss in found.items()}
            recorder.loss(turn, setup.learner(role).lr, values)
            _check_finite(setup, turn, values)
        if finished % plan.every.evaluate == 0 or last:
            learner = setup.learner(role)
            scores = measure(setup, learner.frozen, learner.module)
            recorder.accuracy(turn, scores)
            accuracy = scores["test"]["final"]
            if setup.average is not None and role == student:
                recorder.accuracy(turn, measure(setup, setup.average, setup.average), role="average")
        if finished % plan.every.save == 0:
            recorder.save()
        yield Moment(position.turns, len(plan.turns), role, finished / plan.steps_per_epoch, accuracy)


def _check_finite(setup: Setup, turn: Turn, values: Mapping[str, float]) -> None:
    """Stop a run that has diverged before it is saved; all processes stop together."""
    diverged = not all(math.isfinite(value) for value in values.values())
    if setup.fabric.all_reduce(torch.tensor(float(diverged), device=setup.fabric.device), reduce_op="sum"):
        raise UserError(f"Training diverged: the {turn.role}'s loss is no number at step {turn.step}. Lower --lr.")
