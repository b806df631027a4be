"""A run of a comparison, and the files in its folder about a divergence or a failure."""

from collections.abc import Callable, Container
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle

from spacedkd.config.objects import Objects
from spacedkd.config.spec import RunSpec
from spacedkd.runs.folder import RunFolder
from spacedkd.runtime.documents import read_json, read_small_json
from spacedkd.runtime.errors import Diverged, Moved, RunFailed, UserError
from spacedkd.runtime.files import write_json


class Job(NamedTuple):
    """One run of a comparison."""

    label: str
    seed: int
    spec: RunSpec
    folder: Path
    first_update: int = 0
    """first teacher update that the job replays, when another run records the teacher at the same time"""
    objects: Objects | None = None
    """objects that the run was given in place of names in its spec"""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Let objects go to another process, also those that a notebook defines, with the digests they have here."""
        if self.objects is None:
            return Job, tuple(self)
        _ = self.objects.described  # a class that was typed into a notebook has no source elsewhere
        return _unpickle, (cloudpickle.dumps(tuple(self)),)

    @property
    def name(self) -> str:
        """The arm and seed of the job, for messages."""
        return f"{self.label}, seed {self.seed}"

    @property
    def begun(self) -> bool:
        """Whether the run's folder has a spec."""
        return RunFolder(self.folder).spec.exists()

    @property
    def finished(self) -> bool:
        """Whether the run's folder has a result."""
        return RunFolder(self.folder).finished()

    @property
    def has_snapshots(self) -> bool:
        """Whether the recorded snapshots exist, or will exist because the run has no checkpoint yet."""
        return (self.folder / "path").exists() or not RunFolder(self.folder).checkpoint.exists()

    def reads_from(self, runs: Container[str]) -> bool:
        """Return whether one of these runs, by their paths, records the teacher or caches the targets of this one."""
        return self.spec.teacher_path in runs or self.spec.targets_path in runs

    def diverged(self) -> Diverged | None:
        """Return the run's divergence in this comparison or an earlier one: the same run would diverge again."""
        error = read_divergence(self.folder)
        return error and self.with_name(error)

    def with_name(self, error: Diverged) -> Diverged:
        """Return a divergence whose message begins with the job's name."""
        return Diverged(f"{self.name}: {error}", error.role, error.step)


def _unpickle(job: bytes) -> Job:
    return Job(*cloudpickle.loads(job))


def read_divergence(run: Path) -> Diverged | None:
    """Return the divergence of a run; None if it did not diverge, or has finished since."""
    try:
        failure = read_json(run / "diverged.json", within=run)
        return None if RunFolder(run).finished() else Diverged(failure["said"], failure["role"], failure["step"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def record_divergence(job: Job, error: Diverged) -> None:
    """Write diverged.json into the folder of a run, so that the next comparison does not train it again."""
    if not job.begun:  # the teacher it replays diverged before the run began
        RunFolder(job.folder).create(job.spec)
    failure = {"role": error.role, "step": error.step, "said": str(error)}
    write_json(job.folder / "diverged.json", failure, job.folder)


def read_failure(run: Path) -> str | None:
    """Return the error that ended a run, in one line; None if it has finished, diverged or not failed."""
    line = read_small_json(RunFolder(run).failed, within=run).get("said")
    is_failed = isinstance(line, str) and not RunFolder(run).finished() and read_divergence(run) is None
    return line if is_failed else None


def record_failure(job: Job, error: UserError) -> None:
    """Write failed.json into the folder of a run: its error, with the traceback of an unexpected exception.

    The same command tries the run again. Nothing is written if that fails, on a full disk for instance, or if the
    folder was moved: no new folder is made in its place.
    """
    if isinstance(error, Moved):
        return
    trace = {"traceback": [*error.trace]} if isinstance(error, RunFailed) and error.trace else {}
    with suppress(UserError, OSError):
        if not job.begun:
            RunFolder(job.folder).create(job.spec)
        write_json(RunFolder(job.folder).failed, {"said": str(error), **trace}, job.folder)


LostRuns = dict[Path, tuple[Job, UserError]]
"""folder -> run that cannot be finished now, and the error with which it diverged or failed"""
