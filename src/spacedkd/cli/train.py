"""The verbs that train, compare, report and measure the theory.

Each imports what it needs when it is called, so that help and mistakes come at once.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from spacedkd.cli.overrides import folder_name, to_spec
from spacedkd.cli.progress import say
from spacedkd.config.spec import RunSpec, read_spec
from spacedkd.runtime.errors import UserError, pluralize

if TYPE_CHECKING:
    from spacedkd.data.sources import Library
from collections.abc import Mapping
from typing import TYPE_CHECKING

from spacedkd.cli.progress import console

if TYPE_CHECKING:
    from spacedkd.comparison.forecast import ComparisonForecast
    from spacedkd.comparison.results import ComparisonDocument
    from spacedkd.config.resolve import ResolvedRun
import shlex
import sys
from collections.abc import Sequence
from typing import Annotated

import tyro

from spacedkd.cli.arms import make_arms
from spacedkd.cli.command_log import Command, kept, read_commands, this_command
from spacedkd.cli.flags import RunFlags, flag, given
from spacedkd.cli.overrides import changed
from spacedkd.cli.progress import count_progress, jobs_progress, run_progress
from spacedkd.cli.stops import say_error, until_stopped
from spacedkd.config.recipes import of_quirks
from spacedkd.report.terminal import rich_table
from spacedkd.runtime.errors import check_between, unknown
from spacedkd.runtime.machine import check_count

# Which run --out, --resume, --restart and --extend ask for.

HOW = {
    "exact": "the bits are those of {epochs} in one go.",
    "warm": "so far what depends on the length of a run, such as its learning rate, was that of {before}; from "
    "here on it is that of {epochs}. No run in one go has these bits.",
    "anew": "its schedule had come to an end that a run of {epochs} does not have there, and begins anew. No run in "
    "one go has these bits.",
}
"""how a run goes on where another ended"""


class RunRequest(NamedTuple):
    """A run, where it lies, and what it goes on from."""

    spec: RunSpec
    folder: Path | None
    """None where the run's own spec names it"""
    resume: Path | None
    extend: Path | None

    def place(self) -> Path:
        return self.folder or Path("runs") / folder_name(self.spec)


def run_request(
    typed: dict[str, Any], out: Path | None, resume: Path | None, restart: bool, extend: Path | None
) -> RunRequest:
    """What these flags mean together; of --resume, flags that may not be given with it are refused."""
    resume, extend = (one.parent if one is not None and one.name == "spec.json" else one for one in (resume, extend))
    if restart and resume is None:
        raise UserError("--restart begins a run that is there again: name it with --resume RUN.")
    if out is not None and not out.name:
        raise UserError("--out needs the name of a folder, for instance runs/mine.")
    if extend is not None:
        return _longer(typed, out, resume, extend)
    if resume is None:
        return RunRequest(to_spec(typed), out, None, None)
    trust_code = typed.pop("trust_code", False)
    if out is not None or {*typed} - {"devices", "nodes", "strategy", "log"}:
        raise UserError(
            "--resume takes everything from the run's spec.json: leave out the other flags. Only --devices, --nodes, "
            "--strategy and --log may change."
        )
    return RunRequest(read_spec(resume, trust_code), resume, resume, None)


def _longer(typed: dict[str, Any], out: Path | None, resume: Path | None, extend: Path) -> RunRequest:
    """The run's own spec with more epochs, in a folder beside it."""
    if resume is not None:
        raise UserError("--extend begins a new run, --resume goes on with one: give one of them.")
    if "epochs" not in typed or {*typed} - {"epochs", "trust_code"}:
        raise UserError(
            "--extend takes everything but the epochs from the run's spec.json: give --epochs, more than it had, and "
            "leave out the other flags."
        )
    held = read_spec(extend, typed.get("trust_code", False))
    spec = replace(held, epochs=typed["epochs"], extends=(), record=())
    named = extend if extend.name else extend.resolve()
    return RunRequest(spec, out or named.with_name(f"{named.name}-{spec.epochs:g}ep"), None, extend)


def extended(spec: RunSpec, run: Path, library: Library) -> RunSpec:
    """The spec with where it goes on; one line says whether a run in one go would have the same bits."""
    from spacedkd.training import extension

    spec = extension.extend_spec(spec, run, library=library)
    last = spec.extends[-1]
    epochs, before = pluralize(spec.epochs, "epoch"), pluralize(last.epochs, "epoch")
    say(f"Goes on from turn {last.turn} of {run}: {HOW[last.how].format(epochs=epochs, before=before)}")
    return spec


