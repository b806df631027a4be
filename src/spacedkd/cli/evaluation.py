"""The verb that measures trained networks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from spacedkd.cli.assignments import assign, put
from spacedkd.cli.console import console, say
from spacedkd.cli.data_flags import DATA_PLACES, ImageFlags
from spacedkd.cli.evaluation_flags import InstrumentFlags, OtherNetworkFlags
from spacedkd.cli.flag import flag
from spacedkd.cli.progress import work_progress
from spacedkd.cli.terminal import shown
from spacedkd.errors import UserError
from spacedkd.evaluation.grid import write_grid
from spacedkd.experiments import comparison, evaluation_file, instruments
from spacedkd.experiments.instruments import Plan
from spacedkd.json_form import from_json
from spacedkd.report import evaluation_tables as tables
from spacedkd.spec import DataSpec, NetworkSpec
from spacedkd.training import saved
from spacedkd.training.folder import make_folder
from spacedkd.training.saved import Saved

Instruments = Annotated[InstrumentFlags, tyro.conf.arg(name="")]
Other = Annotated[OtherNetworkFlags, tyro.conf.arg(name="")]
Data = Annotated[ImageFlags, tyro.conf.arg(name="")]
BATCH = 256


def evaluate(
    runs: Annotated[
        tyro.conf.Positional[tuple[Path, ...]], flag("run folders, or folders that contain some", metavar="RUN ...")
    ],
    instruments: Instruments,
    other: Other,
    data: Data,
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
    if grid is not None:
        make_folder(grid.parent, "--grid")
    if other.network is not None:
        if runs:
            raise UserError("Give run folders or a --network, not both.")
        if unfinished:
            raise UserError("--unfinished is about runs: leave it out with --network.")
        subjects = _of_network(other, data, accelerator, threads)
        count = 1
    else:
        _check_only_runs(other, data)
        folders = _folders(runs, unfinished)
        subjects = ((folder, saved.of_run(folder, unfinished, accelerator, threads)) for folder in folders)
        count = len(folders)
    everything = {}
    for number, (folder, subject) in enumerate(subjects, 1):
        if grid is not None and number == 1:
            write_grid(grid, subject.data.test, plan.corruptions, plan.severities)
        everything[folder] = _measure(folder, subject, plan, f"{number} of {count}" if count > 1 else "")
        if count > 1:
            say(f"[{number} of {count}] {folder}: {tables.line(everything[folder])}")
    detailed = count == 1
    for folder, found in everything.items():
        if detailed:
            say(f"{folder}, {tables.origin(found)}")
            console.print(*map(shown, tables.of_evaluation(found, instruments.calibration or instruments.all)))
    if not detailed:
        console.print(shown(tables.of_many(everything)))
    file = evaluation_file.FILE
    say(f"Numbers: {next(iter(everything)) / file if detailed else f'{file} in each run folder'}")


def _measure(folder: Path, subject: Saved, plan: Plan, which: str) -> dict[str, Any]:
    """Use every instrument; what one found is on disk before the next begins."""
    found: dict[str, Any] = evaluation_file.read(folder) or {}  # a bad one is found before the work is done
    with work_progress(console, which) as progress:
        results = instruments.evaluate(subject, plan, progress)
        make_folder(folder, "--out")
        for name, result in results:
            found = evaluation_file.write(folder, subject, {name: result})
    return found


def _folders(runs: Sequence[Path], unfinished: bool) -> list[Path]:
    """The run folders at or below those given; a run that is named itself must be finished, unless asked otherwise."""
    if not runs:
        raise UserError("Name at least one run folder, for instance runs/demo, or a --network.")
    folders: list[Path] = []
    for path in runs:
        if path.is_file():
            raise UserError(
                f"{path} is a file. Name a run folder; weights in a file go with --network: --weights FILE."
            )
        if (path / "spec.json").exists():
            folders.append(path)
        else:
            finished, others = comparison.find_runs([path])
            below = sorted(finished + others) if unfinished else finished
            folders += [path / folder.relative_to(path.resolve()) for folder in below]
    return list({folder.resolve(): folder for folder in folders}.values())


def _check_only_runs(*flags: OtherNetworkFlags | ImageFlags) -> None:
    for group in flags:
        for one in fields(group):
            if getattr(group, one.name) not in (None, ()):
                raise UserError(f"--{one.name.replace('_', '-')} goes with --network: a run brings its own.")


def _of_network(
    other: OtherNetworkFlags, data: ImageFlags, accelerator: str | None, threads: int | None
) -> Iterator[tuple[Path, Saved]]:
    assert other.network is not None
    folder = other.out or Path("evaluations") / other.network.replace("/", "-")
    if (folder / "spec.json").exists():
        raise UserError(f"{folder} is a run, which has an evaluation of its own: choose another --out.")
    if threads is not None:
        torch.set_num_threads(threads)
    plain: dict[str, Any] = {"network": {"name": other.network, "options": {}, "weights": other.weights}, "data": {}}
    given = {"network.width": other.width}
    given |= {place: getattr(data, name) for name, place in DATA_PLACES.items() if hasattr(data, name)}
    for place, value in given.items():
        if value is not None:
            put(plain, place, value)
    for assignment in other.set:
        if not assignment.startswith(("network.", "data.")):
            raise UserError(
                f"--set is about the network and its data here: network.input_size=224; got {assignment!r}."
            )
    assign(plain, other.set)
    network, images = from_json(NetworkSpec, plain["network"], "network"), from_json(DataSpec, plain["data"], "data")
    yield folder, saved.of_network(network, images, accelerator or "auto")
