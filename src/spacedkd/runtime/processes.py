"""Processes and their machine: ranks of a distributed run, memory and cores, and work on all cores at once."""

import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from multiprocessing import connection
from pathlib import Path
from typing import Any

from spacedkd.runtime.errors import UserError, printable
from spacedkd.runtime.signals import STARTED_BY, as_child

# Processes of a distributed run: torchrun, SLURM or the first process has set their ranks


def rank() -> int:
    """Return the number of this process among those of a run, on all machines; rank 0 writes and prints."""
    if "RANK" in os.environ:  # torchrun's
        return int(os.environ["RANK"])
    if _by_srun():
        return int(os.environ["SLURM_PROCID"])
    return int(os.environ.get("LOCAL_RANK", "0")) + 1000 * int(os.environ.get("NODE_RANK", "0"))


def check_processes(devices: int, nodes: int) -> None:
    """Refuse to train with another number of processes than torchrun or srun has started."""
    wanted = devices * nodes
    if "TORCHELASTIC_RUN_ID" in os.environ:
        starter, started = "torchrun", int(os.environ["WORLD_SIZE"])
    elif _by_srun():
        starter, started = "srun", int(os.environ["SLURM_NTASKS"])
    elif _in_slurm() and int(os.environ["SLURM_NTASKS"]) > 1:
        raise UserError("This SLURM job has several tasks, but srun did not start them: write srun before the command.")
    else:
        if nodes > 1 and not {"NODE_RANK", "MASTER_ADDR"} <= os.environ.keys():
            raise UserError(
                f"--nodes {nodes} needs this command on each machine, started by torchrun or srun: see docs/scale.md. "
                "On this machine alone leave out --nodes."
            )
        return
    if started != wanted:
        raise UserError(
            f"{starter} has started {started} process{'es' * (started > 1)}, and the run is for {wanted} (--devices "
            f"{devices} on --nodes {nodes}): make them equal. Runs apart from each other are started one by one."
        )
    if starter == "srun":
        for expected, flag, variable in (
            (devices, "devices", "SLURM_NTASKS_PER_NODE"),
            (nodes, "nodes", "SLURM_NNODES"),
        ):
            actual = os.environ.get(variable, str(expected))
            if actual != str(expected):
                raise UserError(
                    f"SLURM gives this job {variable}={actual}, and the run has --{flag} {expected}: make them equal."
                )
        if started > 1 and "SLURM_NTASKS_PER_NODE" not in os.environ:
            raise UserError(f"Ask SLURM for tasks with --ntasks-per-node={devices}, not with --ntasks.")


def speaks() -> bool:
    """Return whether this is the first of a run's processes on its machine."""
    return os.environ.get("SLURM_LOCALID" if _by_srun() else "LOCAL_RANK", "0") == "0"


def launch_name() -> str:
    """Return a text that the processes of one run on this machine have in common, and those of other runs have not."""
    if _by_srun():
        variables = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "SLURM_NODEID")
        return " ".join(["srun", *(os.environ.get(name, "") for name in variables)])
    if "TORCHELASTIC_RUN_ID" in os.environ:
        variables = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
        return " ".join(["torchrun", str(os.getppid()), *(os.environ.get(name, "") for name in variables)])
    return f"process {_starter()}"


def starts_others() -> bool:
    """Return whether this process starts the others of its run, once it has read the data."""
    by_launcher = _by_srun() or "TORCHELASTIC_RUN_ID" in os.environ
    return not by_launcher and _starter() == os.getpid()


_starters: dict[int, int] = {}
"""process -> the process that started its run: the variable is gone once all have met"""


def _starter() -> int:
    own = os.getpid()
    is_first = os.environ.get("LOCAL_RANK", "0") == "0"
    return _starters.setdefault(own, own if is_first else int(os.environ.get(STARTED_BY, own)))


def _in_slurm() -> bool:
    # In an interactive job commands are typed by hand, and Fabric starts the processes, as outside of SLURM.
    return "SLURM_NTASKS" in os.environ and os.environ.get("SLURM_JOB_NAME") not in ("bash", "interactive")


def _by_srun() -> bool:
    """Return whether srun started this process; a batch script has the same variables, except for the step."""
    return _in_slurm() and "SLURM_STEP_ID" in os.environ


def print_notice(line: str) -> None:
    """Print a line to stderr; only the first process of a run prints it, and none of its worker processes."""
    if rank() == 0 and multiprocessing.parent_process() is None:
        with suppress(OSError):  # the terminal was closed: the run continues without it
            print(printable(line), file=sys.stderr, flush=True)


# Memory and cores of this machine

BYTES_PER_PIXEL = 2048
"""fewest bytes of a forward pass for one pixel: four maps of 64 channels of four bytes, for each of two images"""


def numbers_of(file: str, *names: str) -> list[int]:
    """Return in bytes the numbers that a file of Linux has as `NAME:  12345 kB`; none on other systems."""
    try:
        lines = [line.split() for line in Path(file).read_text().splitlines()]
    except OSError:
        return []
    return [1024 * int(words[1]) for words in lines if words and words[0].removesuffix(":") in names]


def free_memory() -> int:
    """Return the free memory in bytes; 0 where the system does not tell."""
    return sum(numbers_of("/proc/meminfo", "MemAvailable"))


def total_memory() -> int:
    """Return the memory of this machine in bytes; 0 where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores_per_process(processes: int) -> int:
    """Return how many cores each of a run's processes on this machine may use; SLURM gives each of its tasks some."""
    if _by_srun() and os.environ.get("SLURM_CPUS_PER_TASK", "").isdigit():
        return int(os.environ["SLURM_CPUS_PER_TASK"])
    return max(1, available_cores() // processes)


def check_count(name: str, count: int | None, always_allowed: int) -> None:
    """Refuse far more threads or processes than this machine has cores; up to `always_allowed` pass anywhere."""
    most = max(always_allowed, 4 * (os.cpu_count() or 1))
    if count is not None and not 0 <= count <= most:
        raise UserError(
            f"{name} must be at most {most} on this machine, which has {os.cpu_count()} cores; got {count}."
        )


def check_threads(count: int | None) -> None:
    """Refuse far more threads than this machine has cores."""
    check_count("threads", count, always_allowed=256)


def check_pixels(what: str, height: int, width: int) -> None:
    """Refuse images so large that a forward pass of two of them does not fit into this machine's memory."""
    needed, free = BYTES_PER_PIXEL * height * width, free_memory()
    if free and needed > free:
        raise UserError(
            f"{what} {height}x{width} is too large: a forward pass of two such images takes about "
            f"{needed / 1e9:.3g} GB, and {free / 1e9:.3g} GB of memory are free. Choose a smaller one."
        )


# Work on all cores

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
        """Print the line, unless the last one was printed less than ten seconds ago."""
        now = time.monotonic()
        if now - self.reported >= PROGRESS_SECONDS:
            self.reported = now
            done = min(self.chunks_done * CHUNK, self.count)
            print_notice(f"{self.title}: {done} of {self.count}, {now - self.started:.0f} s")
