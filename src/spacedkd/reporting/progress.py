"""The progress of runs: a live bar on a terminal or in a notebook, plain lines anywhere else.

Commands print lines where there is no terminal. Calls from Python (`show_run`, `show_runs`) show bars where a person
looks on, and nothing elsewhere.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress import BarColumn, Progress, Task, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from spacedkd.reporting.formatting import duration
from spacedkd.reporting.html import join, tag
from spacedkd.reporting.terminal import console, say, working
from spacedkd.runtime.errors import printable

if TYPE_CHECKING:
    from spacedkd.comparison.job import Job
    from spacedkd.comparison.pool import JobCallback
    from spacedkd.evaluation.instrument import Advance
    from spacedkd.evaluation.instrument import Progress as ShowWork
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
        _PrintableColumn("{task.fields[status]}"),
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


def _metric(event: Event) -> str:
    """Return the name of the metric before a value, where it is not the accuracy."""
    return "" if event.metric == "accuracy" else f"{event.metric} "


def _line(event: Event, accuracies: dict[str, float]) -> str:
    """Return the progress of a run with the last accuracy of each role, which is remembered in `accuracies`."""
    if event.waiting:
        return event.waiting
    if event.accuracy is not None:
        accuracies[event.role] = event.accuracy
    scores = ", ".join(f"{role} {_metric(event)}{100 * value:.1f} %" for role, value in accuracies.items())
    return f"{event.role:<7} epoch {event.epoch:5.1f}  {scores}"


@contextmanager
def jobs_progress(count: int) -> Iterator[JobCallback]:
    """Show one bar for all runs with the time left, and one line for each that is training."""
    with _bar() as bar:
        total = bar.add_task("all runs", total=count, status=f"0 of {count} runs")
        rows: dict[str, TaskID] = {}
        done: dict[str, float] = {}
        accuracies: dict[str, dict[str, float]] = defaultdict(dict)

        def callback(job: Job, event: Event) -> None:
            name = f"{job.label}, seed {job.seed}"
            if name not in rows:
                rows[name] = bar.add_task(name, total=event.turns, status="")
            status = _line(event, accuracies[name])
            bar.update(rows[name], completed=event.turn, status=status)
            done[name] = event.turn / event.turns
            finished = sum(part == 1 for part in done.values())
            runs = max(count, len(done))  # teachers that are trained alone come on top
            bar.update(total, completed=sum(done.values()), total=runs, status=f"{finished} of {runs} runs")
            if event.turn == event.turns:
                bar.remove_task(rows.pop(name))
                _say_plainly(f"[{finished} of {runs}] {name}: {status}")

        yield callback


@contextmanager
def work_progress(which: str) -> Iterator[ShowWork]:
    """Show one line for each piece of work while it is done, with the time it will still take."""
    with _bar() as bar:

        @contextmanager
        def show(title: str, parts: int) -> Iterator[Advance]:
            task, started = bar.add_task(title, total=parts, status=which), time.monotonic()
            yield lambda count: bar.advance(task, count)
            bar.remove_task(task)
            if (seconds := time.monotonic() - started) > LONG:
                _say_plainly(f"{which} {title}: {seconds:.0f} s".strip())

        yield show


@contextmanager
def count_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show one line for each kind of work, with how much of how much is done."""
    with _bar() as bar:
        tasks: dict[str, TaskID] = {}

        def callback(title: str, done: int, total: int) -> None:
            if title not in tasks:
                tasks[title] = bar.add_task(title, total=total, status="")
            bar.update(tasks[title], completed=done)

        yield callback


# --- One run: a bar for each role on a terminal, lines with the time elsewhere

LOOK_SECONDS = 0.5
"""between two looks at the losses, each of which waits for the device"""
LINE_SECONDS = 30.0
"""after which there is another line where there is no bar"""
ROLE, WIDEST = 9, 30
"""columns for a role's name, and for its bar at the most"""


