"""The verb that makes tables and figures of the paper again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from spacedkd.cli.console import console, say
from spacedkd.cli.progress import count_progress
from spacedkd.runtime.documents import read_json
from spacedkd.runtime.errors import Linked, UserError

if TYPE_CHECKING:
    from spacedkd.paper.reproduce import Reproduction
import shlex
import sys
import time
from typing import TYPE_CHECKING, Annotated, TypedDict

import tyro

from spacedkd.cli.compare import say_left
from spacedkd.cli.console import say_error, until_stopped
from spacedkd.cli.flags import flag
from spacedkd.cli.progress import jobs_progress, work_progress
from spacedkd.report.terminal import rich_table
from spacedkd.runs.schema import check
from spacedkd.runtime.errors import check_between
from spacedkd.runtime.files import Folder
from spacedkd.runtime.machine import check_count
from spacedkd.runtime.signals import Stopped

# What `spacedkd reproduce` leaves behind: every table in all its forms, and one page over all of them.

THEORY = "theory"
THEORY_SIZES = {"smoke": (2, 2, 60), "cpu": (16, 24, 1500), "paper": (16, 24, 1500)}
"""problems, orders and steps"""


class _Scale(TypedDict):
    name: str
    about: str


class _Estimate(TypedDict):
    n: int


class _Cell(TypedDict):
    estimate: _Estimate | None


_Verdict = TypedDict(
    "_Verdict",
    {"sentence": str, "agrees": int, "disagrees": int, "smaller than the paper's": int, "cannot tell": int},
)


class IndexedTable(TypedDict):
    """What the index of all tables needs of each."""

    name: str
    title: str
    claim: str
    reference: str
    scale: _Scale
    missing: int
    cost: dict[str, Any]
    cells: list[_Cell]
    verdict: _Verdict


def write_tables(found: Reproduction) -> None:
    """The tables, as numbers and as pages, and what they say."""
    from spacedkd.paper import report
    from spacedkd.runs.folder import make_folder

    for name in found.cells:
        place = found.store.folder / found.scale.folder / name
        results = found.results(name)
        if not results["cost"]["runs"] and _has_numbers(place / "results.json"):
            say(f"None of the runs of {name} is in {found.store.folder}: the table that is there is left as it is.")
            continue
        make_folder(place, "--store")
        try:
            results["pictures"] = found.draw(name, place)
        except UserError as error:  # tables are made without the data, too
            results["pictures"] = []
            say(f"No picture of {name}: {error}")
        _write_all(place, results)
        console.print(*(rich_table(table) for table in report.result_tables(results)))
        say(results["claim"], results["verdict"]["sentence"], f"Page: {place}/index.html")


def _write_all(place: Path, results: dict[str, Any]) -> None:
    """A table in all its forms."""
    from spacedkd.paper import report
    from spacedkd.runtime.files import write_json, write_text

    write_json(place / "results.json", results, place)
    texts = {"table.md": report.markdown, "table.tex": report.latex, "table.csv": report.csv_text}
    for name, written in texts.items():
        write_text(place / name, written(results), place)
    report.write_table_page(place / "index.html", results)


def write_theory(found: Reproduction) -> None:
    """The Lemma and the Theorem, measured by `spacedkd theory`."""
    from spacedkd.paper.results import results
    from spacedkd.paper.tables import tables
    from spacedkd.paper.theory import findings
    from spacedkd.paper.theory.measure import measure
    from spacedkd.paper.theory.page import write_theory_page
    from spacedkd.paper.theory.simulation import default_settings
    from spacedkd.runs.folder import make_folder
    from spacedkd.runtime.files import write_json

    place = found.store.folder / found.scale.folder / THEORY
    make_folder(place, "--store")
    with count_progress() as callback:
        measured = measure(default_settings(*THEORY_SIZES[found.scale.name], seed=0), callback)
    write_json(place / "theory.json", measured, place)
    write_theory_page(place / "theory.html", measured, found.command)
    nothing = {"missing": 0, "cost": {}, "diverged": [], "pictures": [], "pages": ["theory.html"]}
    said = results(tables()[THEORY], [], lambda cell, metric: {}) | found.origin() | nothing
    unjudged = found.scale.unjudged
    said["verdict"]["sentence"] = f"Not judged: {unjudged}." if unjudged else findings.headline(measured)
    said["notes"] = [f"{title}: {findings.finding(measured, name)}" for name, title in findings.STATEMENTS.items()]
    _write_all(place, said)
    say(findings.headline(measured), f"Page: {place}/theory.html")


def write_index(folder: Path) -> None:
    """One page over all tables that were made at a scale, and the same as Markdown."""
    from spacedkd.paper import report

    report.write_index_page(folder / "index.html", write_index_markdown(folder))
    say(f"All tables: {folder}/index.html")


def write_index_markdown(folder: Path) -> list[dict[str, Any]]:
    """One line for each table that was made at a scale; gives what they say."""
    from spacedkd.paper import report
    from spacedkd.paper.tables import tables
    from spacedkd.runs.folder import make_folder
    from spacedkd.runtime.files import write_text

    make_folder(folder, "--store")
    made = [found for name in tables() if (found := _made(folder / name / "results.json")) is not None]
    write_text(folder / "index.md", report.index_markdown(made), folder)
    return made


def _has_numbers(path: Path) -> bool:
    return path.exists() and (found := _made(path)) is not None and bool(found.get("cost", {}).get("runs"))


def _made(path: Path) -> dict[str, Any] | None:
    """A table that was made before; one that cannot be read is left out."""
    try:
        found: dict[str, Any] = read_json(path, within=path.parent)
        check(found, IndexedTable)
    except FileNotFoundError:
        return None
    except Linked:
        raise
    except (OSError, ValueError):
        say(f"{path} cannot be read, and is left out: make that table again.")
        return None
    return found


# The verb that makes tables and figures of the paper again.


def reproduce(
    names: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        flag("tables and figures by name, or all of them: all", "list them", "NAME ..."),
    ] = (),
    scale: Annotated[str, flag("smoke, cpu or paper: how large networks, images and runs are", "cpu", "SCALE")] = "cpu",
    seeds: Annotated[int | None, flag("how many seeds", "2 at smoke, 6 at cpu, 3 at paper", "COUNT")] = None,
    first_seed: Annotated[int, flag("the first of them", 0, "SEED")] = 0,
    only: Annotated[str | None, flag("only rows like this, for instance 'resnet18*'", "all", "PATTERN")] = None,
    recipe: Annotated[
        str, flag("paper, or official: as the paper's released code does it, quirks included", "paper", "NAME")
    ] = "paper",
    root: Annotated[Path, flag("the folder that holds the data sets", "data", "FOLDER")] = Path("data"),
    store: Annotated[Path, flag("where runs and tables are kept", "reproduction", "FOLDER")] = Path("reproduction"),
    plan: Annotated[
        bool, flag("train nothing: say what it will take and what is finished", "no", also=("--dry-run",))
    ] = False,
    max_hours: Annotated[
        float | None, flag("stop after this time; 0 only makes the tables of what is finished", "none", "HOURS")
    ] = None,
    jobs: Annotated[int | None, flag("runs at a time", "one for each GPU or core", "COUNT")] = None,
    ray: Annotated[
        str | None,
        flag("train the runs in the Ray cluster at this address; auto: the one of this machine", metavar="ADDRESS"),
    ] = None,
    numbers: Annotated[
        Path | None,
        flag(
            "also keep what the tables are made of here, without networks: a store that fits into git", metavar="FOLDER"
        ),
    ] = None,
    yes: Annotated[bool, flag("begin at scale paper without being asked", "no")] = False,
) -> None:
    """Make the paper's tables again, with its numbers beside ours.

    Without a name: list them. Runs are kept by what they compute: those that several tables need are trained once, all
    can be stopped at any moment, and the same command goes on. `all` stands for every table. Runs that diverge or fail
    are listed, the others go on, and the command ends with 3.

    Example: spacedkd reproduce interval ahead --scale cpu --only 'resnet18, cifar*' --root data --plan
    """
    for count, name in ((seeds, "--seeds"), (jobs, "--jobs")):
        if count is not None and count < 1:
            raise UserError(f"{name} must be at least 1, got {count}.")
    check_between("--seeds", seeds, 1, 10_000)
    check_between("--first-seed", first_seed, 0, 2**62)
    check_count("--jobs", jobs, least=64)
    if max_hours is not None and not max_hours >= 0:
        raise UserError(f"--max-hours must be 0 or more, got {max_hours:g}.")
    if numbers is not None and numbers.resolve() == store.resolve():
        raise UserError(
            f"--numbers leaves out what the runs in {store} are made of: give it another folder than --store."
        )

    from spacedkd.paper.scales import scale_of

    size = scale_of(scale, recipe, str(root))
    if not names:
        _list(store, recipe, str(root))
        return

    from spacedkd.paper.reproduce import Reproduction, chosen
    from spacedkd.paper.store import Store
    from spacedkd.runs.folder import make_folder

    wanted = chosen(names)
    chosen_seeds = range(first_seed, first_seed + (seeds or size.seeds))
    command = shlex.join(["spacedkd", *sys.argv[1:]])
    found = Reproduction([one for one in wanted if one.name != THEORY], size, Store(store), chosen_seeds, only, command)
    found.store.check()
    for place in (store, numbers):
        if place is not None and place.exists():
            Folder(place).refuse_links((f"{size.folder}/", "store.json", ".lock"))
    if plan:
        if found.cells:
            _show_plan(found, jobs)
        if any(one.name == THEORY for one in wanted):
            say("theory is measured anew each time, in a few minutes at scale cpu; it trains nothing that is kept.")
        return
    if numbers is not None:
        make_folder(numbers, "--numbers")  # a bad place shows before hours of training, not after them
        found.store.check_for_numbers(numbers)
    for name in found.without_rows:
        say(f"{name} has no row like {only!r}, and is left out.")
    lost = bool(found.cells) and _train(found, jobs, ray, max_hours, yes)
    found.store.begin()
    if found.cells:
        write_tables(found)
    if any(one.name == THEORY for one in wanted):
        if max_hours == 0:
            say("theory has no runs: it is measured anew each time, so not with --max-hours 0.")
        else:
            write_theory(found)
    write_index(store / size.folder)
    if numbers is not None:
        found.copy_numbers(numbers, [one.name for one in wanted])
        write_index_markdown(numbers / size.folder)  # of the tables that are there
        say(f"Numbers: {numbers}")
    if lost:
        sys.exit(3)


def _train(found: Reproduction, jobs: int | None, ray: str | None, max_hours: float | None, yes: bool) -> bool:
    """Train and measure what is not there yet, until the time is up; return whether runs diverged or failed."""
    from spacedkd.comparison import scheduler
    from spacedkd.evaluation.evaluate import evaluate
    from spacedkd.report.formatting import plural

    accelerator = next(iter(found.arms.values())).spec.engine.accelerator
    at_once = scheduler.jobs_at_once(jobs, accelerator)
    every = found.jobs(at_once)
    left = [job for job in every if not job.finished]
    end = None if max_hours is None else time.monotonic() + 3600 * max_hours
    lost: dict[Path, UserError] = {}
    if left and max_hours != 0:
        found.check_data()
        say(f"{len(every) - len(left)} of {len(every)} runs in {found.store.folder} are finished.")
        if found.scale.name == "paper" and not yes:
            _ask(found, at_once)
        with until_stopped(lambda: "the same command") as signals, jobs_progress(len(left)) as callback:

            def stop() -> bool:
                return signals() or (end is not None and time.monotonic() > end)

            try:
                lost = found.store.train(every, jobs, callback, ray, stop)
            except Stopped:
                if signals.received is not None:
                    raise
                say("The time is up, and everything is saved. Continue with: the same command")
        for error in lost.values():
            say_error(str(error))
    if alone := found.numbers_alone():
        say(
            f"Of {plural(len(alone), 'run')} in {found.store.folder} the numbers alone were kept, which cannot be "
            "measured: another --store trains them again."
        )
    todo = [] if max_hours == 0 else found.to_measure()
    for place, (folder, instruments) in enumerate(todo, 1):
        if end is not None and time.monotonic() > end:
            say(f"The time is up: {len(todo) - place + 1} of {len(todo)} runs are not measured yet.")
            break
        with work_progress(f"{place} of {len(todo)}") as progress:
            evaluate(folder, instruments, progress=progress)
    return bool(lost)


def _ask(found: Reproduction, at_once: int) -> None:
    """Print what the paper's own scale costs, and ask whether to begin."""
    _show_plan(found, at_once)
    if not sys.stdin.isatty():
        raise UserError("The paper's scale is not begun unasked: add --yes.")
    try:
        answer = input("Begin? [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise UserError("Nothing was trained.")


def _list(store: Path, recipe: str, root: str) -> None:
    """All tables: what they claim, what they need, what they cost at each scale, what is finished of them."""
    from spacedkd.paper import report
    from spacedkd.paper.reproduce import listed

    console.print(rich_table(report.listing_table(listed(store, recipe, root))))


def _show_plan(found: Reproduction, jobs: int | None) -> None:
    """Print what the runs will take and what is finished, from a few steps of every arm."""
    from spacedkd.comparison import scheduler
    from spacedkd.comparison.forecast import forecast_jobs
    from spacedkd.report import tables

    at_once = scheduler.jobs_at_once(jobs, next(iter(found.arms.values())).spec.engine.accelerator)
    every = found.jobs(at_once)
    left = {job.label for job in every if not job.finished}
    done = sum(job.finished for job in every)
    say(f"Nothing was trained. {done} of {len(every)} runs in {found.store.folder} are finished.")
    if not left:
        return
    found.check_data()
    planned, _ = scheduler.share_arms_teachers([job for job in every if job.label in left], found.store.library)
    forecast = forecast_jobs(planned, at_once)
    console.print(*(rich_table(table) for table in tables.of_comparison(forecast)))
    say_left(forecast)
