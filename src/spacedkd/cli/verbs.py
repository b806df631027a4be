"""The verbs that train, compare, report and measure the theory.

Each imports what it needs when it is called, so that help and mistakes come at once.
"""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from spacedkd.cli import plans
from spacedkd.cli.arms import make_arms
from spacedkd.cli.asked import asked, extended
from spacedkd.cli.changes import changed
from spacedkd.cli.commands import Command, kept, read_commands, this_command
from spacedkd.cli.flags import RunFlags, flag, given
from spacedkd.cli.progress import console, count_progress, jobs_progress, say
from spacedkd.cli.run_progress import run_progress
from spacedkd.cli.stops import say_error, until_stopped
from spacedkd.errors import UserError, check_between, unknown
from spacedkd.machine import check_count
from spacedkd.recipes import of_quirks

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
    run_asked = asked(typed, out, resume, restart, extend)
    spec, _, resume, extend = run_asked

    from spacedkd.cli import terminal
    from spacedkd.data.sources import Library
    from spacedkd.report import tables
    from spacedkd.training import extension, loop
    from spacedkd.training.folder import RunFolder
    from spacedkd.training.objects import Objects

    if "recipe" in typed:
        name, without = typed["recipe"], typed.get("without", ())
        console.print(f"Recipe {name} fills in:", terminal.of_spec(spec, of_quirks(name, without, spec)))
    folder, library = run_asked.place(), Library()
    if resume is not None and typed:
        spec = RunFolder(resume).taken_up(changed(spec, typed))
    if extend is not None:
        RunFolder(folder).check_free()
        spec = extended(spec, extend, library)
    extension.check_named(spec, extend, RunFolder(folder))
    if plan:
        plans.show_plan(spec, folder, resume is not None)
        return
    if resume is not None and not restart and RunFolder(folder).finished():
        say(f"{folder} is finished already.")

    def way_on() -> str:
        begun = RunFolder(folder).spec.exists()
        return f"spacedkd train --resume {shlex.quote(str(folder))}" if begun else "the same command"

    done = RunFolder(folder).finished()
    with until_stopped(way_on) as stop, kept(folder, done), run_progress() as callback:
        given_to = (spec, RunFolder(folder), resume is not None, Objects(), callback, library, restart, stop)
        before = None if extend is None else RunFolder(extend)
        found = loop.train_run(*given_to, before, planned=plans.say_planned)
    console.print(terminal.shown(tables.of_run(found)))
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

    from spacedkd.experiments import runner

    if equal_cost:
        arms |= runner.equal_cost_controls(arms)
    if plan:
        plans.show_comparison_plan(arms, out, seeds, jobs, not no_sharing)
        return
    first = next(iter(arms.values())).seed
    every = [runner.run_folder(out, label, first + number) for label in arms for number in range(seeds)]
    finished = sum((folder / "result.json").exists() for folder in every)
    if finished:
        say(f"{finished} of {len(every)} runs in {out} are finished already; delete the folder to run them again.")
    plans.say_comparison(arms, seeds)
    left = len(every) - finished
    with until_stopped(lambda: "the same command") as stop, kept(out, not left), jobs_progress(left) as callback:
        found = runner.compare(
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

    from spacedkd.experiments import comparison
    from spacedkd.training.folder import make_folder

    finished, unfinished = comparison.find_runs(runs)
    if out is None:
        page, numbers = runs[0] / "report.html", runs[0] / "comparison.json"
    else:
        page, numbers = out, out.with_name(f"{out.stem}-numbers.json")
        make_folder(out.parent, "--out")
    found = comparison.compare(*comparison.as_before(runs[0] / "comparison.json", finished, against), unfinished)
    comparison.write(numbers, found)
    commands = [*read_commands([*(run.resolve() for run in runs), *finished]), this_command()]
    _show(found, page, numbers, commands, len(unfinished) - len(found["diverged"]) - len(found["failed"]))


def _show(found: dict[str, Any], page: Path, numbers: Path, commands: Sequence[Command], unfinished: int = 0) -> None:
    """A comparison as a page and as tables."""
    from spacedkd.cli import terminal
    from spacedkd.report import tables
    from spacedkd.report.page import write_page

    write_page(page, found, unfinished, commands)
    console.print(*(terminal.shown(table) for table in tables.comparison_tables(found)))
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

    from spacedkd.files import write_json
    from spacedkd.theory import words
    from spacedkd.theory.measure import measure
    from spacedkd.theory.page import write_theory_page
    from spacedkd.theory.training import default_settings
    from spacedkd.training.folder import make_folder

    settings = default_settings(problems, orders, steps, seed)
    make_folder(out, "--out")
    with count_progress() as callback:
        found = measure(settings, callback)
    write_json(out / "theory.json", found)
    typed = {"--out": out, "--problems": problems, "--orders": orders, "--steps": steps, "--seed": seed}
    command = shlex.join(["spacedkd", "theory", *(str(word) for pair in typed.items() for word in pair)])
    write_theory_page(out / "theory.html", found, command)
    table = Table("statement", "near convergence")
    for name, title in words.STATEMENTS.items():
        table.add_row(title, words.finding(found, name))
    console.print(table)
    console.print(words.headline(found), highlight=False, markup=False)
    say(f"Numbers: {out}/theory.json", f"Page:    {out}/theory.html")