class RoleBars:
    """A bar for each role with its losses below, and how long it will all take."""

    def __init__(self) -> None:
        self._events: dict[str, Event] = {}
        self._losses: dict[str, str] = {}
        self._last: Event | None = None
        self._began = time.monotonic()

    def update(self, event: Event, losses: str) -> None:
        self._last = event
        if not event.waiting:
            self._events[event.role] = event
            self._losses[event.role] = losses or self._losses.get(event.role, "")

    def __rich__(self) -> RenderableType:
        if self._last is None:
            return Text("starting")
        rows = [row for role in [*self._events] for row in self._role(role)]
        return Group(*rows, Text(printable(self._last.waiting) or self._whole(self._last)))

    def _role(self, role: str) -> Iterator[RenderableType]:
        event = self._events[role]
        row = Table.grid(padding=(0, 2, 0, 0), expand=True)
        row.add_column(min_width=ROLE - 2, no_wrap=True)
        row.add_column(ratio=1, max_width=WIDEST)
        digits, epochs = len(str(event.steps)), f"{event.epochs:.3g}"
        facts = [
            f"{event.step:>{digits}}/{event.steps}",
            f"epoch {event.epoch:>{len(epochs) + 2}.1f}/{epochs}",
            "" if event.lr is None else f"lr {event.lr:.1e}",
            "" if event.images_per_second is None else f"{_rate(event.images_per_second):>5} img/s",
        ]
        for _ in facts:
            row.add_column(no_wrap=True)
        row.add_row(Text(printable(role)), ProgressBar(event.steps, event.step), *map(Text, facts))
        yield row
        if self._losses[role]:
            yield Padding(Text(printable(self._losses[role])), (0, 0, 0, ROLE))

    def _whole(self, event: Event) -> str:
        seconds, seconds_left = time.monotonic() - self._began, event.seconds_left
        remaining = "" if seconds_left is None else f", {timedelta(seconds=round(seconds_left))} left"
        part = f"{event.turn} of {event.turns} turns, {100 * event.turn / event.turns:.0f} %"
        return f"{part}, {timedelta(seconds=round(seconds))} so far{remaining}"


def _rate(images: float) -> str:
    return f"{images:.0f}" if images >= 10 else f"{images:.1f}"


def in_words(losses: Mapping[str, float]) -> str:
    """Return losses in a few digits.

    >>> in_words({"label": 2.30259, "logit": 0.0123})
    'label 2.303, logit 0.0123'
    """
    return ", ".join(f"{name} {loss:#.4g}" if abs(loss) >= 1 else f"{name} {loss:.3g}" for name, loss in losses.items())


def line(event: Event, now: datetime) -> str:
    """Return the progress and the speed of a run as a line of a log file."""
    parts = [f"{event.role} step {event.step} of {event.steps}, epoch {event.epoch:.1f} of {event.epochs:g}"]
    parts += [] if event.accuracy is None else [f"{event.metric} {100 * event.accuracy:.1f} %"]
    parts += [in_words(event.losses)] if event.losses else []
    parts += [] if event.lr is None else [f"lr {event.lr:.3g}"]
    parts += [] if event.images_per_second is None else [f"{_rate(event.images_per_second)} images/s"]
    if event.seconds_left is not None and event.turn < event.turns:
        parts.append(f"{duration(max(event.seconds_left, 1.0))} left")
    return f"{now:%H:%M:%S} {', '.join(parts)}"


def evaluated(event: Event, accuracy: float, losses: str, now: datetime) -> str:
    """Return the line of an evaluation that stays above the bars."""
    where = f"{now:%H:%M:%S} {event.role} epoch {event.epoch:.1f}: {_metric(event)}{100 * accuracy:.1f} %"
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
    bars, last_read = RoleBars(), -LOOK_SECONDS
    with Live(bars, console=console, refresh_per_second=4):

        def callback(event: Event) -> None:
            nonlocal last_read
            now, losses = time.monotonic(), ""
            if now - last_read >= LOOK_SECONDS or event.accuracy is not None or event.turn == event.turns:
                losses, last_read = in_words(event.losses), now
            bars.update(event, losses)
            if event.accuracy is not None:
                say(evaluated(event, event.accuracy, losses, datetime.now()))

        yield callback


def _lines() -> EventFunction:
    last_print, waiting = time.monotonic(), ""

    def callback(event: Event) -> None:
        nonlocal last_print, waiting
        now = time.monotonic()
        if event.waiting not in ("", waiting):
            say(f"{datetime.now():%H:%M:%S} {event.waiting}")
        waiting = event.waiting
        if not waiting and (event.accuracy is not None or now - last_print >= LINE_SECONDS):
            say(line(event, datetime.now()))
            last_print = now

    return callback


