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

from spacedkd.data.sources import Library
from spacedkd.errors import Diverged, UserError, install_command, unknown
from spacedkd.experiments import comparison, room
from spacedkd.experiments.forgetting import followers, forget_passed
from spacedkd.experiments.local_pool import local_pool
from spacedkd.experiments.pool import Callback, LeftAlone, Pool, train_all
from spacedkd.experiments.sharing import Job, begun_again, moved, share, teacher_of, without_diverged
from spacedkd.files import resolved
from spacedkd.logger_names import check_installed
from spacedkd.spec import MethodSpec, RunSpec, check_folder, check_spec, read_spec
from spacedkd.stopping import Stop, never
from spacedkd.training.building import build_models, one_thread
from spacedkd.training.folder import RunFolder
from spacedkd.training.plan import fill_in, make_plan, method_and_schedule


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
    stop: Stop = never,
) -> dict[str, Any]:
    """Train every arm over seeds, several runs at once, and compare them; also written to `out`/comparison.json.

    Runs that are finished already are used as they are; ones that were stopped go on. Arms with equal teachers share
    one, to the same bits, unless `sharing` is False. With the address of a `ray` cluster, or "auto" for the one this
    machine belongs to, runs are trained there, as many at once as there is room for.

    A run that diverges is left out, and listed under `diverged`; it is not trained again unless its folder is deleted.
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
    diverged = run_all(planned, jobs, callback, library, sharing, ray, stop)
    ordered = [job.folder for label in arms for job in planned if job.label == label]
    finished = [folder for folder in ordered if folder not in diverged]
    if not finished:
        raise next(iter(diverged.values()))
    if against is not None and not any(job.label == against for job in planned if job.folder in finished):
        against = None  # it has diverged, as the comparison says
    found = comparison.compare(finished, against, [folder for folder in ordered if folder in diverged])
    comparison.write(out / "comparison.json", found)
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
    filled = fill_in(replace(spec, engine=replace(spec.engine, threads=threads)), library=library)
    if begun is not None:
        path = begun.teacher_path and str(moved(begun.teacher_path, folder.parents[1]))
        filled = replace(filled, record=begun.record, teacher_path=path)
    return Job(spec.label, spec.seed, filled, folder)


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
        method, _ = method_and_schedule(spec)
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
    stop: Stop = never,
) -> dict[Path, Diverged]:
    """Train every job that is not finished yet; one that was stopped goes on where it was.

    Without a number, as many go on at once as there is room and memory for, here or in the cluster at this address.

    What is wrong with an arm, or with a folder, is an error before anything starts; what goes wrong with a run is one
    when all others are finished. Gives the folders of those that diverged.
    """
    for job in jobs:
        if job.begun:
            RunFolder(job.folder).check_links()
            RunFolder(job.folder).check_holds(job.spec)
        else:
            RunFolder(job.folder).check_free()
    check_installed({name for job in jobs for name in job.spec.log})
    jobs = [begun_again(job) for job in jobs]
    diverged = {job.folder: (job, error) for job in jobs if (error := job.diverged()) is not None}
    todo = [job for job in jobs if not job.finished and job.folder not in diverged]
    if todo:
        useful = [job for job in jobs if job in todo or (job.finished and (job.folder / "path").exists())]
        known, held = shared(useful, library, sharing)
        if ray is None and at_once is None:
            at_once = room.as_memory_allows(jobs_at_once(None, todo[0].spec.engine.accelerator), held)
        todo = [job for job in known if not job.finished]
        _train_all(todo, diverged, at_once, callback, ray, stop)
    ours = {place for job in jobs for place in (resolved(job.folder), RunFolder(resolved(job.folder)).teacher)}
    recorders = followers(jobs[0].folder.parents[1], ())
    forget_passed({leader: runs for leader, runs in recorders.items() if leader in ours})
    return {folder: error for folder, (_, error) in diverged.items()}


def _train_all(
    todo: Sequence[Job],
    diverged: dict[Path, tuple[Job, Diverged]],
    at_once: int | None,
    callback: Callback,
    ray: str | None,
    stop: Stop,
) -> None:
    """Train these; who diverges is added to those that have, and what those followed is trained alone."""
    lost: list[UserError] = []
    with ExitStack() as stack:
        pool: Pool | None = None
        while todo := without_diverged(todo, diverged):
            pool = pool or stack.enter_context(_open_pool(todo, at_once, ray))
            known = followers(todo[0].folder.parents[1], todo)
            failed = train_all(pool, todo, callback, stop, partial(forget_passed, known))
            diverged |= {todo[n].folder: (todo[n], error) for n, error in failed.items() if isinstance(error, Diverged)}
            leaders = {str(folder.resolve()) for folder in diverged}
            alone = [n for n, error in failed.items() if isinstance(error, LeftAlone)]
            again = [todo[n] for n in alone if todo[n].spec.teacher_path in leaders]
            lost += [error for n, error in failed.items() if not isinstance(error, Diverged) and todo[n] not in again]
            todo = again
    if lost:
        raise UserError(f"{len(lost)} of the runs did not finish; the same command goes on with them. {lost[0]}")


def shared(jobs: Sequence[Job], library: Library | None = None, sharing: bool = True) -> tuple[list[Job], int]:
    """The jobs with who records a teacher and who follows it; every arm's models are built, to see that they can be.

    Also the most bytes that this process held with the data and the models of an arm.
    """
    teachers, held = {}, 0
    new_ones_last = sorted(jobs, key=lambda job: not job.begun)
    with one_thread():
        for job in {job.label: job for job in new_ones_last}.values():
            made = make_plan(job.spec, library=library)
            models = build_models(made)
            teachers[job.label] = teacher_of(made, models) if sharing else None
            held = max(held, room.held())
    return share(jobs, teachers), held


def _open_pool(jobs: Sequence[Job], at_once: int | None, ray: str | None) -> AbstractContextManager[Pool]:
    if ray is None:
        accelerator = jobs[0].spec.engine.accelerator
        return local_pool(min(jobs_at_once(at_once, accelerator), len(jobs)), gpus(accelerator))
    try:
        from spacedkd.experiments.ray_pool import ray_pool
    except ModuleNotFoundError as error:
        raise UserError(f"--ray needs Ray ({error}): {install_command('ray')}") from None
    return ray_pool(ray, jobs, at_once)
