"""Run the study, as far as time allows; PROTOCOL.md says what is run and why.

    python -m studies.spacing --root DATA --store STORE --max-hours 2

Stopped at any moment, the same command continues. Teachers are shared by all arms of a seed. The numbers of finished
runs are copied to studies/spacing/numbers, from which the page can be made on any machine.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from spacedkd.comparison.job import Job
from spacedkd.paper.reproduce import TimeBudget
from spacedkd.paper.store import Store, copy_numbers
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.signals import Signals, Stopped
from spacedkd.training.loop import Event
from studies.spacing.analysis import regimes
from studies.spacing.arms import Question, questions
from studies.spacing.page import write_advice, write_page

PAGE = Path(__file__).parent
NUMBERS = PAGE / "numbers"
ADVICE = PAGE.parents[1] / "src" / "spacedkd" / "reporting" / "study.json"
"""the numbers that reports cite"""
LINE_SECONDS = 60.0
"""between two lines about the progress of a run"""


def choose(question: Question, patterns: Sequence[str]) -> Question:
    """Return a question with those of its arms whose label fits one of the patterns."""
    arms = {
        label: spec for label, spec in question.arms.items() if any(fnmatchcase(label, pattern) for pattern in patterns)
    }
    return replace(question, arms=arms)


def train(store: Store, question: Question, jobs: int, ray: str | None, budget: TimeBudget, signals: Signals) -> bool:
    """Train what is left of a question, and return whether all of it is finished."""
    arms = {label: store.arm(spec) for label, spec in question.arms.items()}
    every = store.jobs(arms, question.seeds, jobs)
    print(f"{question.name}: {sum(job.finished for job in every)} of {len(every)} runs are finished", flush=True)
    if all(job.finished for job in every):
        return True
    if budget.is_over():
        return False
    try:
        errors = store.train(every, jobs, Lines(), ray, lambda: signals() or budget.is_over())
    except Stopped:
        return False
    for folder, error in errors.items():
        print(f"{folder}: {error}", file=sys.stderr)
    return not errors


class Lines:
    """Prints a line about each run, once in a while and at its end."""

    def __init__(self) -> None:
        self._printed: dict[Path, float] = {}

    def __call__(self, job: Job, event: Event) -> None:
        now, ended = time.monotonic(), event.turn == event.turns
        if ended or now - self._printed.setdefault(job.folder, now) > LINE_SECONDS:
            self._printed[job.folder] = now
            accuracy = "" if event.accuracy is None else f", accuracy {event.accuracy:.4f}"
            print(f"{job.name}: {event.role} epoch {event.epoch:.1f} of {event.epochs:g}{accuracy}", flush=True)


def save_numbers(store: Store, every: Sequence[Question], to: Path) -> None:
    """Copy the numbers of all finished runs, without networks."""
    runs = {
        run.folder: run
        for question in every
        for spec in question.arms.values()
        for run in store.runs(store.arm(spec)).values()
    }
    if runs:
        copy_numbers(store.folder, runs.values(), (), to)
    print(f"{len(runs)} finished runs: {to}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="studies.spacing", description="Run the study of spacing and averaging.")
    parser.add_argument("--root", default="data", help="the folder that holds the data sets")
    parser.add_argument("--store", type=Path, default=Path("runs/spacing"), help="where runs are kept")
    parser.add_argument("--only", nargs="*", help="only these questions, for instance q1")
    parser.add_argument("--arms", nargs="*", default=["*"], help="only these arms: patterns such as 'cosine, *'")
    parser.add_argument("--max-hours", type=float, help="stop after this time; 0 trains nothing")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--page", action="store_true", help="only make the page from the finished runs of the store")
    parser.add_argument("--ray", help="the address of a Ray cluster that trains the runs")
    given = parser.parse_args()
    store, budget = Store(given.store), TimeBudget(given.max_hours)
    every = [*questions(given.root)]
    if given.page:
        answered = [question for question in every if not question.name.startswith("tuning")]
        finished = {question.name: regimes(store, question) for question in answered}
        write_page(PAGE, answered, finished)
        write_advice(ADVICE, finished)
        print(f"{PAGE / 'README.md'}, {ADVICE}")
        return
    chosen = [choose(question, given.arms) for question in every if not given.only or question.name in given.only]
    with Signals() as signals:
        try:
            for question in chosen:
                if not train(store, question, given.jobs, given.ray, budget, signals) or signals():
                    break
        finally:
            save_numbers(store, every, NUMBERS)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"studies.spacing: {error}")
