"""`spacedkd evaluate`: measure trained networks. Its flags are the settings of instruments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin, get_type_hints

import tyro

from spacedkd.cli.console import console, say
from spacedkd.cli.flags import (
    GROUPS,
    PATHS,
    Flag,
    Given,
    ImageFlags,
    assignments,
    flag,
    flag_class,
    given_flags,
    option_text,
)
from spacedkd.config.serialization import field_docs, with_changes
from spacedkd.config.spec import NetworkSpec, RunSpec
from spacedkd.evaluation.corruptions import Corruptions
from spacedkd.evaluation.document import INSTRUMENTS
from spacedkd.evaluation.instrument import EvaluationSpec, Instrument
from spacedkd.reporting.progress import work_progress
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.processes import check_threads
from spacedkd.runtime.user_code import load_object

if TYPE_CHECKING:
    from spacedkd.config.objects import Objects
    from spacedkd.evaluation.document import EvaluationDocument
    from spacedkd.training.trained_models import TrainedModels


_WHOLE, _NUMBERS, _NAMES = tuple[int, ...], tuple[float, ...], tuple[str, ...]
_METAVARS = {int: "COUNT", float: "NUMBER", _WHOLE: "NUMBER ...", _NUMBERS: "NUMBER ...", _NAMES: "NAME ..."}
_METAVARS |= {str: "NAME", Path: "FOLDER"}

_GENERAL = [
    Flag("grid", Path, "also draw the corruptions of one test image into this picture", metavar="FILE.png"),
    Flag("unfinished", bool, "measure the last checkpoint of runs that are not finished"),
    Flag("trust_code", bool, "import user code that a run's files name as package.module:name"),
    Flag("batch_size", int, "batch size", EvaluationSpec.batch_size),
    Flag("workers", int, "processes that decode images ahead", EvaluationSpec.workers),
    Flag("accelerator", str, "cpu, cuda, mps or auto", "the run's"),
    Flag("threads", int, "CPU threads", "the run's"),
    Flag("all", bool, "use every instrument"),
    Flag("calibration", bool, "print likelihood, calibration error and the reliability diagram"),
]
OPTIONAL = [instrument for instrument in INSTRUMENTS if instrument.flag]
"""the instruments that a flag chooses; accuracy is always measured"""


def _field_name(flag: str) -> str:
    """Return the name in Python of a flag that may have hyphens: class_nll for --class-nll."""
    return flag.replace("-", "_")


def _instrument_flags() -> Iterator[Flag]:
    """Yield the flag that chooses each instrument, and one for each of its settings; equal settings share a flag.

    A name is yielded once: what else has it is refused by `_check_flags`.
    """
    yielded = {*_other_flags()}
    for instrument in OPTIONAL:
        choice = _field_name(instrument.flag)
        if choice not in yielded:
            yielded.add(choice)
            yield Flag(choice, bool, instrument.about)
        for name in _settings(instrument):
            if name not in yielded:
                yielded.add(name)
                yield _setting_flag(name)


def _other_flags() -> list[str]:
    """Return the names of all flags that are no instrument's."""
    return [made.name for made in (*_GENERAL, *_NETWORK, *_OBJECTS, *GROUPS["data"])]


def _check_flags() -> None:
    """Refuse two flags with one name, and two settings of one name that take different types."""
    owners = dict.fromkeys(_other_flags(), "`spacedkd evaluate` itself")
    for instrument in OPTIONAL:
        choice = _field_name(instrument.flag)
        if choice in owners:
            raise _clash(option_text(choice), f"instrument {instrument.name}", owners[choice])
        owners[choice] = f"Instrument {instrument.name}"
    settings: dict[str, type[Instrument]] = {}
    for instrument in OPTIONAL:
        for name in _settings(instrument):
            if name in owners:
                raise _clash(option_text(name), f"instrument {instrument.name} (a setting)", owners[name])
            first = settings.setdefault(name, instrument)
            if _setting_type(first, name) != _setting_type(instrument, name):
                raise UserError(
                    f"Instruments {first.name} and {instrument.name} have a setting {name} of different types: rename "
                    "one of them."
                )


def _clash(option: str, owner: str, other: str) -> UserError:
    return UserError(f"{other} and {owner} both have a flag {option}: rename one of them.")


def _settings(instrument: type[Instrument]) -> list[str]:
    return [field.name for field in fields(instrument)]  # type: ignore[arg-type]


def _owners(setting: str) -> list[type[Instrument]]:
    """Return the instruments that have a setting of this name."""
    return [cls for cls in OPTIONAL if setting in _settings(cls)]


def _setting_type(instrument: type[Instrument], name: str) -> Any:
    """Return the type that the flag of a setting takes."""
    return _kind(get_type_hints(instrument)[name])


