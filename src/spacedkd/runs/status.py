"""The state and progress of runs, read from their folders quickly and without torch."""

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spacedkd.config.spec import RunSpec, read_spec
from spacedkd.runs.journal import check_entries
from spacedkd.runs.result import read_run, summarize_accuracies
from spacedkd.runs.schema import FailureDocument, ProgressDocument, valid_items
from spacedkd.runtime.documents import parse_json, read_lines, read_small_json
from spacedkd.runtime.errors import Damaged, UserError
from spacedkd.runtime.files import HOST, Folder, is_alive
from spacedkd.runtime.locks import STALE_SECONDS, is_held

PROGRESS = ".progress.json"
"""the file that a process which trains a run writes every few seconds; see `ProgressDocument`"""
STATES = {
    "training": "a process trains it",
    "finished": "it has a result",
    "stopped": "it was told to stop, and has saved everything",
    "killed": "its process is gone, and has not written why",
    "failed": "an error ended it",
    "diverged": "its losses or weights were not finite",
    "damaged": "its files cannot be read",
}


@dataclass(frozen=True)
class RunState:
    """The state of a run, as its folder shows it now."""

    folder: Path
    state: str
    """one of STATES"""
    spec: RunSpec | None = None
    reason: str = ""
    """error that ended the run, or snapshot that it waits for"""
    progress: ProgressDocument = field(default_factory=lambda: ProgressDocument())
    seconds_left: float | None = None
    """estimated seconds until the end of the run, at its last speed"""
    accuracy: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """role -> last and best accuracy of the deepest head on the test images, for each role that was evaluated"""
    student: str = "student"
    """the student's role"""
    changed: float = 0.0
    """time of the last write to one of its files, in seconds since 1970"""


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """Return the run folders at or below these paths, also in comparisons and stores, but not inside of a run."""
    runs: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise UserError(f"There is no folder {path}. Give run folders, or folders that contain some.")
        runs += _walk_runs(path)
    if not runs:
        folders = ", ".join(str(path) for path in paths)
        raise UserError(f"There is no run in {folders}. Train one with: spacedkd train")
    return [*dict.fromkeys(runs)]


def _walk_runs(path: Path) -> Iterator[Path]:
    for folder, subfolders, files in os.walk(path):
        subfolders.sort()
        if "spec.json" in files:
            subfolders.clear()
            yield Path(folder)


def state_of(folder: Path) -> RunState:
    """Return the state of the run in a folder; if its files cannot be read, that is the state "damaged"."""
    try:
        Folder(folder).refuse_links(("spec.json", "result.json", "journal.jsonl", "diverged.json", PROGRESS, ".lock"))
        spec = read_spec(folder)
        if (folder / "result.json").exists():
            return _state_of_finished(folder, spec)
        return _state_of_unfinished(folder, spec)
    except (OSError, ValueError, TypeError, LookupError) as error:
        return RunState(folder, "damaged", reason=str(error), changed=_last_change(folder))


def _state_of_finished(folder: Path, spec: RunSpec) -> RunState:
    run = read_run(folder)
    accuracy = {role: scores["test"]["final"] for role, scores in run.accuracies.items()}
    changed = (folder / "result.json").stat().st_mtime
    return RunState(folder, "finished", spec, accuracy=accuracy, student=run.roles[-1], changed=changed)


def _state_of_unfinished(folder: Path, spec: RunSpec) -> RunState:
    progress = valid_items(read_small_json(folder / PROGRESS, within=folder), ProgressDocument)
    accuracies, last_entry = _read_accuracies(folder)
    scores, _ = summarize_accuracies(check_entries(accuracies))
    if "turn" not in progress:  # an earlier version wrote no such file
        progress = valid_items({**last_entry, **progress}, ProgressDocument)
    state, reason = _state_and_reason(folder, progress)
    seconds_left = progress.get("seconds_left")
    if seconds_left is not None and state == "training":
        seconds_left = max(0.0, seconds_left - max(0.0, time.time() - progress.get("time", time.time())))
    return RunState(
        folder,
        state,
        spec,
        reason,
        progress=ProgressDocument(**{"epochs": spec.epochs, **progress}),
        seconds_left=seconds_left,
        accuracy={role: parts["test"]["final"] for role, parts in scores.items()},
        student=([*progress.get("roles", ())] or ["student"])[-1],
        changed=_last_change(folder),
    )


def _state_and_reason(folder: Path, progress: ProgressDocument) -> tuple[str, str]:
    if _is_trained(folder, progress):
        return "training", progress.get("waiting", "")
    for state in ("diverged", "failed"):
        failure = valid_items(read_small_json(folder / f"{state}.json", within=folder), FailureDocument)
        if failure:
            return state, failure.get("said", "")
    return progress.get("ended", "killed" if progress.get("host") else "stopped"), progress.get("said", "")


def _is_trained(folder: Path, progress: ProgressDocument) -> bool:
    """Return whether a process trains the run now.

    A process of this machine must live and hold the lock; one of another machine must have written lately.
    """
    if "host" not in progress:
        return is_held(folder / ".lock")
    if "ended" in progress:
        return False
    if progress["host"] != HOST:
        return time.time() - (folder / PROGRESS).stat().st_mtime < STALE_SECONDS
    return is_alive(int(progress.get("process", 0))) and is_held(folder / ".lock")


def _read_accuracies(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the entries with accuracies in a run's journal, and its last entry; both are empty without a journal.

    Other lines, which are most of them, are not parsed, so that the state of many runs is read quickly.
    """
    journal, accuracies, last_line = folder / "journal.jsonl", list[dict[str, Any]](), b"{}"
    try:
        for last_line in read_lines(journal, within=folder):
            if last_line.startswith(b'{"event": "accuracy"'):
                accuracies.append(parse_json(last_line, f"A line of {journal}"))
    except FileNotFoundError:
        pass
    last_entry = parse_json(last_line, f"The last line of {journal}")
    if not isinstance(last_entry, dict):
        raise Damaged(f"The last line of {journal} is not an entry with an event.")
    return accuracies, last_entry


def _last_change(folder: Path) -> float:
    names = (PROGRESS, "journal.jsonl", "spec.json")
    return max((path.stat().st_mtime for path in (folder / name for name in names) if path.exists()), default=0.0)
