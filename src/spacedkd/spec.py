"""What one run is: frozen dataclasses that go to JSON and back.

A spec says everything that decides the numbers of a run, and nothing else does. `RunSpec()` is the paper's CNN
recipe; a variation is `dataclasses.replace(base, schedule=Spaced("1.5ep"))`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Literal

from spacedkd.data_spec import AugmentSpec as AugmentSpec
from spacedkd.data_spec import DataSpec as DataSpec
from spacedkd.documents import read_document
from spacedkd.duration import Duration
from spacedkd.engine_spec import EngineSpec as EngineSpec
from spacedkd.errors import PYTHON_NAMES, UserError, check_between, same_name, shown, unknown
from spacedkd.extends import Extends as Extends
from spacedkd.json_form import check_fields, from_json, to_json, with_truth
from spacedkd.logger_names import check_names
from spacedkd.method_names import METHODS
from spacedkd.optimizer_spec import OptimizerSpec as OptimizerSpec
from spacedkd.optimizer_spec import Options as Options
from spacedkd.optimizer_spec import RateSpec as RateSpec
from spacedkd.own_code import is_own, marked
from spacedkd.schedule import Schedule

OURS = re.compile(r"resnet\d+(_small(_w\d+)?|x\d)")
# No 16-mixed: its loss scale would be shared by teacher and student, and the student could change the teacher.
PRECISIONS = ("auto", "32-true", "bf16-mixed", "bf16-true", "64-true")


@dataclass(frozen=True)
class NetworkSpec:
    name: str = "resnet18_small"
    """any timm network, one of ours (see `spacedkd list networks`), or a function of yours as package.module:name"""
    options: Options = field(default_factory=dict)
    """keyword arguments of the network, for instance {"width": 16}"""
    weights: str | None = None
    """trained weights to start from: a run folder, or a file (.safetensors, or a torch file of weights alone)"""

    def __post_init__(self) -> None:
        check_fields(self)
        if not is_own(self.name):  # whose parameters have types that decide
            object.__setattr__(self, "options", with_truth(self.options))

    @property
    def pretrained(self) -> bool:
        return self != self.untrained()

    @property
    def is_ours(self) -> bool:
        """Whether it is one of our small-image ResNets, which are known by their names without importing them."""
        return OURS.fullmatch(self.name) is not None

    def untrained(self) -> NetworkSpec:
        """The same network without trained weights."""
        trained = ("pretrained", "checkpoint_path")
        return NetworkSpec(self.name, {key: value for key, value in self.options.items() if key not in trained})


@dataclass(frozen=True)
class MethodSpec:
    name: str = "kd"
    """what is learned (see `spacedkd list methods`), or a class of yours as package.module:Name"""
    options: Options = field(default_factory=dict)
    """the method's own settings; what is left open is the method's default"""

    def __post_init__(self) -> None:
        check_fields(self)
        if ":" in self.name:
            return
        object.__setattr__(self, "name", same_name(self.name, METHODS))
        object.__setattr__(self, "options", with_truth(self.options))
        if self.name not in METHODS:
            raise unknown("method", self.name, METHODS)


@dataclass(frozen=True)
class RunSpec:
    data: DataSpec = field(default_factory=DataSpec)
    network: NetworkSpec = field(default_factory=NetworkSpec)
    teacher: NetworkSpec | None = None
    """the teacher's network; None takes the student's"""
    method: MethodSpec = field(default_factory=MethodSpec)
    schedule: Schedule | None = None
    """who learns when; None is online where somebody leads, and stays None where nobody does"""
    epochs: float = 80.0
    """passes over the training images"""
    batch_size: int = 128
    """images in a batch, over all devices"""
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    rate: RateSpec = field(default_factory=RateSpec)
    seed: int = 0
    """decides data order, augmentation and initial weights"""
    same_init: bool = True
    """teacher and student start from the same weights where their networks are the same"""
    label_smoothing: float = 0.0
    """this part of every label is spread evenly over all classes"""
    ema: float | None = None
    """keep a moving average of the student's weights with this decay, and measure it too"""
    frozen_mode: Literal["eval", "train", "shared"] = "eval"
    """how a model behaves while another learns; train lets its BatchNorm statistics move and its dropout act; shared
    gives what its own turn at that step will: masks and the batch's statistics are the same, and what it keeps of them
    moves in its own turn alone"""
    follower_first: bool = False
    """roles take their turns in the opposite order, so the student meets the teacher before it has learned the batch"""
    redraw_replay: bool = False
    """whoever follows sees other batches than the leader: another order, other augmentation"""
    follower_rate: Literal["own", "leader"] = "own"
    """whoever follows has the learning rate of its own step, or that of the step where the leader stands"""
    precision: str = "auto"
    """32-true, bf16-mixed, bf16-true or 64-true; auto takes bf16-mixed where the hardware is fast at it"""
    channels_last: bool = True
    """keep the channels of images last in memory, which is faster on most hardware"""
    sync_batchnorm: bool = False
    """BatchNorm takes its statistics from the whole batch, not from each device's part of it"""
    evaluate_every: Duration = Duration(1, "ep")
    """how often every role is measured, on its own clock"""
    save_every: Duration = Duration(1, "ep")
    """how often everything is saved"""
    log_every: Duration = Duration(25, "st")
    """how often losses are written down"""
    log: tuple[str, ...] = field(default=(), metadata={"later": True})
    """loggers of losses and accuracies, beside the journal: csv, tensorboard, wandb, mlflow"""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """what happens when losses or weights are no finite numbers: stop, or skip the update, as if it had not been"""
    only: str | None = None
    """train no further than this role: those that would follow it are left out"""
    record: tuple[Schedule, ...] = ()
    """keep what students of these intervals need of their teacher, so that others can follow it with --teacher-path"""
    teacher_path: str | None = None
    """a run that has recorded its teacher: this one trains the student alone, to the same bits"""
    label: str = ""
    """the arm of a comparison this run belongs to"""
    objects: Options = field(default_factory=dict)
    """what was given to `train()` as an object: its qualified name and the digest of its source"""
    accumulate: int = field(default=1, metadata={"later": True})
    """compute every batch in so many parts, one after the other, for one update: less memory at the same batch size;
    BatchNorm and losses over a whole batch, such as the feature norm, see a part at a time, as they do on devices"""
    extends: tuple[Extends, ...] = field(default=(), metadata={"later": True})
    """the runs this one goes on from, each like it but for its epochs (`spacedkd train --extend RUN --epochs 120`)"""
    processes_before: tuple[str, ...] = ()
    """of a run that was taken up on another number of processes: '2 until turn 586'; no run in one go has its bits"""
    engine: EngineSpec = field(default_factory=EngineSpec)

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 < self.epochs < 1e9:
            raise UserError(f"epochs must be more than 0 and finite, less than 1e9; got {self.epochs:g}.")
        check_between("batch_size", self.batch_size, 1, 10**9)
        check_between("accumulate", self.accumulate, 1, self.batch_size)
        lengths = [*(one.epochs for one in self.extends), self.epochs]
        if lengths != sorted({*lengths}):
            raise UserError(f"epochs must be more with each extension, got {', '.join(f'{one:g}' for one in lengths)}.")
        check_between("seed", self.seed, 0, 2**63)
        for name, one in self.objects.items():
            if not (
                isinstance(one, Mapping)
                and {*one} == {"name", "digest"}
                and all(isinstance(text, str) for text in one.values())
            ):
                raise UserError(f"objects.{name} must be the name and the digest of an object, got {shown(one)}.")
        if self.precision not in PRECISIONS:
            raise unknown("precision", self.precision, PRECISIONS)
        check_names(self.log)
        for name in ("evaluate_every", "save_every", "log_every"):
            if getattr(self, name).amount == 0:
                raise UserError(f"{name} must be at least one step, got 0. Write 1ep for once an epoch.")
        if not 0 <= self.label_smoothing < 1:
            raise UserError(f"label_smoothing must be from 0 up to (not including) 1, got {self.label_smoothing:g}.")
        if self.ema is not None and not 0 < self.ema < 1:
            raise UserError(f"ema must be a decay between 0 and 1, for instance 0.999; got {self.ema:g}.")

    def fingerprint(self) -> str:
        """Names what the run computes: equal for equal specs, whatever the runs are called and wherever they are made.

        The number of processes belongs to it: BatchNorm and the feature norm look at one process's part of a batch.
        """
        written = to_json(self)
        described = {key: value for key, value in written.items() if key not in (*_NOT_COMPUTED, *_WHEN_SET)}
        described |= {key: written[key] for key, usual in _WHEN_SET.items() if written[key] != usual}
        described["processes"] = self.engine.processes
        described["data"]["root"] = DataSpec.root  # where data sets known by name lie, on this machine
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]

    def fingerprints(self) -> tuple[str, ...]:
        """Its own, and those it had before it was taken up on other numbers of processes."""
        if not self.processes_before:
            return (self.fingerprint(),)
        *earlier, last = self.processes_before
        engine = replace(self.engine, devices=int(last.split()[0]), nodes=1, strategy="ddp")
        return (self.fingerprint(), *replace(self, processes_before=tuple(earlier), engine=engine).fingerprints())