def _setting_flag(name: str) -> Flag:
    """Return the flag of a setting. The sentence below its field is the help; `; None takes X` in it is the default."""
    owners = _owners(name)
    sentences = [field_docs(owner).get(name, "").partition("; None takes ") for owner in owners]
    about = sentences[0][0]
    defaults = [
        default or _format_default(getattr(owner, name))
        for owner, (_, _, default) in zip(owners, sentences, strict=True)
    ]
    if len(owners) > 1:
        about += f" (of {' and '.join(option_text(owner.flag) for owner in owners)})"
    return Flag(name, _setting_type(owners[0], name), about, " and ".join(dict.fromkeys(defaults)))


def _kind(hint: Any) -> Any:
    """Return the type that a flag takes: without None, and of names or objects the names."""
    options = [option for option in get_args(hint) if option is not NoneType]
    if get_origin(hint) in (Union, UnionType):
        return options[0]
    if get_origin(hint) is tuple and str in get_args(options[0]):
        return _NAMES
    return hint


def _format_default(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_format_default, value))
    return f"{value:g}" if isinstance(value, int | float) else str(value)


_NETWORK = [
    Flag("network", str, "a timm network to evaluate on --data; with runs, the function that they were given"),
    Flag("width", int, "of --network, if it is one of ours", 64, "CHANNELS"),
    Flag("weights", str, "of --network: a .safetensors or torch file, or a run folder", "timm's own", "FILE"),
    Flag("set", tuple, "any setting of --network: network.input_size=224, ... (may be repeated)", "", "KEY=VALUE"),
    Flag("out", Path, "where the evaluation of --network goes", "evaluations/NAME"),
]
_OBJECTS = [
    Flag("teacher", str, "the function that makes the teacher's network"),
    Flag("collate", str, "the function that makes a batch of items"),
    Flag("method", str, "the class of the method"),
]
_ABOUT_OBJECTS = (
    "Runs that were given functions in Python need the same ones again, each as package.module:name; "
    "--network and --data are among them."
)


def _field(described: Flag) -> tuple[str, Any, Any]:
    """Return a flag as a dataclass field; None, False or an empty tuple is its value when it is not given."""
    name, kind, about, default = described.name, described.kind, described.about, described.default
    if kind is tuple:
        return described.field()
    if kind is bool:
        return name, Annotated[bool, flag(about)], False
    return name, Annotated[kind | None, flag(about, default, described.metavar or _METAVARS.get(kind, "VALUE"))], None


if TYPE_CHECKING:
    InstrumentFlags = Any
    OtherNetworkFlags = Any
    ObjectFlags = Any
else:
    InstrumentFlags = flag_class(map(_field, [*_GENERAL, *_instrument_flags()]))
    OtherNetworkFlags = flag_class(
        map(_field, _NETWORK), "A network that belongs to no run, evaluated in place of runs."
    )
    ObjectFlags = flag_class(map(_field, _OBJECTS), _ABOUT_OBJECTS)


def read_flags(flags: Any) -> EvaluationSpec:
    """Return the spec that these flags ask for; refuse a setting of an instrument that is not used."""
    _check_flags()
    typed = {name: value for name, value in given_flags(flags).items() if value is not False}
    used = [cls for cls in OPTIONAL if "all" in typed or _field_name(cls.flag) in typed]
    for name in typed:
        owners = _owners(name)
        if owners and not any(owner in used for owner in owners):
            choices = " or ".join(option_text(owner.flag) for owner in owners)
            raise UserError(f"{option_text(name)} belongs to {choices}: add that flag too.")
    instruments = [
        cls(**{name: _each_once(value) for name, value in typed.items() if cls in _owners(name)}) for cls in used
    ]
    return EvaluationSpec(instruments, **{name: typed[name] for name in ("batch_size", "workers") if name in typed})


