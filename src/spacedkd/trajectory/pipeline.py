"""Teacher and student of one run in two processes, with a device each.

The teacher learns the next block while the student replays this one. It is a run of its own, with --record, within the
run's folder; the student replays its snapshots.
"""

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
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
from spacedkd.runtime.files import write_errors
from spacedkd.runtime.locks import hold, is_held
from spacedkd.runtime.signals import Stop, Stopped, as_child, child_context, killed_by, signals_wait
from spacedkd.runtime.user_code import Inherited
from spacedkd.trajectory.identity import check_shareable

Check = Callable[[], None]
"""raises an error when the teacher's process has ended before its time"""
Train = Callable[[RunSpec, RunFolder, Objects, Stop], Any]
"""trains the teacher's run, in the teacher's process"""


def check_pipeline(run: ResolvedRun, teacher: Path) -> None:
    """Refuse a run that two processes cannot train, or not any faster."""
    spec = run.spec
    if len(run.roles) < 2:
        raise UserError(f"--pipeline: method {spec.method.name} with these options has one role. Leave it out.")
    if spec.engine.processes > 1:
        raise UserError("--pipeline gives teacher and student a device each: leave out --devices and --nodes.")
    if spec.cache_targets or spec.targets_path is not None or spec.targets_form != "whole":
        raise UserError(
            "--pipeline has another way to its teacher: leave out --cache-targets, --targets-path and --targets-form."
        )
    if spec.record or spec.teacher_path not in (None, str(teacher.resolve())):
        raise UserError("--pipeline trains and records its own teacher: leave out --record and --teacher-path.")
    for role in run.roles[:-1]:
        check_shareable(run, role)


def teacher_spec(spec: RunSpec, roles: Sequence[str]) -> RunSpec:
    """Return the spec of the teacher's run: all roles but the last, recorded for the last one's schedule."""
    engine = replace(spec.engine, pipeline=False)
    record = () if spec.schedule is None else (spec.schedule,)
    averages = () if spec.teacher_average is None or not record else (spec.teacher_average,)
    alone = replace(spec.without_average(), record=record, record_average=averages)
    return replace(alone, only=roles[-2], teacher_path=None, log=(), engine=engine)


@contextmanager
def teacher_process(run: ResolvedRun, folder: RunFolder, train: Train) -> Iterator[Check]:
    """Train the teacher in another process while this lasts; it stops together with this one, and resumes with it."""
    spec, objects = run.spec, run.objects
    context = child_context()
    ours, theirs = context.Pipe()
    try:
        pickle.dumps(objects)
    except Exception:
        raise UserError("--pipeline passes objects to another process: give functions that a module defines.") from None
    process = context.Process(  # no daemon, which could have no workers
        target=_train_teacher,
        args=(Inherited(),),
        kwargs={
            "spec": teacher_spec(spec, run.roles),
            "folder": folder.teacher,
            "objects": objects,
            "train": train,
            "parent": os.getpid(),
            "connection": theirs,
        },
    )

    def check() -> None:
        if process.exitcode not in (None, 0) or ours.poll():
            try:
                raise ours.recv()
            except (EOFError, OSError):
                process.join()
                if process.exitcode == 0:
                    return
                raise UserError(
                    f"The teacher's process {killed_by(process.exitcode)}. "
                    f"Resume with: spacedkd train --resume {folder.path}"
                ) from None

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
    remove_teacher(spec, folder)


def remove_teacher(spec: RunSpec, folder: RunFolder) -> None:
    """Remove the folder of the teacher of a finished pipeline, unless its snapshots are to be kept."""
    if spec.engine.pipeline and not spec.engine.keep_path:
        folder.handle.remove_tree(folder.teacher)


@contextmanager
def _next_device() -> Iterator[None]:
    """Make processes that are started meanwhile see the second GPU first, if there is one."""
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


def _train_teacher(
    _: Inherited,
    *,
    spec: RunSpec,
    folder: Path,
    objects: Objects,
    train: Train,
    parent: int,
    connection: Connection,
) -> None:
    """Train the teacher's run, in its own process; a message on the connection asks it to stop."""
    as_child(parent)
    try:
        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        # A teacher whose parent was killed is about to notice, and to release its lock.
        with hold(folder / ".lock", seconds=30):
            pass
        train(spec, RunFolder(folder), objects, connection.poll)
    except Stopped:
        return
    except UserError as error:
        connection.send(error)
