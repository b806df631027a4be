"""The verb that measures trained networks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console

from spacedkd.cli import evaluation_tables as tables
from spacedkd.cli.data_flags import DATA_PLACES, DataFlags
from spacedkd.cli.evaluation_flags import InstrumentFlags
from spacedkd.cli.flag import flag
from spacedkd.cli.progress import watch_work
from spacedkd.errors import UserError
from spacedkd.evaluate.grid import write_grid
from spacedkd.experiments import comparison, evaluation
from spacedkd.experiments.evaluation import Plan
from spacedkd.json_form import from_json
from spacedkd.spec import DataSpec, NetworkSpec
from spacedkd.train import saved
from spacedkd.train.saved import Saved

Instruments = Annotated[InstrumentFlags, tyro.conf.arg(name="")]
Data = Annotated[DataFlags, tyro.conf.arg(name="")]
BATCH = 256
console = Console()


def evaluate(
    runs: Annotated[
        tyro.conf.Positional[tuple[Path, ...]], flag("run folders, or folders that contain some", metavar="RUN ...")
    ],
    instruments: Instruments,
    data: Data,
    network: Annotated[str | None, flag("instead of runs: a timm network, measured on --data", metavar="NAME")] = None,
    width: Annotated[int | None, flag("of --network, if it is one of ours", 64, "CHANNELS")] = None,
    weights: Annotated[
        str | None, flag("of --network: a .safetensors or torch file, or a run folder", "timm's own", "FILE")
    ] = None,
    out: Annotated[Path | None, flag("where the evaluation of --network goes", "evaluations/NAME", "FOLDER")] = None,
    grid: Annotated[
        Path | None, flag("also draw the corruptions of one test image into this picture", metavar="FILE.png")
    ] = None,
    unfinished: Annotated[bool, flag("measure the last checkpoint of runs that are not finished", "no")] = False,
    batch_size: Annotated[int, flag("images looked at together", BATCH, "COUNT")] = BATCH,
    workers: Annotated[int, flag("processes that decode images ahead", 0, "COUNT")] = 0,
    accelerator: Annotated[str | None, flag("cpu, cuda, mps or auto", "the run's", "NAME")] = None,
    threads: Annotated[int | None, flag("CPU threads", "the run's", "COUNT")] = None,
) -> None:
    """Measure trained networks: accuracy, and with flags calibration, robustness and flatness.

    Prints tables and adds what was found to evaluation.json in each run folder, where `spacedkd report` finds it. A
    folder that contains runs stands for all of them.

    Example: spacedkd evaluate runs/mine --corruptions --adversarial --calibration
    """
    plan = instruments.plan(batch_size, workers)
    if threads is not None and threads < 1:
        raise UserError(f"--threads must be at least 1, got {threads}.")
    if network is not None:
        if runs:
            raise UserError("Give run folders or a --network, not both.")
        subjects = _of_network(network, width, weights, data, out, accelerator, threads)
        count = 1
    else:
        _check_only_runs(data, width=width, weights=weights, out=out)
        folders = _folders(runs, unfinished)
        subjects = ((folder, saved.of_run(folder, unfinished, accelerator, threads)) for folder in folders)
        count = len(folders)
    everything = {}
    for number, (folder, subject) in enumerate(subjects, 1):
        if grid is not None and number == 1:
            write_grid(grid, subject.data.test, plan.corruptions, plan.severities)
        everything[folder] = _measure(folder, subject, plan, f"{number} of {count}" if count > 1 else "")
        if count > 1:
            _say(f"[{number} of {count}] {folder}: {tables.line(everything[folder])}")
    detailed = count == 1
    for folder, found in everything.items():
        if detailed:
            _say(f"{folder}, {tables.origin(found)}")
            console.print(*tables.of_evaluation(found, instruments.calibration or instruments.all))
    if not detailed:
        console.print(tables.of_many(everything))
    where = f"{next(iter(everything))}/{evaluation.FILE}" if detailed else f"{evaluation.FILE} in each run folder"
    _say(f"Numbers: {where}")


def _measure(folder: Path, subject: Saved, plan: Plan, which: str) -> dict[str, Any]:
    """Use every instrument; what one found is on disk before the next begins."""
    found: dict[str, Any] = evaluation.read(folder) or {}  # one that cannot be read is found before the work is done
    with watch_work(console, which) as progress:
        for name, result in evaluation.evaluate(subject, plan, progress):
            found = evaluation.write(folder, subject, {name: result})
    return found


def _folders(runs: Sequence[Path], unfinished: bool) -> list[Path]:
    """The run folders at or below those given; a run that is named itself must be finished, unless asked otherwise."""
    if not runs:
        raise UserError("Name at least one run folder, for instance runs/demo, or a --network.")
    folders: list[Path] = []
    for path in runs:
        if (path / "spec.json").exists() or not path.is_dir():
            folders.append(path)  # whatever is wrong with it is said when it is opened
        else:
            finished, others = comparison.find_runs([path])
            below = sorted(finished + others) if unfinished else finished
            folders += [path / folder.relative_to(path.resolve()) for folder in below]
    return folders


def _check_only_runs(data: DataFlags, **given: Any) -> None:
    for name, value in [*given.items(), *((f.name, getattr(data, f.name)) for f in fields(data))]:
        if value is not None:
            raise UserError(f"--{name.replace('_', '-')} goes with --network: a run brings its own.")


def _of_network(
    name: str,
    width: int | None,
    weights: str | None,
    data: DataFlags,
    out: Path | None,
    accelerator: str | None,
    threads: int | None,
) -> Iterator[tuple[Path, Saved]]:
    if threads is not None:
        torch.set_num_threads(threads)
    options: dict[str, Any] = {} if width is None else {"width": width}
    plain = {
        place.removeprefix("data."): getattr(data, flag_name)
        for flag_name, place in DATA_PLACES.items()
        if getattr(data, flag_name) is not None
    }
    folder = out or Path("evaluations") / name.replace("/", "-")
    spec = from_json(DataSpec, plain, "data")
    yield folder, saved.of_network(NetworkSpec(name, options), weights, spec, accelerator or "auto")


def _say(text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
