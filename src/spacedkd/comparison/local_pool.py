"""Processes of this machine that train one run after the other; what ends one of them ends no other."""

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any

from spacedkd.comparison.pool import REPORT_SECONDS, failure_of, train_job
from spacedkd.comparison.teacher_sharing import Job
from spacedkd.runtime.errors import RunFailed
from spacedkd.runtime.signals import as_child, child_context, killed_by, signals_wait
from spacedkd.runtime.user_code import Inherited
from spacedkd.training.loop import Event


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
        self._started: list[_Worker] = []
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []
        self._news: list[tuple[int, Event]] = []

    def places(self) -> int:
        return self._at_once

    def submit(self, number: int, job: Job) -> _Worker:
        for dead in [worker for worker in self._idle if not worker.process.is_alive()]:
            self._idle.remove(dead)
            self._places.append(dead.gpu)
        worker = self._idle.pop() if self._idle else self._start()
        worker.number, worker.begun, worker.stops, worker.said = number, False, False, None
        with suppress(OSError):  # it died idly, which is seen when it is waited for
            worker.line.send(job)
        self._busy.append(worker)
        return worker

    def _start(self) -> _Worker:
        context = child_context()
        ours, theirs = context.Pipe()
        gpu = self._places.pop()
        given = (Inherited(), theirs, gpu, os.getpid())
        process = context.Process(target=_work, args=given)  # no daemon, which has no children
        worker = _Worker(process, ours, gpu)
        self._started.append(worker)
        with signals_wait():
            process.start()
        theirs.close()  # so that its end is seen here when it dies
        return worker

    def wait(self, running: Collection[_Worker]) -> Iterable[_Worker]:
        connection.wait([worker.line for worker in running], REPORT_SECONDS)
        return [worker for worker in running if self._heard(worker)]

    def _heard(self, worker: _Worker, at_least: float = 0.0) -> bool:
        """Take what a worker has said until now; whether it was the end."""
        try:
            while worker.said is None and worker.line.poll(at_least):
                said = worker.line.recv()
                if isinstance(said, Event):
                    worker.begun = True
                    self._news.append((worker.number, said))
                else:
                    worker.said = said
        except (EOFError, OSError):
            worker.process.join()
            end = killed_by(worker.process.exitcode)
            worker.said = RunFailed(f"Its process {end}. The same command goes on from what it saved last.")
        return worker.said is not None

    def finished(self, ended: _Worker) -> bool:
        self._busy.remove(ended)
        unexpected = isinstance(ended.said, RunFailed) and ended.said.trace
        if ended.stops or unexpected:  # it may take a late "stop" for the next run; who knows what an exception left
            ended.process.kill()
            ended.process.join()
        if ended.process.exitcode is None:
            self._idle.append(ended)
        else:
            self._places.append(ended.gpu)
        if isinstance(ended.said, Exception):
            raise ended.said
        return bool(ended.said)

    def news(self) -> Iterator[tuple[int, Event]]:
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
        for worker in self._started:
            if worker.process.pid is not None:
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
        except Exception as error:  # of the run, or of user code in it
            line.send(failure_of(error))
