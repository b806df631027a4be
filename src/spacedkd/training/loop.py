"""The training loop."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
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
from spacedkd.spec import RunSpec, check_folder, check_spec, read_spec
from spacedkd.training import engine, following
from spacedkd.training.folder import RunFolder
from spacedkd.training.learner import Losses
from spacedkd.training.objects import Objects
from spacedkd.training.pipeline import check_pipeline, teacher_process
from spacedkd.training.plan import Plan, fill_in, make_plan
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
    waiting: str = ""
    """for what, when nothing is learned because of it"""


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
    check_spec(spec)
    check_folder("folder", folder)
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
    plan = make_plan(spec, objects, library)
    if not plan.spec.engine.pipeline:
        return _train(plan, folder, callback)
    check_pipeline(plan, folder.teacher)
    with teacher_process(plan, folder, _train_teacher) as check:

        def checked(moment: Moment) -> None:
            if moment.waiting:
                check()
                moment = moment._replace(waiting="waiting for the teacher's process")
            callback(moment)

        return _train(
            replace(plan, spec=replace(plan.spec, teacher_path=str(folder.teacher.resolve()))), folder, checked
        )


def _train(plan: Plan, folder: RunFolder, callback: Callback) -> Run:
    for waiting in following.wait_for_begin(plan):
        callback(Moment(0, len(plan.turns), "", 0.0, None, waiting))
    setup, is_new = set_up(plan), not folder.spec.exists()
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


def _train_teacher(spec: RunSpec, folder: RunFolder, objects: Objects) -> None:
    """What the teacher's process of a pipeline does."""
    train_run(spec, folder, True, objects, lambda moment: None)


def learn(setup: Setup, recorder: Recorder) -> Iterator[Moment]:
    """Take the turns that are left, one after the other."""
    plan, fabric, position = setup.plan, setup.fabric, recorder.position
    gather = partial(engine.gather_rows, fabric)
    views = (plan.views(turn) for turn in plan.turns.after(position.turns) if turn.role not in setup.followed)
    seen = batches(setup.stream, views, plan.spec.engine.workers)

    def losses(turn: Turn, batch: Batch) -> Losses:
        engine.seed(fabric.device, seed_for(plan.spec.seed, "masks", *turn, fabric.global_rank))
        return plan.method.losses(turn.role, setup.models, batch, plan.progress(turn.step, gather))

    def moment(role: str, step: int, accuracy: float | None = None, waiting: str = "") -> Moment:
        return Moment(position.turns, len(plan.turns), role, step / plan.steps_per_epoch, accuracy, waiting)

    learning = None
    for turn in plan.turns.after(position.turns):
        role, step = turn
        if role in setup.followed:  # it learns elsewhere, and its path is looked at when somebody looks at it
            position.turns += 1
            recorder.following.pass_by(position.turns, turn)
            learning = position.role = role
            continue

        if role != learning:
            for waiting in recorder.following.catch_up():
                yield moment(role, step, waiting=waiting)
            setup.begin(role)
            if role != position.role:  # equal when a stretch of turns is resumed in its middle
                plan.method.take_over(role, setup.models)
                setup.share_frozen(position.role)
            learning = position.role = role

        batch = next(seen).to(fabric.device, setup.channels_last)
        lr, size = plan.lr(turn), setup.stream.size(step)
        with recorder.cost.turn(role, plan.method.learners[role], size):
            # Ranks average their gradients, so a rank with a larger part of the batch must count for more.
            share = len(batch.labels) * fabric.world_size / size
            found = setup.learner(role).update(partial(losses, turn, batch), lr, share)
            setup.move_along(role, step, lr)
        position.turns += 1

        accuracy = None
        if plan.logs(turn):
            values = {name: float(loss.detach()) for name, loss in found.items()}
            recorder.loss(turn, setup.learner(role).lr, values)
            _check_finite(setup, turn, values)
        if plan.evaluates(turn):
            learner = setup.learner(role)
            scores = measure(setup, learner.frozen, learner.module)
            recorder.accuracy(turn, scores)
            accuracy = scores["test"]["final"]
            if setup.average is not None and role == plan.roles[-1]:
                recorder.accuracy(turn, measure(setup, setup.average, setup.average), role="average")
        recorder.updated(turn)
        if plan.saves(turn):
            recorder.save()
        yield moment(role, step + 1, accuracy)
    for waiting in recorder.following.catch_up():
        yield moment(plan.roles[0], plan.total_steps, waiting=waiting)
    if learning in setup.followed:
        yield moment(learning, plan.total_steps, recorder.following.accuracy.get(learning))


def _check_finite(setup: Setup, turn: Turn, values: Mapping[str, float]) -> None:
    """Stop a run that has diverged before it is saved; all processes stop together."""
    diverged = not all(math.isfinite(value) for value in values.values())
    if setup.fabric.all_reduce(torch.tensor(float(diverged), device=setup.fabric.device), reduce_op="sum"):
        raise UserError(f"Training diverged: the {turn.role}'s loss is no number at step {turn.step}. Lower --lr.")