def _each_once(value: Any) -> Any:
    """Return the values of a flag that takes several, each once and levels in rising order; any other as it is."""
    if not isinstance(value, tuple):
        return value
    values = dict.fromkeys(value)
    return tuple(sorted(values) if all(isinstance(level, float) for level in values) else values)


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

    Accuracy is always measured, the rest with its flags. Prints tables and adds the numbers to evaluation.json in each
    run folder, where `spacedkd report` reads them. For a folder that contains runs, all of them are measured.

    Example: spacedkd evaluate runs/mine --corruptions --adversarial --calibration
    """
    spec, unfinished = read_flags(flags), flags.unfinished
    typed = {**given_flags(network), **given_flags(data), **given_flags(own)}
    objects = _objects_of_runs(typed) if runs else {}
    if flags.threads is not None and flags.threads < 1:
        raise UserError(f"--threads must be at least 1, got {flags.threads}.")
    check_threads(flags.threads)
    if not runs and "network" not in typed:
        raise UserError("Name at least one run folder, for instance runs/demo, or a --network.")
    if not runs and unfinished:
        raise UserError("--unfinished is about runs: leave it out with --network.")

    from spacedkd.evaluation.evaluate import measure
    from spacedkd.reporting.evaluation import summary_line
    from spacedkd.runs.folder import make_folder

    if flags.grid is not None:
        make_folder(flags.grid.parent, "--grid")
    folders = _folders(runs, unfinished) if runs else [_folder_of_network(typed)]
    count, evaluations = len(folders), {}
    for number, folder in enumerate(folders, 1):
        networks = _load_run(folder, flags, objects) if runs else _load_network(typed, flags.accelerator, flags.threads)
        if flags.grid is not None and number == 1:
            _draw_grid(flags.grid, networks, spec)
        with work_progress(f"{number} of {count}" if count > 1 else "") as progress:
            evaluations[folder] = measure(folder, networks, spec, progress)
        if count > 1:
            say(f"[{number} of {count}] {folder}: {summary_line(evaluations[folder])}")
    _print_evaluations(evaluations, detailed=flags.calibration or flags.all)


def _draw_grid(path: Path, networks: TrainedModels, spec: EvaluationSpec) -> None:
    """Draw the corruptions that are measured, or else all of them, on the first test image."""
    from spacedkd.evaluation.corrupted_images import write_grid
    from spacedkd.evaluation.subject import require_pixels

    drawn = next((used for used in spec.instruments if isinstance(used, Corruptions)), Corruptions())
    write_grid(path, require_pixels(networks.data.test, "Corruptions"), drawn.names, drawn.severities)


def _print_evaluations(evaluations: Mapping[Path, EvaluationDocument], detailed: bool) -> None:
    """Print all tables of one network, or a line for each of several."""
    from spacedkd.evaluation.document import FILE
    from spacedkd.reporting.evaluation import describe_origin, evaluation_tables, summary_table
    from spacedkd.reporting.terminal import rich_table

    if len(evaluations) > 1:
        console.print(rich_table(summary_table(evaluations)))
        say(f"Numbers: {FILE} in each run folder")
        return
    for folder, evaluation in evaluations.items():
        say(f"{folder}, {describe_origin(evaluation)}")
        console.print(*map(rich_table, evaluation_tables(evaluation, detailed)))
        say(f"Numbers: {folder / FILE}")


def _objects_of_runs(typed: Given) -> dict[str, str]:
    """Return the flags given together with runs: names of objects they were given in Python; refuse any other flag."""
    for name, value in typed.items():
        if name == "network" and ":" not in value:
            raise UserError(
                "Give run folders or a --network, not both; together with runs --network is the function they were "
                "given, as package.module:name."
            )
        if name not in OBJECTS or (name == "data" and ":" not in value):
            raise UserError(f"{option_text(name)} goes with --network: a run brings its own.")
        if ":" not in value:
            raise UserError(f"--{name} together with runs is what they were given in Python, as package.module:name.")
    return dict(typed)


def _load_run(folder: Path, flags: Any, objects: Mapping[str, str]) -> TrainedModels:
    """Return the networks of a run, with the objects that it was given in Python."""
    from spacedkd.training.trained_models import load_run

    return load_run(
        folder,
        unfinished=flags.unfinished,
        accelerator=flags.accelerator,
        threads=flags.threads,
        objects=_load_objects(objects),
        trust_code=flags.trust_code,
    )


def _load_objects(names: Mapping[str, str]) -> Objects:
    """Return the objects of these names; of data and a method also a function, or a class, that makes them."""
    from spacedkd.config.objects import Objects

    objects: dict[str, Any] = {flag: load_object(name) for flag, name in names.items()}
    called = {flag: objects[flag]() for flag in ("data", "method") if callable(objects.get(flag))}
    return Objects(**objects | called)


def _folders(runs: Sequence[Path], unfinished: bool) -> list[Path]:
    """Return the run folders at or below those given; below a folder only finished runs, unless `unfinished`."""
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
    """Return where the evaluation of --network goes; refuse the folder of a run."""
    folder: Path = typed.get("out") or Path("evaluations") / typed["network"].replace("/", "-")
    if (folder / "spec.json").exists():
        raise UserError(f"{folder} is a run, which has its own evaluation: choose another --out.")
    return folder


def _load_network(typed: Given, accelerator: str | None, threads: int | None) -> TrainedModels:
    """Return the network of --network with its weights and data."""
    import torch

    from spacedkd.training import trained_models

    for name in typed:
        if name in OBJECTS and name not in ("network", "data"):
            raise UserError(f"--{name} goes with runs that were given an object: name them, or leave it out.")
    if threads is not None:
        torch.set_num_threads(threads)
    paths: dict[str, Any] = {"width": "network.width", **PATHS}
    changes = [(paths[name], value) for name, value in typed.items() if name in paths]
    for assignment in typed.get("set", ()):
        if not assignment.startswith(("network.", "data.")):
            raise UserError(
                f"--set is about the network and its data here: network.input_size=224; got {assignment!r}."
            )
    spec = with_changes(RunSpec(network=NetworkSpec(typed["network"])), [*changes, *assignments(typed.get("set", ()))])
    return trained_models.load_network(spec.network, spec.data, accelerator or "auto")
