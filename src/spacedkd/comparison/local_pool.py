"""A pool of processes of this machine that train one run after the other; the end of one ends no other."""

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any

from spacedkd.comparison.job import Job
from spacedkd.comparison.pool import REPORT_SECONDS, as_failure, train_job
from spacedkd.runtime.errors import RunFailed
from spacedkd.runtime.signals import as_child, child_context, killed_by, signals_wait
from spacedkd.runtime.user_code import Inherited
from spacedkd.training.loop import Event


@dataclass(eq=False)
class _Worker:
    """A process that trains one run after the other, and the pipe to it."""

    process: Any
    pipe: Connection
    gpu: str | None
    number: int = -1
    """of the run that it trains"""
    begun: bool = False
    """whether that run has reported an event"""
    stops: bool = False
    """whether it was told to stop"""
    outcome: Any = None
    """whether the run is finished, or its error; None while it is trained"""


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
    """Give a pool of so many processes; an error inside lets them save first, Ctrl-C and an exit kill them at once."""
    pool = LocalPool(at_once, gpus)
    try:
        yield pool
    except Exception:
        pool.stop()
        raise
    finally:
        pool.end()


def _work(_: Inherited, pipe: Connection, gpu: str | None, parent: int) -> None:
    """Train the runs that come through the pipe; answer each with whether it is finished, or with its error."""
    as_child(parent)
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    while isinstance(job := pipe.recv(), Job):
        try:
            finished = train_job(job, pipe.send, pipe.poll)
            if not finished:
                pipe.recv()  # the message that told it to stop
            pipe.send(finished)
        except Exception as error:  # of the run, or of user code in it
            pipe.send(as_failure(error))
