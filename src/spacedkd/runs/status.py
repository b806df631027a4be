"""What state runs are in, and how far they are: read from their folders in no time, without torch."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spacedkd.config.spec import RunSpec, read_spec
from spacedkd.runs.journal import measured
from spacedkd.runs.result import read_run, summarise
from spacedkd.runtime.documents import parse_json, read_lines, read_small_json
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.files import HOST, Folder, is_alive
from spacedkd.runtime.locks import STALE_SECONDS, is_held

PROGRESS = ".progress.json"
"""what a process that trains a run says of itself, every few seconds"""
STATES = {
    "training": "a process trains it",
    "finished": "its result is there",
    "stopped": "it was asked to stop, and has saved everything",
    "killed": "whoever trained it is gone, and has not said why",
    "failed": "an error ended it",
    "diverged": "its losses or weights were no finite numbers",
    "damaged": "its files cannot be read",
}


@dataclass(frozen=True)
class RunState:
    """A run as its folder shows it now."""

    folder: Path
    state: str
    """one of STATES"""
    spec: RunSpec | None = None
    said: str = ""
    """what ended it, or what it waits for"""
    progress: Mapping[str, Any] = field(default_factory=dict)
    """where it is: turn, turns, role, step, steps, epoch, epochs, images_per_second, saved, process, host"""
    left: float | None = None
    """seconds it will still take, at the pace it had last"""
    accuracy: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """of each role that was measured: last and best, of the deepest head on the test images"""
    student: str = "student"
    changed: float = 0.0
    """when something was last heard of it, in seconds since 1970"""


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The run folders at or below these paths, comparisons and stores among them; not what lies within a run."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise UserError(f"There is no folder {path}. Give run folders, or folders that contain some.")
        found += _below(path)
    if not found:
        places = ", ".join(str(path) for path in paths)
        raise UserError(f"There is no run in {places}. Train one with: spacedkd train")
    return [*dict.fromkeys(found)]


def _below(path: Path) -> Iterator[Path]:
    for folder, inner, files in os.walk(path):
        inner.sort()
        if "spec.json" in files:
            inner.clear()
            yield Path(folder)


def state_of(folder: Path) -> RunState:
    """The state of one run; what cannot be read is a state, too."""
    try:
        Folder(folder).refuse_links(("spec.json", "result.json", "journal.jsonl", "diverged.json", PROGRESS, ".lock"))
        spec = read_spec(folder)
        if (folder / "result.json").exists():
            return _finished(folder, spec)
        return _unfinished(folder, spec)
    except (OSError, ValueError, TypeError, LookupError) as error:
        return RunState(folder, "damaged", said=str(error), changed=_changed(folder))


def _finished(folder: Path, spec: RunSpec) -> RunState:
    run = read_run(folder)
    accuracy = {role: scores["test"]["final"] for role, scores in run.accuracy.items()}
    changed = (folder / "result.json").stat().st_mtime
    return RunState(folder, "finished", spec, accuracy=accuracy, student=run.roles[-1], changed=changed)


def _unfinished(folder: Path, spec: RunSpec) -> RunState:
    progress = _plain(read_small_json(folder / PROGRESS, within=folder))
    accuracies, last = _journal(folder)
    scores, _ = summarise(measured(accuracies))
    if "turn" not in progress:  # of a version that had no such file
        progress = _plain({**last, **progress})
    state, said = _state(folder, progress)
    left = progress.get("seconds_left")
    if left is not None and state == "training":
        left = max(0.0, left - max(0.0, time.time() - progress.get("time", time.time())))
    return RunState(
        folder,
        state,
        spec,
        said,
        {"epochs": spec.epochs, **progress},
        left,
        {role: parts["test"]["final"] for role, parts in scores.items()},
        [*progress.get("roles", ["student"])][-1],
        _changed(folder),
    )


def _state(folder: Path, progress: Mapping[str, Any]) -> tuple[str, str]:
    diverged = read_small_json(folder / "diverged.json", within=folder)
    if _is_trained(folder, progress):
        return "training", str(progress.get("waiting", ""))
    if diverged:
        return "diverged", str(diverged.get("said", ""))
    failed = read_small_json(folder / "failed.json", within=folder)
    if failed:
        return "failed", str(failed.get("said", ""))
    return str(progress.get("ended", "killed" if progress.get("host") else "stopped")), str(progress.get("said", ""))


def _is_trained(folder: Path, progress: Mapping[str, Any]) -> bool:
    """Whether a process trains it: one of this machine lives and holds the lock; another one was heard of lately."""
    if "host" not in progress:
        return is_held(folder / ".lock")
    if "ended" in progress:
        return False
    if progress["host"] != HOST:
        return time.time() - (folder / PROGRESS).stat().st_mtime < STALE_SECONDS
    return is_alive(int(progress.get("process", 0))) and is_held(folder / ".lock")


def _plain(found: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says of those things that are known, where it is what it must be."""
    return {name: value for name, value in found.items() if name in _KNOWN and _KNOWN[name](value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_NUMBERS = "turn turns step steps saved process epoch epochs images_per_second seconds_left time".split()
_KNOWN: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(_NUMBERS, _is_number),
    **dict.fromkeys(("role", "host", "waiting", "said"), _is_text),
    "ended": lambda value: value in ("stopped", "killed", "failed", "diverged"),
    "roles": lambda value: isinstance(value, list) and bool(value) and all(map(_is_text, value)),
}


def _journal(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the entries of a run's journal with accuracies, and the last entry; nothing where there is no journal.

    Other lines, which are most of them, are not parsed, so that many runs can be looked at.
    """
    journal, accuracies, last = folder / "journal.jsonl", list[dict[str, Any]](), b"{}"
    try:
        for last in read_lines(journal, within=folder):
            if last.startswith(b'{"event": "accuracy"'):
                accuracies.append(parse_json(last, f"A line of {journal}"))
    except FileNotFoundError:
        pass
    found = parse_json(last, f"The last line of {journal}")
    if not isinstance(found, dict):
        raise UserError(f"The last line of {journal} is no entry with an event.")
    return accuracies, found


def _changed(folder: Path) -> float:
    names = (PROGRESS, "journal.jsonl", "spec.json")
    return max((path.stat().st_mtime for path in (folder / name for name in names) if path.exists()), default=0.0)