# What --plan shows: what a run or a comparison will take, and what is left of it.


def show_plan(spec: RunSpec, folder: Path, resume: bool) -> None:
    """What the run will take, and what is left of it; nothing is trained."""
    from spacedkd.report import tables
    from spacedkd.runs.folder import RunFolder
    from spacedkd.training.forecast import forecast

    if not resume:
        RunFolder(folder).check_free()
    found = forecast(spec, folder)
    console.print(*(rich_table(make(found)) for make in (tables.of_roles, tables.of_run_forecast)))
    say(f"Nothing was trained. The run's folder: {folder}")


def say_planned(plan: ResolvedRun, done: int) -> None:
    """What will be done, before it is, and how many turns of it are."""
    from spacedkd.report.formatting import count, plural

    roles = ", ".join(f"{role} {count(number)}" for role, number in plan.updates(len(plan.timeline)).items())
    epochs = f"{plural(plan.spec.epochs, 'epoch')} of {plural(plan.data.count, 'image')}"
    steps = plural(plan.steps_per_epoch, "step")
    going_on = f" Going on after turn {count(done)}." if done else ""
    say(f"{plural(len(plan.timeline), 'turn')} ({roles}): {epochs}, {steps} each.{going_on}")


def say_comparison(arms: Mapping[str, RunSpec], seeds: int) -> None:
    """The same of a comparison."""
    from spacedkd.report.formatting import join_words, plain, plural

    *shorter, longest = sorted({spec.epochs for spec in arms.values()})
    epochs = join_words([*map(plain, shorter), plural(longest, "epoch")])
    of_each = f"{plural(len(arms), 'arm')} of {plural(seeds, 'seed')} each, {epochs}"
    say(f"{plural(len(arms) * seeds, 'run')}: {of_each}; --plan says what they take.")


def show_comparison_plan(arms: Mapping[str, RunSpec], out: Path, seeds: int, jobs: int | None, sharing: bool) -> None:
    """What every arm will take, and what is left; nothing is trained."""
    from spacedkd.comparison.forecast import forecast_comparison
    from spacedkd.report import tables

    found = forecast_comparison(arms, out, seeds=seeds, jobs=jobs, sharing=sharing)
    console.print(*(rich_table(table) for table in tables.of_comparison(found)))
    runs, finished = found.runs, sum(run.finished for run in found.runs)
    say(f"Nothing was trained. {finished} of {len(runs)} runs in {out} are finished.")
    say_left(found)


def say_left(found: ComparisonForecast) -> None:
    """What all runs together will still take."""
    from spacedkd.report.formatting import amount, duration

    say(
        f"{duration(found.seconds_left)} left with {found.at_once} at a time, {amount(found.memory, 'B')} of memory, "
        f"{amount(found.disk, 'B')} of disk."
    )


# The verbs that train, compare, report and measure the theory.

Run = Annotated[RunFlags, tyro.conf.arg(name="")]
PLAN = flag("train nothing: take a few steps, and say what it will take and what is left", "no", also=("--dry-run",))


def train(
    run: Run,
    out: Annotated[Path | None, flag("the run's folder", "runs/DATA-NETWORK-METHOD-SCHEDULE-seedN", "FOLDER")] = None,
    resume: Annotated[Path | None, flag("go on with this run from where it stopped", metavar="RUN")] = None,
    restart: Annotated[
        bool, flag("begin the run of --resume again from its beginning; its journal so far is kept", "no")
    ] = False,
    extend: Annotated[
        Path | None, flag("a new run that goes on where this one ended, to more --epochs", metavar="RUN")
    ] = None,
    plan: Annotated[bool, PLAN] = False,
) -> None:
    """Train a network with a teacher that learns ahead of it.

    Example: spacedkd train --data digits --width 16 --interval 1.5ep --epochs 12
    --batch-size 32 --optimizer adamw --lr 0.003 --rate cosine --out runs/mine
    """
    typed = given(run)
    run_asked = run_request(typed, out, resume, restart, extend)
    spec, _, resume, extend = run_asked

    from spacedkd.cli import terminal
    from spacedkd.data.sources import Library
    from spacedkd.report import tables
    from spacedkd.runs.folder import RunFolder
    from spacedkd.training import extension
    from spacedkd.training.train import train_run

    if "recipe" in typed:
        name, without = typed["recipe"], typed.get("without", ())
        console.print(f"Recipe {name} fills in:", terminal.of_spec(spec, of_quirks(name, without, spec)))
    folder, library = run_asked.place(), Library()
    if resume is not None and typed:
        spec = RunFolder(resume).spec_to_resume(changed(spec, typed))
    if extend is not None:
        RunFolder(folder).check_free()
        spec = extended(spec, extend, library)
    extension.check_extended_run_given(spec, extend, RunFolder(folder))
    if plan:
        show_plan(spec, folder, resume is not None)
        return
    if resume is not None and not restart and RunFolder(folder).finished():
        say(f"{folder} is finished already.")

    def way_on() -> str:
        begun = RunFolder(folder).spec.exists()
        return f"spacedkd train --resume {shlex.quote(str(folder))}" if begun else "the same command"

    done = RunFolder(folder).finished()
    with until_stopped(way_on) as stop, kept(folder, done), run_progress() as callback:
        found = train_run(
            spec,
            RunFolder(folder),
            resume=resume is not None,
            restart=restart,
            extend=None if extend is None else RunFolder(extend),
            library=library,
            callback=callback,
            stop=stop,
            on_start=say_planned,
        )
    console.print(rich_table(tables.of_run(found)))
    best = f", of its best epoch ({found.plan['best']['epoch']:g}): {folder}/best" if "best" in found.plan else ""
    say(f"{found.cost['updates']} updates in {found.seconds:.0f} s. Student: {folder}/student{best}")


