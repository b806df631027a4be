"""The command `train`: one run, new, resumed or extended.

Like every command it imports what it needs when it is called, so that help and refusals come at once.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import tyro
from rich.table import Table as RichTable
from rich.text import Text

from spacedkd.cli.console import console, log_command, say, until_stopped
from spacedkd.cli.flags import PATHS, RunFlags, flag, given_flags
from spacedkd.cli.overrides import apply_flags, check_other_init, folder_name, to_spec
from spacedkd.config.recipes import quirks_of
from spacedkd.config.serialization import to_json
from spacedkd.config.spec import RunSpec, read_spec, resumable_fields
from spacedkd.reporting.progress import run_progress
from spacedkd.reporting.terminal import rich_table
from spacedkd.runtime.errors import UserError, pluralize, printable
from spacedkd.schedule import describe_schedule

if TYPE_CHECKING:
    from spacedkd.config.resolve import ResolvedRun
    from spacedkd.data.sources import Library

Run = Annotated[RunFlags, tyro.conf.arg(name="")]
PLAN = flag("train nothing; print what it takes, from a few steps")


def train(
    run: Run,
    *,
    out: Annotated[Path | None, flag("the run's folder", "runs/DATA-NETWORK-METHOD-SCHEDULE-seedN", "FOLDER")] = None,
    resume: Annotated[Path | None, flag("continue this run from its last checkpoint", metavar="RUN")] = None,
    restart: Annotated[
        bool, flag("with --resume, start that run again from its first step; its old journal is kept")
    ] = False,
    extend: Annotated[Path | None, flag("a new run that continues this one to more --epochs", metavar="RUN")] = None,
    plan: Annotated[bool, PLAN] = False,
) -> None:
    """Train a student with a teacher that learns ahead of it.

    Example: spacedkd train --data digits --width 16 --interval 1.5ep --epochs 12
    --batch-size 32 --optimizer adamw --lr 0.003 --rate cosine --out runs/mine
    """
    flags = given_flags(run)
    request = run_request(flags, out, resume, restart, extend)
    spec, resume, extend = request.spec, request.resume, request.extend

    from spacedkd.data.sources import Library
    from spacedkd.reporting import tables
    from spacedkd.runs.folder import RunFolder
    from spacedkd.training import extension
    from spacedkd.training.train import train_run

    if "recipe" in flags:
        name, without = flags["recipe"], flags.get("without", ())
        console.print(f"Recipe {name} sets:", spec_table(spec, quirks_of(name, without, spec)))
    path, library = request.run_folder(), Library()
    folder, extended = RunFolder(path), None if extend is None else RunFolder(extend)
    if resume is not None and flags:
        spec = RunFolder(resume).spec_to_resume(apply_flags(spec, flags))
    if extend is not None:
        folder.check_free()
        spec = extend_spec(spec, extend, library)
    extension.check_extended_run_given(spec, extend, folder)
    if plan:
        show_plan(spec, path, resume is not None)
        return
    if resume is not None and not restart and folder.finished():
        say(f"{path} is finished already.")

    def next_command() -> str:
        return f"spacedkd train --resume {shlex.quote(str(path))}" if folder.spec.exists() else "the same command"

    was_finished = folder.finished()
    with until_stopped(next_command) as stop, log_command(path, was_finished), run_progress() as callback:
        result = train_run(
            spec,
            folder,
            resume=resume is not None,
            restart=restart,
            extend=extended,
            library=library,
            callback=callback,
            stop=stop,
            on_start=say_planned,
        )
    console.print(rich_table(tables.of_run(result)))
    best = f", of its best epoch ({result.plan['best']['epoch']:g}): {path}/best" if "best" in result.plan else ""
    say(f"{result.cost['updates']} updates in {result.seconds:.0f} s. Student: {path}/student{best}")


# --- Which run --out, --resume, --restart and --extend mean


class RunRequest(NamedTuple):
    """A run, its folder, and the run that it resumes or extends."""

    spec: RunSpec
    folder: Path | None
    """None where the spec names it"""
    resume: Path | None
    extend: Path | None

    def run_folder(self) -> Path:
        """Return the run's folder: the one that was typed, or one that is named after the spec."""
        return self.folder or Path("runs") / folder_name(self.spec)


