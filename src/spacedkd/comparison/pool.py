"""Pools that train many runs at once; a failure of one run does not stop the others.

`train_in_pool` starts runs and handles their errors. It works with any `Pool`: `local_pool`, processes of this machine,
is here; `ray_pool`, tasks of a cluster, is a module of its own because it imports Ray. The processes of both pools call
`train_job`.
"""

import math
import os
import time
import traceback
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
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
    TargetsGone,
    UserCodeError,
    UserError,
    first_line,
)
from spacedkd.runtime.files import resolve_links
from spacedkd.runtime.processes import print_notice
from spacedkd.runtime.signals import Stop, Stopped, as_child, child_context, killed_by, never_stop, signals_wait
from spacedkd.runtime.user_code import Inherited
from spacedkd.training.loop import Event
from spacedkd.training.train import train_run
from spacedkd.trajectory.store import is_recording

REPORT_SECONDS = 0.2
MEANWHILE_SECONDS = 2.0

JobCallback = Callable[[Job, Event], None]


class RecorderLost(UserError):
    """A run has not finished because the run whose teacher it replays has ended."""


class Pool(Protocol):
    """Processes that train one run each; a run has a number among all jobs, and a handle while it is trained."""

    def capacity(self) -> int:
        """Return how many runs may be trained at once now."""

    def submit(self, number: int, job: Job) -> Hashable:
        """Begin a run, or resume it; return its handle."""

    def wait(self, running: Collection[Any]) -> Iterable[Any]:
        """Return the handles of runs that have ended; wait a fraction of a second for one."""

    def finished(self, ended: Any) -> bool:
        """Return whether an ended run is finished, or raise its error; one that is not is to be submitted again."""

    def events(self) -> Iterable[tuple[int, Event]]:
        """Return the events of runs since the last call, each with the number of its run."""

    def release(self, number: int) -> None:
        """Stop a run that would wait for ever; it saves first."""


def train_in_pool(
    pool: Pool,
    jobs: Sequence[Job],
    callback: JobCallback,
    stop: Stop = never_stop,
    meanwhile: Callable[[], None] = lambda: None,
) -> dict[int, UserError]:
    """Train all jobs in a pool, and return the errors of those that failed, by number.

    A job begins when the pool has room and the snapshots that it replays are there. If a run fails or its process dies,
    only the runs that read from it end too. The errors are `Diverged`, `RunFailed`, `SnapshotsGone`, `TargetsGone` or
    `RecorderLost`.
    `meanwhile` is called every few seconds.
    """
    waiting = [*enumerate(jobs)]
    running: dict[Hashable, tuple[int, Job]] = {}
    errors: dict[int, UserError] = {}
    last = time.monotonic()
    while waiting or running:
        if stop():
            raise Stopped("The comparison", len(jobs) - len(waiting) - len(running), len(jobs), "runs")
        lost = {str(resolve_links(jobs[number].folder)): jobs[number] for number in errors}
        for number, job in [numbered for numbered in waiting if numbered[1].reads_from(lost)]:
            errors[number] = _source_lost(job, lost)
            waiting.remove((number, job))
        room = pool.capacity() - len(running)
        begin = jobs_to_begin(waiting, [job for _, job in running.values()], max(room, 0))
        # If no job can begin and none runs, the first one is begun anyway: its error names the missing snapshots.
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
                consequence = _CONSEQUENCES.get(type(errors[number]), "The others continue.")
                print_notice(f"{errors[number]} {consequence}")
        for number, event in pool.events():
            callback(jobs[number], event)
            if event.waiting and jobs[number].reads_from(lost):
                pool.release(number)
        if time.monotonic() - last > MEANWHILE_SECONDS:
            meanwhile()
            last = time.monotonic()
    return errors


_CONSEQUENCES = {
    SnapshotsGone: "The teacher is trained again.",
    TargetsGone: "It restarts, with the teacher itself.",
}


def _source_lost(job: Job, lost: Mapping[str, Job]) -> UserError:
    """Return the error of a job that reads from a run which did not finish."""
    if (recorder := lost.get(job.spec.teacher_path or "")) is not None:
        return RecorderLost(f"{job.name}: it replays {recorder.name}, which did not finish.")
    writer = lost[job.spec.targets_path or ""]
    return TargetsGone(f"{job.name}: it reads the targets of {writer.name}, which did not finish.")


def _with_name(job: Job, error: UserError, lost: Mapping[str, Job]) -> UserError:
    """Return the error of a job with its name; if the job's recorder is lost, that is the cause: `RecorderLost`."""
    if isinstance(error, Diverged):
        return job.with_name(error)
    line = f"{job.name}: {error}"
    if job.spec.teacher_path in lost:
        return RecorderLost(line)
    if isinstance(error, SnapshotsGone | TargetsGone):
        return type(error)(line)
    return RunFailed(line, getattr(error, "trace", ()))


def as_failure(error: Exception) -> UserError:
    """Return the error of a run as one that another process can unpickle, even if user code has raised it."""
    if type(error) in (Diverged, Moved, SnapshotsGone, TargetsGone, RunFailed):
        assert isinstance(error, UserError)
        return error
    raised = isinstance(error, UserCodeError | OutOfMemory)
    if isinstance(error, UserError) and not raised:
        return RunFailed(str(error))
    line = str(error).removesuffix(".") if raised else f"{type(error).__name__}: {first_line(error)}"
    trace = "".join(traceback.format_exception(error)).splitlines()
    return RunFailed(f"{line} (failed.json in its folder has the traceback)", trace)


LIBRARY = Library()
"""datasets of this process, kept from one of its runs for the next"""


