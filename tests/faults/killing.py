"""Runs in processes of their own that are killed, at a named point or from outside, and taken up again.

A server that is ready to train forks a process for each, so that a kill takes no longer than the run it ends.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load_file
from torch import Tensor

from spacedkd.runtime.errors import UserError
from tests.conftest import assert_same_bits
from tests.faults.injected import points
from tests.faults.kinds import KINDS
from tests.forked import context, start

SECONDS = 300
"""after which a run is taken to hang"""
MOMENTS = {
    "update": ("spacedkd.training.learner", "Learner.update"),
    "evaluation": ("spacedkd.training.roles", "evaluate_model"),
    "save": ("spacedkd.training.callbacks", "CheckpointCallback.save"),
    "finish": ("spacedkd.training.callbacks", "ResultCallback.on_end"),
    "hand over": ("spacedkd.trajectory.replay", "RecordedTrajectory.load"),
}
"""kill points between files: where these begin"""


class Point(NamedTuple):
    """A moment of a run: the `at`th time that something happens."""

    name: str
    at: int = 1

    def __str__(self) -> str:
        return f"{self.name} {self.at}"


def started(kind: str, folder: Path, log: Path | None = None, point: Point | None = None) -> ForkServerProcess:
    """A process that trains this kind of run in a folder, and dies at a point."""
    start()
    process = context().Process(target=_trained, args=(kind, folder, log and str(log), point))
    process.start()
    return process


def ended(process: ForkServerProcess) -> int | None:
    """Its exit code, negative for a signal; a run that hangs is a failure."""
    process.join(SECONDS)
    assert process.exitcode is not None, "the run hangs"
    return process.exitcode


def _trained(kind: str, folder: Path, log: str | None, point: Point | None) -> None:
    os.setpgrp()  # so that it can be killed with everything it started
    name, at = point or (None, 1)
    found = points.install(root=str(folder), log=log, name=name, at=at)
    for moment, (module, attribute) in MOMENTS.items():
        _tell(found, moment, module, attribute)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    fork = multiprocessing.get_context("fork")  # of whatever it starts, which need not import everything either
    multiprocessing.get_context = lambda method=None: fork  # type: ignore[assignment]
    try:
        KINDS[kind].trained(folder)
    except UserError as error:  # what it started was killed, and it said so
        (folder / "said.txt").write_text(str(error))
        os._exit(2)


def _tell(found: points.Points, moment: str, module: str, attribute: str) -> None:
    owner: Any = sys.modules[module]
    *outer, name = attribute.split(".")
    for part in outer:
        owner = getattr(owner, part)
    original = getattr(owner, name)

    def told(*args: Any, **kwargs: Any) -> Any:
        found.reach(moment)
        return original(*args, **kwargs)

    setattr(owner, name, told)


def traced(kind: str, folder: Path) -> list[Point]:
    """Train a run that nobody kills, and list all of its points in the order in which they happen."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder.with_suffix(".log")
    assert ended(started(kind, folder, log)) == 0
    counts: Counter[str] = Counter()
    found = []
    for name in log.read_text().splitlines():
        counts[name] += 1
        found.append(Point(name, counts[name]))
    return found


def killed(kind: str, folder: Path, point: Point) -> bool:
    """Train until the point is reached; whether it was. A run that lost a process it had started must say so."""
    folder.mkdir(parents=True, exist_ok=True)
    code = ended(started(kind, folder, point=point))
    assert code in (0, 2, -signal.SIGKILL), f"exit code {code}"
    return code != 0


def finished(kind: str, folder: Path) -> None:
    """Go on to the end."""
    code = ended(started(kind, folder))
    assert code == 0, (folder / "said.txt").read_text()


def runs(folder: Path) -> Iterator[Path]:
    for file in sorted(folder.rglob("result.json")):
        yield file.parent.relative_to(folder)


def assert_same(kind: str, one: Path, other: Path) -> None:
    """All runs below two folders: the same checkpoints, journals, results and students, and nothing left behind."""
    shared = KINDS[kind].shares
    assert [*runs(one)] == [*runs(other)]
    assert [*runs(one)], "nothing was compared"
    for run in runs(one):
        ours, theirs = one / run, other / run
        assert_same_bits(*(_learned(folder, shared) for folder in (ours, theirs)))
        written = ("journal.jsonl", "student/model.safetensors", "student/config.json", "classes.json")
        chosen = sorted(file.relative_to(ours).as_posix() for file in (ours / "best").glob("*"))
        for name in (*written, *chosen):
            assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name
        results = [json.loads((folder / "result.json").read_text()) for folder in (ours, theirs)]
        for result in results:
            del result["seconds"]
            if shared:
                result["plan"].pop("computed_here", None)
        assert results[0] == results[1]
    assert _files(one, shared) == _files(other, shared)


def _learned(run: Path, shared: bool) -> dict[str, Tensor]:
    """What is in a checkpoint. Whose teacher learned in another run, and left no optimizer, may depend on a kill."""
    found = load_file(run / "checkpoint/latest.safetensors")
    return {name: one for name, one in found.items() if not (shared and name.startswith("optimizer/teacher/"))}


def _files(folder: Path, shared: bool) -> list[str]:
    """What there is, but for what says how it came to be: notes of this module, locks, and of runs that follow another
    in one step whether they saved before."""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    how = (".lock", ".writing", *(["previous.safetensors"] if shared else []))
    return sorted(name for name in names if name != "said.txt" and not name.endswith(how))
