"""Where many runs are trained: in processes of this machine or, in `ray_pool`, of a cluster."""

import multiprocessing
import os
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, Protocol

from spacedkd.data.sources import Library
from spacedkd.errors import UserError
from spacedkd.experiments.sharing import Job, next_jobs
from spacedkd.own_code import Inherited
from spacedkd.training.folder import RunFolder
from spacedkd.training.loop import Moment, train_run
from spacedkd.training.objects import Objects

REPORT_SECONDS = 0.2

Callback = Callable[[Job, Moment], None]


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


def train_all(pool: Pool, jobs: Sequence[Job], callback: Callback) -> None:
    """Begin every job as soon as it can and there is room; ends when all are done, and an error in one ends all."""
    waiting = [*enumerate(jobs)]
    running: dict[Hashable, tuple[int, Job]] = {}
    while waiting or running:
        room = pool.places() - len(running)
        begin = next_jobs(waiting, [job for _, job in running.values()], max(room, 0))
        for place in begin or (waiting[:1] if room > 0 and not running else []):  # it says itself what it waits for
            running[pool.submit(*place)] = place
            waiting.remove(place)
        for handle in pool.wait(running):
            place = running.pop(handle)
            if not pool.finished(handle):
                waiting.insert(0, place)
        for number, moment in pool.news():
            callback(jobs[number], moment)


LIBRARY = Library()
"""of this process: what one of its runs has read, the next need not read again"""


def train_job(job: Job, tell: Callable[[Moment], None]) -> None:
    """Train one run in this process, and tell of it a few times a second."""
    told = 0.0

    def sometimes(moment: Moment) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told > REPORT_SECONDS or moment.accuracy is not None or moment.turn == moment.turns:
            told = now
            tell(moment)

    train_run(job.spec, RunFolder(job.folder), True, Objects(), sometimes, LIBRARY)


class LocalPool:
    """Processes of this machine."""

    def __init__(self, executor: Executor, at_once: int, news: Any) -> None:
        self._executor, self._at_once, self._news = executor, at_once, news

    def places(self) -> int:
        return self._at_once

    def submit(self, number: int, job: Job) -> Future[None]:
        return self._executor.submit(_train, Inherited(), number, job, self._news)

    def wait(self, running: Collection[Future[None]]) -> Iterable[Future[None]]:
        return wait(running, timeout=REPORT_SECONDS, return_when=FIRST_COMPLETED).done

    def finished(self, ended: Future[None]) -> bool:
        ended.result()
        return True

    def news(self) -> Iterator[tuple[int, Moment]]:
        while not self._news.empty():  # nobody else takes from it
            yield self._news.get()


@contextmanager
def local_pool(at_once: int, gpus: Sequence[str]) -> Iterator[LocalPool]:
    """So many processes, each with a GPU of its own if there are any; whatever ends this early ends them, too."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        news, places = manager.Queue(), manager.Queue()
        for worker in range(at_once):
            places.put(gpus[worker % len(gpus)] if gpus else None)
        with ProcessPoolExecutor(at_once, context, _take_place, (places,)) as executor:
            others = set(multiprocessing.active_children())
            try:
                yield LocalPool(executor, at_once, news)
            except BaseException as error:
                executor.shutdown(wait=False, cancel_futures=True)
                for process in set(multiprocessing.active_children()) - others:
                    process.terminate()
                if isinstance(error, BrokenProcessPool):
                    raise UserError("A run was killed from outside (out of memory?). Start again to go on.") from None
                raise


def _take_place(places: Any) -> None:
    """Bind this worker to a GPU of its own, if there are any."""
    gpu = places.get()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu


def _train(_: Inherited, number: int, job: Job, news: Any) -> None:
    train_job(job, lambda moment: news.put((number, moment)))
