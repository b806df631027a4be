"""What somebody is told while runs are going on: a live bar on a terminal, plain lines anywhere else."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, Task, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.text import Text

from spacedkd import started
from spacedkd.errors import printable

if TYPE_CHECKING:
    from spacedkd.evaluation.held_still import Advance
    from spacedkd.experiments.instruments import Progress as ShowWork
    from spacedkd.experiments.pool import Callback as JobCallback
    from spacedkd.experiments.sharing import Job
    from spacedkd.training.moment import Moment

GONE = (errno.EPIPE, errno.EIO)
"""errors of a pipe that nobody reads any more, and of a terminal that was closed"""


class Watched(Console):
    """A console that may lose whoever looks at it: work that is going on then goes on without a word."""

    working = False

    def on_broken_pipe(self) -> None:
        raise  # what rich has caught; it would end the process

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Escape what a terminal would obey in the text of whatever is shown; rich's own control codes are no text."""
        for segment in super().render(renderable, options):
            if segment.control is None and not segment.text.isprintable():
                segment = segment._replace(text="\n".join(map(printable, segment.text.split("\n"))))
            yield segment

    def __exit__(self, *exception: Any) -> None:  # all that is printed, by any thread, is written here
        try:
            super().__exit__(*exception)
        except OSError as error:
            if not self.working:
                raise
            self.quiet = self.quiet or error.errno in GONE


console = Watched(quiet=started.rank() != 0)  # one of several processes speaks for all


@contextmanager
def working() -> Iterator[None]:
    """While this lasts, work goes on whoever looks at it."""
    console.working = True
    try:
        yield
    finally:
        console.working = False


def let_go() -> None:
    """Drop what cannot be written: Python would try again at its end, and change the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(*lines: str) -> None:
    """Print lines for people to copy from: not broken, not coloured, no markup."""
    console.print("\n".join(map(printable, lines)), highlight=False, markup=False, emoji=False, soft_wrap=True)


def _say_plainly(text: str) -> None:
    """A line where there is no bar."""
    if not console.is_terminal:
        say(text)


LONG = 10.0
"""seconds of work that are worth a line where there is no bar"""


class _PrintableColumn(TextColumn):
    """A column of names of runs and what is said of them."""

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


def _line(moment: Moment, known: dict[str, float]) -> str:
    """Where a run is, with the last accuracy of each role, which is kept among those known."""
    if moment.waiting:
        return moment.waiting
    if moment.accuracy is not None:
        known[moment.role] = moment.accuracy
    scores = ", ".join(f"{role} {100 * value:.1f} %" for role, value in known.items())
    return f"{moment.role:<7} epoch {moment.epoch:5.1f}  {scores}"


@contextmanager
def jobs_progress(count: int) -> Iterator[JobCallback]:
    """One bar for all runs with the time left, and one line for each that is going on."""
    with _bar() as bar:
        total = bar.add_task("all runs", total=count, news=f"0 of {count} runs")
        rows: dict[str, TaskID] = {}
        done: dict[str, float] = {}
        known: dict[str, dict[str, float]] = defaultdict(dict)

        def callback(job: Job, moment: Moment) -> None:
            name = f"{job.label}, seed {job.seed}"
            if name not in rows:
                rows[name] = bar.add_task(name, total=moment.turns, news="")
            news = _line(moment, known[name])
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
            task, started = bar.add_task(title, total=parts, news=which), time.monotonic()
            yield lambda more: bar.advance(task, more)
            bar.remove_task(task)
            if (took := time.monotonic() - started) > LONG:
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
