"""Pools that train many runs: in processes of this machine (`local_pool`) or of a cluster (`ray_pool`).

`train_in_pool` decides which run begins when, and what an error of one means for the others; `train_job` is what a
process of either pool does.
"""

import math
import time
import traceback
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from spacedkd.comparison.job import Job, record_divergence, record_failure
from spacedkd.comparison.teacher_sharing import jobs_to_begin
from spacedkd.data.sources import Library
from spacedkd.runs.folder import RunFolder
from spacedkd.runtime.errors import (
    Diverged,
    Moved,
    OutOfMemory,
    RunFailed,
    SnapshotsGone,
    UserCodeError,
    UserError,
    first_line,
)
from spacedkd.runtime.files import resolve_links
from spacedkd.runtime.processes import print_notice
from spacedkd.runtime.signals import Stop, Stopped, never_stop
from spacedkd.training.loop import Event
from spacedkd.training.train import train_run
from spacedkd.trajectory.store import is_recording

REPORT_SECONDS = 0.2
MEANWHILE_SECONDS = 2.0

Callback = Callable[[Job, Event], None]


class RecorderLost(UserError):
    """A run has not finished because the run whose teacher it replays has ended."""


class Pool(Protocol):
    """Processes that train one run at a time; a run has a number among all jobs, and a handle while it is trained."""

    def capacity(self) -> int:
        """Return how many runs may be trained at once, as things are now."""

    def submit(self, number: int, job: Job) -> Hashable:
        """Begin a run, or resume it; return its handle."""

    def wait(self, running: Collection[Any]) -> Iterable[Any]:
        """Return the handles that have ended; wait a moment for one that does."""

    def finished(self, ended: Any) -> bool:
        """Return whether a run that has ended is finished; if not, it is to be submitted again. Raise its error."""

    def events(self) -> Iterable[tuple[int, Event]]:
        """Return the events of runs since the last call, each with the number of its run."""

    def release(self, number: int) -> None:
        """Let a run save and end that would wait for ever."""


def train_in_pool(
    pool: Pool,
    jobs: Sequence[Job],
    callback: Callback,
    stop: Stop = never_stop,
    meanwhile: Callable[[], None] = lambda: None,
) -> dict[int, UserError]:
    """Begin every job as soon as it can and there is room; return when all have ended. `meanwhile` runs now and then.

    An exception in one, or its death, ends no other, except those that replay it. Returned are the errors by number:
    `Diverged`, `RunFailed`, `SnapshotsGone` or `RecorderLost`.
    """
    waiting = [*enumerate(jobs)]
    running: dict[Hashable, tuple[int, Job]] = {}
    errors: dict[int, UserError] = {}
    last = time.monotonic()
    while waiting or running:
        if stop():
            raise Stopped("The comparison", len(jobs) - len(waiting) - len(running), len(jobs), "runs")
        lost = {str(resolve_links(jobs[number].folder)): jobs[number] for number in errors}
        for number, job in [numbered for numbered in waiting if numbered[1].spec.teacher_path in lost]:
            recorder = lost[job.spec.teacher_path or ""]
            errors[number] = RecorderLost(f"{job.name}: it replays {recorder.name}, which did not finish.")
            waiting.remove((number, job))
        room = pool.capacity() - len(running)
        begin = jobs_to_begin(waiting, [job for _, job in running.values()], max(room, 0))
        # Where nothing can begin and nothing runs, the first job is begun all the same: its error says what is missing.
        for number, job in begin or (waiting[:1] if room > 0 and not running else []):
            running[pool.submit(number, job)] = (number, job)
            waiting.remove((number, job))
        for handle in pool.wait(running):
            number, job = running.pop(handle)
            try:
                if not pool.finished(handle):
                    waiting.insert(0, (number, job))
            except UserError as error:
                errors[number] = _with_name(job, error, lost)
                if isinstance(errors[number], RunFailed):
                    record_failure(job, error)
                is_repaired = isinstance(errors[number], SnapshotsGone)
                consequence = "The teacher is trained again." if is_repaired else "The others continue."
                print_notice(f"{errors[number]} {consequence}")
        for number, event in pool.events():
            callback(jobs[number], event)
            if event.waiting and jobs[number].spec.teacher_path in lost:
                pool.release(number)
        if time.monotonic() - last > MEANWHILE_SECONDS:
            meanwhile()
            last = time.monotonic()
    return errors


def _with_name(job: Job, error: UserError, lost: Mapping[str, Job]) -> UserError:
    """Return the error of a job with its name; a job whose recorder is among the lost has ended because of that."""
    if isinstance(error, Diverged):
        return job.with_name(error)
    line = f"{job.name}: {error}"
    if job.spec.teacher_path in lost:
        return RecorderLost(line)
    return SnapshotsGone(line) if isinstance(error, SnapshotsGone) else RunFailed(line, getattr(error, "trace", ()))


def as_failure(error: Exception) -> UserError:
    """Return the error of a run as one that another process can unpickle, whatever classes user code has."""
    if type(error) in (Diverged, Moved, SnapshotsGone, RunFailed):
        assert isinstance(error, UserError)
        return error
    raised = isinstance(error, UserCodeError | OutOfMemory)
    if isinstance(error, UserError) and not raised:
        return RunFailed(str(error))
    line = str(error).removesuffix(".") if raised else f"{type(error).__name__}: {first_line(error)}"
    trace = "".join(traceback.format_exception(error)).splitlines()
    return RunFailed(f"{line} (failed.json in its folder has the traceback)", trace)


LIBRARY = Library()
"""of this process: data that one of its runs has read is there for the next"""


def train_job(job: Job, callback: Callable[[Event], None], stop: Stop, patience: float = math.inf) -> bool:
    """Train one run in this process, and report events a few times a second; return whether it is finished.

    If not, it is saved: `stop` said so, or it has waited longer than `patience` seconds for a run that nobody trains.
    """
    reported, active, gives_up = 0.0, time.monotonic(), False
    recorder = job.spec.teacher_path

    def report(event: Event) -> None:
        nonlocal reported, active, gives_up
        now = time.monotonic()
        if recorder is None or not event.waiting or is_recording(Path(recorder)):
            active = now
        gives_up = now - active > patience
        if now - reported > REPORT_SECONDS or event.accuracy is not None or event.turn == event.turns:
            reported = now
            callback(event)

    try:
        folder = RunFolder(job.folder)
        train_run(job.spec, folder, resume=True, library=LIBRARY, callback=report, stop=lambda: gives_up or stop())
    except Stopped:
        return False
    except Diverged as error:
        record_divergence(job, error)
        raise
    return True
