"""The command `status`, and the list of runs: their progress and accuracies. Never imports torch."""

import fnmatch
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from textwrap import wrap
from typing import Annotated

import tyro

from spacedkd.cli.console import say
from spacedkd.cli.flags import flag
from spacedkd.config.spec import RunSpec
from spacedkd.reporting.formatting import duration
from spacedkd.runs.status import STATES, RunState, find_runs, state_of
from spacedkd.runtime.errors import UserError, printable
from spacedkd.schedule import describe_schedule

RUNS = Path("runs")
NOTHING = "-"
GIVE_WAY = ("date", "best", "data", "seed", "epochs", "network", "method", "interval")
"""the columns of a list of runs that a narrow terminal may lack, the least important first"""


def status(
    runs: Annotated[
        tyro.conf.Positional[tuple[Path, ...]], flag("run folders, or folders that contain some", "runs", "RUN ...")
    ] = (RUNS,),
) -> None:
    """Print progress, time left and how to resume runs.

    A folder that contains runs may be that of a comparison, or the store of reproductions.

    Example: spacedkd status runs/demo
    """
    folders = find_runs(runs)
    states = [state_of(folder) for folder in folders]
    for line in aligned([(_name(run.folder, runs), *_status_row(run)) for run in states]):
        say(line)
    counts = Counter(run.state for run in states)
    say(", ".join(f"{counts[state]} {state}" for state in STATES if counts[state]) + ".")
    for run in states:
        for line in _how_to_resume(run):
            say(line)


def listed(folder: Path, pattern: str = "", width: int = sys.maxsize) -> Iterator[str]:
    """Yield a line for each run in a folder whose name matches the pattern, as wide as the terminal."""
    runs = {os.path.relpath(run, folder): run for run in find_runs([folder])}
    names = fnmatch.filter(runs, pattern) if pattern else [*runs]
    if not names:
        raise UserError(f"No run in {folder} matches {pattern!r}. Use wildcards: --pattern '*spaced*'")
    heads = ("run", "method", "interval", "network", "data", "seed", "epochs", "last", "best", "state", "date")
    rows = [(name, *_listed_row(state_of(runs[name]))) for name in names]
    yield from _fitted(dict(zip(heads, zip(*rows, strict=True), strict=True)), width)


def _fitted(columns: Mapping[str, Sequence[str]], width: int) -> Iterator[str]:
    """Yield columns as lines; if they are too wide, columns with one value become a line, then others are dropped."""
    shown, equal, dropped = dict(columns), list[str](), list[str]()
    for head in sorted(GIVE_WAY, key=lambda head: len({*columns[head]}) > 1):
        if max(map(len, _lines(shown))) <= width:
            break
        words = {*shown.pop(head)}
        if len(words) == 1:
            equal.append(f"{head} {words.pop()}")
        else:
            dropped.append(head)
    yield from _lines(shown)
    if equal:
        yield from wrap(f"In every row: {', '.join(equal)}.", width)
    if dropped:
        yield from wrap(f"No room for {', '.join(dropped)}: a wider terminal shows all.", width)


def _lines(columns: Mapping[str, Sequence[str]]) -> Iterator[str]:
    return aligned([tuple(columns), *zip(*columns.values(), strict=True)])


def aligned(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield rows as lines, each column as wide as its longest word.

    >>> [*aligned([("a", "left"), ("longer", "-")])]
    ['a       left', 'longer  -']
    """
    rows = [[printable(word) for word in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()


def _name(folder: Path, given: Sequence[Path]) -> str:
    """Return the name of a run, relative to the folder that was given if there was only one."""
    return os.path.relpath(folder, given[0]) if len(given) == 1 and folder != given[0] else str(folder)


def _status_row(run: RunState) -> tuple[str, ...]:
    return run.state, _where(run), _left(run), _scored(run)


def _where(run: RunState) -> str:
    """Return how far a run is: in epochs of its role, and in percent of all turns."""
    progress = run.progress
    if run.state == "finished" and run.spec is not None:
        return f"{run.spec.epochs:g} epochs"
    if not progress.get("role") or "epoch" not in progress:
        return "not begun" if run.spec is not None else NOTHING
    part = (
        f", {100 * progress['turn'] / progress['turns']:.0f} %" if progress.get("turns") and "turn" in progress else ""
    )
    return f"{progress['role']} {progress['epoch']:.1f} of {progress['epochs']:g} epochs{part}"


def _left(run: RunState) -> str:
    if run.seconds_left is None or run.state not in ("training", "stopped", "killed"):
        return NOTHING
    return f"{duration(max(run.seconds_left, 1.0))} left"


def _scored(run: RunState) -> str:
    """Return the last accuracy of every role, the student's first."""
    order = sorted(run.accuracy, key=lambda role: role != run.student)
    metric = "" if run.spec is None or run.spec.task == "classification" else f"{run.spec.metric_title} "
    return ", ".join(f"{role} {metric}{100 * run.accuracy[role]['last']:.1f} %" for role in order) or NOTHING


def _how_to_resume(run: RunState) -> Iterator[str]:
    """Yield what is known of a run that is not finished, and the command that continues it."""
    folder, progress = shlex.quote(str(run.folder)), run.progress
    if run.state == "training":
        speed = f", {progress['images_per_second']:.0f} images/s" if progress.get("images_per_second") else ""
        process = (
            f"process {progress['process']} on {progress['host']}"
            if {"process", "host"} <= progress.keys()
            else "a process that has locked it"
        )
        yield f"{folder}: {process}{speed}{f', {run.reason}' if run.reason else ''}"
    elif run.state == "damaged":
        yield f"{folder}: {run.reason}"
    elif run.state == "diverged":
        yield f"{folder}: {run.reason} To try again delete the folder, or: spacedkd train --resume {folder}"
    elif run.state != "finished":
        saved = (
            f" from turn {progress['saved']} of {progress['turns']}"
            if progress.get("saved") and "turns" in progress
            else ""
        )
        resume = f"spacedkd train --resume {folder}"
        in_comparison = run.spec is not None and run.spec.label
        command = f"run the command that made it again (compare, reproduce), or: {resume}" if in_comparison else resume
        yield f"{folder}: {f'{run.reason} ' if run.reason else ''}Resume{saved} with: {command}"


def _listed_row(run: RunState) -> tuple[str, ...]:
    scores = run.accuracy.get(run.student)
    accuracies = [NOTHING if scores is None else f"{100 * scores[name]:.1f}" for name in ("last", "best")]
    date = datetime.fromtimestamp(run.changed).strftime("%Y-%m-%d %H:%M")
    return (*_settings(run.spec), *accuracies, run.state, date)


def _settings(spec: RunSpec | None) -> tuple[str, ...]:
    if spec is None:
        return (NOTHING,) * 6
    is_unspaced = spec.method.name == "none" or spec.schedule is None
    words = NOTHING if is_unspaced else describe_schedule(spec.schedule) or NOTHING
    interval = words.removeprefix("spaced ").removeprefix("constantly ")
    width = spec.network.options.get("width")
    network = f"{spec.network.name}/{width}" if width else spec.network.name
    data = Path(spec.data.source).name
    return spec.method.name, interval, network, data, str(spec.seed), f"{spec.epochs:g}"
