"""A pool of tasks of a Ray cluster; the folders of runs, on storage that all nodes share, are the only state.

A run whose node is lost is resumed elsewhere from its checkpoint. Nothing is queued within Ray that could not begin at
once, so that a teacher comes before the students that replay it, as on one machine.
"""

import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray._private.services import canonicalize_bootstrap_address  # ray.init may wait for a dead cluster for ever
from ray.exceptions import NodeDiedError, RayError, RayTaskError
from ray.util.queue import Queue
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from spacedkd.comparison.job import Job
from spacedkd.comparison.pool import REPORT_SECONDS, as_failure, train_job
from spacedkd.runtime.errors import RunFailed, UserError
from spacedkd.runtime.locks import LockHeld, hold
from spacedkd.runtime.signals import Signals
from spacedkd.runtime.user_code import Inherited
from spacedkd.training.loop import Event

ANSWER_SECONDS = 5.0
"""seconds a cluster has to answer; Ray itself would try for minutes"""
LOCK_SECONDS = 120.0
"""seconds until the lock of a process on a lost machine is released, also by a file server that has to notice"""
PATIENCE_SECONDS = 30.0
"""seconds a run waits for a recorder that no process trains"""
SAVED_SECONDS = 60.0
"""seconds a task has to end its turn and save when it is asked to stop"""
MOST_KILLS = 3
"""number of failures of one run, on nodes that stay alive, after which it has failed"""


@contextmanager
def ray_pool(address: str, jobs: Sequence[Job], at_most: int | None) -> Iterator["RayPool"]:
    """Open the cluster at an address, `auto` for the one of this machine; after an error its tasks save and end."""
    with _connected(address):
        pool = RayPool(jobs, at_most)
        if not pool.capacity():
            raise UserError(
                f"No node of the Ray cluster has the {pool.most_needed} {pool.kind}s that a run needs. Give --threads "
                "fewer, or add nodes with: ray start --address HEAD:6379"
            )
        try:
            yield pool
        except Exception:
            pool.stop()
            raise
        finally:
            pool.end()


@contextmanager
def _connected(address: str) -> Iterator[None]:
    """Connect to a cluster; refuse one that does not answer within a few seconds."""
    if ray.is_initialized():  # by the caller, who shuts it down as well
        yield
        return
    where = address
    try:
        if address == "auto":
            where = canonicalize_bootstrap_address(address) or address
        host, _, port = where.removeprefix("ray://").rpartition(":")
        if host and port.isdigit():
            socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
        ray.init(address=where, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises many kinds
        why = (str(error).splitlines() or [repr(error)])[0].rstrip(".")
        raise UserError(
            f"--ray: no Ray cluster can be reached at {where!r} ({why}). Start one with: ray start --head"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


class RayPool:
    """The tasks of a comparison in a Ray cluster."""

    def __init__(self, jobs: Sequence[Job], at_most: int | None) -> None:
        may_be_gpu = jobs[0].spec.engine.accelerator in ("auto", "cuda", "gpu")
        self.kind = "GPU" if may_be_gpu and any("GPU" in node["Resources"] for node in _alive()) else "CPU"
        self.most_needed = max(map(self._required, jobs))
        self._at_most = len(jobs) if at_most is None else at_most
        self._train = ray.remote(max_retries=0)(_train)  # a lost run has to come before those that replay it
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._queue = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})
        self._numbers: dict[Any, int] = {}
        self._kills: Counter[int] = Counter()

    def _required(self, job: Job) -> int:
        """Return the CPUs, or GPUs, that a run takes of a node; the two processes of a pipeline take twice as many."""
        engine = job.spec.engine
        return (1 if self.kind == "GPU" else engine.threads or 1) * (1 + engine.pipeline)

    def capacity(self) -> int:
        """Return the room on nodes that are alive; some may have joined, or been lost."""
        room = sum(int(node["Resources"].get(self.kind, 0) // self.most_needed) for node in _alive())
        return min(room, self._at_most)

    def submit(self, number: int, job: Job) -> Any:
        """Begin a run as a task."""
        job.folder.parent.mkdir(parents=True, exist_ok=True)
        needs = {"CPU": 0, "GPU": 0, self.kind: self._required(job)}
        task = self._train.options(num_cpus=needs["CPU"], num_gpus=needs["GPU"])
        handle = task.remote(number, (Inherited(), job), str(Path.cwd()), self._queue.actor, PATIENCE_SECONDS)
        self._numbers[handle] = number
        return handle

    def wait(self, running: Collection[Any]) -> Iterable[Any]:
        """Return the tasks that have ended."""
        if not running:  # all nodes are lost; others may come
            time.sleep(REPORT_SECONDS)
            return []
        ended, _ = ray.wait([*running], timeout=REPORT_SECONDS)
        return ended

    def finished(self, ended: Any) -> bool:
        """Return whether a run is finished; one whose node died is not. Raise its error."""
        number = self._numbers.pop(ended)
        try:
            outcome = ray.get(ended)
        except RayTaskError as error:  # before or after the run itself, which returns its error
            raise as_failure(error) from None
        except NodeDiedError:
            return False
        except RayError:
            self._kills[number] += 1
            if self._kills[number] == MOST_KILLS:
                raise RunFailed(
                    f"It was killed from outside {MOST_KILLS} times (out of memory?). The same command resumes it."
                ) from None
            return False
        if isinstance(outcome, UserError):
            raise outcome
        return bool(outcome)

    def events(self) -> Iterator[tuple[int, Event]]:
        """Yield the events of runs since the last call."""
        for number, values in self._queue.get_nowait_batch(self._queue.qsize()):
            yield number, Event(*values)

    def release(self, number: int) -> None:
        """Do nothing: a task ends by itself after `PATIENCE_SECONDS`."""

    def stop(self) -> None:
        """Let every run end its turn and save."""
        for handle in self._numbers:
            ray.cancel(handle)  # to the task this is an interrupt
        self._active(SAVED_SECONDS)

    def end(self) -> None:
        """Kill the tasks that are still there."""
        for handle in self._active(0):
            ray.cancel(handle, force=True)

    def _active(self, seconds: float) -> list[Any]:
        """Return the tasks that have not ended after `seconds`.

        Only these may be killed: `ray.cancel(force=True)` on a task that has ended would end this process.
        """
        handles = [*self._numbers]
        return ray.wait(handles, num_returns=len(handles), timeout=seconds)[1] if handles else []


def _alive() -> list[Mapping[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _train(number: int, inherited: tuple[Inherited, Job], cwd: str, queue: Any, patience: float) -> bool | UserError:
    """Train a run as a task; return whether it is finished, or its error."""
    job = inherited[1]
    with suppress(OSError):
        os.chdir(cwd)  # paths of data and runs may start there
    if not job.folder.parent.is_dir():
        return RunFailed(
            f"{socket.gethostname()} finds no folder {job.folder.parent}. All nodes must share the storage of runs "
            "and data: give --out a folder there."
        )
    if job.begun:
        with suppress(LockHeld), hold(job.folder / ".lock", LOCK_SECONDS):
            pass  # its process, on a lost node, is about to end
    sent = None

    def send(event: Event) -> None:
        nonlocal sent
        sent = queue.put_nowait.remote((number, tuple(event)))  # not waited for: a task that waits lends out its CPUs

    try:
        with Signals() as stop:  # Ray stops a task by an interrupt
            finished = train_job(job, send, stop, patience)
    except Exception as error:  # of the run, or of user code in it
        return as_failure(error)
    if sent is not None:
        ray.wait([sent], timeout=ANSWER_SECONDS)  # so that the last event comes before the end
    return finished