_NOT_COMPUTED = ("engine", "label", "save_every", "log_every", "log", "record", "teacher_path")
_WHEN_SET = {
    "sync_batchnorm": False,
    "processes_before": [],
    "only": None,
    "on_nonfinite": "stop",
    "follower_rate": "own",
}
"""what counts only where it is not as usual; runs of before did not have it"""


def _python_names(spec: type, where: str = "") -> Iterator[tuple[str, str]]:
    """The flag of every field, and what it is called in Python: batch-size and batch_size, lr and optimizer.lr."""
    for one in fields(spec):
        made = one.default_factory() if callable(one.default_factory) else None
        if is_dataclass(made):
            yield one.name, one.name  # a name alone stands for all of it
            yield from _python_names(type(made), f"{one.name}.")
        else:
            yield {"augmentation": "augment"}.get(one.name, one.name).replace("_", "-"), f"{where}{one.name}"


PYTHON_NAMES.update(_python_names(RunSpec))
PYTHON_NAMES.update(_python_names(AugmentSpec, "data.augment."))
PYTHON_NAMES["augment"] = "data.augmentation"


def check_spec(spec: object) -> None:
    """Refuse what is no spec, where somebody gives one in Python."""
    if not isinstance(spec, RunSpec):
        raise UserError(
            f"The spec must be a RunSpec, got {spec!r}. One of defaults is RunSpec(), that of a dictionary "
            "RunSpec(**dictionary), that of a file read_spec(FILE)."
        )


def check_folder(what: str, path: object) -> None:
    """Refuse what names no folder."""
    if not isinstance(path, str | PathLike) or not str(path):
        raise UserError(f"{what} must name a folder, for instance 'runs/mine'; got {path!r}.")


def read_spec(path: str | PathLike[str], trust_code: bool = False) -> RunSpec:
    """A spec from a spec.json, from the same as YAML or TOML, or from the run folder that holds one.

    Reading imports nothing. What the file names of somebody's own code, `package.module:Name`, can be trained or
    measured only if you trust it with `trust_code`, or have named it yourself in this process.
    """
    check_folder("The path of a spec", path)
    path = Path(path)
    within = path if path.is_dir() else None
    path = path / "spec.json" if within else path
    try:
        plain = read_document(path, within)
    except FileNotFoundError:
        raise UserError(f"There is no {path}. Give a spec.json or a run folder.") from None
    try:
        return from_json(RunSpec, marked(plain, path, trust_code))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no spec: {str(error).splitlines()[0]}.") from None
