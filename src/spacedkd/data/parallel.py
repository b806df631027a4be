"""Do the same for many images, with all cores."""

import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from multiprocessing import connection
from typing import Any

from spacedkd.runtime.errors import UserError
from spacedkd.runtime.processes import print_notice
from spacedkd.runtime.signals import as_child

CHUNK = 64
NEWS_SECONDS = 10.0

Result = Mapping[int, str]
"""what is to be said of some of the images, by their place"""
Work = Callable[[range], Result]
"""does something for each of some places"""


class News:
    """A line now and then on how far it is."""

    def __init__(self, title: str, count: int) -> None:
        self.title, self.count, self.done = title, count, 0
        self.started = self.told = time.monotonic()

    def tell(self) -> None:
        now = time.monotonic()
        if now - self.told >= NEWS_SECONDS:
            self.told = now
            print_notice(
                f"{self.title}: {min(self.done * CHUNK, self.count)} of {self.count}, {now - self.started:.0f} s"
            )


def map_in_threads(work: Work, count: int, title: str, threads: int) -> dict[int, str]:
    """Do `work` for 0 .. count-1, for what spends its time outside of Python; the first exception ends it."""
    found: dict[int, str] = {}
    news = News(title, count)
    # Odd metadata, which is warned of, does not make an image unreadable.
    with warnings.catch_warnings(action="ignore"), ThreadPoolExecutor(threads) as pool:
        waiting = {pool.submit(work, chunk) for chunk in _chunks(count)}
        try:
            while waiting:
                done, waiting = wait(waiting, NEWS_SECONDS, FIRST_EXCEPTION)
                for finished in done:
                    found |= finished.result()
                news.done += len(done)
                if waiting:
                    news.tell()
        finally:
            pool.shutdown(cancel_futures=True)
    return found


def can_fork() -> bool:
    """Whether processes can be had that begin as copies of this one; elsewhere forking is not safe, or not there."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def map_in_processes(work: Work, count: int, title: str, processes: int) -> dict[int, str]:
    """Do `work` for 0 .. count-1 in copies of this process, which share no memory but what was mapped to be shared."""
    found: dict[int, str] = {}
    context, news = multiprocessing.get_context("fork"), News(title, count)
    workers, ends = [], []
    try:
        for first in range(processes):
            ours, theirs = context.Pipe(duplex=False)
            given = (work, count, first, processes, theirs, os.getpid())
            workers.append(context.Process(target=_copy, args=given, daemon=True))
            workers[-1].start()
            theirs.close()  # so that its end is seen here when it dies
            ends.append(ours)
        waiting: list[Any] = [*ends]
        while waiting:
            for end in connection.wait(waiting, NEWS_SECONDS):
                said = _received(end)
                if isinstance(said, Exception):
                    raise said
                if said is None:
                    waiting.remove(end)
                else:
                    found |= said
                    news.done += 1
            if waiting:
                news.tell()
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
        for ours in ends:
            ours.close()
    return found


def _received(end: Any) -> Any:
    try:
        return end.recv()
    except EOFError:
        return UserError("A process that read images was killed, perhaps for want of memory. Start again.")


def _copy(work: Work, count: int, first: int, step: int, end: Any, parent: int) -> None:
    """Every step-th chunk; None at the end."""
    as_child(parent)
    warnings.simplefilter("ignore")
    try:
        for chunk in _chunks(count)[first::step]:
            end.send(work(chunk))
        end.send(None)
    except Exception as error:
        end.send(error)


def _chunks(count: int) -> list[range]:
    return [range(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
