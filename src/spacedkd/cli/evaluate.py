"""The verb that measures trained networks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from spacedkd.cli.flags import PLACES, Flag, Given, ImageFlags, assignments, flag, flag_class, given
from spacedkd.cli.progress import console, say, work_progress
from spacedkd.config.overrides import with_changes
from spacedkd.config.spec import NetworkSpec, RunSpec
from spacedkd.evaluation import settings as planning
from spacedkd.evaluation.settings import CURVATURE_IMAGES, NOISE_IMAGES, STEPS, Attack, EvaluationSpec
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.machine import check_threads
from spacedkd.runtime.user_code import load_object

if TYPE_CHECKING:
    from spacedkd.config.objects import Objects
    from spacedkd.training.trained_models import TrainedModels


# The flags that say what is measured of a trained network, and how.

USUAL = EvaluationSpec()
_WHOLE, _NUMBERS, _NAMES = tuple[int, ...], tuple[float, ...], tuple[str, ...]
_METAVARS = {int: "COUNT", float: "NUMBER", _WHOLE: "NUMBER ...", _NUMBERS: "NUMBER ...", _NAMES: "NAME ..."}
_METAVARS |= {str: "NAME", Path: "FOLDER"}

_HESSIAN = "trace and largest eigenvalue of the Hessian on training images: minutes for a small network"
_LIMIT = "only so many test images for --corruptions and --adversarial, evenly from all classes"
_TRAIN_IMAGES = "at most so many training images for --flatness and --hessian"
_INSTRUMENTS = {
    "": [
        Flag("grid", Path, "also draw the corruptions of one test image into this picture", metavar="FILE.png"),
        Flag("unfinished", bool, "measure the last checkpoint of runs that are not finished"),
        Flag("trust_code", bool, "import what a run's files name as package.module:name; typed names always are"),
        Flag("batch_size", int, "images looked at together", USUAL.batch_size),
        Flag("workers", int, "processes that decode images ahead", USUAL.workers),
        Flag("accelerator", str, "cpu, cuda, mps or auto", "the run's"),
        Flag("threads", int, "CPU threads", "the run's"),
        Flag("all", bool, "use every instrument"),
        Flag("calibration", bool, "print likelihood, calibration error and the reliability diagram"),
    ],
    "corruptions": [
        Flag("corruptions", bool, "accuracy on noisy, blurred, snowy, ... images"),
        Flag("severities", _WHOLE, "how strong corruptions are, from 1 to 5", USUAL.severities),
        Flag("only", _NAMES, "these corruptions alone, or `paper` for its six", "all nineteen"),
        Flag("cache", Path, "where corrupted images are kept", "~/.cache/spacedkd/corrupted"),
    ],
    "adversarial": [
        Flag("adversarial", bool, "accuracy on images perturbed against the network"),
        Flag("attacks", _NAMES, "fgsm, bim or pgd", "all three"),
        Flag("epsilon", _NUMBERS, "most any pixel is changed by, of 0 to 255, before normalisation", planning.EPSILONS),
        Flag("steps", int, "steps of bim and pgd", STEPS),
        Flag("step", float, "size of a step of bim and pgd, in pixels", "epsilon / 4"),
    ],
    "flatness": [
        Flag("flatness", bool, "loss and accuracy on training images with noise on the weights"),
        Flag("noise", _NUMBERS, "levels of absolute noise", USUAL.noise),
        Flag("relative_noise", _NUMBERS, "levels of noise relative to each tensor", USUAL.relative_noise),
        Flag("draws", int, "draws of noise at each level", USUAL.draws),
    ],
    "hessian": [
        Flag("hessian", bool, _HESSIAN),
        Flag("error", float, "relative standard error of the trace to stop at", USUAL.error, "PART"),
        Flag("products", int, "most products of the Hessian with a vector for each estimate", USUAL.most_products),
    ],
    "corruptions or --adversarial": [Flag("limit", int, _LIMIT, "all")],
    "flatness or --hessian": [Flag("train_images", int, _TRAIN_IMAGES, f"{NOISE_IMAGES} and {CURVATURE_IMAGES}")],
}
"""those of all; then the flags of each instrument: the one that asks for it, and its settings"""
_NETWORK = [
    Flag("network", str, "a timm network, measured on --data; beside runs, the function they were given"),
    Flag("width", int, "of --network, if it is one of ours", 64, "CHANNELS"),
    Flag("weights", str, "of --network: a .safetensors or torch file, or a run folder", "timm's own", "FILE"),
    Flag("set", tuple, "anything else about --network: network.input_size=224, ... (may be repeated)", "", "KEY=VALUE"),
    Flag("out", Path, "where the evaluation of --network goes", "evaluations/NAME"),
]
_OBJECTS = [
    Flag("teacher", str, "makes the teacher's network"),
    Flag("collate", str, "makes a batch of items"),
    Flag("method", str, "the method"),
]
_ABOUT_OBJECTS = (
    "Runs that were given functions in Python need the same ones again, each as package.module:name; "
    "--network and --data are among them."
)


def _field(one: Flag) -> tuple[str, Any, Any]:
    """A flag as a dataclass field; None, no or an empty tuple is what it has when it is not given."""
    if one.kind is tuple:
        return one.field()
    if one.kind is bool:
        return one.name, Annotated[bool, flag(one.about, "no")], False
    default = " ".join(f"{level:g}" for level in one.default) if isinstance(one.default, tuple) else one.default
    return one.name, Annotated[one.kind | None, flag(one.about, default, one.metavar or _METAVARS[one.kind])], None


if TYPE_CHECKING:
    InstrumentFlags = Any
    OtherNetworkFlags = Any
    ObjectFlags = Any
else:
    InstrumentFlags = flag_class(_field(one) for flags in _INSTRUMENTS.values() for one in flags)
    OtherNetworkFlags = flag_class(map(_field, _NETWORK), "A network that is no run's, measured instead of runs.")
    ObjectFlags = flag_class(map(_field, _OBJECTS), _ABOUT_OBJECTS)


def make_plan(flags: Any) -> EvaluationSpec:
    """What these flags ask for; a setting of an instrument that is not used is a mistake."""
    typed = {name: value for name, value in given(flags).items() if value is not False}
    for instruments, own in _INSTRUMENTS.items():
        used = instruments == "" or any(one in typed for one in ("all", *instruments.split(" or --")))
        for name in (one.name for one in own if one.name in typed and not used):
            raise UserError(f"--{name.replace('_', '-')} belongs to --{instruments}: add that flag too.")
    if {*typed.get("attacks", ())} == {"fgsm"} and ("steps" in typed or "step" in typed):
        raise UserError("--steps and --step are of bim and pgd: fgsm takes one step of epsilon.")

    def ordered(name: str, usual: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(sorted({*typed.get(name, usual)}))

    same = ("cache", "draws", "error", "limit", "train_images", "batch_size", "workers")
    return replace(
        USUAL,
        **{name: typed[name] for name in same if name in typed},
        severities=tuple(dict.fromkeys(typed.get("severities", USUAL.severities))),
        corruptions=_corruptions(typed.get("only", planning.CORRUPTIONS)) if flags.corruptions or flags.all else (),
        attacks=_attacks(typed, ordered("epsilon", planning.EPSILONS)) if flags.adversarial or flags.all else (),
        flatness=flags.flatness or flags.all,
        noise=ordered("noise", USUAL.noise),
        relative_noise=ordered("relative_noise", USUAL.relative_noise),
        hessian=flags.hessian or flags.all,
        most_products=typed.get("products", USUAL.most_products),
    )


def _corruptions(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one for name in names for one in (planning.PAPER if name == "paper" else (name,))))


def _attacks(typed: Given, epsilons: Iterable[float]) -> tuple[Attack, ...]:
    steps, step = typed.get("steps", STEPS), typed.get("step")
    names = dict.fromkeys(typed.get("attacks", planning.ATTACKS))
    return tuple(planning.attack(name, epsilon, steps, step) for name in names for epsilon in epsilons)


# The verb that measures trained networks.

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

    from spacedkd.evaluation import document
    from spacedkd.evaluation.corruptions import write_grid
    from spacedkd.evaluation.evaluate import measure, of_images
    from spacedkd.report import evaluation_tables as tables
    from spacedkd.report.terminal import rich_table
    from spacedkd.runs.folder import make_folder
    from spacedkd.training import trained_models

    if flags.grid is not None:
        make_folder(flags.grid.parent, "--grid")
    folders = _folders(runs, unfinished) if runs else [_folder_of_network(typed)]
    count, everything = len(folders), {}
    for number, folder in enumerate(folders, 1):
        subject = (
            trained_models.load_run(folder, unfinished, *where, _loaded(objects), flags.trust_code)
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
        console.print(rich_table(tables.of_many(everything)))
        say(f"Numbers: {document.FILE} in each run folder")
        return
    for folder, found in everything.items():
        say(f"{folder}, {tables.origin(found)}")
        console.print(*map(rich_table, tables.of_evaluation(found, flags.calibration or flags.all)))
        say(f"Numbers: {folder / document.FILE}")


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
    from spacedkd.config.objects import Objects

    objects: dict[str, Any] = {name: load_object(place) for name, place in own.items()}
    made = {name: objects[name]() for name in ("data", "method") if callable(objects.get(name))}
    return Objects(**objects | made)


def _folders(runs: Sequence[Path], unfinished: bool) -> list[Path]:
    """The run folders at or below those given; a run that is named itself must be finished, unless asked otherwise."""
    from spacedkd.comparison import results

    folders: list[Path] = []
    for path in runs:
        if path.is_file():
            raise UserError(
                f"{path} is a file. Name a run folder; weights in a file go with --network: --weights FILE."
            )
        if (path / "spec.json").exists():
            folders.append(path)
        else:
            finished, others = results.find_runs([path])
            below = sorted(finished + others) if unfinished else finished
            folders += [path / folder.relative_to(path.resolve()) for folder in below]
    return list({folder.resolve(): folder for folder in folders}.values())


def _folder_of_network(typed: Given) -> Path:
    folder: Path = typed.get("out") or Path("evaluations") / typed["network"].replace("/", "-")
    if (folder / "spec.json").exists():
        raise UserError(f"{folder} is a run, which has an evaluation of its own: choose another --out.")
    return folder


def _of_network(typed: Given, accelerator: str | None, threads: int | None) -> TrainedModels:
    import torch

    from spacedkd.training import trained_models

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
    return trained_models.load_network(spec.network, spec.data, accelerator or "auto")
