"""The training loop."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spacedkd.config.objects import Objects
from spacedkd.config.resolve import ResolvedRun, resolve, resolve_spec
from spacedkd.config.spec import RunSpec, check_folder, check_spec, read_spec
from spacedkd.data.sources import Library
from spacedkd.data.stream import Batch, batches, lost_worker_error
from spacedkd.learning_rate import LearningRate
from spacedkd.methods.base import Method
from spacedkd.runs.folder import RunFolder
from spacedkd.runs.result import Run, read_run
from spacedkd.runtime.errors import UserError, is_out_of_memory, out_of_memory
from spacedkd.runtime.signals import Stop, Stopped, never_stop
from spacedkd.runtime.user_code import user_code
from spacedkd.schedule import Turn
from spacedkd.timeline import Block
from spacedkd.training.accumulation import MicroBatches
from spacedkd.training.callbacks import Callback, Event, Events, LossValues
from spacedkd.training.distributed import CollectiveStop, watch_ranks
from spacedkd.training.evaluate import evaluate_role
from spacedkd.training.extension import check_extended_run_given, extend_spec
from spacedkd.training.guard import Guard
from spacedkd.training.loggers import Loggers, RunLogger, check_loggers
from spacedkd.training.recorder import Beginning, Planned, Recorder
from spacedkd.training.state import TrainingState, build_state, check_same_data
from spacedkd.training.students import restore_students
from spacedkd.trajectory import replay
from spacedkd.trajectory.pipeline import check_pipeline, remove_teacher, teacher_process


def train(
    spec: RunSpec,
    folder: Path | str,
    *,
    resume: bool = False,
    restart: bool = False,
    extend: Path | str | None = None,
    network: Callable[..., nn.Module] | None = None,
    teacher: Callable[..., nn.Module] | None = None,
    data: tuple[Any, Any] | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    optimizer: Callable[[Iterable[tuple[str, nn.Parameter]]], torch.optim.Optimizer] | None = None,
    lr: LearningRate | None = None,
    method: Method | None = None,
    callback: Callback = lambda moment: None,
    loggers: Sequence[RunLogger] = (),
    stop: Stop = never_stop,
) -> Run:
    """Train one run in its folder, from the beginning or, with `resume`, from where it was left.

    With `restart` a run that is there begins again, in the same folder; its journal so far is kept beside the new one.
    With `extend` it goes on where that run ended, or was stopped, in this folder and to the more epochs of this spec,
    which is else that run's: `train(replace(read_spec(run), epochs=120), folder, extend=run)`.
    What the spec names can be given as an object instead: functions that make the network and the teacher's network,
    a pair of torch datasets to train and to test on (with a `collate` for their items), a function of named parameters
    that makes an optimizer, the learning rate as a function of the step, a method. Torch is left in deterministic mode,
    with the spec's number of threads and another random state.

    `loggers` are told of losses and accuracies as they are written into the journal: those of Lightning, or any objects
    with `log_metrics(metrics, step)` and `log_hyperparams(params)`. Those the spec names in `log` are made here.

    `stop` is asked after every turn; when it says True everything is saved, and `Stopped` is raised. No signal is
    handled here: `with Signals() as stop:` is what the command line does. An exception of `callback` saves nothing.
    """
    check_spec(spec)
    check_folder("folder", folder)
    check_loggers(loggers)
    objects, library = Objects(network, teacher, data, collate, optimizer, lr, method), Library()
    if extend is not None:
        if resume or restart:
            raise UserError("extend begins a new run, resume and restart go on with one: give one of them.")
        spec = extend_spec(spec, extend, objects, library)
    asked = (spec, RunFolder(folder), resume or restart, objects, callback, library, restart, stop)
    return train_run(*asked, None if extend is None else RunFolder(extend), loggers=loggers)


def train_run(
    spec: RunSpec,
    folder: RunFolder,
    resume: bool,
    objects: Objects,
    callback: Callback,
    library: Library | None = None,
    restart: bool = False,
    stop: Stop = never_stop,
    extend: RunFolder | None = None,
    planned: Planned = lambda plan, done: None,
    loggers: Sequence[RunLogger] = (),
) -> Run:
    """The same, of a spec as `extended` gives it; a `library` keeps the data for others, `planned` hears the plan."""
    library = library or Library()
    check_extended_run_given(spec, extend, folder)
    folder.check_links()
    if not resume:
        folder.check_free()
    elif folder.spec.exists():
        held = read_spec(folder.path)
        # It goes on with the threads it began with, because their number shows in the bits.
        spec = replace(spec, engine=replace(spec.engine, threads=held.engine.threads or spec.engine.threads))
        done = not restart and folder.finished() and folder.is_whole(held)
        if not done or spec != held:
            objects.check(held.objects, str(folder.path))
            folder.check_holds(resolve_spec(spec, objects, library))
        if done:
            remove_teacher(held, folder)  # which a kill may have left behind
            return read_run(folder.path)
    logs = Loggers(spec.log, loggers)
    plan = resolve(spec, objects, library)
    if resume:
        check_same_data(folder, plan.data, begins_again=restart)
        if not restart and folder.finished() and restore_students(plan, folder):
            return read_run(folder.path)
    begins = Beginning(not resume, restart, extend, planned)
    if not plan.spec.engine.pipeline:
        return _train(plan, folder, callback, stop, begins, logs)
    check_pipeline(plan, folder.teacher)
    if restart or not folder.spec.exists():  # what a kill has left of another beginning
        with folder.lock():
            folder.handle.remove_tree(folder.teacher)
    with teacher_process(plan, folder, _train_teacher) as check:

        def checked(moment: Event) -> None:
            if moment.waiting:
                check()
                moment = moment._replace(waiting="waiting for the teacher's process")
            callback(moment)

        followed = replace(plan.spec, teacher_path=str(folder.teacher.resolve()))
        return _train(replace(plan, spec=followed), folder, checked, stop, begins, logs)


def _train(
    plan: ResolvedRun, folder: RunFolder, callback: Callback, stop: Stop, begins: Beginning, loggers: Loggers
) -> Run:
    for waiting in replay.wait_for_recording(plan):
        callback(Event(0, len(plan.timeline), "", 0.0, None, waiting))
        if stop():
            raise Stopped(folder.path, 0, len(plan.timeline))
    state = build_state(plan)
    recorder = Recorder(state, folder, loggers)
    with watch_ranks(state.fabric, f"spacedkd train --resume {folder.path}"), recorder.opened(begins):
        begins.planned(plan, recorder.position.turns)
        with CollectiveStop(state.fabric, stop) as stops:
            for moment in _blaming(state, recorder, learn(state, recorder, stops)):
                recorder.beats(moment)
                callback(moment)
        done = recorder.position.turns
        if done == len(plan.timeline):
            recorder.finish()
        else:
            recorder.rest()
    if done < len(plan.timeline):
        raise Stopped(folder.path, done, len(plan.timeline))
    return read_run(folder.path)


def _blaming(state: TrainingState, recorder: Recorder, moments: Iterator[Event]) -> Iterator[Event]:
    """Take the turns; what user code raises in one is said in one line, and so is that memory is short.

    Whoever is told of a moment raises outside, and is left alone.
    """

    def when() -> str:
        turn = recorder.turn
        return "" if turn is None else f"at step {turn.step} of the {turn.role}"

    while True:
        try:
            with user_code(when):
                moment = next(moments, None)
        except (MemoryError, RuntimeError) as error:
            if (lost := lost_worker_error(error)) is not None:
                raise lost from error
            if not is_out_of_memory(error):
                raise
            raise out_of_memory(error, when(), state.run.spec.batch_size) from error
        if moment is None:
            return
        yield moment


def _train_teacher(spec: RunSpec, folder: RunFolder, objects: Objects, stop: Stop) -> None:
    """What the teacher's process of a pipeline does."""
    train_run(spec, folder, True, objects, lambda moment: None, stop=stop)