def compare(
    base: Run,
    arm: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        flag("an arm as 'NAME: FLAGS', the flags it adds to the others; repeat for each arm", metavar="ARM"),
    ] = (),
    methods: Annotated[
        tuple[str, ...],
        flag("each of these methods, or all, unspaced and spaced by --interval", "none", "NAME ..."),
    ] = (),
    out: Annotated[Path, flag("where the runs go", "runs/comparison", "FOLDER")] = Path("runs/comparison"),
    seeds: Annotated[int, flag("how many seeds each arm gets", 3, "COUNT")] = 3,
    against: Annotated[str | None, flag("the arm differences are taken to", "the first", "NAME")] = None,
    equal_cost: Annotated[
        bool,
        flag("add, for each arm that takes k updates a step, its method unspaced with k times the epochs", "no"),
    ] = False,
    jobs: Annotated[int | None, flag("runs at a time", "one for each GPU or core", "COUNT")] = None,
    no_sharing: Annotated[bool, flag("train every arm's teacher anew, also where arms have the same", "no")] = False,
    ray: Annotated[
        str | None,
        flag("train the runs in the Ray cluster at this address; auto: the one of this machine", metavar="ADDRESS"),
    ] = None,
    plan: Annotated[bool, PLAN] = False,
) -> None:
    """Compare methods and schedules over seeds, like with like.

    Every arm of a seed gets the same data order and the same initial weights. Runs that are finished already are used
    as they are; ones that were stopped go on. A teacher that several arms have is trained once for all of them, which
    changes no bit. Runs that diverge or fail are reported, the others go on, and the command ends with 3; the same
    command tries those that failed again.

    Example: spacedkd compare --data digits --width 16 --epochs 12 --batch-size 32
    --optimizer adamw --lr 0.003 --rate cosine --arm 'online: --method kd'
    --arm 'spaced: --method kd --interval 1.5ep' --against online

    Example: spacedkd compare --data digits --methods kd dkd self-kd --interval 1.5ep
    """
    if seeds < 1:
        raise UserError(f"--seeds must be at least 1, got {seeds}.")
    check_between("--seeds", seeds, 1, 10_000)
    if jobs is not None and jobs < 1:
        raise UserError(f"--jobs must be at least 1, got {jobs}.")
    check_count("--jobs", jobs, least=64)
    arms = make_arms(arm, methods, given(base))
    if not equal_cost and against not in (None, *arms):
        raise unknown("arm", str(against), arms)

    from spacedkd.comparison import scheduler
    from spacedkd.comparison.compare import compare as train_and_compare

    if equal_cost:
        arms |= scheduler.equal_cost_controls(arms)
    if plan:
        show_comparison_plan(arms, out, seeds, jobs, not no_sharing)
        return
    first = next(iter(arms.values())).seed
    every = [scheduler.run_folder(out, label, first + number) for label in arms for number in range(seeds)]
    finished = sum((folder / "result.json").exists() for folder in every)
    if finished:
        say(f"{finished} of {len(every)} runs in {out} are finished already; delete the folder to run them again.")
    say_comparison(arms, seeds)
    left = len(every) - finished
    with until_stopped(lambda: "the same command") as stop, kept(out, not left), jobs_progress(left) as callback:
        found = train_and_compare(
            arms,
            out,
            seeds=seeds,
            against=against,
            jobs=jobs,
            sharing=not no_sharing,
            ray=ray,
            callback=callback,
            stop=stop,
        )
    _show(found, out / "report.html", out / "comparison.json", read_commands([out]))
    if found["diverged"]:
        folder = shlex.quote(found["diverged"][0]["folder"])
        say_error(f"{len(found['diverged'])} of {len(every)} runs diverged. To train one again, delete {folder}")
    if found["failed"]:
        one = found["failed"][0]
        which = f"{one['label']}, seed {one['seed']}: {one['said']}"
        say_error(f"{len(found['failed'])} of {len(every)} runs failed; the same command tries them again. {which}")
    if found["diverged"] or found["failed"]:
        sys.exit(3)


