"""A run of a comparison, and the files in its folder that say how it diverged or failed."""

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

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
    first: int = 0
    """the first teacher update that it replays, when another run records the teacher at the same time"""

    @property
    def name(self) -> str:
        """Its arm and seed, for messages."""
        return f"{self.label}, seed {self.seed}"

    @property
    def begun(self) -> bool:
        """Whether its folder holds a spec."""
        return RunFolder(self.folder).spec.exists()

    @property
    def finished(self) -> bool:
        """Whether its folder holds a result."""
        return RunFolder(self.folder).finished()

    @property
    def has_snapshots(self) -> bool:
        """Whether the snapshots it records are there, or will be because it has no checkpoint yet."""
        return (self.folder / "path").exists() or not RunFolder(self.folder).checkpoint.exists()

    def diverged(self) -> Diverged | None:
        """Return how it diverged, in this comparison or one before; the same run would diverge again."""
        error = read_divergence(self.folder)
        return error and self.with_name(error)

    def with_name(self, error: Diverged) -> Diverged:
        """Return a divergence whose message begins with the job's name."""
        return Diverged(f"{self.name}: {error}", error.role, error.step)


def read_divergence(run: Path) -> Diverged | None:
    """Return how a run diverged; None where it did not, or has finished since."""
    try:
        failure = read_json(run / "diverged.json", within=run)
        return None if RunFolder(run).finished() else Diverged(failure["said"], failure["role"], failure["step"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def record_divergence(job: Job, error: Diverged) -> None:
    """Write diverged.json into the folder of a run, so that the next comparison does not train it again."""
    if not job.begun:  # the teacher it was to replay has diverged first
        RunFolder(job.folder).create(job.spec)
    failure = {"role": error.role, "step": error.step, "said": str(error)}
    write_json(job.folder / "diverged.json", failure, job.folder)


def read_failure(run: Path) -> str | None:
    """Return the error that ended a run, in one line; None where it has finished, diverged or not failed."""
    line = read_small_json(RunFolder(run).failed, within=run).get("said")
    is_failed = isinstance(line, str) and not RunFolder(run).finished() and read_divergence(run) is None
    return line if is_failed else None


def record_failure(job: Job, error: UserError) -> None:
    """Write failed.json into the folder of a run: its error, with the traceback of an unexpected exception.

    The run is tried again by the same command. Where the disk is full, say, nothing is written, nor where its folder
    was moved: no other one is made in its place.
    """
    if isinstance(error, Moved):
        return
    trace = {"traceback": [*error.trace]} if isinstance(error, RunFailed) and error.trace else {}
    with suppress(UserError, OSError):
        if not job.begun:
            RunFolder(job.folder).create(job.spec)
        write_json(RunFolder(job.folder).failed, {"said": str(error), **trace}, job.folder)


LostRuns = dict[Path, tuple[Job, UserError]]
"""runs that cannot be finished now, by folder, and why: they have diverged or failed"""