# --- Calls from Python


def is_watched() -> bool:
    """Return whether a person looks on: in a notebook, or at a terminal."""
    return in_notebook() or console.is_terminal


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and hasattr(shell, "kernel")


@contextmanager
def show_run(progress: bool | None, callback: EventFunction) -> Iterator[EventFunction]:
    """Yield the callback of `train`, which calls the user's; None shows progress where a person looks on."""
    if not (is_watched() if progress is None else progress):
        yield callback
        return
    with _notebook_run() if in_notebook() else run_progress() as show:

        def report(event: Event) -> None:
            show(event)
            callback(event)

        yield report


@contextmanager
def show_runs(progress: bool | None, count: int, callback: JobCallback) -> Iterator[JobCallback]:
    """Yield the callback of `compare`, which calls the user's; None shows progress where a person looks on."""
    if not (is_watched() if progress is None else progress):
        yield callback
        return
    with _notebook_runs(count) if in_notebook() else jobs_progress(count) as show:

        def report(job: Job, event: Event) -> None:
            show(job, event)
            callback(job, event)

        yield report


class NotebookBars:
    """Bars in the output of a notebook's cell, drawn again at most twice a second."""

    def __init__(self) -> None:
        from IPython.display import display

        self._rows: dict[str, tuple[float, str]] = {}
        self._drawn = -LOOK_SECONDS
        self._handle = display(self, display_id=True)

    def update(self, name: str, part: float, text: str, at_once: bool = False) -> None:
        """Set the bar of a name to a part of one, with a text beside it."""
        self._rows[name] = (part, text)
        if at_once or time.monotonic() - self._drawn >= LOOK_SECONDS:
            self._drawn = time.monotonic()
            self._handle.update(self)

    def _repr_html_(self) -> str:
        style = "font-variant-numeric: tabular-nums; padding: 0 10px; text-align: left"
        rows = [
            tag(
                "tr",
                tag("td", name, style=style),
                tag("td", tag("progress", value=round(part, 4), max=1), style=style),
                tag("td", text, style=style),
            )
            for name, (part, text) in self._rows.items()
        ]
        return join(tag("table", *rows))

    def __repr__(self) -> str:
        return "\n".join(f"{name} {100 * part:.0f} % {text}" for name, (part, text) in self._rows.items())


@contextmanager
def _notebook_run() -> Iterator[EventFunction]:
    """Yield the callback that draws a bar for each role."""
    bars = NotebookBars()
    accuracies: dict[str, float] = {}

    def callback(event: Event) -> None:
        if event.waiting:
            bars.update(event.role or "waiting", 0.0, event.waiting)
            return
        if event.accuracy is not None:
            accuracies[event.role] = event.accuracy
        parts = [f"epoch {event.epoch:.1f} of {event.epochs:g}"]
        parts += [f"accuracy {100 * accuracies[event.role]:.1f} %"] if event.role in accuracies else []
        ended = event.turn == event.turns
        if event.seconds_left is not None and not ended:
            parts.append(f"{duration(max(event.seconds_left, 1.0))} left")
        at_once = ended or event.accuracy is not None
        bars.update(event.role, event.step / max(event.steps, 1), ", ".join(parts), at_once)

    yield callback


@contextmanager
def _notebook_runs(count: int) -> Iterator[JobCallback]:
    """Yield the callback that draws a bar for all runs, and one for each run."""
    bars = NotebookBars()
    done: dict[str, float] = {}
    accuracies: dict[str, dict[str, float]] = defaultdict(dict)
    bars.update("all runs", 0.0, f"0 of {count}", at_once=True)

    def callback(job: Job, event: Event) -> None:
        name = f"{job.label}, seed {job.seed}"
        done[name] = event.turn / max(event.turns, 1)
        finished, runs = sum(part == 1 for part in done.values()), max(count, len(done))
        bars.update(name, done[name], _line(event, accuracies[name]))
        bars.update("all runs", sum(done.values()) / runs, f"{finished} of {runs}", at_once=done[name] == 1)

    yield callback
