"""What one run is: frozen dataclasses that go to JSON and back.

A spec says everything that decides the numbers of a run, and nothing else does. `RunSpec()` is the paper's CNN
recipe; a variation is `dataclasses.replace(base, schedule=Spaced("1.5ep"))`.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from spacedkd.duration import Duration
from spacedkd.errors import UserError, unknown
from spacedkd.schedule import Ahead, Online, Schedule, Spaced, Window

Options = Mapping[str, Any]


@dataclass(frozen=True)
class AugmentSpec:
    """Random changes of the training images, in this order: shifted crop, mirror, rotation."""

    crop: int = 0
    """pad by this many pixels and cut out the original size at a random place"""
    flip: bool = False
    """mirror left-right half of the time"""
    rotate: float = 0.0
    """turn by a random angle up to this many degrees either way"""


@dataclass(frozen=True)
class DataSpec:
    source: str = "digits"
    """a data set by name (see `spacedkd list data`), or an .npz file"""
    augment: AugmentSpec | None = None
    """random changes of the training images; None takes what suits the data set"""
    train_limit: int | None = None
    """use only this many training images, evenly from all classes"""
    holdout: float = 0.0
    """part of the training images kept aside, so that the best epoch can be chosen without the test set"""
    drop_last: bool = False
    """leave out the last, smaller batch of an epoch"""


@dataclass(frozen=True)
class NetworkSpec:
    name: str = "resnet18_small"
    """any timm network, or a small-image variant of ours (see `spacedkd list networks`)"""
    options: Options = field(default_factory=dict)
    """keyword arguments of the network, for instance {"width": 16}"""


@dataclass(frozen=True)
class MethodSpec:
    name: str = "kd"
    options: Options = field(default_factory=dict)


@dataclass(frozen=True)
class OptimizerSpec:
    name: Literal["sgd", "adamw"] = "sgd"
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 5e-4
    nesterov: bool = False


@dataclass(frozen=True)
class RateSpec:
    """The learning rate as a function of the step: a factor on the optimizer's `lr`."""

    shape: Literal["constant", "cosine"] = "constant"
    warmup: Duration = Duration(0, "ep")
    """rise linearly from zero over this long"""
    floor: float = 0.0
    """a cosine ends at this part of lr"""


@dataclass(frozen=True)
class EngineSpec:
    """Where a run is computed. Not a part of its identity: it does not decide what is computed."""

    accelerator: str = "auto"
    devices: int = 1
    nodes: int = 1
    workers: int = 0
    """processes that prepare batches ahead of time; the batches are the same for any number"""
    threads: int | None = None
    """CPU threads of each process; None takes all cores"""


@dataclass(frozen=True)
class RunSpec:
    data: DataSpec = field(default_factory=DataSpec)
    network: NetworkSpec = field(default_factory=NetworkSpec)
    teacher: NetworkSpec | None = None
    """the teacher's network; None takes the student's"""
    method: MethodSpec = field(default_factory=MethodSpec)
    schedule: Schedule = field(default_factory=Online)
    epochs: float = 80
    batch_size: int = 128
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    rate: RateSpec = field(default_factory=RateSpec)
    seed: int = 0
    same_init: bool = True
    """teacher and student start from the same weights where their networks are the same"""
    precision: str = "auto"
    """32-true, bf16-mixed, 16-mixed ...; auto takes bf16-mixed where the hardware is fast at it"""
    channels_last: bool = True
    evaluate_every: Duration = Duration(1, "ep")
    save_every: Duration = Duration(1, "ep")
    log_every: Duration = Duration(25, "st")
    label: str = ""
    """the arm of a comparison this run belongs to"""
    engine: EngineSpec = field(default_factory=EngineSpec)

    def __post_init__(self) -> None:
        _at_least("epochs", self.epochs, 1e-9)
        _at_least("batch_size", self.batch_size, 1)
        _at_least("seed", self.seed, 0)
        _at_least("lr", self.optimizer.lr, 0)
        for name in ("evaluate_every", "save_every", "log_every"):
            if getattr(self, name).amount == 0:
                raise UserError(f"{name} must be at least one step, got 0. Write 1ep for once an epoch.")
        if not 0 <= self.data.holdout < 1:
            raise UserError(f"holdout must be a part from 0 up to (not including) 1, got {self.data.holdout:g}.")

    def fingerprint(self) -> str:
        """Names what the run computes; equal for equal specs, whatever machine computes them."""
        canonical = from_json(RunSpec, to_json(self))  # writes 30 and 30.0 alike
        described = {key: value for key, value in to_json(canonical).items() if key != "engine"}
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]


