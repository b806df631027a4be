"""Train many runs at once, one process for each core or GPU, of this machine or of a cluster."""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from spacedkd.comparison import results
from spacedkd.comparison.local_pool import local_pool
from spacedkd.comparison.pool import Callback, LeftAlone, Pool, train_all
from spacedkd.comparison.teacher_sharing import (
    Job,
    Lost,
    begun_again,
    followers,
    forget_passed,
    keep_failed,
    moved,
    share,
    teacher_of,
    without_lost,
    without_teacher,
)
from spacedkd.config.registry import check_installed
from spacedkd.config.resolve import resolve, resolve_method, resolve_spec
from spacedkd.config.spec import MethodSpec, RunSpec, check_folder, check_spec, read_spec
from spacedkd.data.sources import Library
from spacedkd.runs.folder import RunFolder
from spacedkd.runtime.errors import Moved, SnapshotsGone, UserError, install_command, unknown
from spacedkd.runtime.files import Folder, make_durable, resolve_links, write_errors
from spacedkd.runtime.machine import free_memory, numbers_of
from spacedkd.runtime.processes import print_notice
from spacedkd.runtime.signals import Stop, never_stop
from spacedkd.training.build import build_models, one_thread

# How many runs fit into the memory of this machine.

TRAINING = 2
"""times what a process holds before it trains: gradients, optimizer and activations come on top"""


