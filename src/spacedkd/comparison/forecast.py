"""The forecast of a comparison: one of every run, measured once for each arm, before anything is trained."""

import heapq
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from spacedkd.comparison import scheduler
from spacedkd.comparison.job import Job
from spacedkd.config.spec import RunSpec
from spacedkd.data.sources import Library
from spacedkd.runs.folder import RunFolder
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.signals import child_context
from spacedkd.runtime.user_code import Inherited
from spacedkd.training.forecast import Forecast, forecasts


@dataclass(frozen=True)
class ComparisonForecast:
    """The forecasts of all runs of a comparison."""

    arms: Mapping[str, Sequence[Forecast]]
    """label -> the forecasts of its seeds"""
    at_once: int
    """runs that are trained at the same time"""

    @property
    def runs(self) -> list[Forecast]:
        """All forecasts in the order in which the runs start: seed by seed."""
        return [run for seed in zip(*self.arms.values(), strict=True) for run in seed]

    @property
    def seconds_left(self) -> float:
        """The time until the last run has ended, where a free worker takes the next run."""
        free = [0.0] * self.at_once
        for run in self.runs:
            heapq.heapreplace(free, free[0] + run.seconds_left)
        return max(free)

    @property
    def memory(self) -> int:
        """The memory of all processes at once, if those that need most meet."""
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
    """Return the cost of `compare` with the same arguments, and of what is left of it. Nothing is trained or written.

    Every arm is measured in a process of its own, as many at a time as runs would be trained, because they slow each
    other down.
    """
    if not arms or (not seeds if isinstance(seeds, int) else not len(seeds)):
        raise UserError("A comparison needs at least one arm and one seed.")
    first = next(iter(arms.values()))
    numbers = range(first.seed, first.seed + seeds) if isinstance(seeds, int) else seeds
    at_once = scheduler.jobs_at_once(jobs, first.engine.accelerator)
    library = Library()
    planned = scheduler.plan_jobs(arms, numbers, Path(out), at_once, library)
    return forecast_jobs(scheduler.share_arms_teachers(planned, library)[0] if sharing else planned, at_once)


def forecast_jobs(planned: Sequence[Job], at_once: int) -> ComparisonForecast:
    """Return the cost of these runs, trained so many at once; every arm must have the same seeds."""
    arms = dict.fromkeys(job.label for job in planned)
    gpus: list[str] | list[None] = scheduler.visible_gpus(planned[0].spec.engine.accelerator) or [None]
    with ProcessPoolExecutor(min(at_once, len(arms)), child_context(hears_signals=True), max_tasks_per_child=1) as pool:
        futures = {
            label: pool.submit(
                _forecasts, Inherited(), [job for job in planned if job.label == label], gpus[number % len(gpus)]
            )
            for number, label in enumerate(arms)
        }
        try:
            forecasts_of_arms = {label: future.result() for label, future in futures.items()}
        except BrokenProcessPool:
            raise UserError("A measurement was killed from outside (out of memory?). Try --jobs 1.") from None
    return ComparisonForecast(forecasts_of_arms, at_once)


def _forecasts(_: Inherited, jobs: Sequence[Job], gpu: str | None) -> list[Forecast]:
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    return forecasts([(job.spec, RunFolder(job.folder)) for job in jobs])
