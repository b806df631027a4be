"""The verbs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from spacedkd.cli import flags, listing, terminal
from spacedkd.cli.arms import make_arms
from spacedkd.cli.console import console, say
from spacedkd.cli.evaluation import evaluate
from spacedkd.cli.flags import RunFlags
from spacedkd.cli.progress import jobs_progress, run_progress
from spacedkd.cli.theory import theory
from spacedkd.errors import UserError, unknown
from spacedkd.experiments import comparison, runner
from spacedkd.report import tables
from spacedkd.report.page import write_page
from spacedkd.spec import read_spec
from spacedkd.training import loop
from spacedkd.training.folder import RunFolder, make_folder, write_json

Run = Annotated[RunFlags, tyro.conf.arg(name="")]


def train(
    run: Run,
    out: Annotated[Path | None, flags.flag("the run's folder", "runs/METHOD-SCHEDULE-seedN", "FOLDER")] = None,
    resume: Annotated[Path | None, flags.flag("go on with this run from where it stopped", metavar="RUN")] = None,
) -> None:
    """Train one run: a network with a teacher that learns ahead of it in time.

    Example: spacedkd train --data digits --width 16 --interval 1.5ep --epochs 30 --out runs/mine
    """
    if resume is not None and (out is not None or run != RunFlags()):
        raise UserError("--resume takes everything from the run's spec.json: leave out the other flags.")
    if resume is not None and resume.name == "spec.json":
        resume = resume.parent
    if out is not None and not out.name:
        raise UserError("--out needs the name of a folder, for instance runs/mine.")
    spec = read_spec(resume) if resume is not None else flags.to_spec(run)
    if run.recipe is not None:
        console.print(f"Recipe {run.recipe} fills in:", terminal.of_spec(spec))
    name = comparison.describe(spec).replace(", ", "-").replace(" ", "-")
    folder = resume or out or Path("runs") / f"{name}-seed{spec.seed}"
    if resume is not None and RunFolder(folder).finished():
        say(f"{folder} is finished already.")
    with run_progress(console, spec.method.name) as callback:
        result = loop.train(spec, folder, resume=resume is not None, callback=callback)
    console.print(terminal.shown(tables.of_run(result)))
    say(f"{result.cost['updates']} updates in {result.seconds:.0f} s. Student: {folder}/student")


def compare(
    base: Run,
    arm: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        flags.flag("an arm as 'NAME: FLAGS', the flags it adds to the others; repeat for each arm", metavar="ARM"),
    ] = (),
    methods: Annotated[
        tuple[str, ...],
        flags.flag("each of these methods, or all, unspaced and spaced by --interval", "none", "NAME ..."),
    ] = (),
    out: Annotated[Path, flags.flag("where the runs go", "runs/comparison", "FOLDER")] = Path("runs/comparison"),
    seeds: Annotated[int, flags.flag("how many seeds each arm gets", 3, "COUNT")] = 3,
    against: Annotated[str | None, flags.flag("the arm differences are taken to", "the first", "NAME")] = None,
    equal_cost: Annotated[
        bool,
        flags.flag("add, for each arm that takes k updates a step, its method unspaced with k times the epochs", "no"),
    ] = False,
    jobs: Annotated[int | None, flags.flag("runs at a time", "one for each GPU or core", "COUNT")] = None,
) -> None:
    """Compare arms over seeds: every arm of a seed gets the same data order and the same initial weights.

    Runs that are finished already are used as they are; ones that were stopped go on.

    Example: spacedkd compare --data digits --width 16 --epochs 30
    --arm 'online: --method kd' --arm 'spaced: --method kd --interval 1.5ep' --against online

    Example: spacedkd compare --data digits --width 16 --epochs 30 --methods kd dkd self-kd --interval 1.5ep
    """
    if seeds < 1:
        raise UserError(f"--seeds must be at least 1, got {seeds}.")
    arms = make_arms(arm, methods, base)
    common = next(iter(arms.values()))
    if equal_cost:
        arms |= runner.equal_cost_controls(arms)
    if against is not None and against not in arms:
        raise unknown("arm", against, arms)
    at_once = runner.jobs_at_once(jobs, common.engine.accelerator)
    planned = runner.plan(arms, range(common.seed, common.seed + seeds), out, at_once)
    reused = sum(RunFolder(job.folder).finished() for job in planned)
    if reused:
        say(f"{reused} of {len(planned)} runs in {out} are finished already; delete the folder to run them again.")
    todo = [job for job in planned if not RunFolder(job.folder).finished()]
    with jobs_progress(console, todo) as callback:
        runner.run_all(planned, at_once, callback)
    folders = [job.folder for label in arms for job in planned if job.label == label]
    _show(comparison.compare(folders, against), out / "report.html", out / "comparison.json")


def report(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    out: Annotated[
        Path | None, flags.flag("the page; its numbers go beside it", "report.html in the first folder", "FILE.html")
    ] = None,
    against: Annotated[str | None, flags.flag("the arm differences are taken to", "the first", "NAME")] = None,
) -> None:
    """Make a report page, and a file of its numbers, from run folders or from folders that contain some.

    In a folder that was compared before, arms keep their order and the arm that differences are taken to.

    Example: spacedkd report runs/demo --against 'online KD'
    """
    if out is not None and (out.suffix != ".html" or out.is_dir()):
        raise UserError(f"The report is an HTML page: give --out a file name that ends in .html, not {str(out)!r}.")
    finished, unfinished = comparison.find_runs(_given(runs))
    if out is None:
        page, numbers = runs[0] / "report.html", runs[0] / "comparison.json"
    else:
        page, numbers = out, out.with_name(f"{out.stem}-numbers.json")
        make_folder(out.parent, "--out")
    found = comparison.compare(*comparison.as_before(runs[0] / "comparison.json", finished, against))
    _show(found, page, numbers, len(unfinished))


def list_(
    what: Annotated[tyro.conf.Positional[str], flags.flag("one of these", metavar="|".join(listing.TABLES))],
    pattern: Annotated[
        str, flags.flag("of networks those that match, with wildcards; of methods all about one", "all", "NAME")
    ] = "",
) -> None:
    """List the data sets, augmentations, networks, methods, schedules or recipes there are."""
    if what not in listing.TABLES:
        raise unknown("list", what, listing.TABLES)
    console.print(listing.TABLES[what](pattern))


VERBS: dict[str, Callable[..., None]] = {
    "train": train,
    "compare": compare,
    "evaluate": evaluate,
    "report": report,
    "theory": theory,
    "list": list_,
}


def _show(found: dict[str, Any], page: Path, numbers: Path, unfinished: int = 0) -> None:
    """A comparison as numbers, as a page and as tables."""
    write_json(numbers, found)
    write_page(page, found, unfinished)
    console.print(*(terminal.shown(table) for table in tables.comparison_tables(found)))
    say(f"Numbers: {numbers}\nReport:  {page}")


def _given(runs: Sequence[Path]) -> Sequence[Path]:
    if not runs:
        raise UserError("Name at least one run folder, for instance runs/demo.")
    return runs


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line; what the user can mend ends in one line and exit code 2."""
    words = sys.argv[1:] if words is None else words
    if list(words) == ["--version"]:
        print(f"spacedkd {version('spacedkd')}")
        return
    sys.path.append(str(Path.cwd()))  # methods and schedules of one's own lie where one works
    try:
        _dispatch(words)
    except BrokenPipeError:  # whoever reads the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (UserError, OSError) as error:
        if not console.quiet:
            Console(stderr=True).print(f"spacedkd: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        how = "spacedkd train --resume RUN" if words[0] == "train" else "the same command"
        Console(stderr=True).print(f"\nStopped. Go on with {how}.", highlight=False)
        sys.exit(130)


def _dispatch(words: Sequence[str]) -> None:
    tyro.extras.subcommand_cli_from_dict(
        VERBS,
        args=words,
        prog="spacedkd",
        description="Train image classifiers with a teacher that learns ahead of them in time (Spaced KD).",
    )