def run_request(
    flags: dict[str, Any], out: Path | None, resume: Path | None, restart: bool, extend: Path | None
) -> RunRequest:
    """Return the run that these flags mean together; flags that do not go together are refused."""
    resume, extend = (
        path.parent if path is not None and path.name == "spec.json" else path for path in (resume, extend)
    )
    if restart and resume is None:
        raise UserError("--restart starts an existing run again: name it with --resume RUN.")
    if out is not None and not out.name:
        raise UserError("--out needs the name of a folder, for instance runs/mine.")
    if extend is not None:
        return _extension_request(flags, out, resume, extend)
    if resume is None:
        spec = to_spec(flags)
        if flags.get("same_init") is False:
            check_other_init([spec])
        return RunRequest(spec, out, None, None)
    trust_code = flags.pop("trust_code", False)
    resumable = [name for name, path in PATHS.items() if path in resumable_fields()]
    if out is not None or {*flags} - {*resumable}:
        raise UserError(
            "--resume takes everything from the run's spec.json: leave out the other flags. These may "
            f"change: {', '.join(f'--{name}' for name in resumable)}."
        )
    return RunRequest(read_spec(resume, trust_code), resume, resume, None)


def _extension_request(flags: dict[str, Any], out: Path | None, resume: Path | None, extend: Path) -> RunRequest:
    """Return a run with the spec of another but more epochs, in a folder next to it."""
    if resume is not None:
        raise UserError("--extend starts a new run, --resume continues one: give one of them.")
    if "epochs" not in flags or {*flags} - {"epochs", "trust_code"}:
        raise UserError(
            "--extend takes everything but the epochs from the run's spec.json: give --epochs, more than it had, and "
            "leave out the other flags."
        )
    shorter = read_spec(extend, flags.get("trust_code", False))
    spec = replace(shorter, epochs=flags["epochs"], extends=(), record=(), record_average=(), record_average_for=())
    spec = replace(spec, cache_targets=False)
    beside = extend if extend.name else extend.resolve()
    return RunRequest(spec, out or beside.with_name(f"{beside.name}-{spec.epochs:g}ep"), None, extend)


HOW = {
    "exact": "the bits are those of one run of {epochs}.",
    "warm": "the turns so far had the learning rates of a run of {before}, the others have those of a run of {epochs}. "
    "No single run has these bits.",
    "anew": "the blocks of its schedule start again here, because a run of {epochs} has other blocks. No single run "
    "has these bits.",
}
"""how an extended run differs from one long run"""


def extend_spec(spec: RunSpec, run: Path, library: Library) -> RunSpec:
    """Return the spec with the run that it continues, and print whether one long run would have the same bits."""
    from spacedkd.training import extension

    spec = extension.extend_spec(spec, run, library=library)
    last = spec.extends[-1]
    epochs, before = pluralize(spec.epochs, "epoch"), pluralize(last.epochs, "epoch")
    say(f"Continues {run} from turn {last.turn}: {HOW[last.how].format(epochs=epochs, before=before)}")
    return spec


# --- What is printed of a run before it is trained


def show_plan(spec: RunSpec, folder: Path, resume: bool) -> None:
    """Print what the run will take, and how much of it is left; nothing is trained."""
    from spacedkd.reporting import tables
    from spacedkd.runs.folder import RunFolder
    from spacedkd.training.forecast import forecast

    if not resume:
        RunFolder(folder).check_free()
    planned = forecast(spec, folder)
    schedule = describe_schedule(planned.spec.schedule)
    say(f"Order of the turns, by step{f' ({schedule})' if schedule else ''}: {planned.order}")
    console.print(*(rich_table(make(planned)) for make in (tables.of_roles, tables.of_run_forecast)))
    say(f"Nothing was trained. The run's folder: {folder}")


def say_planned(plan: ResolvedRun, done: int) -> None:
    """Print how many turns the run has, and how many of them are done."""
    from spacedkd.reporting.formatting import count, plural

    roles = ", ".join(f"{role} {count(number)}" for role, number in plan.updates(len(plan.timeline)).items())
    epochs = f"{plural(plan.spec.epochs, 'epoch')} of {plural(plan.data.count, 'image')}"
    steps = plural(plan.steps_per_epoch, "step")
    resumed = f" Continuing after turn {count(done)}." if done else ""
    say(f"{plural(len(plan.timeline), 'turn')} ({roles}): {epochs}, {steps} each.{resumed}")


def spec_table(spec: RunSpec, notes: Mapping[str, str]) -> RichTable:
    """Return a table of everything that a spec sets, a line for each setting, and then the notes."""
    table = RichTable(box=None, show_header=False, padding=(0, 2))
    for key, value in (*_settings(to_json(spec)), *notes.items()):
        table.add_row(Text(printable(key)), Text(printable(str(value))))
    return table


def _settings(plain: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in plain.items():
        if isinstance(value, Mapping) and value:
            yield from _settings(value, f"{prefix}{key}.")
        elif value not in (None, "", [], {}):
            yield f"{prefix}{key}", value