def learn(state: TrainingState, recorder: Recorder, stops: CollectiveStop | None = None) -> Iterator[Event]:
    """Take the turns that are left, one after the other, or those until it is to stop."""
    plan = state.run
    here = (turn for turn in plan.timeline.after(recorder.position.turns) if turn.role not in state.followed)
    views = (
        plan.views(one) for turn in here for one in (plan.timeline.forward_only.get(turn), turn) if one is not None
    )
    with closing(
        batches(state.stream, views, plan.spec.engine.workers)
    ) as seen:  # workers end with it, also by an error
        yield from _learn(state, recorder, stops or CollectiveStop(state.fabric, never_stop), seen)


def _learn(state: TrainingState, recorder: Recorder, stops: CollectiveStop, seen: Iterator[Batch]) -> Iterator[Event]:
    plan, position = state.run, recorder.position
    moment, parts = Events(plan, position, state.followed), MicroBatches(state, recorder.cost).split
    learning, watch, rest = None, Guard(state, position), (position.turns, position.role)
    for turn in plan.timeline.after(position.turns):
        role, step = recorder.turn = turn
        if role in state.followed:  # it learns elsewhere, and its path is looked at when somebody looks at it
            position.turns += 1
            recorder.replay.skip(Block(role, position.turns - 1, [step]))
            learning = position.role = role
            continue

        if role != learning:
            for waiting in recorder.replay.load(stops.all_ready):
                yield moment(role, step, waiting=waiting)
                if stops.poll_waiting():
                    position.turns, position.role = rest  # what has passed by is not caught up with
                    return
            state.begin(role)
            if role != position.role:  # equal when a stretch of turns is resumed in its middle
                plan.method.on_block_start(role, state.models)
                state.share_frozen(position.role)
            learning = position.role = role

        moment.speed.begin()
        if (look := plan.timeline.forward_only.get(turn)) is not None:
            with recorder.cost.count_passes(look.role, state.stream.size(look.step)), torch.no_grad():
                for part in parts(look, next(seen)):
                    part.compute_losses()
        batch, lr, size = parts(turn, next(seen)), plan.lr(turn), state.stream.size(step)
        undo = watch.before(role)
        with recorder.cost.count_update(role, plan.method.learners[role], size):
            found = state.learner(role).update(batch, lr)
            left_out = undo(found)
            if not left_out:
                state.move_along(role, step, lr)
        position.turns += 1

        accuracy, stop, values = None, stops.poll(), LossValues(found)
        logs = not left_out and plan.logs(turn)
        if logs:
            watch.check_losses(turn, values)  # which waits for the device, so that the clock is right
        pace = moment.speed.learned(role, size)
        if left_out:
            recorder.skipped(turn, left_out)
        elif logs:
            recorder.loss(turn, state.learner(role).lr, values, pace)
        if plan.evaluates(turn):
            with watch.evaluating(turn):
                for name, scores in evaluate_role(state, role, at_end=position.turns == len(plan.timeline)):
                    recorder.accuracy(turn, scores, name)
                    accuracy = scores["test"]["final"] if name == role else accuracy
        if recorder.leaves_behind(turn) or stop:
            watch.check_weights(turn)  # nothing that has diverged is saved over what has not
        recorder.updated(turn)
        if plan.saves(turn):
            recorder.save()
        rest = (position.turns, position.role)
        left = moment.speed.ended(role)
        yield moment(role, step + 1, accuracy, "", values, state.learner(role).lr, pace, left)
        if stop:
            return
    for waiting in recorder.replay.load(stops.all_ready):
        yield moment(plan.roles[0], plan.total_steps, waiting=waiting)
        if stops.poll_waiting():
            position.turns, position.role = rest
            return
    for waiting in recorder.replay.wait_for_costs():
        yield moment(plan.roles[0], plan.total_steps, waiting=waiting)
    watch.check_weights(Turn(plan.roles[-1], plan.last_step[plan.roles[-1]]))
    if learning in state.followed:
        yield moment(learning, plan.total_steps, recorder.replay.accuracy.get(learning))