def _at_least(name: str, value: float, least: float) -> None:
    if not value >= least:  # written so that NaN fails too
        raise UserError(f"{name} must be {'more than 0' if 0 < least < 1 else f'at least {least:g}'}, got {value:g}.")


SCHEDULES: dict[str, type[Schedule]] = {"spaced": Spaced, "ahead": Ahead, "window": Window}


def to_json(value: Any) -> Any:
    """Dataclasses to plain dictionaries; durations to text; schedules get their kind.

    >>> to_json(Spaced("1.5ep"))
    {'kind': 'spaced', 'interval': '1.5ep', 'tail': 'teach'}
    """
    if isinstance(value, Duration):
        return str(value)
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if not is_dataclass(value) or isinstance(value, type):
        return value
    plain = {f.name: to_json(getattr(value, f.name)) for f in fields(value)}
    return {"kind": _kind(value), **plain} if isinstance(value, Schedule) else plain


def _kind(schedule: Schedule) -> str:
    ours = {kind: name for name, kind in SCHEDULES.items()}
    own = type(schedule)
    return ours.get(own, f"{own.__module__}:{own.__qualname__}")


S = TypeVar("S")


def from_json(kind: type[S], plain: Any, where: str = "spec") -> S:
    """The inverse of `to_json`; an unknown or misspelt key is an error that names the near ones."""
    if not isinstance(plain, Mapping):
        raise UserError(f"{where} must be an object with keys and values, got {plain!r}.")
    hints = get_type_hints(kind)
    known = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    for key in plain:
        if key not in known:
            raise unknown(f"key in {where}", key, known)
    try:
        return kind(**{key: _decode(hints[key], value, f"{where}.{key}") for key, value in plain.items()})
    except TypeError as error:
        raise UserError(f"{where}: {str(error).removeprefix(f'{kind.__name__}.__init__() ')}.") from None


def _decode(hint: Any, value: Any, where: str) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        options = [option for option in get_args(hint) if option is not types.NoneType]
        if value is None and types.NoneType in get_args(hint):
            return None
        return _decode(Duration if Duration in options else options[0], value, where)
    if hint is Duration:
        return Duration.parse(value if isinstance(value, int) else str(value))
    if hint is Schedule:
        return _decode_schedule(value, where)
    if is_dataclass(hint):
        return from_json(hint, value, where)  # type: ignore[arg-type]
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise unknown(where, str(value), get_args(hint))
        return value
    if hint in (bool, int, float, str):
        return _decode_scalar(hint, value, where)
    if not isinstance(value, Mapping):
        raise UserError(f"{where} must be an object with keys and values, got {value!r}.")
    return value


def _decode_scalar(hint: type, value: Any, where: str) -> Any:
    fits = isinstance(value, hint) and not (hint is int and isinstance(value, bool))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not fits:
        raise UserError(f"{where} must be {'text' if hint is str else f'a {hint.__name__}'}, got {value!r}.")
    return value


def _decode_schedule(value: Any, where: str) -> Schedule:
    if not isinstance(value, Mapping) or "kind" not in value:
        raise UserError(f"{where} must be an object with a kind, one of {', '.join(SCHEDULES)}; got {value!r}.")
    options = {key: item for key, item in value.items() if key != "kind"}
    if ":" in value["kind"]:
        own: Schedule = from_json(load_object(value["kind"]), options, where)
        return own
    if value["kind"] not in SCHEDULES:
        raise unknown("schedule", value["kind"], SCHEDULES)
    return from_json(SCHEDULES[value["kind"]], options, where)


def load_object(name: str) -> Any:
    """What `package.module:Name` names."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"Cannot load {name!r} ({error}). Write it as package.module:Name.") from None


def read_spec(path: Path) -> RunSpec:
    """A spec from a spec.json, or from the run folder that holds one."""
    path = path / "spec.json" if path.is_dir() else path
    try:
        return from_json(RunSpec, json.loads(path.read_text()))
    except FileNotFoundError:
        raise UserError(f"There is no {path}. Give a spec.json or a run folder.") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not valid JSON: {error}.") from None
