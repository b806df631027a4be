"""What somebody is told while runs are going on: a live bar on a terminal, plain lines anywhere else."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from spacedkd.experiments.instruments import Advance
    from spacedkd.experiments.instruments import Progress as ShowWork
    from spacedkd.experiments.runner import Callback as JobCallback
    from spacedkd.experiments.runner import Job
    from spacedkd.training.loop import Callback, Moment

console = Console(quiet=os.environ.get("LOCAL_RANK", "0") != "0")  # one of several processes speaks for all


def say(text: str) -> None:
    """A line as it is, for people to copy from: not broken, not coloured, no markup."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


LONG = 10.0
"""seconds of work that are worth a line where there is no bar"""


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[news]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("left"),
        # Turns of different roles take different times: look back over many before saying how long is left.
        TimeRemainingColumn(elapsed_when_finished=False),
        console=console,
        speed_estimate_period=60,
        disable=not console.is_terminal,
    )


class _News:
    """The last accuracy of each role of one run."""

    def __init__(self) -> None:
        self.accuracy: dict[str, float] = {}

    def line(self, moment: Moment) -> str:
        if moment.accuracy is not None:
            self.accuracy[moment.role] = moment.accuracy
        scores = ", ".join(f"{role} {100 * value:.1f} %" for role, value in self.accuracy.items())
        return f"{moment.role:<7} epoch {moment.epoch:5.1f}  {scores}"


@contextmanager
def run_progress(console: Console, title: str) -> Iterator[Callback]:
    """A bar for one run."""
    news = _News()
    with _bar(console) as bar:
        task = bar.add_task(title, total=None, news="starting")

        def callback(moment: Moment) -> None:
            bar.update(task, completed=moment.turn, total=moment.turns, news=news.line(moment))
            if moment.accuracy is not None and not console.is_terminal:
                console.print(
                    f"{title}: {news.line(moment)}  (turn {moment.turn} of {moment.turns})",
                    highlight=False,
                    soft_wrap=True,
                )

        yield callback


@contextmanager
def jobs_progress(console: Console, count: int) -> Iterator[JobCallback]:
    """One bar for all runs with the time left, and one line for each that is going on."""
    with _bar(console) as bar:
        total = bar.add_task("all runs", total=count, news=f"0 of {count} runs")
        rows: dict[str, tuple[TaskID, _News]] = {}
        done: dict[str, float] = {}

        def callback(job: Job, moment: Moment) -> None:
            name = f"{job.label}, seed {job.seed}"
            if name not in rows:
                rows[name] = (bar.add_task(name, total=moment.turns, news=""), _News())
            row, news = rows[name]
            bar.update(row, completed=moment.turn, news=news.line(moment))
            done[name] = moment.turn / moment.turns
            finished = sum(part == 1 for part in done.values())
            bar.update(total, completed=sum(done.values()), news=f"{finished} of {count} runs")
            if moment.turn == moment.turns:
                bar.remove_task(row)
                if not console.is_terminal:
                    console.print(
                        f"[{finished} of {count}] {name}: {news.line(moment)}",
                        highlight=False,
                        markup=False,
                        soft_wrap=True,
                    )

        yield callback


@contextmanager
def work_progress(console: Console, which: str) -> Iterator[ShowWork]:
    """One line for each piece of work while it goes on, with the time it will still take."""
    with _bar(console) as bar:

        @contextmanager
        def one(title: str, parts: int) -> Iterator[Advance]:
            task, started = bar.add_task(title, total=parts, news=which), time.monotonic()
            yield lambda more: bar.advance(task, more)
            bar.remove_task(task)
            if (took := time.monotonic() - started) > LONG and not console.is_terminal:
                console.print(f"{which} {title}: {took:.0f} s".strip(), highlight=False, soft_wrap=True)

        def show(title: str, parts: int) -> AbstractContextManager[Advance]:
            return one(title, parts)

        yield show


@contextmanager
def count_progress(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """One line for each kind of work, which says how much of how much is done."""
    with _bar(console) as bar:
        tasks: dict[str, TaskID] = {}

        def callback(title: str, done: int, total: int) -> None:
            if title not in tasks:
                tasks[title] = bar.add_task(title, total=total, news="")
            bar.update(tasks[title], completed=done)

        yield callback
