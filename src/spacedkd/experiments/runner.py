"""Train many runs at once, one process for each core or GPU."""

from __future__ import annotations

import multiprocessing
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from queue import Empty
from typing import Any, NamedTuple

import torch

from spacedkd.errors import UserError
from spacedkd.methods import build_method
from spacedkd.spec import MethodSpec, RunSpec
from spacedkd.train.folder import RunFolder
from spacedkd.train.loop import Moment, train
from spacedkd.train.run import fill_in

REPORT_SECONDS = 0.2


class Job(NamedTuple):
    """One run of a comparison."""

    label: str
    seed: int
    spec: RunSpec
    folder: Path


Watch = Callable[[Job, Moment], None]


def plan(arms: Mapping[str, RunSpec], seeds: Sequence[int], out: Path) -> list[Job]:
    """Arms times seeds, seed by seed: a seed has the same data order and initial weights in every arm."""
    folders = {label: out / _folder_name(label) for label in arms}
    if len({*folders.values()}) < len(arms):
        raise UserError(f"Two arms would share a folder: {', '.join(arms)}. Give them names that differ in letters.")
    return [
        Job(label, seed, fill_in(replace(spec, seed=seed, label=label)), folders[label] / f"seed{seed}")
        for seed in seeds
        for label, spec in arms.items()
    ]


def _folder_name(label: str) -> str:
    """Letters, numbers and dots between them; everything else becomes a dash.

    >>> _folder_name("Spaced KD, 1.5ep")
    'spaced-kd-1.5ep'
    """
    return re.sub(r"[^\w.]+", "-", label.lower()).strip("-.") or "arm"


def equal_cost_controls(arms: Mapping[str, RunSpec]) -> dict[str, RunSpec]:
    """For every arm that updates its student's network k times a step: the same method unspaced for k times as long.

    Spaced self KD takes two updates for each batch; its control is plain self KD with twice the epochs.
    """
    controls = {}
    for spec in arms.values():
        method = build_method(spec.method)
        updates = [*method.learners.values()].count(method.learners[method.roles[-1]])
        if updates > 1:
            unspaced = MethodSpec(spec.method.name, {**spec.method.options, "variant": "plain"})
            name = f"{spec.method.name}, {updates}x epochs"
            controls[name] = replace(spec, method=unspaced, epochs=spec.epochs * updates)
    return controls


def jobs_at_once(asked: int | None) -> int:
    """One for each GPU, or for each core where there is none."""
    return asked or torch.cuda.device_count() or torch.get_num_threads()


def run_all(jobs: Sequence[Job], at_once: int, watch: Watch) -> None:
    """Train every job that is not finished yet; one that was stopped goes on where it was.

    A folder that holds another run is an error before anything starts.
    """
    for job in jobs:
        _check_folder(job)
    todo = [job for job in jobs if not RunFolder(job.folder).finished()]
    threads = max(1, torch.get_num_threads() // at_once)
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        news, gpus = manager.Queue(), manager.Queue()
        for worker in range(at_once):
            gpus.put(worker % max(1, torch.cuda.device_count()))
        with ProcessPoolExecutor(min(at_once, max(1, len(todo))), context, _choose_gpu, (gpus,)) as pool:
            futures = {pool.submit(_train, index, job, threads, news) for index, job in enumerate(todo)}
            try:
                for index, moment in _news(news, futures):
                    watch(todo[index], moment)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in multiprocessing.active_children():
                    process.terminate()
                raise


def _check_folder(job: Job) -> None:
    folder = RunFolder(job.folder)
    if folder.spec.exists():
        folder.check_holds(job.spec)
    else:
        folder.check_free()


def _choose_gpu(gpus: Any) -> None:
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", str(gpus.get()))


def _train(index: int, job: Job, threads: int, news: Any) -> None:
    told = 0.0

    def tell(moment: Moment) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told > REPORT_SECONDS or moment.accuracy is not None or moment.turn == moment.turns:
            told = now
            news.put((index, moment))

    train(replace(job.spec, engine=replace(job.spec.engine, threads=threads)), job.folder, resume=True, watch=tell)


def _news(news: Any, futures: set[Future[None]]) -> Iterator[tuple[int, Moment]]:
    """What the runs tell while they go on; an error in one ends all."""
    while futures:
        done, futures = wait(futures, timeout=REPORT_SECONDS, return_when=FIRST_COMPLETED)
        for future in done:
            future.result()
        while True:
            try:
                yield news.get_nowait()
            except Empty:
                break
