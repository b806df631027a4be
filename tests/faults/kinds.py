"""Runs of every kind, small enough to be killed a thousand times."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spacedkd import Duration, EngineSpec, MethodSpec, Offline, Online, RunSpec, Spaced, compare, read_spec, train
from spacedkd.config.serialization import to_json
from spacedkd.methods import METHODS
from spacedkd.runs.folder import RunFolder
from spacedkd.runtime.errors import UserError
from spacedkd.schedule import Window
from tests.conftest import TINY

SHORT = replace(TINY, epochs=2, schedule=Spaced("1.5ep"), save_every=Duration(3, "st"))
"""Ten steps: a teacher's seven, the student's seven, then three of each; saved in the middle of each stretch."""
RECORDER = replace(SHORT, schedule=Spaced("1ep"), record=(Spaced("1.5ep"),))
EXTENDED = replace(SHORT, epochs=1, schedule=Spaced("1ep"), data=replace(SHORT.data, holdout=0.2))
ARMS = {"online": replace(SHORT, schedule=None), "spaced": SHORT, "no KD": replace(SHORT, method="none", schedule=None)}


def spaced(method: str, **options: Any) -> RunSpec:
    return replace(SHORT, method=MethodSpec(method, {**METHODS[method].card.when_spaced, **options}))


def one_run(spec: RunSpec) -> Callable[[Path], None]:
    def trained(folder: Path) -> None:
        train(spec, folder / "run", if_exists="resume")

    return trained


def two_runs(first: RunSpec, **follows: str) -> Callable[[Path], None]:
    """A run, and one that reads what it has written; `follows` is the field that names its folder, as {run}."""

    def trained(folder: Path) -> None:
        second = replace(SHORT, **{field: value.format(run=folder / "run") for field, value in follows.items()})
        for name, spec in (("run", first), ("follower", second)):
            train(spec, folder / name, if_exists="resume")

    return trained


def extended(folder: Path) -> None:
    """The longer run is killed in the middle of all that it takes over, too."""
    run, longer = folder / "run", folder / "longer"
    train(EXTENDED, run, if_exists="resume")
    if RunFolder(longer).spec.exists():
        train(read_spec(longer), longer, if_exists="resume")
    else:
        train(replace(EXTENDED, epochs=2), longer, extend=run)


def comparison(folder: Path) -> None:
    compare(ARMS, folder / "comparison", seeds=1, jobs=1)


def two_ranks(folder: Path) -> None:
    """Started as from a shell; the first process starts the second, and both have the kill points."""
    asked, run = folder / "asked.json", folder / "run"
    asked.write_text(json.dumps(to_json(replace(SHORT, engine=EngineSpec(accelerator="cpu", devices=2, threads=1)))))
    words = ["--resume", str(run)] if RunFolder(run).spec.exists() else ["--spec", str(asked), "--out", str(run)]
    ended = subprocess.run([sys.executable, "-m", "spacedkd", "train", *words], stdout=subprocess.DEVNULL, check=False)
    if ended.returncode:
        raise UserError(f"exit code {ended.returncode}")


@dataclass(frozen=True)
class Kind:
    """What is trained in a folder, from the beginning or from wherever it was left."""

    trained: Callable[[Path], None]
    shares: bool = False
    """whether runs of it share a teacher"""
    slow: bool = False
    """whether it takes seconds, because processes start"""
    tested: bool = True
    """in `make test`, too"""


KINDS: Mapping[str, Kind] = {
    "kd": Kind(one_run(SHORT)),
    "no KD": Kind(one_run(replace(SHORT, method="none", schedule=None))),
    "moving average": Kind(one_run(replace(SHORT, ema=0.9))),
    "polynomial average": Kind(one_run(replace(SHORT, average="poly:2"))),
    "adamw in bf16-mixed": Kind(one_run(replace(SHORT, optimizer="adamw", precision="bf16-mixed"))),
    "window": Kind(one_run(replace(SHORT, schedule=Window(Spaced("3st"), Online(), "2st", stop="8st")))),
    "offline": Kind(one_run(replace(SHORT, schedule=Offline()))),
    "hold-out": Kind(one_run(replace(SHORT, data=replace(SHORT.data, holdout=0.2)))),
    "extended": Kind(extended),
    "self-kd live": Kind(one_run(spaced("self-kd", variant="live"))),
    "self-kd snapshot": Kind(one_run(spaced("self-kd", variant="snapshot"))),
    "memory of logits": Kind(one_run(spaced("ps-kd"))),
    "memory of a batch": Kind(one_run(spaced("dlb"))),
    "chain": Kind(one_run(spaced("ban"))),
    "peers": Kind(one_run(spaced("dml"))),
    "averaged peers": Kind(one_run(spaced("pcl"))),
    "learned temperature": Kind(one_run(spaced("ctkd"))),
    "recorded path": Kind(two_runs(RECORDER, teacher_path="{run}")),
    "cached targets": Kind(two_runs(replace(SHORT, cache_targets=True), targets_path="{run}")),
    "pipeline": Kind(one_run(replace(SHORT, engine=EngineSpec(threads=1, pipeline=True))), slow=True),
    "comparison": Kind(comparison, shares=True, slow=True),
    "two ranks": Kind(two_ranks, slow=True, tested=False),
}
