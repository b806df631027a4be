"""The progress of runs: a live bar on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, Task, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from spacedkd.runtime.errors import printable

if TYPE_CHECKING:
    from spacedkd.comparison.job import Job
    from spacedkd.comparison.pool import Callback as JobCallback
    from spacedkd.evaluation.instrument import Advance
    from spacedkd.evaluation.instrument import Progress as ShowWork
    from spacedkd.training.loop import Event
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table

from spacedkd.cli.console import console, say, working
from spacedkd.report.formatting import duration

if TYPE_CHECKING:
    from spacedkd.training.loop import Event, EventFunction


# --- Several runs, or other work


def _say_plainly(text: str) -> None:
    """Print a line where there is no bar."""
    if not console.is_terminal:
        say(text)


LONG = 10.0
"""seconds of work that are worth a line where there is no bar"""


class _PrintableColumn(TextColumn):
    """A column of text that is safe to print."""

    def render(self, task: Task) -> Text:
        return Text(printable(self.text_format.format(task=task)))


@contextmanager
def _bar() -> Iterator[Progress]:
    bar = Progress(
        _PrintableColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f} %"),
        _PrintableColumn("{task.fields[news]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        # Turns of different roles take different times: look back over many before saying how long is left.
        TimeRemainingColumn(elapsed_when_finished=False),
        console=console,
        speed_estimate_period=60,
        disable=not console.is_terminal,
    )
    with working(), bar:
        yield bar


def _line(moment: Event, accuracies: dict[str, float]) -> str:
    """Return the progress of a run with the last accuracy of each role, which is remembered in `accuracies`."""
    if moment.waiting:
        return moment.waiting
    if moment.accuracy is not None:
        accuracies[moment.role] = moment.accuracy
    scores = ", ".join(f"{role} {100 * value:.1f} %" for role, value in accuracies.items())
    return f"{moment.role:<7} epoch {moment.epoch:5.1f}  {scores}"


@contextmanager
def jobs_progress(count: int) -> Iterator[JobCallback]:
    """One bar for all runs with the time left, and one line for each that is going on."""
    with _bar() as bar:
        total = bar.add_task("all runs", total=count, news=f"0 of {count} runs")
        rows: dict[str, TaskID] = {}
        done: dict[str, float] = {}
        accuracies: dict[str, dict[str, float]] = defaultdict(dict)

        def callback(job: Job, moment: Event) -> None:
            name = f"{job.label}, seed {job.seed}"
            if name not in rows:
                rows[name] = bar.add_task(name, total=moment.turns, news="")
            news = _line(moment, accuracies[name])
            bar.update(rows[name], completed=moment.turn, news=news)
            done[name] = moment.turn / moment.turns
            finished, of = sum(part == 1 for part in done.values()), max(count, len(done))  # teachers alone are more
            bar.update(total, completed=sum(done.values()), total=of, news=f"{finished} of {of} runs")
            if moment.turn == moment.turns:
                bar.remove_task(rows.pop(name))
                _say_plainly(f"[{finished} of {of}] {name}: {news}")

        yield callback


@contextmanager
def work_progress(which: str) -> Iterator[ShowWork]:
    """One line for each piece of work while it goes on, with the time it will still take."""
    with _bar() as bar:

        @contextmanager
        def show(title: str, parts: int) -> Iterator[Advance]:
            task, processes = bar.add_task(title, total=parts, news=which), time.monotonic()
            yield lambda more: bar.advance(task, more)
            bar.remove_task(task)
            if (took := time.monotonic() - processes) > LONG:
                _say_plainly(f"{which} {title}: {took:.0f} s".strip())

        yield show


@contextmanager
def count_progress() -> Iterator[Callable[[str, int, int], None]]:
    """One line for each kind of work, which says how much of how much is done."""
    with _bar() as bar:
        tasks: dict[str, TaskID] = {}

        def callback(title: str, done: int, total: int) -> None:
            if title not in tasks:
                tasks[title] = bar.add_task(title, total=total, news="")
            bar.update(tasks[title], completed=done)

        yield callback


# --- One run: a bar for each role on a terminal, lines with the time elsewhere

LOOK_SECONDS = 0.5
"""after which losses are looked at again, for which a device is waited for"""
LINE_SECONDS = 30.0
"""after which there is another line where there is no bar"""
ROLE, WIDEST = 9, 30
"""columns for a role's name, and for its bar at the most"""


