"""`train`: one run in one folder, from a spec to a student."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal, get_args

import torch
from torch import nn

from spacedkd.config.objects import Objects
from spacedkd.config.resolve import ResolvedRun, resolve, resolve_spec
from spacedkd.config.spec import DataSpec, MethodSpec, NetworkSpec, RunSpec, check_folder, check_spec, read_spec
from spacedkd.data.sources import Library
from spacedkd.learning_rate import LearningRate
from spacedkd.methods.base import Method
from spacedkd.runs.folder import RunFolder
from spacedkd.runs.result import Run, read_run
from spacedkd.runtime.errors import UserError, unknown
from spacedkd.runtime.processes import print_notice
from spacedkd.runtime.signals import Stop, Stopped, never_stop
from spacedkd.training.device import torch_settings_restored
from spacedkd.training.distributed import CollectiveStop, watch_ranks
from spacedkd.training.extension import check_extended_run_given, extend_spec
from spacedkd.training.loggers import Loggers, RunLogger, check_loggers
from spacedkd.training.loop import Event
from spacedkd.training.session import Session, Start
from spacedkd.training.state import build_state, check_same_data
from spacedkd.training.students import restore_students
from spacedkd.trajectory.cached_teacher import wait_for_targets
from spacedkd.trajectory.pipeline import check_pipeline, remove_teacher, teacher_process
from spacedkd.trajectory.replay import wait_for_recording

IfExists = Literal["error", "resume", "restart"]


def _ignore(event: Event) -> None:
    """Do nothing with an event."""


def train(
    spec: RunSpec,
    folder: Path | str,
    *,
    if_exists: IfExists = "error",
    extend: Path | str | None = None,
    network: Callable[..., nn.Module] | NetworkSpec | str | None = None,
    teacher: Callable[..., nn.Module] | NetworkSpec | str | None = None,
    data: tuple[Any, Any] | DataSpec | str | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    optimizer: Callable[[Iterable[tuple[str, nn.Parameter]]], torch.optim.Optimizer] | None = None,
    lr: LearningRate | None = None,
    method: Method | MethodSpec | str | None = None,
    callback: Callable[[Event], None] = _ignore,
    progress: bool | None = None,
    loggers: Sequence[RunLogger] = (),
    stop: Stop = never_stop,
) -> Run:
    """Train one run in its folder, and return it when it is finished.

        run = train(RunSpec(schedule="1.5ep", epochs=30), "runs/spaced")

    Args:
        spec: what is trained.
        folder: the run's folder.
        if_exists: what happens where the folder holds this run already. "error" refuses it. "resume" continues from
            its last checkpoint, and returns a finished run as it is. "restart" trains it again from its first turn,
            and keeps its journal so far under another name. Another run is refused in any case.
        extend: a run to continue in this folder with more epochs, which is all that may differ in the spec:
            `train(replace(read_spec(run), epochs=120), folder, extend=run)`.
        network: a function that makes the network. Here and below, a name or a spec is put into `spec`.
        teacher: the same for the teacher's network.
        data: a pair of torch datasets, to train and to test on.
        collate: makes a batch of a list of the datasets' items.
        optimizer: a function of named parameters that makes an optimizer.
        lr: the learning rate as a function of the step.
        method: a distillation method.
        callback: called with an `Event` after every turn. An error in it ends the run without a save.
        progress: whether progress is shown. By default it is in a notebook and on a terminal, and not in a pipe.
        loggers: objects with `log_metrics(metrics, step)` and `log_hyperparams(params)`, such as Lightning's. Loggers
            that the spec names in `log` are made here.
        stop: called after every turn. When it returns True everything is saved, and `Stopped` is raised. Signals are
            not handled here: `with Signals() as stop:` does that.

    Torch computes in deterministic mode (unless the spec's engine says otherwise) and with the spec's number of threads
    meanwhile. Both are put back at the end; the random state is another one.
    """
    check_if_exists(if_exists)
    check_spec(spec)
    check_folder("folder", folder)
    check_loggers(loggers)
    spec, objects = Objects.of_call(
        spec, network=network, teacher=teacher, data=data, collate=collate, optimizer=optimizer, lr=lr, method=method
    )
    library = Library()
    if extend is not None and if_exists != "error":
        raise UserError(f"extend starts a new run, and if_exists={if_exists!r} continues one: give one of them.")
    with torch_settings_restored(), progress_of_run(progress, callback) as report:
        run = train_run(
            spec if extend is None else extend_spec(spec, extend, objects, library),
            RunFolder(folder),
            resume=if_exists != "error",
            restart=if_exists == "restart",
            extend=None if extend is None else RunFolder(extend),
            objects=objects,
            library=library,
            callback=report,
            loggers=loggers,
            stop=stop,
        )
    return replace(run, network=objects.network)


def check_if_exists(value: object) -> None:
    """Refuse a word that `if_exists` does not know."""
    if value not in get_args(IfExists):
        raise unknown("if_exists", str(value), get_args(IfExists))


def progress_of_run(
    progress: bool | None, callback: Callable[[Event], None]
) -> AbstractContextManager[Callable[[Event], None]]:
    """Return a context with the callback that shows the progress of a run and calls the user's.

    What shows it is made for reports and terminals, in a package that imports this one, so it is called by name.
    """
    shown: AbstractContextManager[Callable[[Event], None]]
    shown = resolve_name("spacedkd.reporting.progress:show_run")(progress, callback)
    return shown


def train_run(
    spec: RunSpec,
    folder: RunFolder,
    *,
    resume: bool = False,
    restart: bool = False,
    extend: RunFolder | None = None,
    objects: Objects | None = None,
    library: Library | None = None,
    callback: Callable[[Event], None] = _ignore,
    loggers: Sequence[RunLogger] = (),
    stop: Stop = never_stop,
    on_start: Callable[[ResolvedRun, int], None] = lambda run, done: None,
) -> Run:
    """Train a run whose spec is checked, as `train` does.

    A `library` keeps the data for other runs. `on_start` is called with the resolved run and its number of finished
    turns, before the first turn.
    """
    objects, library = objects or Objects(), library or Library()
    check_extended_run_given(spec, extend, folder)
    folder.check_links()
    if not resume:
        folder.check_free()
    elif folder.spec.exists():
        saved = read_spec(folder.path)
        # The number of threads shows in the bits, so a resumed run keeps the one it was started with.
        spec = replace(spec, engine=replace(spec.engine, threads=saved.engine.threads or spec.engine.threads))
        done = not restart and folder.finished() and folder.is_whole(saved)
        _check_deterministic(spec, saved, folder, done=done)
        if not done or spec != saved:
            objects.check(saved.objects, str(folder.path))
            folder.check_holds(resolve_spec(spec, objects, library))
        if done:
            remove_teacher(saved, folder)  # a kill may have left it
            return read_run(folder.path)
    named_loggers = Loggers(spec.log, loggers)
    run = resolve(spec, objects, library)
    if resume:
        check_same_data(folder, run.data, restart=restart)
        if not restart and folder.finished() and restore_students(run, folder):
            return read_run(folder.path)
    start = Start(new=not resume, restart=restart, extend=extend, on_start=on_start)
    train_resolved = _train_in_pipeline if run.spec.engine.pipeline else _train
    return train_resolved(run, folder, start, loggers=named_loggers, callback=callback, stop=stop)


def _train_in_pipeline(
    run: ResolvedRun,
    folder: RunFolder,
    start: Start,
    *,
    loggers: Loggers,
    callback: Callable[[Event], None],
    stop: Stop,
) -> Run:
    """Train a run that replays its own teacher, which another process trains and records at the same time."""
    check_pipeline(run, folder.teacher)
    if start.restart or not folder.spec.exists():  # what a kill has left of another start
        with folder.lock():
            folder.handle.remove_tree(folder.teacher)
    with teacher_process(run, folder, _train_teacher) as check_teacher:

        def check_and_call(event: Event) -> None:
            if event.waiting:
                check_teacher()
                event = event._replace(waiting="waiting for the teacher's process")
            callback(event)

        replayed = replace(run, spec=replace(run.spec, teacher_path=str(folder.teacher.resolve())))
        return _train(replayed, folder, start, loggers=loggers, callback=check_and_call, stop=stop)


def _check_deterministic(spec: RunSpec, saved: RunSpec, folder: RunFolder, *, done: bool) -> None:
    """Refuse to resume a run with other kernels than it began with; print where its bits are not promised."""
    if done:
        return
    if spec.engine.deterministic != saved.engine.deterministic:
        began = f"--deterministic {saved.engine.deterministic}"
        raise UserError(f"{folder.path} was begun with {began}: resume it with that, or train in a new folder.")
    if not saved.engine.deterministic:
        print_notice(
            f"{folder.path} was begun with --deterministic False: it continues from its checkpoint, and will not have "
            "the bits of a run that was never stopped."
        )


def _train(
    run: ResolvedRun,
    folder: RunFolder,
    start: Start,
    *,
    loggers: Loggers,
    callback: Callable[[Event], None],
    stop: Stop,
) -> Run:
    """Train a resolved run in its folder, after waiting for the run that it replays, if there is one."""
    for waiting in chain(wait_for_targets(run), wait_for_recording(run)):
        callback(Event(turn=0, turns=len(run.timeline), role="", epoch=0.0, accuracy=None, waiting=waiting))
        if stop():
            raise Stopped(folder.path, 0, len(run.timeline))
    state = build_state(run)
    session = Session(state, folder, loggers, callback)
    with watch_ranks(state.fabric, f"spacedkd train --resume {folder.path}"), session.open(start):
        start.on_start(run, session.position.turns)
        with CollectiveStop(state.fabric, stop) as collective_stop:
            session.train(collective_stop)
    if session.position.turns < len(run.timeline) or not folder.finished():
        raise Stopped(folder.path, session.position.turns, len(run.timeline))
    return read_run(folder.path)


def _train_teacher(spec: RunSpec, folder: RunFolder, objects: Objects, stop: Stop) -> None:
    """Train the teacher of a pipeline, in its own process."""
    train_run(spec, folder, resume=True, objects=objects, stop=stop)