def as_memory_allows(at_once: int, held: int) -> int:
    """How many runs go at once, of those that could, if each holds so many bytes before it trains.

    A rule of thumb, so one always goes; and where the system does not say how much memory there is, all do.
    """
    needed, free = TRAINING * held, free_memory()
    if not needed or not free or at_once * needed <= free:
        return at_once
    fit = max(1, free // needed)
    print_notice(
        f"Only {fit} of {at_once} runs at once: each takes about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB of "
        f"memory are free. --jobs {at_once} tries all the same."
    )
    return fit


def held() -> int:
    """Bytes that belong to this process alone; pixels mapped from the disk are shared, and do not count."""
    return sum(numbers_of("/proc/self/status", "RssAnon", "RssShmem"))


# Train many runs at once, one process for each core or GPU, of this machine or of a cluster.


def compare(
    arms: Mapping[str, RunSpec],
    out: Path | str,
    *,
    seeds: int | Sequence[int] = 3,
    against: str | None = None,
    jobs: int | None = None,
    sharing: bool = True,
    ray: str | None = None,
    callback: Callback = lambda job, moment: None,
    stop: Stop = never_stop,
) -> dict[str, Any]:
    """Train every arm over seeds, several runs at once, and compare them; also written to `out`/comparison.json.

    Runs that are finished already are used as they are; ones that were stopped go on. Arms with equal teachers share
    one, to the same bits, unless `sharing` is False. With the address of a `ray` cluster, or "auto" for the one this
    machine belongs to, runs are trained there, as many at once as there is room for.

    A run that diverges is left out, and listed under `diverged`; it is not trained again unless its folder is deleted.
    A run that fails by an exception, or whose process dies, is listed under `failed`; the others continue, and the same
    call tries it again. Only where no run finishes is the first of these errors raised.
    `stop` is asked a few times a second; when it says True, every run saves after its turn, and `Stopped` is raised.
    As in `train`, no signal is handled here.

    See `comparison.compare` for what is in a comparison, and `spacedkd report` for a page about it.
    """
    check_folder("out", out)
    out = Path(out)
    if not isinstance(arms, Mapping):
        raise UserError(f"arms must be specs by name, {{'online': RunSpec(), ...}}; got {arms!r}.")
    for spec in arms.values():
        check_spec(spec)
    if not arms or (not seeds if isinstance(seeds, int) else not len(seeds)):
        raise UserError("A comparison needs at least one arm and one seed.")
    if against is not None and against not in arms:
        raise unknown("arm", against, arms)
    first = next(iter(arms.values()))
    numbers = range(first.seed, first.seed + seeds) if isinstance(seeds, int) else seeds
    at_once = jobs_at_once(jobs, first.engine.accelerator)
    library = Library()
    planned = plan(arms, numbers, out, at_once, library)
    lost = run_all(planned, jobs, callback, library, sharing, ray, stop)
    ordered = [job for label in arms for job in planned if job.label == label]
    finished = [job.folder for job in ordered if job.folder not in lost]
    if not finished:
        raise next(iter(lost.values()))
    if against is not None and not any(job.label == against for job in planned if job.folder in finished):
        against = None  # it has diverged or failed, as the comparison says
    found = results.compare(finished, against, [job.folder for job in ordered if job.folder in lost])
    listed = {one["folder"] for one in (*found["diverged"], *found["failed"])}
    for job in ordered:
        if job.folder in lost and str(job.folder) not in listed:  # nothing could be written into its folder
            line = str(lost[job.folder]).removeprefix(f"{job.name}: ")
            found["failed"].append({"label": job.label, "seed": job.seed, "folder": str(job.folder), "said": line})
    results.write(out / "comparison.json", found)
    return found


def plan(
    arms: Mapping[str, RunSpec], seeds: Sequence[int], out: Path, at_once: int = 1, library: Library | None = None
) -> list[Job]:
    """Arms times seeds, seed by seed: a seed has the same data order and initial weights in every arm.

    Cores are shared evenly by the runs that go on at once. A run that exists keeps the threads it began with, because
    their number shows in the bits.
    """
    if len({run_folder(out, label, 0) for label in arms}) < len(arms):
        raise UserError(f"Two arms would share a folder: {', '.join(arms)}. Give them names that differ in letters.")
    library = library or Library()
    return [
        job_of(replace(spec, seed=seed, label=label), run_folder(out, label, seed), at_once, library)
        for seed in seeds
        for label, spec in arms.items()
    ]


def job_of(spec: RunSpec, folder: Path, at_once: int, library: Library) -> Job:
    """A run in its folder, OUT/ARM/SEED; one that has begun keeps its threads, and whom it follows or records for."""
    begun = read_spec(folder) if RunFolder(folder).spec.exists() else None
    shared = max(1, torch.get_num_threads() // at_once)
    threads = (begun and begun.engine.threads) or spec.engine.threads or shared
    filled = resolve_spec(replace(spec, engine=replace(spec.engine, threads=threads)), library=library)
    if begun is not None and _gives_way(folder, filled):
        begun, filled = None, replace(filled, engine=replace(filled.engine, threads=spec.engine.threads or shared))
    if begun is not None:
        path = begun.teacher_path and str(moved(begun.teacher_path, folder.parents[1]))
        filled = replace(filled, record=begun.record, teacher_path=path)
    return Job(spec.label, spec.seed, filled, folder)


def _gives_way(folder: Path, spec: RunSpec) -> bool:
    """Whether a folder holds a run of another spec that has failed before it saved anything."""
    return RunFolder(folder).failed_at_once() and read_spec(folder).fingerprint() not in spec.fingerprints()


def run_folder(out: Path, label: str, seed: int) -> Path:
    """The folder of one run: letters, numbers and dots of its arm's name; everything else becomes a dash.

    >>> str(run_folder(Path("runs"), "Spaced KD, 1.5ep", 0))
    'runs/spaced-kd-1.5ep/seed0'
    """
    return out / (re.sub(r"[^\w.]+", "-", label.lower()).strip("-.") or "arm") / f"seed{seed}"


def equal_cost_controls(arms: Mapping[str, RunSpec]) -> dict[str, RunSpec]:
    """For every arm that updates its student's network k times a step: the same method unspaced for k times as long.

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


def jobs_at_once(asked: int | None, accelerator: str) -> int:
    """One for each GPU, or for each core where there is none."""
    if asked is not None and asked < 1:
        raise UserError(f"--jobs must be at least 1, got {asked}.")
    return asked or len(gpus(accelerator)) or torch.get_num_threads()


def gpus(accelerator: str) -> list[str]:
    """The GPUs this process may use, by the names it knows them by."""
    if accelerator not in ("auto", "cuda", "gpu"):
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return visible.split(",")[:count] if visible else [str(number) for number in range(count)]


def run_all(
    jobs: Sequence[Job],
    at_once: int | None,
    callback: Callback,
    library: Library | None = None,
    sharing: bool = True,
    ray: str | None = None,
    stop: Stop = never_stop,
) -> dict[Path, UserError]:
    """Train every job that is not finished yet; one that was stopped goes on where it was, one that failed is retried.

    Without a number, as many go on at once as there is room and memory for, here or in the cluster at this address.

    What is wrong with an arm, or with a folder, is an error before anything starts. What goes wrong with a run is its
    own: gives the folders of those that diverged or failed, with what ended them.
    """
    given_way = [job for job in jobs if job.begun and _gives_way(job.folder, job.spec)]
    for job in jobs:
        if job.begun:
            RunFolder(job.folder).check_links()
        if job in given_way:
            continue
        RunFolder(job.folder).check_holds(job.spec) if job.begun else RunFolder(job.folder).check_free()
    check_installed({name for job in jobs for name in job.spec.log})
    for job in given_way:
        with RunFolder(job.folder).lock():
            RunFolder(job.folder).discard()
    jobs = [begun_again(job) for job in jobs]
    out = jobs[0].folder.parents[1]
    lost: Lost = {job.folder: (job, error) for job in jobs if (error := job.diverged()) is not None}
    todo = [job for job in jobs if not job.finished and job.folder not in lost]
    if todo:
        useful = [job for job in jobs if job in todo or (job.finished and (job.folder / "path").exists())]
        known, held = shared(useful, library, sharing)
        if ray is None and at_once is None:
            at_once = as_memory_allows(jobs_at_once(None, todo[0].spec.engine.accelerator), held)
        todo = [job for job in known if not job.finished]
        leaders = {str(resolve_links(job.folder)): job for job in (*jobs, *known)}
        _train_all(todo, leaders, lost, out, at_once, callback, ray, stop)
    folders = [resolve_links(job.folder) for job in jobs]
    ours = {*folders, *(RunFolder(folder).teacher for folder in folders)}
    recorders = followers(out, ())
    forget_passed({leader: runs for leader, runs in recorders.items() if leader in ours})
    return {job.folder: lost[job.folder][1] for job in jobs if job.folder in lost}


def _train_all(
    todo: Sequence[Job],
    leaders: Mapping[str, Job],
    lost: Lost,
    out: Path,
    at_once: int | None,
    callback: Callback,
    ray: str | None,
    stop: Stop,
) -> None:
    """Train these; who diverges or fails is added to the lost, and a teacher that others need of it is trained alone.

    So is the teacher of a run whose recorded snapshots turn out to be gone, once. If the folder of the comparison is
    renamed or removed meanwhile, all of it ends: no other folder is made in its place.
    """
    gone: set[Path] = set()
    renewed: set[str] = set()
    place = Folder(out)
    with write_errors(out):
        make_durable(out)

    def stops() -> bool:
        try:
            place.check()
        except Moved as error:
            where = "" if error.path is None else " Go on with the same command and the new name of the folder."
            raise Moved(f"{error}{where}", error.path) from None
        return stop()

    with ExitStack() as stack:
        stack.enter_context(place.held_open())
        pool: Pool | None = None
        while todo := without_lost(todo, leaders, lost, gone):
            pool = pool or stack.enter_context(_open_pool(todo, at_once, ray))
            known = followers(out, todo)
            failed = train_all(pool, todo, callback, stops, partial(forget_passed, known))
            again: list[Job] = []
            for number, error in failed.items():
                job = todo[number]
                path = job.spec.teacher_path or ""
                if isinstance(error, LeftAlone):
                    again.append(job)
                elif not isinstance(error, SnapshotsGone) or path in renewed:
                    lost[job.folder] = (job, error)
                    if isinstance(error, SnapshotsGone):
                        keep_failed(job, error)
                elif path in leaders:
                    gone.add(leaders[path].folder)
                    again.append(job)
                elif str(Path(path).parent) in leaders:  # a teacher that was trained alone, by another command
                    renewed.add(path)
                    Folder(Path(path).parent).remove_tree(Path(path))
                    again.append(job)
                else:
                    again.append(without_teacher(job))
            todo = again


def shared(jobs: Sequence[Job], library: Library | None = None, sharing: bool = True) -> tuple[list[Job], int]:
    """The jobs with who records a teacher and who follows it; every arm's models are built, to see that they can be.

    Also the most bytes that this process held with the data and the models of an arm.
    """
    teachers, most = {}, 0
    new_ones_last = sorted(jobs, key=lambda job: not job.begun)
    with one_thread():
        for job in {job.label: job for job in new_ones_last}.values():
            made = resolve(job.spec, library=library)
            models = build_models(made)
            teachers[job.label] = teacher_of(made, models) if sharing else None
            most = max(most, held())
    return share(jobs, teachers), most


def _open_pool(jobs: Sequence[Job], at_once: int | None, ray: str | None) -> AbstractContextManager[Pool]:
    if ray is None:
        accelerator = jobs[0].spec.engine.accelerator
        return local_pool(min(jobs_at_once(at_once, accelerator), len(jobs)), gpus(accelerator))
    try:
        from spacedkd.comparison.ray_pool import ray_pool
    except ModuleNotFoundError as error:
        raise UserError(f"--ray needs Ray ({error}): {install_command('ray')}") from None
    return ray_pool(ray, jobs, at_once)
