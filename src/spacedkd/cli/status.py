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
from spacedkd.report.formatting import duration
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
    """Print the progress of runs, the time left, and how to resume.

    A folder that contains runs may be that of a comparison, or the store of reproductions.

    Example: spacedkd status runs/demo
    """
    folders = find_runs(runs)
    states = [state_of(folder) for folder in folders]
    for line in aligned([(_name(one.folder, runs), *_status_row(one)) for one in states]):
        say(line)
    counts = Counter(one.state for one in states)
    say(", ".join(f"{counts[state]} {state}" for state in STATES if counts[state]) + ".")
    for one in states:
        for line in _way_on(one):
            say(line)


def listed(folder: Path, pattern: str = "", width: int = sys.maxsize) -> Iterator[str]:
    """Yield a line for each run in a folder whose name matches the pattern, as wide as the terminal."""
    found = {os.path.relpath(run, folder): run for run in find_runs([folder])}
    names = fnmatch.filter(found, pattern) if pattern else [*found]
    if not names:
        raise UserError(f"No run in {folder} matches {pattern!r}. Use wildcards: --pattern '*spaced*'")
    heads = ("run", "method", "interval", "network", "data", "seed", "epochs", "last", "best", "state", "date")
    rows = [(name, *_listed_row(state_of(found[name]))) for name in names]
    yield from _fitted(dict(zip(heads, zip(*rows, strict=True), strict=True)), width)


def _fitted(columns: Mapping[str, Sequence[str]], width: int) -> Iterator[str]:
    """Yield columns as lines; if they are too wide, columns with one value become a line, then others are dropped."""
    kept, alike, lost = dict(columns), list[str](), list[str]()
    for head in sorted(GIVE_WAY, key=lambda head: len({*columns[head]}) > 1):
        if max(map(len, _lines(kept))) <= width:
            break
        words = {*kept.pop(head)}
        if len(words) == 1:
            alike.append(f"{head} {words.pop()}")
        else:
            lost.append(head)
    yield from _lines(kept)
    if alike:
        yield from wrap(f"In every row: {', '.join(alike)}.", width)
    if lost:
        yield from wrap(f"No room for {', '.join(lost)}: a wider terminal shows all.", width)


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


def _name(folder: Path, asked: Sequence[Path]) -> str:
    """Return the name of a run, relative to the folder that was given if there was only one."""
    return os.path.relpath(folder, asked[0]) if len(asked) == 1 and folder != asked[0] else str(folder)


def _status_row(one: RunState) -> tuple[str, ...]:
    return one.state, _where(one), _left(one), _scored(one)


def _where(one: RunState) -> str:
    """Return how far a run is: in epochs of its role, and in percent of all turns."""
    found = one.progress
    if one.state == "finished" and one.spec is not None:
        return f"{one.spec.epochs:g} epochs"
    if not found.get("role") or "epoch" not in found:
        return "not begun" if one.spec is not None else NOTHING
    part = f", {100 * found['turn'] / found['turns']:.0f} %" if found.get("turns") and "turn" in found else ""
    return f"{found['role']} {found['epoch']:.1f} of {found['epochs']:g} epochs{part}"


def _left(one: RunState) -> str:
    if one.seconds_left is None or one.state not in ("training", "stopped", "killed"):
        return NOTHING
    return f"{duration(max(one.seconds_left, 1.0))} left"


def _scored(one: RunState) -> str:
    """Return the last accuracy of every role, the student's first."""
    order = sorted(one.accuracy, key=lambda role: role != one.student)
    return ", ".join(f"{role} {100 * one.accuracy[role]['last']:.1f} %" for role in order) or NOTHING


def _way_on(one: RunState) -> Iterator[str]:
    """Yield what is known of a run that is not finished, and the command that continues it."""
    place, found = shlex.quote(str(one.folder)), one.progress
    if one.state == "training":
        speed = f", {found['images_per_second']:.0f} images/s" if found.get("images_per_second") else ""
        who = (
            f"process {found['process']} on {found['host']}"
            if {"process", "host"} <= found.keys()
            else "a process that holds it"
        )
        yield f"{place}: {who}{speed}{f', {one.reason}' if one.reason else ''}"
    elif one.state == "damaged":
        yield f"{place}: {one.reason}"
    elif one.state == "diverged":
        yield f"{place}: {one.reason} To try again delete the folder, or: spacedkd train --resume {place}"
    elif one.state != "finished":
        saved = f" from turn {found['saved']} of {found['turns']}" if found.get("saved") and "turns" in found else ""
        resume = f"spacedkd train --resume {place}"
        belongs = one.spec is not None and one.spec.label
        way = f"give the command that made it again (compare, reproduce), or: {resume}" if belongs else resume
        yield f"{place}: {f'{one.reason} ' if one.reason else ''}Resume{saved} with: {way}"


def _listed_row(one: RunState) -> tuple[str, ...]:
    scores = one.accuracy.get(one.student)
    reached = [NOTHING if scores is None else f"{100 * scores[name]:.1f}" for name in ("last", "best")]
    when = datetime.fromtimestamp(one.changed).strftime("%Y-%m-%d %H:%M")
    return (*_settings(one.spec), *reached, one.state, when)


def _settings(spec: RunSpec | None) -> tuple[str, ...]:
    if spec is None:
        return (NOTHING,) * 6
    alone = spec.method.name == "none" or spec.schedule is None
    words = NOTHING if alone else describe_schedule(spec.schedule) or NOTHING
    interval = words.removeprefix("spaced ").removeprefix("constantly ")
    width = spec.network.options.get("width")
    network = f"{spec.network.name}/{width}" if width else spec.network.name
    data = Path(spec.data.source).name
    return spec.method.name, interval, network, data, str(spec.seed), f"{spec.epochs:g}"
