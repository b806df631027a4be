"""Work on many images at once, with all cores: in threads, or in forked processes."""

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
"""images that a worker gets at once"""
PROGRESS_SECONDS = 10.0

Messages = Mapping[int, str]
"""a message about some of the images, by index"""
Work = Callable[[range], Messages]
"""does something for each index of a range"""


def map_in_threads(work: Work, count: int, title: str, threads: int) -> dict[int, str]:
    """Do `work` for 0 .. count-1 in threads, and return all messages; the first exception ends it.

    For work that spends its time outside of Python.
    """
    messages: dict[int, str] = {}
    progress = Progress(title, count)
    # Pillow warns of odd metadata, which does not make an image unreadable.
    with warnings.catch_warnings(action="ignore"), ThreadPoolExecutor(threads) as pool:
        waiting = {pool.submit(work, chunk) for chunk in _chunks(count)}
        try:
            while waiting:
                done, waiting = wait(waiting, PROGRESS_SECONDS, FIRST_EXCEPTION)
                for future in done:
                    messages |= future.result()
                progress.chunks_done += len(done)
                if waiting:
                    progress.report()
        finally:
            pool.shutdown(cancel_futures=True)
    return messages


def can_fork() -> bool:
    """Return whether this process may fork; on other systems that is unsafe or impossible."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def map_in_processes(work: Work, count: int, title: str, processes: int) -> dict[int, str]:
    """Do `work` for 0 .. count-1 in forked processes, and return all messages; the first exception ends it.

    The processes share no memory with this one but what was mapped to be shared.
    """
    messages: dict[int, str] = {}
    context, progress = multiprocessing.get_context("fork"), Progress(title, count)
    workers, receivers = [], []
    try:
        for first in range(processes):
            receiver, sender = context.Pipe(duplex=False)
            chunks = _chunks(count)[first::processes]
            workers.append(context.Process(target=_run_worker, args=(work, chunks, sender, os.getpid()), daemon=True))
            workers[-1].start()
            sender.close()  # the worker has the only other end, so its death is seen here
            receivers.append(receiver)
        waiting: list[Any] = [*receivers]
        while waiting:
            for ready in connection.wait(waiting, PROGRESS_SECONDS):
                answer = _receive(ready)
                if isinstance(answer, Exception):
                    raise answer
                if answer is None:
                    waiting.remove(ready)
                else:
                    messages |= answer
                    progress.chunks_done += 1
            if waiting:
                progress.report()
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
        for receiver in receivers:
            receiver.close()
    return messages


def _receive(receiver: Any) -> Any:
    """Return the messages of a chunk, None from a worker that is done, or the error that ended a worker."""
    try:
        return receiver.recv()
    except EOFError:
        return UserError("A process that read images was killed, perhaps because memory was short. Start again.")


def _run_worker(work: Work, chunks: list[range], sender: Any, parent: int) -> None:
    as_child(parent)
    warnings.simplefilter("ignore")
    try:
        for chunk in chunks:
            sender.send(work(chunk))
        sender.send(None)
    except Exception as error:
        sender.send(error)


def _chunks(count: int) -> list[range]:
    return [range(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]


class Progress:
    """A line every ten seconds on how many images are done."""

    def __init__(self, title: str, count: int) -> None:
        self.title, self.count, self.chunks_done = title, count, 0
        self.started = self.reported = time.monotonic()

    def report(self) -> None:
        """Print the line, unless one was printed a moment ago."""
        now = time.monotonic()
        if now - self.reported >= PROGRESS_SECONDS:
            self.reported = now
            done = min(self.chunks_done * CHUNK, self.count)
            print_notice(f"{self.title}: {done} of {self.count}, {now - self.started:.0f} s")


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
