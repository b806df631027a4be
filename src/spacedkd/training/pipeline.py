"""Teacher and student of one run in two processes, with a device each.

The teacher learns the next block while the student replays this one; it is a run of its own within the run's folder,
and what it has learned is handed over by its path.
"""

import multiprocessing
import os
import pickle
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from spacedkd.errors import UserError
from spacedkd.own_code import Inherited
from spacedkd.spec import RunSpec
from spacedkd.training.folder import RunFolder
from spacedkd.training.objects import Objects
from spacedkd.training.path import check_path
from spacedkd.training.plan import Plan

Check = Callable[[], None]
"""complains when the teacher's process has ended before its time"""
Train = Callable[[RunSpec, RunFolder, Objects], Any]


def check_pipeline(plan: Plan, teacher: Path) -> None:
    """Refuse what two processes cannot do any better, or not at all."""
    spec = plan.spec
    if len(plan.roles) < 2:
        raise UserError(f"--pipeline: in method {spec.method.name} as asked for nobody leads. Leave it out.")
    if spec.engine.processes > 1:
        raise UserError("--pipeline gives teacher and student a device each: leave out --devices and --nodes.")
    if spec.record or spec.teacher_path not in (None, str(teacher.resolve())):
        raise UserError("--pipeline hands its own teacher over: leave out --record and --teacher-path.")
    for role in plan.roles[:-1]:
        check_path(plan, role)


def teacher_spec(spec: RunSpec, roles: Any) -> RunSpec:
    """The run of all that lead, which leaves behind what the last role needs."""
    engine = replace(spec.engine, pipeline=False)
    record = () if spec.schedule is None else (spec.schedule,)
    return replace(spec, only=roles[-2], record=record, teacher_path=None, ema=None, engine=engine)


@contextmanager
def teacher_process(plan: Plan, folder: RunFolder, train: Train) -> Iterator[Check]:
    """The teacher learns in another process while this lasts; it is ended with it, and goes on when it begins again."""
    spec, objects = plan.spec, plan.objects
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    given = (teacher_spec(spec, plan.roles), folder.teacher, objects, train, theirs, os.getpid())
    try:
        pickle.dumps(given[2])
    except Exception:
        raise UserError("--pipeline hands objects to another process: give functions that a module defines.") from None
    process = context.Process(target=_teach, args=(Inherited(), *given))  # no daemon, which could have no workers
    with _next_device():
        process.start()
    theirs.close()

    def check() -> None:
        if process.exitcode not in (None, 0) or ours.poll():
            try:
                raise ours.recv()
            except EOFError:
                line = f"The teacher's process ended (exit code {process.exitcode}). Go on with --resume {folder.path}"
                raise UserError(line) from None

    try:
        yield check
        process.join()
    finally:
        process.terminate()
        process.join()
        if not folder.spec.exists():  # a mistake that showed before the student began
            folder.discard()
    if not spec.engine.keep_path:
        shutil.rmtree(folder.teacher, ignore_errors=True)


@contextmanager
def _next_device() -> Iterator[None]:
    """A process that is started now sees the second GPU first, if there is one."""
    visible, count = os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count()
    names = visible.split(",") if visible else [str(number) for number in range(count)]
    if count > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join([*names[1:], names[0]])
    try:
        yield
    finally:
        if visible is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = visible
        else:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)


def _teach(
    _: Inherited, spec: RunSpec, folder: Path, objects: Objects, train: Train, news: Connection, parent: int
) -> None:
    """What the teacher's process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock", timeout=30):
        pass  # one that was left behind by a kill is about to notice
    try:
        train(spec, RunFolder(folder), objects)
    except UserError as error:
        news.send(error)


def _end_with(parent: int) -> None:
    """End this process when the one that started it is gone."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