class RoleBars:
    """A bar for each role with its losses below, and how long it will all take."""

    def __init__(self) -> None:
        self._moments: dict[str, Event] = {}
        self._losses: dict[str, str] = {}
        self._last: Event | None = None
        self._began = time.monotonic()

    def update(self, moment: Event, losses: str) -> None:
        self._last = moment
        if not moment.waiting:
            self._moments[moment.role] = moment
            self._losses[moment.role] = losses or self._losses.get(moment.role, "")

    def __rich__(self) -> RenderableType:
        if self._last is None:
            return Text("starting")
        rows = [row for role in [*self._moments] for row in self._role(role)]
        return Group(*rows, Text(printable(self._last.waiting) or self._whole(self._last)))

    def _role(self, role: str) -> Iterator[RenderableType]:
        moment = self._moments[role]
        row = Table.grid(padding=(0, 2, 0, 0), expand=True)
        row.add_column(min_width=ROLE - 2, no_wrap=True)
        row.add_column(ratio=1, max_width=WIDEST)
        digits, epochs = len(str(moment.steps)), f"{moment.epochs:.3g}"
        facts = [
            f"{moment.step:>{digits}}/{moment.steps}",
            f"epoch {moment.epoch:>{len(epochs) + 2}.1f}/{epochs}",
            "" if moment.lr is None else f"lr {moment.lr:.1e}",
            "" if moment.images_per_second is None else f"{_rate(moment.images_per_second):>5} img/s",
        ]
        for _ in facts:
            row.add_column(no_wrap=True)
        row.add_row(Text(printable(role)), ProgressBar(moment.steps, moment.step), *map(Text, facts))
        yield row
        if self._losses[role]:
            yield Padding(Text(printable(self._losses[role])), (0, 0, 0, ROLE))

    def _whole(self, moment: Event) -> str:
        passed, seconds_left = time.monotonic() - self._began, moment.seconds_left
        still = "" if seconds_left is None else f", {timedelta(seconds=round(seconds_left))} left"
        part = f"{moment.turn} of {moment.turns} turns, {100 * moment.turn / moment.turns:.0f} %"
        return f"{part}, {timedelta(seconds=round(passed))} so far{still}"


def _rate(images: float) -> str:
    return f"{images:.0f}" if images >= 10 else f"{images:.1f}"


def in_words(losses: Mapping[str, float]) -> str:
    """Return losses in a few digits.

    >>> in_words({"label": 2.30259, "logit": 0.0123})
    'label 2.303, logit 0.0123'
    """
    return ", ".join(f"{name} {loss:#.4g}" if abs(loss) >= 1 else f"{name} {loss:.3g}" for name, loss in losses.items())


def line(moment: Event, now: datetime) -> str:
    """Return the progress and the speed of a run as a line of a log file."""
    parts = [f"{moment.role} step {moment.step} of {moment.steps}, epoch {moment.epoch:.1f} of {moment.epochs:g}"]
    parts += [] if moment.accuracy is None else [f"accuracy {100 * moment.accuracy:.1f} %"]
    parts += [in_words(moment.losses)] if moment.losses else []
    parts += [] if moment.lr is None else [f"lr {moment.lr:.3g}"]
    parts += [] if moment.images_per_second is None else [f"{_rate(moment.images_per_second)} images/s"]
    if moment.seconds_left is not None and moment.turn < moment.turns:
        parts.append(f"{duration(max(moment.seconds_left, 1.0))} left")
    return f"{now:%H:%M:%S} {', '.join(parts)}"


def evaluated(moment: Event, accuracy: float, losses: str, now: datetime) -> str:
    """Return the line of an evaluation that stays above the bars."""
    where = f"{now:%H:%M:%S} {moment.role} epoch {moment.epoch:.1f}: {100 * accuracy:.1f} %"
    return f"{where}, {losses}" if losses else where


@contextmanager
def run_progress() -> Iterator[EventFunction]:
    """Yield the callback that shows the progress of one run."""
    with working():
        if console.is_terminal:
            with _bars() as callback:
                yield callback
        else:
            yield _lines()


@contextmanager
def _bars() -> Iterator[EventFunction]:
    bars, looked = RoleBars(), -LOOK_SECONDS
    with Live(bars, console=console, refresh_per_second=4):

        def callback(moment: Event) -> None:
            nonlocal looked
            now, losses = time.monotonic(), ""
            if now - looked >= LOOK_SECONDS or moment.accuracy is not None or moment.turn == moment.turns:
                losses, looked = in_words(moment.losses), now
            bars.update(moment, losses)
            if moment.accuracy is not None:
                say(evaluated(moment, moment.accuracy, losses, datetime.now()))

        yield callback


def _lines() -> EventFunction:
    told, waited = time.monotonic(), ""

    def callback(moment: Event) -> None:
        nonlocal told, waited
        now = time.monotonic()
        if moment.waiting not in ("", waited):
            say(f"{datetime.now():%H:%M:%S} {moment.waiting}")
        waited = moment.waiting
        if not waited and (moment.accuracy is not None or now - told >= LINE_SECONDS):
            say(line(moment, datetime.now()))
            told = now

    return callback
