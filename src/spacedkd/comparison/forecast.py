"""What a comparison will take, before anything is trained: a forecast of every run, measured once for each arm."""

import heapq
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from spacedkd.comparison import scheduler
from spacedkd.comparison.teacher_sharing import Job
from spacedkd.config.spec import RunSpec
from spacedkd.data.sources import Library
from spacedkd.runs.folder import RunFolder
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.signals import child_context
from spacedkd.runtime.user_code import Inherited
from spacedkd.training.forecast import Forecast, forecasts


@dataclass(frozen=True)
class ComparisonForecast:
    """Every run of a comparison."""

    arms: Mapping[str, Sequence[Forecast]]
    """label -> the runs of its seeds"""
    at_once: int
    """runs that go on at the same time"""

    @property
    def runs(self) -> list[Forecast]:
        """In the order in which they are begun: seed by seed."""
        return [run for seed in zip(*self.arms.values(), strict=True) for run in seed]

    @property
    def seconds_left(self) -> float:
        """Until the last run has ended; whoever is free takes the next."""
        free = [0.0] * self.at_once
        for run in self.runs:
            heapq.heapreplace(free, free[0] + run.seconds_left)
        return max(free)

    @property
    def memory(self) -> int:
        """Of the processes that go on at once, if they are those that need most."""
        return sum(sorted((run.memory.process for run in self.runs), reverse=True)[: self.at_once])

    @property
    def disk(self) -> int:
        return sum(run.disk.needed for run in self.runs)


def forecast_comparison(
    arms: Mapping[str, RunSpec],
    out: Path | str,
    *,
    seeds: int | Sequence[int] = 3,
    jobs: int | None = None,
    sharing: bool = True,
) -> ComparisonForecast:
    """What `compare` with the same arguments will take, and what of it is left. Nothing is trained or written.

    Every arm is measured in a process of its own, as many at a time as runs would go on, because they slow each other
    down.
    """
    if not arms or (not seeds if isinstance(seeds, int) else not len(seeds)):
        raise UserError("A comparison needs at least one arm and one seed.")
    first = next(iter(arms.values()))
    numbers = range(first.seed, first.seed + seeds) if isinstance(seeds, int) else seeds
    at_once = scheduler.jobs_at_once(jobs, first.engine.accelerator)
    library = Library()
    planned = scheduler.plan(arms, numbers, Path(out), at_once, library)
    return forecast_jobs(scheduler.shared(planned, library)[0] if sharing else planned, at_once)


def forecast_jobs(planned: Sequence[Job], at_once: int) -> ComparisonForecast:
    """What these runs will take, so many at once; every arm has the same seeds."""
    arms = dict.fromkeys(job.label for job in planned)
    gpus: list[str] | list[None] = scheduler.gpus(planned[0].spec.engine.accelerator) or [None]
    with ProcessPoolExecutor(min(at_once, len(arms)), child_context(hears_signals=True), max_tasks_per_child=1) as pool:
        futures = {
            label: pool.submit(
                _forecasts, Inherited(), [job for job in planned if job.label == label], gpus[place % len(gpus)]
            )
            for place, label in enumerate(arms)
        }
        try:
            found = {label: future.result() for label, future in futures.items()}
        except BrokenProcessPool:
            raise UserError("A measurement was killed from outside (out of memory?). Try --jobs 1.") from None
    return ComparisonForecast(found, at_once)


def _forecasts(_: Inherited, jobs: Sequence[Job], gpu: str | None) -> list[Forecast]:
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    return forecasts([(job.spec, RunFolder(job.folder)) for job in jobs])
