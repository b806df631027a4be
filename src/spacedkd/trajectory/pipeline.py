"""Teacher and student of one run in two processes, with a device each.

The teacher learns the next block while the student replays this one; it is a run of its own within the run's folder,
and what it has learned is handed over by its path.
"""

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from spacedkd.config.objects import Objects
from spacedkd.config.resolve import ResolvedRun
from spacedkd.config.spec import RunSpec
from spacedkd.runs.folder import RunFolder
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.files import naming
from spacedkd.runtime.locks import hold, is_held
from spacedkd.runtime.signals import Stop, Stopped, as_child, child_context, killed_by, signals_wait
from spacedkd.runtime.user_code import Inherited
from spacedkd.trajectory.recording import check_path

Check = Callable[[], None]
"""complains when the teacher's process has ended before its time"""
Train = Callable[[RunSpec, RunFolder, Objects, Stop], Any]


def check_pipeline(plan: ResolvedRun, teacher: Path) -> None:
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
    return replace(spec, only=roles[-2], record=record, teacher_path=None, ema=None, log=(), engine=engine)


@contextmanager
def teacher_process(plan: ResolvedRun, folder: RunFolder, train: Train) -> Iterator[Check]:
    """The teacher learns in another process while this lasts; it stops with it, and goes on when it begins again."""
    spec, objects = plan.spec, plan.objects
    context = child_context()
    ours, theirs = context.Pipe()
    given = (teacher_spec(spec, plan.roles), folder.teacher, objects, train, theirs, os.getpid())
    try:
        pickle.dumps(given[2])
    except Exception:
        raise UserError("--pipeline hands objects to another process: give functions that a module defines.") from None
    process = context.Process(target=_teach, args=(Inherited(), *given))  # no daemon, which could have no workers

    def check() -> None:
        if process.exitcode not in (None, 0) or ours.poll():
            try:
                raise ours.recv()
            except (EOFError, OSError):
                process.join()
                if process.exitcode == 0:
                    return
                line = f"The teacher's process {killed_by(process.exitcode)}. Go on with --resume {folder.path}"
                raise UserError(line) from None

    try:
        with _next_device(), signals_wait():
            process.start()
        theirs.close()
        yield check
        process.join()
    except Stopped:
        if is_held(folder.teacher / ".lock"):  # else it has not begun, and there is nothing to save
            with suppress(OSError):  # it may have ended already
                ours.send("stop")
            process.join()  # when it has saved
        raise
    finally:
        if process.pid is not None:
            process.kill()
            process.join()
        if not folder.spec.exists():  # a mistake that showed before the student began
            folder.discard()
    forget_teacher(spec, folder)


def forget_teacher(spec: RunSpec, folder: RunFolder) -> None:
    """Remove what the teacher of a finished pipeline has left, unless it is to be kept."""
    if spec.engine.pipeline and not spec.engine.keep_path:
        folder.handle.remove_tree(folder.teacher)


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
    _: Inherited, spec: RunSpec, folder: Path, objects: Objects, train: Train, told: Connection, parent: int
) -> None:
    """What the teacher's process does."""
    as_child(parent)
    try:
        with naming(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with hold(folder / ".lock", seconds=30):
            pass  # one that was left behind by a kill is about to notice
        train(spec, RunFolder(folder), objects, told.poll)
    except Stopped:
        return
    except UserError as error:
        told.send(error)
