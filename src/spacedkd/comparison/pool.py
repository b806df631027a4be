"""Many runs trained where there is room: in processes of this machine (`local_pool`) or of a cluster (`ray_pool`)."""

import math
import time
import traceback
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from spacedkd.comparison.teacher_sharing import Job, keep_diverged, keep_failed, next_jobs
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


class LeftAlone(UserError):
    """A run has not finished because the one it follows will not go on."""


class Pool(Protocol):
    """Processes that train a run at a time; a run has a number among all jobs, and a handle while it goes on."""

    def places(self) -> int:
        """How many runs may go on at once, as things are now."""

    def submit(self, number: int, job: Job) -> Hashable:
        """Begin a run, or go on with it; says what it is to be asked for by."""

    def wait(self, running: Collection[Any]) -> Iterable[Any]:
        """Those that have ended, waiting a moment for one that does."""

    def finished(self, ended: Any) -> bool:
        """Whether a run that has ended is finished; if not, it is to be submitted again. Raises what ended it."""

    def news(self) -> Iterable[tuple[int, Event]]:
        """What the runs have told since this was asked last."""

    def give_way(self, number: int) -> None:
        """Let a run save and end that would wait for ever."""


def train_all(
    pool: Pool,
    jobs: Sequence[Job],
    callback: Callback,
    stop: Stop = never_stop,
    meanwhile: Callable[[], None] = lambda: None,
) -> dict[int, UserError]:
    """Begin every job as soon as it can and there is room; ends when all are done. `meanwhile` is done now and then.

    An exception in one, or its death, ends no other, except those that follow it. Gives what happened to whom, by
    number: `Diverged`, `RunFailed`, `SnapshotsGone` or `LeftAlone`.
    """
    waiting = [*enumerate(jobs)]
    running: dict[Hashable, tuple[int, Job]] = {}
    failed: dict[int, UserError] = {}
    last = time.monotonic()
    while waiting or running:
        if stop():
            raise Stopped("The comparison", len(jobs) - len(waiting) - len(running), len(jobs), "runs")
        lost = {str(resolve_links(jobs[number].folder)): jobs[number] for number in failed}
        for number, job in [place for place in waiting if place[1].spec.teacher_path in lost]:
            leader = lost[job.spec.teacher_path or ""]
            failed[number] = LeftAlone(f"{job.name}: it follows {leader.name}, which did not finish.")
            waiting.remove((number, job))
        room = pool.places() - len(running)
        begin = next_jobs(waiting, [job for _, job in running.values()], max(room, 0))
        for place in begin or (waiting[:1] if room > 0 and not running else []):  # it says itself what it waits for
            running[pool.submit(*place)] = place
            waiting.remove(place)
        for handle in pool.wait(running):
            number, job = place = running.pop(handle)
            try:
                if not pool.finished(handle):
                    waiting.insert(0, place)
            except UserError as error:
                failed[number] = _named(job, error, lost)
                if isinstance(failed[number], RunFailed):
                    keep_failed(job, error)
                mends = isinstance(failed[number], SnapshotsGone)
                print_notice(f"{failed[number]} {'The teacher is trained again.' if mends else 'The others go on.'}")
        for number, moment in pool.news():
            callback(jobs[number], moment)
            if moment.waiting and jobs[number].spec.teacher_path in lost:
                pool.give_way(number)
        if time.monotonic() - last > MEANWHILE_SECONDS:
            meanwhile()
            last = time.monotonic()
    return failed


def _named(job: Job, error: UserError, lost: Mapping[str, Job]) -> UserError:
    """Return what ended a job, with its name; a job whose leader is among the lost has ended because of that."""
    if isinstance(error, Diverged):
        return job.named(error)
    line = f"{job.name}: {error}"
    if job.spec.teacher_path in lost:
        return LeftAlone(line)
    return SnapshotsGone(line) if isinstance(error, SnapshotsGone) else RunFailed(line, getattr(error, "trace", ()))


def failure_of(error: Exception) -> UserError:
    """Return what ended a run as an error that another process can read, whatever classes its user's code has."""
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
"""of this process: what one of its runs has read, the next need not read again"""


def train_job(job: Job, callback: Callable[[Event], None], stop: Stop, patience: float = math.inf) -> bool:
    """Train one run in this process, and tell of it a few times a second; says whether it is finished.

    If not, it is saved: it was to stop, or has waited with too much patience for one it follows and nobody trains.
    """
    told, busy, gives_way = 0.0, time.monotonic(), False
    leader = job.spec.teacher_path

    def sometimes(moment: Event) -> None:
        nonlocal told, busy, gives_way
        now = time.monotonic()
        if leader is None or not moment.waiting or is_recording(Path(leader)):
            busy = now
        gives_way = now - busy > patience
        if now - told > REPORT_SECONDS or moment.accuracy is not None or moment.turn == moment.turns:
            told = now
            callback(moment)

    try:
        folder = RunFolder(job.folder)
        train_run(job.spec, folder, resume=True, library=LIBRARY, callback=sometimes, stop=lambda: gives_way or stop())
    except Stopped:
        return False
    except Diverged as error:
        keep_diverged(job, error)
        raise
    return True
