"""The runs of a comparison: planned as jobs, and trained several at once on this machine or a cluster."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import torch

from spacedkd.comparison.job import Job, LostRuns, record_failure
from spacedkd.comparison.pool import JobCallback, Pool, RecorderLost, local_pool, train_in_pool
from spacedkd.comparison.teacher_sharing import (
    CacheableTargets,
    ReplayingRuns,
    ShareableTeacher,
    cacheable_targets,
    find_replaying_runs,
    find_target_readers,
    locate_recorder,
    remove_passed_snapshots,
    remove_passed_targets,
    replace_lost_recorders,
    restart_if_orphaned,
    restart_if_targets_gone,
    restart_without_targets,
    restart_without_teacher,
    share_targets,
    share_teachers,
    shareable_teacher,
)
from spacedkd.config.objects import Objects
from spacedkd.config.resolve import resolve, resolve_method, resolve_spec
from spacedkd.config.spec import MethodSpec, RunSpec, check_loggers_installed, read_spec
from spacedkd.data.sources import Library
from spacedkd.runs.folder import RunFolder
from spacedkd.runtime.errors import (
    Diverged,
    Moved,
    RunFailed,
    SnapshotsGone,
    TargetsGone,
    UserError,
    install_command,
)
from spacedkd.runtime.files import Folder, make_durable, resolve_links, write_errors
from spacedkd.runtime.processes import free_memory, numbers_of, print_notice
from spacedkd.runtime.signals import Stop, never_stop
from spacedkd.training.build import build_models, one_thread


def plan_jobs(
    arms: Mapping[str, RunSpec],
    seeds: Sequence[int],
    out: Path,
    at_once: int = 1,
    library: Library | None = None,
    objects: Mapping[str, Objects] = MappingProxyType({}),
) -> list[Job]:
    """Return the jobs of all arms and seeds, seed by seed; a seed has equal data order and first weights in all arms.

    The runs that are trained at once share the cores evenly. A run that exists keeps the threads it began with, because
    their number shows in the bits. `objects` are those of arms that were given some.
    """
    if len({run_folder(out, label, 0) for label in arms}) < len(arms):
        raise UserError(f"Two arms would share a folder: {', '.join(arms)}. Give them names that differ in letters.")
    library = library or Library()
    return [
        make_job(
            replace(spec, seed=seed, label=label), run_folder(out, label, seed), at_once, library, objects.get(label)
        )
        for seed in seeds
        for label, spec in arms.items()
    ]


def make_job(spec: RunSpec, folder: Path, at_once: int, library: Library, objects: Objects | None = None) -> Job:
    """Return the job of a run in its folder, OUT/ARM/SEED; a run that has begun keeps its threads and its teacher."""
    begun = read_spec(folder) if RunFolder(folder).spec.exists() else None
    even_share = max(1, torch.get_num_threads() // at_once)
    threads = (begun and begun.engine.threads) or spec.engine.threads or even_share
    filled = resolve_spec(replace(spec, engine=replace(spec.engine, threads=threads)), objects, library)
    if begun is not None and _is_replaceable(folder, filled):
        begun = None
        filled = replace(filled, engine=replace(filled.engine, threads=spec.engine.threads or even_share))
    if begun is not None:
        path = begun.teacher_path and str(locate_recorder(begun.teacher_path, folder.parents[1]))
        recorded = {name: getattr(begun, name) for name in ("record", "record_average", "record_average_for")}
        targets = begun.targets_path and str(locate_recorder(begun.targets_path, folder.parents[1]))
        filled = replace(filled, **recorded, teacher_path=path, cache_targets=begun.cache_targets, targets_path=targets)
    return Job(spec.label, spec.seed, filled, folder, objects=objects)


def _is_replaceable(folder: Path, spec: RunSpec) -> bool:
    """Return whether a folder holds a run of another spec that failed before it saved anything."""
    return RunFolder(folder).failed_at_once() and read_spec(folder).fingerprint() not in spec.fingerprints()


def run_folder(out: Path, label: str, seed: int) -> Path:
    """Return the folder of one run: letters, numbers and dots of its arm's name; everything else becomes a dash.

    >>> str(run_folder(Path("runs"), "Spaced KD, 1.5ep", 0))
    'runs/spaced-kd-1.5ep/seed0'
    """
    return out / (re.sub(r"[^\w.]+", "-", label.lower()).strip("-.") or "arm") / f"seed{seed}"


def equal_cost_controls(arms: Mapping[str, RunSpec]) -> dict[str, RunSpec]:
    """Return, for every arm that updates its student's network k times a step, the same method unspaced for k x epochs.

    Spaced self KD takes two updates for each batch; its control is plain self KD with twice the epochs.
    """
    controls: dict[str, RunSpec] = {}
    for label, spec in arms.items():
        method, _ = resolve_method(spec)
        updates = [*method.learners.values()].count(method.learners[method.roles[-1]])
        if updates < 2:
            continue
        unspaced = MethodSpec(spec.method.name, {**spec.method.options, "variant": "plain"})
        control = replace(spec, method=unspaced, schedule=None, epochs=spec.epochs * updates)
        if control not in controls.values():
            controls[f"{label}, unspaced, {updates}x epochs"] = control
    for label in controls.keys() & arms.keys():
        raise UserError(f"--equal-cost would add an arm called {label!r}, but there is one. Give yours another name.")
    return controls


def jobs_at_once(jobs: int | None, accelerator: str) -> int:
    """Return how many runs are trained at once: `jobs`, else one for each GPU, else one for each core."""
    if jobs is not None and jobs < 1:
        raise UserError(f"--jobs must be at least 1, got {jobs}.")
    return jobs or len(visible_gpus(accelerator)) or torch.get_num_threads()


def visible_gpus(accelerator: str) -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if accelerator not in ("auto", "cuda", "gpu"):
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return visible.split(",")[:count] if visible else [str(number) for number in range(count)]


def run_jobs(
    jobs: Sequence[Job],
    at_once: int | None,
    callback: JobCallback,
    *,
    library: Library | None = None,
    sharing: bool = True,
    ray: str | None = None,
    stop: Stop = never_stop,
) -> dict[Path, UserError]:
    """Train every job that is not finished, and return the folders of those that diverged or failed, with the errors.

    A run that was stopped is resumed, one that failed is tried again; an error of one does not stop the others. Without
    `at_once`, as many are trained at once as cores, GPUs and memory allow, here or in the cluster `ray`. An arm or a
    folder that is wrong is refused before any run starts.
    """
    replaced = [job for job in jobs if job.begun and _is_replaceable(job.folder, job.spec)]
    for job in jobs:
        if job.begun:
            RunFolder(job.folder).check_links()
        if job in replaced:
            continue
        RunFolder(job.folder).check_holds(job.spec) if job.begun else RunFolder(job.folder).check_free()
    check_loggers_installed({name for job in jobs for name in job.spec.log})
    for job in replaced:
        with RunFolder(job.folder).lock():
            RunFolder(job.folder).discard()
    jobs = [restart_if_orphaned(restart_if_targets_gone(job)) for job in jobs]
    out = jobs[0].folder.parents[1]
    lost: LostRuns = {job.folder: (job, error) for job in jobs if (error := job.diverged()) is not None}
    waiting = [job for job in jobs if not job.finished and job.folder not in lost]
    if waiting:
        useful = [job for job in jobs if job in waiting or (job.finished and (job.folder / "path").exists())]
        with_teachers, memory = share_arms_teachers(useful, library, sharing)
        if ray is None and at_once is None:
            at_once = limit_by_memory(jobs_at_once(None, waiting[0].spec.engine.accelerator), memory)
        waiting = [job for job in with_teachers if not job.finished]
        by_folder = {str(resolve_links(job.folder)): job for job in (*jobs, *with_teachers)}
        _train_until_done(waiting, by_folder, lost, partial(_open_pool, at_once=at_once, ray=ray), callback, stop)
    runs = [resolve_links(job.folder) for job in jobs]
    folders = {*runs, *(RunFolder(run).teacher for run in runs)}
    _remove_passed(*({run: by for run, by in found.items() if run in folders} for found in _find_readers(out, ())))
    return {job.folder: lost[job.folder][1] for job in jobs if job.folder in lost}


def _train_until_done(
    jobs: Sequence[Job],
    by_folder: Mapping[str, Job],
    lost: LostRuns,
    open_pool: Callable[[Sequence[Job]], AbstractContextManager[Pool]],
    callback: JobCallback,
    stop: Stop,
) -> None:
    """Train jobs; add those that diverge or fail to the lost, and train the teacher alone if others replay it.

    If a run's recorded snapshots are gone, its teacher is trained again once. If the folder of the comparison is
    renamed or removed meanwhile, the comparison ends: no new folder is made in its place.
    """
    gone: set[Path] = set()
    trained_again: set[str] = set()
    out = jobs[0].folder.parents[1]
    folder = Folder(out)
    with write_errors(out):
        make_durable(out)

    def stop_or_moved() -> bool:
        try:
            folder.check()
        except Moved as error:
            where = "" if error.path is None else " Resume with the same command and the new name of the folder."
            raise Moved(f"{error}{where}", error.path) from None
        return stop()

    with ExitStack() as stack:
        stack.enter_context(folder.held_open())
        pool: Pool | None = None
        while jobs := replace_lost_recorders(jobs, by_folder, lost, gone):
            pool = pool or stack.enter_context(open_pool(jobs))
            errors = train_in_pool(
                pool, jobs, callback, stop_or_moved, partial(_remove_passed, *_find_readers(out, jobs))
            )
            failed = [(jobs[number], error) for number, error in errors.items()]
            jobs = _jobs_to_repeat(failed, by_folder, lost, gone, trained_again)


def _jobs_to_repeat(
    failed: Sequence[tuple[Job, UserError]],
    by_folder: Mapping[str, Job],
    lost: LostRuns,
    gone: set[Path],
    trained_again: set[str],
) -> list[Job]:
    """Return the jobs to train again after these errors; the others are added to the lost.

    A recorder whose snapshots are gone is added to `gone`, a teacher alone that is trained again to `trained_again`.
    """
    repeated: list[Job] = []
    ended = {str(resolve_links(job.folder)) for job, error in failed if isinstance(error, Diverged | RunFailed)}
    for job, error in failed:
        recorder = job.spec.teacher_path or ""
        if job.spec.targets_path in ended or isinstance(error, TargetsGone):
            job = restart_without_targets(job)
        if isinstance(error, TargetsGone | RecorderLost):
            repeated.append(job)
        elif not isinstance(error, SnapshotsGone) or recorder in trained_again:
            lost[job.folder] = (job, error)
            if isinstance(error, SnapshotsGone):
                record_failure(job, error)
        elif recorder in by_folder:
            gone.add(by_folder[recorder].folder)
            repeated.append(job)
        elif str(Path(recorder).parent) in by_folder:  # a teacher that another command has trained alone
            trained_again.add(recorder)
            Folder(Path(recorder).parent).remove_tree(Path(recorder))
            repeated.append(job)
        else:
            repeated.append(restart_without_teacher(job))
    return repeated


def _find_readers(out: Path, jobs: Sequence[Job]) -> tuple[ReplayingRuns, ReplayingRuns]:
    """Return the runs that record a teacher, and those that cache targets, each with the runs that read from it."""
    return find_replaying_runs(out, jobs), find_target_readers(out, jobs)


def _remove_passed(replaying: ReplayingRuns, readers: ReplayingRuns) -> None:
    """Remove snapshots and targets that no run needs any more."""
    remove_passed_snapshots(replaying)
    remove_passed_targets(readers)


def share_arms_teachers(
    jobs: Sequence[Job], library: Library | None = None, sharing: bool = True
) -> tuple[list[Job], int]:
    """Return the jobs with shared teachers in their specs, and the most bytes that data and models of an arm took.

    Every arm's models are built, so that an arm that cannot be built is refused here.
    """
    teachers, targets, most = dict[str, ShareableTeacher | None](), dict[str, CacheableTargets | None](), 0
    new_ones_last = sorted(jobs, key=lambda job: not job.begun)
    with one_thread():
        for job in {job.label: job for job in new_ones_last}.values():
            run = resolve(job.spec, job.objects, library)
            models = build_models(run)
            teachers[job.label] = shareable_teacher(run, models) if sharing else None
            targets[job.label] = cacheable_targets(run, models) if sharing else None
            most = max(most, private_memory())
    return share_targets(share_teachers(jobs, teachers), targets), most


def _open_pool(jobs: Sequence[Job], *, at_once: int | None, ray: str | None) -> AbstractContextManager[Pool]:
    """Return processes of this machine, or of the cluster at an address."""
    if ray is None:
        accelerator = jobs[0].spec.engine.accelerator
        return local_pool(min(jobs_at_once(at_once, accelerator), len(jobs)), visible_gpus(accelerator))
    try:
        from spacedkd.comparison.ray_pool import ray_pool
    except ModuleNotFoundError as error:
        raise UserError(f"--ray needs Ray ({error}): {install_command('ray')}") from None
    return ray_pool(ray, jobs, at_once)


TRAINING = 2
"""memory of a training run, as a multiple of its process's before: gradients, optimizer and activations add to it"""


def limit_by_memory(at_once: int, bytes_before: int) -> int:
    """Return how many of `at_once` runs fit into memory, if each takes `bytes_before` bytes before it trains.

    This is an estimate, so at least one is trained; if the system does not show its free memory, all are.
    """
    needed, free = TRAINING * bytes_before, free_memory()
    if not needed or not free or at_once * needed <= free:
        return at_once
    fit = max(1, free // needed)
    print_notice(
        f"Only {fit} of {at_once} runs at once: each takes about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB of "
        f"memory are free. --jobs {at_once} tries all the same."
    )
    return fit


def private_memory() -> int:
    """Return the bytes that belong to this process alone; pixels mapped from the disk are shared, and do not count."""
    return sum(numbers_of("/proc/self/status", "RssAnon", "RssShmem"))
