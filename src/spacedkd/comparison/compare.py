"""`compare`, the public function: train every arm over seeds, and compare their results.

`forecast_comparison` says beforehand what that takes.
"""

import heapq
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TypeAlias, TypeVar

import torch
from torch import nn

from spacedkd.comparison.document import Comparison, write_comparison
from spacedkd.comparison.job import Job
from spacedkd.comparison.pool import JobCallback
from spacedkd.comparison.results import check_metrics, compare_runs
from spacedkd.comparison.scheduler import (
    jobs_at_once,
    plan_jobs,
    run_folder,
    run_jobs,
    share_arms_teachers,
    visible_gpus,
)
from spacedkd.config.objects import Objects
from spacedkd.config.spec import DataSpec, MethodSpec, NetworkSpec, RunSpec, check_folder, check_spec
from spacedkd.data.sources import Library
from spacedkd.learning_rate import LearningRate
from spacedkd.methods.base import Method
from spacedkd.runs.folder import RunFolder
from spacedkd.runtime.errors import UserError, unknown
from spacedkd.runtime.files import Folder
from spacedkd.runtime.signals import Stop, child_context, never_stop
from spacedkd.runtime.user_code import Inherited
from spacedkd.training.device import torch_settings_restored
from spacedkd.training.forecast import Forecast, forecasts
from spacedkd.training.train import IfExists, check_if_exists

Kind = TypeVar("Kind")
OfArms: TypeAlias = Kind | Mapping[str, Kind] | None
"""an object for all arms, or one for each arm that is named"""


def compare(
    arms: Mapping[str, RunSpec],
    out: Path | str,
    *,
    seeds: int | Sequence[int] = 3,
    against: str | None = None,
    if_exists: IfExists = "resume",
    jobs: int | None = None,
    sharing: bool = True,
    ray: str | None = None,
    network: OfArms[Callable[..., nn.Module] | NetworkSpec | str] = None,
    teacher: OfArms[Callable[..., nn.Module] | NetworkSpec | str] = None,
    data: OfArms[tuple[Any, Any] | DataSpec | str] = None,
    collate: OfArms[Callable[[list[Any]], Any]] = None,
    optimizer: OfArms[Callable[[Iterable[tuple[str, nn.Parameter]]], torch.optim.Optimizer]] = None,
    lr: OfArms[LearningRate] = None,
    method: OfArms[Method | MethodSpec | str] = None,
    callback: JobCallback = lambda job, event: None,
    progress: bool | None = None,
    stop: Stop = never_stop,
) -> Comparison:
    """Train every arm over seeds, several runs at once, and compare them; also written to `out`/comparison.json.

        compare({"online": RunSpec(), "spaced": RunSpec(schedule="1.5ep")}, "runs/mine", network=Net)

    The objects `network`, `teacher`, `data`, `collate`, `optimizer`, `lr` and `method` are those of `train`, for all
    arms; a dictionary has one for each arm that it names. Runs are trained in processes of their own, so datasets are
    copied to each.

    Where the folder has runs already, "resume" uses finished ones as they are and continues the others, "restart"
    removes them and trains all again, and "error" refuses the folder.

    Arms with equal teachers share one, and students that see it at the same steps share its outputs, to the same bits,
    unless `sharing` is False. With the address of a `ray` cluster, or "auto" for the one this machine belongs to, runs
    are trained there, as many at once as there is room for.

    A run that diverges is left out, and listed under `diverged`; it is not trained again unless its folder is deleted.
    A run that fails by an exception, or whose process dies, is listed under `failed`; the others continue, and the same
    call tries it again. Only where no run finishes is the first of these errors raised.
    `stop` is called a few times a second; when it returns True, every run saves after its turn, and `Stopped` is
    raised. As in `train`, no signal is handled here.

    `Comparison` has tables and pictures; `spacedkd.report(comparison)` makes a page of it.
    """
    check_folder("out", out)
    out = Path(out)
    check_if_exists(if_exists)
    if not isinstance(arms, Mapping):
        raise UserError(f"arms must be specs by name, {{'online': RunSpec(), ...}}; got {arms!r}.")
    for spec in arms.values():
        check_spec(spec)
    if arms:
        check_metrics(arms)
    numbers = _seed_numbers(arms, seeds)
    if against is not None and against not in arms:
        raise unknown("arm", against, arms)
    given = {
        "network": network,
        "teacher": teacher,
        "data": data,
        "collate": collate,
        "optimizer": optimizer,
        "lr": lr,
        "method": method,
    }
    arms, objects = _objects_of_arms(arms, given)
    if if_exists != "resume":
        _make_free([run_folder(out, label, seed) for label in arms for seed in numbers], if_exists)
    library = Library()
    with torch_settings_restored(), _progress_of_runs(progress, len(arms) * len(numbers), callback) as report:
        planned = plan_jobs(arms, numbers, out, _at_once(arms, jobs), library, objects)
        lost = run_jobs(planned, jobs, report, library=library, sharing=sharing, ray=ray, stop=stop)
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


def _objects_of_arms(
    arms: Mapping[str, RunSpec], given: Mapping[str, Any]
) -> tuple[dict[str, RunSpec], dict[str, Objects]]:
    """Return the specs of all arms, with what was given by name in them, and the objects of the arms that have some."""
    for by_arm in given.values():
        for label in by_arm if isinstance(by_arm, Mapping) else ():
            if label not in arms:
                raise unknown("arm", label, arms)
    specs, objects = {}, {}
    for label, spec in arms.items():
        own = {name: value.get(label) if isinstance(value, Mapping) else value for name, value in given.items()}
        specs[label], of_arm = Objects.of_call(spec, **own)
        if of_arm != Objects():
            objects[label] = of_arm
    return specs, objects


def _make_free(folders: Sequence[Path], if_exists: IfExists) -> None:
    """Remove the runs in these folders for a restart, or refuse them; a folder without a run is refused."""
    for folder in map(RunFolder, folders):
        if if_exists == "error" or not folder.spec.exists():
            folder.check_free()
            continue
        with folder.lock():
            pass  # refuses a run that another process trains
        Folder(folder.path.parent).remove_tree(folder.path)


def _progress_of_runs(progress: bool | None, runs: int, callback: JobCallback) -> AbstractContextManager[JobCallback]:
    """Return a context with the callback that shows the progress of runs and calls the user's: `progress_of_run`."""
    shown: AbstractContextManager[JobCallback]
    shown = resolve_name("spacedkd.reporting.progress:show_runs")(progress, runs, callback)
    return shown


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
