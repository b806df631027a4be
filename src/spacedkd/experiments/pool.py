"""Where many runs are trained: in processes of this machine or, in `ray_pool`, of a cluster."""

import math
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from spacedkd.data.sources import Library
from spacedkd.errors import Diverged, UserError
from spacedkd.experiments.sharing import Job, keep_diverged, next_jobs
from spacedkd.own_code import Inherited
from spacedkd.stopping import Stop, Stopped, as_child, killed_by, never
from spacedkd.training.folder import RunFolder
from spacedkd.training.following import is_written
from spacedkd.training.loop import Moment, train_run
from spacedkd.training.objects import Objects

REPORT_SECONDS = 0.2

Callback = Callable[[Job, Moment], None]


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
        """Whether a run that has ended is finished; if not, it is to be submitted again. Raises its error."""

    def news(self) -> Iterable[tuple[int, Moment]]:
        """What the runs have told since this was asked last."""

    def give_way(self, number: int) -> None:
        """Let a run save and end that would wait for ever."""


def train_all(pool: Pool, jobs: Sequence[Job], callback: Callback, stop: Stop = never) -> dict[int, UserError]:
    """Begin every job as soon as it can and there is room; ends when all are done.

    A mistake in one, or its death, ends no other, except those that follow it. Gives what happened to whom, by number.
    """
    waiting = [*enumerate(jobs)]
    running: dict[Hashable, tuple[int, Job]] = {}
    failed: dict[int, UserError] = {}
    while waiting or running:
        if stop():
            raise Stopped("The comparison", len(jobs) - len(waiting) - len(running), len(jobs))
        lost = {str(jobs[number].folder.resolve()): jobs[number] for number in failed}
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
            except Diverged as error:
                failed[number] = job.named(error)
            except UserError as error:
                failed[number] = UserError(f"{job.name}: {error}")
        for number, moment in pool.news():
            callback(jobs[number], moment)
            if moment.waiting and jobs[number].spec.teacher_path in lost:
                pool.give_way(number)
    return failed


LIBRARY = Library()
"""of this process: what one of its runs has read, the next need not read again"""


def train_job(job: Job, tell: Callable[[Moment], None], stop: Stop, patience: float = math.inf) -> bool:
    """Train one run in this process, and tell of it a few times a second; says whether it is finished.

    If not, it is saved: it was to stop, or has waited with too much patience for one it follows and nobody trains.
    """
    told, busy, gives_way = 0.0, time.monotonic(), False
    leader = job.spec.teacher_path

    def sometimes(moment: Moment) -> None:
        nonlocal told, busy, gives_way
        now = time.monotonic()
        if leader is None or not moment.waiting or is_written(Path(leader)):
            busy = now
        gives_way = now - busy > patience
        if now - told > REPORT_SECONDS or moment.accuracy is not None or moment.turn == moment.turns:
            told = now
            tell(moment)

    try:
        folder = RunFolder(job.folder)
        train_run(job.spec, folder, True, Objects(), sometimes, LIBRARY, stop=lambda: gives_way or stop())
    except Stopped:
        return False
    except Diverged as error:
        keep_diverged(job, error)
        raise
    return True


@dataclass(eq=False)
class _Worker:
    """A process that trains one run after the other, and the line to it."""

    process: Any
    line: Connection
    gpu: str | None
    number: int = -1
    """of the run it is at"""
    begun: bool = False
    """whether that one has told of a turn"""
    stops: bool = False
    """whether it was told to"""
    said: Any = None
    """what it ended with"""


class LocalPool:
    """Processes of this machine, each with a GPU of its own if there are any."""

    def __init__(self, at_once: int, gpus: Sequence[str]) -> None:
        self._at_once = at_once
        self._places = [gpus[worker % len(gpus)] if gpus else None for worker in range(at_once)]
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []
        self._news: list[tuple[int, Moment]] = []

    def places(self) -> int:
        return self._at_once

    def submit(self, number: int, job: Job) -> _Worker:
        worker = self._idle.pop() if self._idle else self._started()
        worker.number, worker.begun, worker.stops, worker.said = number, False, False, None
        with suppress(OSError):  # it died idly, which is seen when it is waited for
            worker.line.send(job)
        self._busy.append(worker)
        return worker

    def _started(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        gpu = self._places.pop()
        process = context.Process(
            target=_work, args=(Inherited(), theirs, gpu, os.getpid())
        )  # no daemon, which has no children
        process.start()
        theirs.close()  # so that its end is seen here when it dies
        return _Worker(process, ours, gpu)

    def wait(self, running: Collection[_Worker]) -> Iterable[_Worker]:
        connection.wait([worker.line for worker in running], REPORT_SECONDS)
        return [worker for worker in running if self._heard(worker)]

    def _heard(self, worker: _Worker, at_least: float = 0.0) -> bool:
        """Take what a worker has said until now; whether it was the end."""
        try:
            while worker.said is None and worker.line.poll(at_least):
                said = worker.line.recv()
                if isinstance(said, Moment):
                    worker.begun = True
                    self._news.append((worker.number, said))
                else:
                    worker.said = said
        except (EOFError, OSError):
            worker.process.join()
            end = killed_by(worker.process.exitcode)
            worker.said = UserError(f"Its process {end}. The same command goes on from what it saved last.")
        return worker.said is not None

    def finished(self, ended: _Worker) -> bool:
        self._busy.remove(ended)
        if ended.stops:  # it may have ended before it was told, and would take that for what comes next
            ended.process.kill()
            ended.process.join()
        if ended.process.exitcode is None:
            self._idle.append(ended)
        else:
            self._places.append(ended.gpu)
        if isinstance(ended.said, Exception):
            raise ended.said
        return bool(ended.said)

    def news(self) -> Iterator[tuple[int, Moment]]:
        told, self._news = self._news, []
        yield from told

    def give_way(self, number: int) -> None:
        for worker in self._busy:
            if worker.number == number and not worker.stops:
                worker.stops = True
                with suppress(OSError):  # it dies at this moment
                    worker.line.send("stop")

    def stop(self) -> None:
        """Let every run that has begun end its turn, and save."""
        going_on = [worker for worker in self._busy if worker.begun]
        for worker in going_on:
            self.give_way(worker.number)
        for worker in going_on:
            while not self._heard(worker, REPORT_SECONDS):
                pass

    def end(self) -> None:
        for worker in [*self._idle, *self._busy]:
            worker.process.kill()
            worker.process.join()
            worker.line.close()


@contextmanager
def local_pool(at_once: int, gpus: Sequence[str]) -> Iterator[LocalPool]:
    """So many processes; whatever ends this early lets them save, unless it is to end at once."""
    pool = LocalPool(at_once, gpus)
    try:
        yield pool
    except Exception:
        pool.stop()
        raise
    finally:
        pool.end()


def _work(_: Inherited, line: Connection, gpu: str | None, parent: int) -> None:
    """What a worker does: it is given runs, and says of each that it is finished or not, or what is wrong."""
    as_child(parent)
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    while isinstance(job := line.recv(), Job):
        try:
            finished = train_job(job, line.send, line.poll)
            if not finished:
                line.recv()  # that it is to stop
            line.send(finished)
        except UserError as error:
            line.send(error)
        except Exception as error:  # a mistake of ours, with where it was made
            error.add_note(traceback.format_exc())
            line.send(error)
