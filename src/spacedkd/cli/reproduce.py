"""The command `reproduce`: it parses what was typed, calls `paper.reproduce` and prints what comes back."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from spacedkd.cli.compare import say_left
from spacedkd.cli.console import console, say, say_error, until_stopped
from spacedkd.cli.flags import flag
from spacedkd.reporting.progress import count_progress, jobs_progress, work_progress
from spacedkd.runtime.errors import UserError, check_between
from spacedkd.runtime.processes import check_count

if TYPE_CHECKING:
    from spacedkd.paper.reproduce import Plan, Reproduction, TimeBudget, WrittenTable


def reproduce(
    names: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        flag("tables and figures by name, or all of them: all", "list them", "NAME ..."),
    ] = (),
    *,
    scale: Annotated[str, flag("smoke, cpu or paper: how large networks, images and runs are", "cpu", "SCALE")] = "cpu",
    seeds: Annotated[
        int | None, flag("runs of each row, with different seeds", "2 at smoke, 6 at cpu, 3 at paper", "COUNT")
    ] = None,
    first_seed: Annotated[int, flag("the first seed", 0, "SEED")] = 0,
    only: Annotated[str | None, flag("only rows like this, for instance 'resnet18*'", "all", "PATTERN")] = None,
    recipe: Annotated[
        str, flag("paper, or official: as the paper's released code does it, quirks included", "paper", "NAME")
    ] = "paper",
    average: Annotated[
        str | None,
        flag("evaluate this average of weights (poly:2) in every run too, in rows of its own", "none", "AVERAGE"),
    ] = None,
    root: Annotated[Path, flag("the folder that holds the data sets", "data", "FOLDER")] = Path("data"),
    store: Annotated[Path, flag("where runs and tables are kept", "reproduction", "FOLDER")] = Path("reproduction"),
    plan: Annotated[bool, flag("train nothing: print what it will take and what is finished")] = False,
    max_hours: Annotated[
        float | None,
        flag("stop after this time; 0 trains nothing and makes the tables of finished runs", "none", "HOURS"),
    ] = None,
    jobs: Annotated[int | None, flag("runs at a time", "one for each GPU or core", "COUNT")] = None,
    ray: Annotated[
        str | None,
        flag("train the runs in the Ray cluster at this address; auto: the one of this machine", metavar="ADDRESS"),
    ] = None,
    numbers: Annotated[
        Path | None,
        flag("also write the tables' numbers to this folder, without networks: small enough for git", metavar="FOLDER"),
    ] = None,
    yes: Annotated[bool, flag("begin at scale paper without a question")] = False,
) -> None:
    """Reproduce the paper's tables next to our numbers.

    Without a name, list the tables; `all` means every table. A run that several tables need is trained once. You can
    stop at any time: the same command resumes. If runs diverge or fail, they are listed, the others continue, and the
    exit code is 3.

    Example: spacedkd reproduce interval ahead --scale cpu --only 'resnet18, cifar*' --root data --plan
    """
    for count, name in ((seeds, "--seeds"), (jobs, "--jobs")):
        if count is not None and count < 1:
            raise UserError(f"{name} must be at least 1, got {count}.")
    check_between("--seeds", seeds, 1, 10_000)
    check_between("--first-seed", first_seed, 0, 2**62)
    check_count("--jobs", jobs, always_allowed=64)

    from spacedkd.paper.reproduce import Reproduction, TimeBudget
    from spacedkd.paper.scales import scale_of

    budget = TimeBudget(max_hours)
    if not names:
        scale_of(scale, recipe, average=average)  # a wrong word is refused here, too
        _print_catalogue(store, recipe, str(root))
        return
    reproduction = Reproduction.open(
        names, scale=scale, seeds=seeds, first_seed=first_seed, only=only, recipe=recipe, root=root, store=store,
        average=average,
        command=shlex.join(["spacedkd", *sys.argv[1:]]),
    )  # fmt: skip
    if numbers is not None:
        reproduction.check_export(numbers, begin=not plan)
    if plan:
        _print_plan(reproduction, jobs)
        return
    for name in reproduction.without_rows:
        say(f"{name} has no row like {only!r}, and is left out.")
    lost = _train(reproduction, jobs, ray, budget, yes)
    _measure(reproduction, budget)
    if budget.is_zero:
        for named in reproduction.experiments:
            say(f"{named.name} has no runs: it is measured again each time, so not with --max-hours 0.")
    reproduction.write(
        experiments=not budget.is_zero, on_table=_print_table, progress=count_progress, on_unreadable=_say_unreadable
    )
    say(f"All tables: {reproduction.folder}/index.html")
    if numbers is not None:
        reproduction.export_numbers(numbers, on_unreadable=_say_unreadable)
        say(f"Numbers: {numbers}")
    if lost:
        sys.exit(3)


def _print_catalogue(store: Path, recipe: str, root: str) -> None:
    from spacedkd.paper.catalogue import list_tables
    from spacedkd.paper.report import listing_table
    from spacedkd.reporting.terminal import rich_table

    console.print(rich_table(listing_table(list_tables(store, recipe, root))))


def _print_plan(reproduction: Reproduction, jobs: int | None) -> None:
    if reproduction.cells:
        _print_forecast(reproduction, reproduction.plan(jobs))
    for named in reproduction.experiments:
        say(
            f"{named.name} is measured again each time, in a few minutes at scale cpu; it trains no run that is stored."
        )


def _print_forecast(reproduction: Reproduction, plan: Plan) -> None:
    from spacedkd.reporting import tables
    from spacedkd.reporting.terminal import rich_table

    say(f"Nothing was trained. {plan.finished} of {plan.runs} runs in {reproduction.store.folder} are finished.")
    if plan.forecast is not None:
        console.print(*(rich_table(table) for table in tables.of_comparison(plan.forecast)))
        say_left(plan.forecast)


def _train(reproduction: Reproduction, jobs: int | None, ray: str | None, budget: TimeBudget, yes: bool) -> bool:
    """Train the unfinished runs until the time is up; return whether runs diverged or failed."""
    if not reproduction.cells or budget.is_zero:
        return False
    finished, runs = reproduction.count_runs(jobs)
    if finished == runs:
        return False
    reproduction.check_data()
    say(f"{finished} of {runs} runs in {reproduction.store.folder} are finished.")
    if reproduction.scale.name == "paper" and not yes:
        _ask_to_begin(reproduction, jobs)
    with until_stopped(lambda: "the same command") as signals, jobs_progress(runs - finished) as progress:
        trained = reproduction.train(jobs=jobs, ray=ray, budget=budget, progress=progress, stop=signals)
        if trained.out_of_time:
            say("The time is up, and everything is saved. Resume with: the same command")
    for error in trained.errors.values():
        say_error(str(error))
    return bool(trained.errors)


def _ask_to_begin(reproduction: Reproduction, jobs: int | None) -> None:
    """Print what the paper's own scale costs, and ask whether to begin; anything but yes is refused."""
    _print_forecast(reproduction, reproduction.plan(jobs))
    if not sys.stdin.isatty():
        raise UserError("The paper's scale takes very long, so it asks for confirmation: add --yes.")
    try:
        answer = input("Begin? [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise UserError("Nothing was trained.")


def _measure(reproduction: Reproduction, budget: TimeBudget) -> None:
    from spacedkd.reporting.formatting import plural

    if without := reproduction.runs_without_networks():
        say(
            f"Of {plural(len(without), 'run')} in {reproduction.store.folder} the numbers alone were kept, which "
            "cannot be measured: another --store trains them again."
        )
    measured, needed = reproduction.measure(
        budget=budget, progress=lambda number, total: work_progress(f"{number} of {total}")
    )
    if measured < needed:
        say(f"The time is up: {needed - measured} of {needed} runs are not measured yet.")


def _print_table(table: WrittenTable) -> None:
    from spacedkd.paper.report import result_tables
    from spacedkd.reporting.terminal import rich_table

    if table.results is None:
        store = table.folder.parent.parent
        say(f"None of the runs of {table.name} is in {store}: the table that is there is left as it is.")
        return
    if table.problem:
        say(f"No picture of {table.name}: {table.problem}")
    if table.results["cells"]:
        console.print(*(rich_table(shown) for shown in result_tables(table.results)))
        say(table.results["claim"])
    say(table.headline, f"Page: {table.page}")


def _say_unreadable(path: Path) -> None:
    say(f"{path} cannot be read, and is left out: make that table again.")
