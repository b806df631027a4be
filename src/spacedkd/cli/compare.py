"""The command `compare`: arms that differ in method or schedule, each over several seeds."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from spacedkd.cli.console import console, log_command, read_commands, say, say_error, until_stopped
from spacedkd.cli.flags import Given, flag, given_flags, parse
from spacedkd.cli.overrides import SCHEDULE_FLAGS, check_other_init, to_spec
from spacedkd.cli.report import show_comparison
from spacedkd.cli.train import PLAN, Run
from spacedkd.config.spec import METHOD_CLASSES, RunSpec
from spacedkd.reporting.progress import jobs_progress
from spacedkd.reporting.terminal import rich_table
from spacedkd.runtime.errors import UserError, check_between, same_name, unknown
from spacedkd.runtime.processes import check_count

if TYPE_CHECKING:
    from spacedkd.comparison.compare import ComparisonForecast
    from spacedkd.comparison.document import ComparisonDocument


def compare(
    base: Run,
    *,
    arm: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        flag("an arm as 'NAME: FLAGS', with the flags that it alone has; repeat for each arm", metavar="ARM"),
    ] = (),
    methods: Annotated[
        tuple[str, ...],
        flag("each of these methods, or all, unspaced and spaced by --interval", "none", "NAME ..."),
    ] = (),
    out: Annotated[Path, flag("the folder of all runs and the report", "runs/comparison", "FOLDER")] = Path(
        "runs/comparison"
    ),
    seeds: Annotated[int, flag("runs of each arm, with different seeds", 3, "COUNT")] = 3,
    against: Annotated[str | None, flag("the arm that all others are compared with", "the first", "NAME")] = None,
    equal_cost: Annotated[
        bool,
        flag("for each arm with k updates a step, add an arm of its method unspaced, with k times the epochs"),
    ] = False,
    jobs: Annotated[int | None, flag("runs at a time", "one for each GPU or core", "COUNT")] = None,
    sharing: Annotated[
        bool,
        flag(
            "train the teacher of every run on its own; otherwise a teacher that several arms have in common is "
            "trained once, and students that see it at the same steps share its outputs",
        ),
    ] = True,
    ray: Annotated[
        str | None,
        flag("train the runs in the Ray cluster at this address; auto: the one of this machine", metavar="ADDRESS"),
    ] = None,
    plan: Annotated[bool, PLAN] = False,
) -> None:
    """Compare methods and schedules over several seeds.

    All arms of a seed get the same data order and the same initial weights. The same command continues a comparison:
    it keeps finished runs, resumes stopped ones and tries failed ones again. A teacher that several arms have in common
    is trained once, which changes no bit. If runs diverge or fail, the others continue, and the exit code is 3.

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
    check_count("--jobs", jobs, always_allowed=64)
    arms = make_arms(arm, methods, given_flags(base))
    if not equal_cost and against not in (None, *arms):
        raise unknown("arm", str(against), arms)

    from spacedkd.comparison import scheduler
    from spacedkd.comparison.compare import compare as train_and_compare

    if equal_cost:
        arms |= scheduler.equal_cost_controls(arms)
    if plan:
        show_comparison_plan(arms, out, seeds, jobs, sharing)
        return
    first = next(iter(arms.values())).seed
    every = [scheduler.run_folder(out, label, first + number) for label in arms for number in range(seeds)]
    finished = sum((folder / "result.json").exists() for folder in every)
    if finished:
        say(f"{finished} of {len(every)} runs in {out} are finished already; delete the folder to run them again.")
    say_comparison(arms, seeds)
    unfinished = len(every) - finished
    with (
        until_stopped(lambda: "the same command") as stop,
        log_command(out, not unfinished),
        jobs_progress(unfinished) as callback,
    ):
        comparison = train_and_compare(
            arms,
            out,
            seeds=seeds,
            against=against,
            jobs=jobs,
            sharing=sharing,
            ray=ray,
            callback=callback,
            progress=False,
            stop=stop,
        ).document
    show_comparison(comparison, out / "report.html", out / "comparison.json", read_commands([out]))
    _exit_if_runs_were_lost(comparison, len(every))


def _exit_if_runs_were_lost(comparison: ComparisonDocument, runs: int) -> None:
    """Print how many of the runs diverged and failed, and exit with code 3 if any did."""
    if comparison["diverged"]:
        folder = shlex.quote(comparison["diverged"][0]["folder"])
        say_error(f"{len(comparison['diverged'])} of {runs} runs diverged. To train one again, delete {folder}")
    if comparison["failed"]:
        run = comparison["failed"][0]
        which = f"{run['label']}, seed {run['seed']}: {run['said']}"
        say_error(f"{len(comparison['failed'])} of {runs} runs failed; the same command tries them again. {which}")
    if comparison["diverged"] or comparison["failed"]:
        sys.exit(3)


# --- Arms

ALL = "all"