def train_job(job: Job, callback: Callable[[Event], None], stop: Stop, patience: float = math.inf) -> bool:
    """Train one run in this process, and report events a few times a second; return whether it is finished.

    A run that is not finished is saved: `stop` returned True, or the run has waited for more than `patience` seconds
    for another one that no process trains.
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
        train_run(
            job.spec,
            folder,
            resume=True,
            objects=job.objects,
            library=LIBRARY,
            callback=report,
            stop=lambda: gives_up or stop(),
        )
    except Stopped:
        return False
    except Diverged as error:
        record_divergence(job, error)
        raise
    return True


# Processes of this machine.


@dataclass(eq=False)
class _Worker:
    """A process that trains one run after another, and the pipe to it."""

    process: Any
    pipe: Connection
    gpu: str | None
    number: int = -1
    """number of the current run among all jobs"""
    begun: bool = False
    """True once the current run has reported an event"""
    stops: bool = False
    """True once the process was asked to stop"""
    outcome: Any = None
    """True or False for a run that is finished or saved, or its error; None while it is trained"""


class LocalPool:
    """Processes of this machine, each with a GPU of its own if there are any."""

    def __init__(self, at_once: int, gpus: Sequence[str]) -> None:
        self._at_once = at_once
        self._free_gpus = [gpus[worker % len(gpus)] if gpus else None for worker in range(at_once)]
        self._started: list[_Worker] = []
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []
        self._events: list[tuple[int, Event]] = []

    def capacity(self) -> int:
        """Return how many runs may be trained at once."""
        return self._at_once

    def submit(self, number: int, job: Job) -> _Worker:
        """Give a run to an idle process, or to a new one."""
        for dead in [worker for worker in self._idle if not worker.process.is_alive()]:
            self._idle.remove(dead)
            self._free_gpus.append(dead.gpu)
        worker = self._idle.pop() if self._idle else self._start()
        worker.number, worker.begun, worker.stops, worker.outcome = number, False, False, None
        with suppress(OSError):  # it died while idle, which `wait` notices
            worker.pipe.send(job)
        self._busy.append(worker)
        return worker

    def _start(self) -> _Worker:
        context = child_context()
        ours, theirs = context.Pipe()
        gpu = self._free_gpus.pop()
        # No daemon: daemons may not have children, and a run may have workers that decode images.
        process = context.Process(target=_work, args=(Inherited(), theirs, gpu, os.getpid()))
        worker = _Worker(process, ours, gpu)
        self._started.append(worker)
        with signals_wait():
            process.start()
        theirs.close()  # so that this end sees when the process dies
        return worker

    def wait(self, running: Collection[_Worker]) -> Iterable[_Worker]:
        """Return the processes whose runs have ended."""
        connection.wait([worker.pipe for worker in running], REPORT_SECONDS)
        return [worker for worker in running if self._receive(worker)]

    def _receive(self, worker: _Worker, at_least: float = 0.0) -> bool:
        """Read what a worker has sent until now; return whether its run has ended."""
        try:
            while worker.outcome is None and worker.pipe.poll(at_least):
                message = worker.pipe.recv()
                if isinstance(message, Event):
                    worker.begun = True
                    self._events.append((worker.number, message))
                else:
                    worker.outcome = message
        except (EOFError, OSError):
            worker.process.join()
            end = killed_by(worker.process.exitcode)
            worker.outcome = RunFailed(f"Its process {end}. The same command resumes it from its last checkpoint.")
        return worker.outcome is not None

    def finished(self, ended: _Worker) -> bool:
        """Return whether a run that has ended is finished; raise its error."""
        self._busy.remove(ended)
        unexpected = isinstance(ended.outcome, RunFailed) and ended.outcome.trace
        # A late "stop" would end the next run of this process, and an exception may have left anything behind.
        if ended.stops or unexpected:
            ended.process.kill()
            ended.process.join()
        if ended.process.exitcode is None:
            self._idle.append(ended)
        else:
            self._free_gpus.append(ended.gpu)
        if isinstance(ended.outcome, Exception):
            raise ended.outcome
        return bool(ended.outcome)

    def events(self) -> Iterator[tuple[int, Event]]:
        """Yield the events of runs since the last call."""
        events, self._events = self._events, []
        yield from events

    def release(self, number: int) -> None:
        """Tell a run to save and end."""
        for worker in self._busy:
            if worker.number == number and not worker.stops:
                worker.stops = True
                with suppress(OSError):  # it has just died
                    worker.pipe.send("stop")

    def stop(self) -> None:
        """Let every run that has begun end its turn and save, and wait for that."""
        active = [worker for worker in self._busy if worker.begun]
        for worker in active:
            self.release(worker.number)
        for worker in active:
            while not self._receive(worker, REPORT_SECONDS):
                pass

    def end(self) -> None:
        """Kill all processes."""
        for worker in self._started:
            if worker.process.pid is not None:
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()


@contextmanager
def local_pool(at_once: int, gpus: Sequence[str]) -> Iterator[LocalPool]:
    """Open a pool of `at_once` processes; after an error they save before they end, after Ctrl-C they are killed."""
    pool = LocalPool(at_once, gpus)
    try:
        yield pool
    except Exception:
        pool.stop()
        raise
    finally:
        pool.end()


def _work(_: Inherited, pipe: Connection, gpu: str | None, parent: int) -> None:
    """Train the runs that come through the pipe; send back for each whether it is finished, or its error."""
    as_child(parent)
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    while isinstance(job := pipe.recv(), Job):
        try:
            finished = train_job(job, pipe.send, pipe.poll)
            if not finished:
                pipe.recv()  # the message that asked it to stop
            pipe.send(finished)
        except Exception as error:  # of the run, or of user code in it
            pipe.send(as_failure(error))
