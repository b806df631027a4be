"""The verb that measures trained networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from spacedkd.cli.evaluation_flags import InstrumentFlags, ObjectFlags, OtherNetworkFlags, make_plan
from spacedkd.cli.flags import PLACES, Given, ImageFlags, flag, given
from spacedkd.cli.progress import console, say, work_progress
from spacedkd.cli.typed import assignments
from spacedkd.errors import UserError
from spacedkd.machine import check_threads
from spacedkd.own_code import load_object
from spacedkd.places import with_changes
from spacedkd.spec import NetworkSpec, RunSpec

if TYPE_CHECKING:
    from spacedkd.training.objects import Objects
    from spacedkd.training.saved import Saved

OBJECTS = ("network", "teacher", "data", "collate", "method")


def evaluate(
    runs: Annotated[
        tyro.conf.Positional[tuple[Path, ...]], flag("run folders, or folders that contain some", metavar="RUN ...")
    ],
    flags: Annotated[InstrumentFlags, tyro.conf.arg(name="")],
    network: tyro.conf.OmitArgPrefixes[OtherNetworkFlags],
    data: ImageFlags,
    own: tyro.conf.OmitArgPrefixes[ObjectFlags],
) -> None:
    """Measure accuracy, calibration, robustness and flatness.

    Accuracy is always measured, the others with their flags. Prints tables and adds what was found to evaluation.json
    in each run folder, where `spacedkd report` finds it. A folder that contains runs stands for all of them.

    Example: spacedkd evaluate runs/mine --corruptions --adversarial --calibration
    """
    plan, unfinished, where = make_plan(flags), flags.unfinished, (flags.accelerator, flags.threads)
    typed = {**given(network), **given(data), **given(own)}
    objects = _objects_of_runs(typed) if runs else {}
    if flags.threads is not None and flags.threads < 1:
        raise UserError(f"--threads must be at least 1, got {flags.threads}.")
    check_threads(flags.threads)
    if not runs and "network" not in typed:
        raise UserError("Name at least one run folder, for instance runs/demo, or a --network.")
    if not runs and unfinished:
        raise UserError("--unfinished is about runs: leave it out with --network.")

    from spacedkd.cli.terminal import shown
    from spacedkd.evaluation.corruptions import write_grid
    from spacedkd.experiments import evaluation_file
    from spacedkd.experiments.instruments import measure, of_images
    from spacedkd.report import evaluation_tables as tables
    from spacedkd.training import saved
    from spacedkd.training.folder import make_folder

    if flags.grid is not None:
        make_folder(flags.grid.parent, "--grid")
    folders = _folders(runs, unfinished) if runs else [_folder_of_network(typed)]
    count, everything = len(folders), {}
    for number, folder in enumerate(folders, 1):
        subject = (
            saved.of_run(folder, unfinished, *where, _loaded(objects), flags.trust_code)
            if runs
            else _of_network(typed, *where)
        )
        if flags.grid is not None and number == 1:
            write_grid(flags.grid, of_images(subject.data.test, "Corruptions"), plan.corruptions, plan.severities)
        with work_progress(f"{number} of {count}" if count > 1 else "") as progress:
            everything[folder] = measure(folder, subject, plan, progress)
        if count > 1:
            say(f"[{number} of {count}] {folder}: {tables.line(everything[folder])}")
    if count > 1:
        console.print(shown(tables.of_many(everything)))
        say(f"Numbers: {evaluation_file.FILE} in each run folder")
        return
    for folder, found in everything.items():
        say(f"{folder}, {tables.origin(found)}")
        console.print(*map(shown, tables.of_evaluation(found, flags.calibration or flags.all)))
        say(f"Numbers: {folder / evaluation_file.FILE}")


def _objects_of_runs(typed: Given) -> dict[str, str]:
    """The flags beside runs: the names of objects they were given in Python, and nothing else."""
    for name, value in typed.items():
        if name == "network" and ":" not in value:
            raise UserError(
                "Give run folders or a --network, not both; beside runs --network is the function they were given, as "
                "package.module:name."
            )
        if name not in OBJECTS or (name == "data" and ":" not in value):
            raise UserError(f"--{name.replace('_', '-')} goes with --network: a run brings its own.")
        if ":" not in value:
            raise UserError(f"--{name} beside runs is what they were given in Python, as package.module:name.")
    return dict(typed)


def _loaded(own: Mapping[str, str]) -> Objects:
    """The objects of these names; of data and a method also a function, or a class, that makes them."""
    from spacedkd.training.objects import Objects

    objects: dict[str, Any] = {name: load_object(place) for name, place in own.items()}
    made = {name: objects[name]() for name in ("data", "method") if callable(objects.get(name))}
    return Objects(**objects | made)


def _folders(runs: Sequence[Path], unfinished: bool) -> list[Path]:
    """The run folders at or below those given; a run that is named itself must be finished, unless asked otherwise."""
    from spacedkd.experiments import comparison

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


def _folder_of_network(typed: Given) -> Path:
    folder: Path = typed.get("out") or Path("evaluations") / typed["network"].replace("/", "-")
    if (folder / "spec.json").exists():
        raise UserError(f"{folder} is a run, which has an evaluation of its own: choose another --out.")
    return folder


def _of_network(typed: Given, accelerator: str | None, threads: int | None) -> Saved:
    import torch

    from spacedkd.training import saved

    for name in typed:
        if name in OBJECTS and name not in ("network", "data"):
            raise UserError(f"--{name} goes with runs that were given an object: name them, or leave it out.")
    if threads is not None:
        torch.set_num_threads(threads)
    places: dict[str, Any] = {"width": "network.width", **PLACES}
    changes = [(places[name], value) for name, value in typed.items() if name in places]
    for assignment in typed.get("set", ()):
        if not assignment.startswith(("network.", "data.")):
            raise UserError(
                f"--set is about the network and its data here: network.input_size=224; got {assignment!r}."
            )
    spec = with_changes(RunSpec(network=NetworkSpec(typed["network"])), [*changes, *assignments(typed.get("set", ()))])
    return saved.of_network(spec.network, spec.data, accelerator or "auto")
