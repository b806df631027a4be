"""`compare`, the public function: train every arm over seeds, and compare their results.

`forecast_comparison` says beforehand what that takes.
"""

import heapq
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from spacedkd.comparison.document import Comparison, write_comparison
from spacedkd.comparison.job import Job
from spacedkd.comparison.pool import JobCallback
from spacedkd.comparison.results import compare_runs
from spacedkd.comparison.scheduler import jobs_at_once, plan_jobs, run_jobs, share_arms_teachers, visible_gpus
from spacedkd.config.spec import RunSpec, check_folder, check_spec
from spacedkd.data.sources import Library
from spacedkd.runs.folder import RunFolder
from spacedkd.runtime.errors import UserError, unknown
from spacedkd.runtime.signals import Stop, child_context, never_stop
from spacedkd.runtime.user_code import Inherited
from spacedkd.training.forecast import Forecast, forecasts


def compare(
    arms: Mapping[str, RunSpec],
    out: Path | str,
    *,
    seeds: int | Sequence[int] = 3,
    against: str | None = None,
    jobs: int | None = None,
    sharing: bool = True,
    ray: str | None = None,
    callback: JobCallback = lambda job, event: None,
    stop: Stop = never_stop,
) -> Comparison:
    """Train every arm over seeds, several runs at once, and compare them; also written to `out`/comparison.json.

    Runs that are finished already are used as they are; runs that were stopped are resumed. Arms with equal teachers
    share one, to the same bits, unless `sharing` is False. With the address of a `ray` cluster, or "auto" for the one
    this machine belongs to, runs are trained there, as many at once as there is room for.

    A run that diverges is left out, and listed under `diverged`; it is not trained again unless its folder is deleted.
    A run that fails by an exception, or whose process dies, is listed under `failed`; the others continue, and the same
    call tries it again. Only where no run finishes is the first of these errors raised.
    `stop` is called a few times a second; when it returns True, every run saves after its turn, and `Stopped` is
    raised. As in `train`, no signal is handled here.

    `Comparison` has tables and pictures; `spacedkd.report(comparison)` makes a page of it.
    """
    check_folder("out", out)
    out = Path(out)
    if not isinstance(arms, Mapping):
        raise UserError(f"arms must be specs by name, {{'online': RunSpec(), ...}}; got {arms!r}.")
    for spec in arms.values():
        check_spec(spec)
    numbers = _seed_numbers(arms, seeds)
    if against is not None and against not in arms:
        raise unknown("arm", against, arms)
    library = Library()
    planned = plan_jobs(arms, numbers, out, _at_once(arms, jobs), library)
    lost = run_jobs(planned, jobs, callback, library=library, sharing=sharing, ray=ray, stop=stop)
    ordered = [job for label in arms for job in planned if job.label == label]
    finished = [job for job in ordered if job.folder not in lost]
    if not finished:
        raise next(iter(lost.values()))
    if against not in {job.label for job in finished}:
        against = None  # it has diverged or failed, as the comparison says
    unfinished = [job for job in ordered if job.folder in lost]
    comparison = compare_runs([job.folder for job in finished], against, [job.folder for job in unfinished])
    listed = {run["folder"] for run in (*comparison["diverged"], *comparison["failed"])}
    for job in unfinished:
        if str(job.folder) not in listed:  # nothing could be written into its folder
            line = str(lost[job.folder]).removeprefix(f"{job.name}: ")
            comparison["failed"].append({"label": job.label, "seed": job.seed, "folder": str(job.folder), "said": line})
    write_comparison(out / "comparison.json", comparison)
    return Comparison(out, comparison)


def _seed_numbers(arms: Mapping[str, RunSpec], seeds: int | Sequence[int]) -> Sequence[int]:
    """Return the seeds, which are counted up from the first arm's where only their number is given; refuse none."""
    if not arms or (not seeds if isinstance(seeds, int) else not len(seeds)):
        raise UserError("A comparison needs at least one arm and one seed.")
    first = next(iter(arms.values())).seed
    return range(first, first + seeds) if isinstance(seeds, int) else seeds


def _at_once(arms: Mapping[str, RunSpec], jobs: int | None) -> int:
    """Return how many runs are trained at once on the accelerator of the first arm."""
    return jobs_at_once(jobs, next(iter(arms.values())).engine.accelerator)


# Forecast.


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
        """The bytes that all runs write."""
        return sum(run.disk.needed for run in self.runs)


def forecast_comparison(
    arms: Mapping[str, RunSpec],
    out: Path | str,
    *,
    seeds: int | Sequence[int] = 3,
    jobs: int | None = None,
    sharing: bool = True,
) -> ComparisonForecast:
    """Return the cost of `compare` with the same arguments, and of its remaining runs. Nothing is trained or written.

    Every arm is measured in a process of its own, as many at a time as runs would be trained, because they slow each
    other down.
    """
    numbers, library = _seed_numbers(arms, seeds), Library()
    at_once = _at_once(arms, jobs)
    planned = plan_jobs(arms, numbers, Path(out), at_once, library)
    return forecast_jobs(share_arms_teachers(planned, library)[0] if sharing else planned, at_once)


def forecast_jobs(planned: Sequence[Job], at_once: int) -> ComparisonForecast:
    """Return the cost of these runs, with `at_once` trained at a time; every arm must have the same seeds."""
    arms = dict.fromkeys(job.label for job in planned)
    gpus: list[str] | list[None] = visible_gpus(planned[0].spec.engine.accelerator) or [None]
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