def report(
    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], flag("run folders, or folders of them", metavar="RUN ...")],
    out: Annotated[
        Path | None, flag("the page; its numbers go beside it", "report.html in the first folder", "FILE.html")
    ] = None,
    against: Annotated[str | None, flag("the arm differences are taken to", "the first", "NAME")] = None,
) -> None:
    """Make a report page from run folders, and a file of numbers.

    A folder that contains runs stands for all of them. In a folder that was compared before, arms keep their order and
    the arm that differences are taken to.

    Example: spacedkd report runs/demo --against 'online KD'
    """
    if out is not None and (out.suffix != ".html" or out.is_dir()):
        raise UserError(f"The report is an HTML page: give --out a file name that ends in .html, not {str(out)!r}.")
    if not runs:
        raise UserError("Name at least one run folder, for instance runs/demo.")

    from spacedkd.comparison import results
    from spacedkd.runs.folder import make_folder

    finished, unfinished = results.find_runs(runs)
    if out is None:
        page, numbers = runs[0] / "report.html", runs[0] / "comparison.json"
    else:
        page, numbers = out, out.with_name(f"{out.stem}-numbers.json")
        make_folder(out.parent, "--out")
    found = results.compare_runs(*results.keep_order(runs[0] / "comparison.json", finished, against), unfinished)
    results.write_comparison(numbers, found)
    commands = [*read_commands([*(run.resolve() for run in runs), *finished]), this_command()]
    _show(found, page, numbers, commands, len(unfinished) - len(found["diverged"]) - len(found["failed"]))


def _show(
    found: ComparisonDocument, page: Path, numbers: Path, commands: Sequence[Command], unfinished: int = 0
) -> None:
    """A comparison as a page and as tables."""
    from spacedkd.report import tables
    from spacedkd.report.page import write_page

    write_page(page, found, unfinished, commands)
    console.print(*(rich_table(table) for table in tables.comparison_tables(found)))
    say(f"Numbers: {numbers}", f"Report:  {page}")


def theory(
    out: Annotated[Path, flag("where numbers and page go", "runs/theory", "FOLDER")] = Path("runs/theory"),
    problems: Annotated[int, flag("kinds of data and first weights", 16, "COUNT")] = 16,
    orders: Annotated[int, flag("orders of the data for each, over which expectations go", 24, "COUNT")] = 24,
    steps: Annotated[int, flag("updates of each student; twice as many at the small rate", 1500, "COUNT")] = 1500,
    seed: Annotated[int, flag("decides all of them", 0)] = 0,
) -> None:
    """Measure the paper's Lemma and Theorem in their own setting.

    That is squared error, one output, wide networks. Writes theory.json and theory.html; takes a few minutes.

    Example: spacedkd theory --out runs/theory
    """
    from rich.table import Table

    from spacedkd.paper.theory import findings
    from spacedkd.paper.theory.measure import measure
    from spacedkd.paper.theory.page import write_theory_page
    from spacedkd.paper.theory.simulation import default_settings
    from spacedkd.runs.folder import make_folder
    from spacedkd.runtime.files import write_json

    settings = default_settings(problems, orders, steps, seed)
    make_folder(out, "--out")
    with count_progress() as callback:
        found = measure(settings, callback)
    write_json(out / "theory.json", found)
    typed = {"--out": out, "--problems": problems, "--orders": orders, "--steps": steps, "--seed": seed}
    command = shlex.join(["spacedkd", "theory", *(str(word) for pair in typed.items() for word in pair)])
    write_theory_page(out / "theory.html", found, command)
    table = Table("statement", "near convergence")
    for name, title in findings.STATEMENTS.items():
        table.add_row(title, findings.finding(found, name))
    console.print(table)
    console.print(findings.headline(found), highlight=False, markup=False)
    say(f"Numbers: {out}/theory.json", f"Page:    {out}/theory.html")
