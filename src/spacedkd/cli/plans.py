"""What --plan shows: what a run or a comparison will take, and what is left of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from spacedkd.cli.progress import console, say
from spacedkd.spec import RunSpec

if TYPE_CHECKING:
    from spacedkd.experiments.forecast import ComparisonForecast
    from spacedkd.training.plan import Plan


def show_plan(spec: RunSpec, folder: Path, resume: bool) -> None:
    """What the run will take, and what is left of it; nothing is trained."""
    from spacedkd.cli import terminal
    from spacedkd.report import forecast_tables
    from spacedkd.training.folder import RunFolder
    from spacedkd.training.forecast import forecast

    if not resume:
        RunFolder(folder).check_free()
    found = forecast(spec, folder)
    console.print(*(terminal.shown(make(found)) for make in (forecast_tables.of_roles, forecast_tables.of_run)))
    say(f"Nothing was trained. The run's folder: {folder}")


def say_planned(plan: Plan, done: int) -> None:
    """What will be done, before it is, and how many turns of it are."""
    from spacedkd.report.numbers import count, counted

    roles = ", ".join(f"{role} {count(number)}" for role, number in plan.updates(len(plan.turns)).items())
    epochs = f"{counted(plan.spec.epochs, 'epoch')} of {counted(plan.data.count, 'image')}"
    steps = counted(plan.steps_per_epoch, "step")
    going_on = f" Going on after turn {count(done)}." if done else ""
    say(f"{counted(len(plan.turns), 'turn')} ({roles}): {epochs}, {steps} each.{going_on}")


def say_comparison(arms: Mapping[str, RunSpec], seeds: int) -> None:
    """The same of a comparison."""
    from spacedkd.report.numbers import counted, listed, plain

    *shorter, longest = sorted({spec.epochs for spec in arms.values()})
    epochs = listed([*map(plain, shorter), counted(longest, "epoch")])
    of_each = f"{counted(len(arms), 'arm')} of {counted(seeds, 'seed')} each, {epochs}"
    say(f"{counted(len(arms) * seeds, 'run')}: {of_each}; --plan says what they take.")


def show_comparison_plan(arms: Mapping[str, RunSpec], out: Path, seeds: int, jobs: int | None, sharing: bool) -> None:
    """What every arm will take, and what is left; nothing is trained."""
    from spacedkd.cli import terminal
    from spacedkd.experiments.forecast import forecast_comparison
    from spacedkd.report import forecast_tables

    found = forecast_comparison(arms, out, seeds=seeds, jobs=jobs, sharing=sharing)
    console.print(*(terminal.shown(table) for table in forecast_tables.of_comparison(found)))
    runs, finished = found.runs, sum(run.finished for run in found.runs)
    say(f"Nothing was trained. {finished} of {len(runs)} runs in {out} are finished.")
    say_left(found)


def say_left(found: ComparisonForecast) -> None:
    """What all runs together will still take."""
    from spacedkd.report.numbers import amount, duration

    say(
        f"{duration(found.seconds_left)} left with {found.at_once} at a time, {amount(found.memory, 'B')} of memory, "
        f"{amount(found.disk, 'B')} of disk."
    )