def make_arms(texts: Sequence[str], methods: Sequence[str], base: Given) -> dict[str, RunSpec]:
    """Return every arm by its name: those written as 'NAME: FLAGS', then those of the methods."""
    arms = dict(parse_arm(text, base) for text in texts)
    if len(arms) < len(texts):
        raise UserError("Two arms have the same name; give each its own.")
    if methods and base.get("interval") in (None, "online", "offline"):
        raise UserError("--methods compares each method unspaced and spaced: give the interval, --interval 1.5ep.")
    methods = [same_name(name, (*METHOD_CLASSES, ALL)) for name in methods]
    for name in methods:
        if name not in (*METHOD_CLASSES, ALL):
            raise unknown("method", name, [*METHOD_CLASSES, ALL])
    for name in METHOD_CLASSES if ALL in methods else methods:
        own = _arms_of(name, base)
        for label in own.keys() & arms.keys():
            raise UserError(f"--methods would add an arm called {label!r}, but there is one. Give yours another name.")
        arms |= own
    if not arms:
        raise UserError(
            "compare needs arms: --arm 'online: --method kd' --arm 'spaced: --method kd --interval 1.5ep', "
            "or --methods kd dkd --interval 1.5ep."
        )
    if base.get("same_init") is False:
        check_other_init(arms.values())
    return arms


def parse_arm(text: str, base: Given) -> tuple[str, RunSpec]:
    """Return the name and the spec of an arm from 'NAME: FLAGS', which adds flags to those of the base.

    >>> name, spec = parse_arm("spaced: --method kd --interval 1.5ep", {"epochs": 30.0})
    >>> name, spec.epochs, spec.schedule.interval
    ('spaced', 30.0, Duration(amount=1.5, unit='ep'))
    """
    name, colon, flags = text.partition(":")
    if not colon or not name.strip():
        raise UserError(f"--arm wants 'NAME: FLAGS', for instance --arm 'spaced: --interval 1.5ep'; got {text!r}.")
    try:
        own = parse(shlex.split(flags))
    except ValueError as error:  # a UserError too
        raise UserError(f"--arm {text!r} cannot be read: {error}") from None
    if "seed" in own:
        raise UserError(f"Arm {name.strip()!r} cannot have a seed of its own: all arms get the same seeds (--seeds).")
    # An arm's own flag replaces the base's, except that --set and --without add up.
    gathered = {key: base.get(key, ()) + own.get(key, ()) for key in ("set", "without") if key in base or key in own}
    spec = to_spec({**base, **own, **gathered})
    if own.get("same_init") is False:
        check_other_init([spec])
    return name.strip(), spec


def _arms_of(name: str, base: Given) -> dict[str, RunSpec]:
    """Return a method's arms: unspaced, spaced, and online where spacing adds a student that is a network of its own.

    >>> [*_arms_of("dkd", {"interval": "2ep"})]
    ['dkd', 'dkd spaced']
    """
    from spacedkd.config.resolve import resolve_method

    sets = tuple(text for text in base.get("set", ()) if not text.startswith("schedule"))
    never = {key: value for key, value in base.items() if key not in SCHEDULE_FLAGS}
    never["set"] = (*sets, "schedule=null")  # nor does a recipe or a spec space it
    unspaced = dict([parse_arm(f"{name}: --method {name}", never)])
    if name == "none":
        return unspaced
    spaced = dict([parse_arm(f"{name} spaced: --method {name}", base)])
    alone, _ = resolve_method(unspaced[name])
    together, _ = resolve_method(spaced[f"{name} spaced"])
    if len(alone.roles) == 1 and len({*together.learners.values()}) > 1:
        unspaced |= dict([parse_arm(f"{name} online: --method {name} --interval online", {**never, "set": sets})])
    return unspaced | spaced


# --- What is printed before runs are trained


def say_comparison(arms: Mapping[str, RunSpec], seeds: int) -> None:
    """Print how many runs a comparison has."""
    from spacedkd.reporting.formatting import join_words, plain, plural

    *shorter, longest = sorted({spec.epochs for spec in arms.values()})
    epochs = join_words([*map(plain, shorter), plural(longest, "epoch")])
    of_each = f"{plural(len(arms), 'arm')} of {plural(seeds, 'seed')} each, {epochs}"
    say(f"{plural(len(arms) * seeds, 'run')}: {of_each}; --plan prints what they take.")


def show_comparison_plan(arms: Mapping[str, RunSpec], out: Path, seeds: int, jobs: int | None, sharing: bool) -> None:
    """Print what every arm will take, and how much of it is left; nothing is trained."""
    from spacedkd.comparison.compare import forecast_comparison
    from spacedkd.reporting import tables

    forecast = forecast_comparison(arms, out, seeds=seeds, jobs=jobs, sharing=sharing)
    console.print(*(rich_table(table) for table in tables.of_comparison(forecast)))
    runs, finished = forecast.runs, sum(run.finished for run in forecast.runs)
    say(f"Nothing was trained. {finished} of {len(runs)} runs in {out} are finished.")
    say_left(forecast)


def say_left(forecast: ComparisonForecast) -> None:
    """Print what all runs together will still take."""
    from spacedkd.reporting.formatting import amount, duration

    targets = sum(run.disk.targets for run in forecast.runs)
    cached = f", {amount(targets, 'B')} of it cached targets" if targets else ""
    say(
        f"{duration(forecast.seconds_left)} left with {forecast.at_once} at a time, "
        f"{amount(forecast.memory, 'B')} of memory, {amount(forecast.disk, 'B')} of disk{cached}."
    )
