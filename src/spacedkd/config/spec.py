"""A spec in a few words."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from importlib import import_module
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from spacedkd.config.registry import METHODS, check_names
from spacedkd.config.serialization import changed_fields, check_fields, from_json, to_json, with_truth
from spacedkd.runtime.documents import read_document
from spacedkd.runtime.errors import PYTHON_NAMES, UserError, check_between, format_value, same_name, unknown
from spacedkd.runtime.torchvision_compat import declare_missing
from spacedkd.runtime.user_code import is_user_code, marked
from spacedkd.schedule import Duration, Joined, Schedule, describe_schedule, in_steps

# Which data a run has, and how it is varied.

NAMED = ("digits", "cifar10", "cifar100", "tiny-imagenet", "imagenet-100", "imagenet-1k")
"""data sets that are known by name"""


def named_source(source: str) -> str:
    """Return the data set a source means, CIFAR-100 too; a folder or a file of exactly that name is what it says."""
    return source if source in NAMED or Path(source).exists() else same_name(source, NAMED)


@dataclass(frozen=True)
class AugmentSpec:
    """Random changes of the training images, in this order: shifted crop, mirror, rotation."""

    crop: int = 0
    """pad by this many pixels and cut out the original size at a random place"""
    flip: bool = False
    """mirror left-right half of the time"""
    rotate: float = 0.0
    """turn by a random angle up to this many degrees either way"""

    def __post_init__(self) -> None:
        check_fields(self)
        check_between("crop", self.crop, 0, 10_000)
        check_between("rotate", self.rotate, 0, 180)


@dataclass(frozen=True)
class DataSpec:
    source: str = "digits"
    """a data set by name (see `spacedkd list data`), a folder, a .parquet or .npz file, a hub name owner/name, or a
    function of yours as package.module:name that gives two torch datasets, to train and to test on"""
    augment: AugmentSpec | None = None
    """the random changes of a batch-wise augmentation; None takes what suits the data set"""
    train_limit: int | None = None
    """use only this many training images, evenly from all classes"""
    class_limit: int | None = field(default=None, metadata={"later": True})
    """use only the first so many classes"""
    holdout: float = 0.0
    """part of the training images kept aside, so that the best epoch can be chosen without the test set"""
    drop_last: bool = False
    """leave out the last, smaller batch of an epoch"""
    augmentation: str | None = None
    """how training images are varied, by name (see `spacedkd list augmentations`); None takes what suits the data"""
    mixup: float = 0.0
    """mix every image and label with those of a partner; the share is drawn from Beta(mixup, mixup)"""
    cutmix: float = 0.0
    """paste a box of a partner into every image, sized after Beta(cutmix, cutmix)"""
    image_size: int | None = None
    """the side of the square a network sees; None takes what suits the augmentation and the data"""
    root: str = "data"
    """the folder that holds data sets known by name"""
    class_list: str | None = None
    """a file with one class folder a line: only these classes, in this order"""
    image_column: str | None = None
    """the images of a table; None finds them where only one column can be meant"""
    label_column: str | None = None
    """the labels of a table; None finds them where only one column can be meant"""
    train_split: str | None = None
    """the part of the data to train on; None finds it where only one can be meant"""
    test_split: str | None = None
    """the part of the data to test on; None finds it where only one can be meant"""
    test_part: float | None = None
    """where the data has no part to test on, this part of its images, evenly from all classes"""
    skip_bad: bool = False
    """leave images out that cannot be read"""

    def __post_init__(self) -> None:
        check_fields(self)
        check_between("mixup", self.mixup, 0, 1000)
        check_between("cutmix", self.cutmix, 0, 1000)
        check_between("train_limit", self.train_limit, 1)
        check_between("class_limit", self.class_limit, 2)
        check_between("image_size", self.image_size, 1, 100_000)
        if self.image_column is not None and self.image_column == self.label_column:
            raise UserError(
                f"image_column and label_column are both {self.image_column!r}: a column holds images or labels."
            )
        if not 0 <= self.holdout < 1:
            raise UserError(f"holdout must be a part from 0 up to (not including) 1, got {self.holdout:g}.")
        if self.test_part is not None and not 0 < self.test_part < 1:
            raise UserError(f"test_part must be between 0 and 1, got {self.test_part:g}.")


# How weights are updated, and how fast.

Options = Mapping[str, Any]


MOST_DECAY = 4.0
"""w <- w - lr wd w alone makes w larger above 2, and with momentum m above 2 (1 + m)"""


@dataclass(frozen=True)
class OptimizerSpec:
    name: str = "sgd"
    """sgd, adamw, any other of timm.optim (lion, lamb, adan ...), or a function of yours as package.module:name"""
    lr: float = 0.01
    """learning rate"""
    momentum: float | None = None
    """of sgd, where None is 0.9, and of those optimizers of timm that have one"""
    weight_decay: float = 5e-4
    """pulls weights towards zero; all of them with sgd, with others not biases, norms, tokens and positions"""
    nesterov: bool = False
    """let sgd look ahead"""
    clip: float | None = None
    """shorten longer gradients to this norm"""
    moves_frozen: bool = False
    """give every other learner a step with zero gradients too, which decay and momentum turn into movement"""
    options: Options = field(default_factory=dict)
    """further keyword arguments of the optimizer, for instance {"betas": [0.9, 0.99]}"""

    def __post_init__(self) -> None:
        check_fields(self)
        if ":" not in self.name:
            object.__setattr__(self, "name", same_name(self.name.lower(), (*WITH_MOMENTUM, *WITHOUT_MOMENTUM)))
            object.__setattr__(self, "options", with_truth(self.options))
        check_between("lr", self.lr, 0)
        check_between("weight_decay", self.weight_decay, 0, 1e6)
        if self.clip is not None and not self.clip > 0:
            raise UserError(f"clip must be above 0, got {self.clip:g}.")
        if self.name == "sgd" and self.momentum is None:
            object.__setattr__(self, "momentum", 0.9)
        check_between("momentum", self.momentum, 0, 1)
        if self.name in ("sgd", "adamw") and self.weight_decay > 1 and self.lr * self.weight_decay > MOST_DECAY:
            raise UserError(
                f"weight_decay {self.weight_decay:g} is too large for lr {self.lr:g}: their product must be at most "
                f"{MOST_DECAY:g}, for above it every step makes all weights larger. Lower --weight-decay."
            )
        self._check_name()

    def _check_name(self) -> None:
        """Refuse an optimizer that is not there, and settings that it does not have."""
        if self.nesterov and (self.name != "sgd" or self.momentum == 0):
            raise UserError("nesterov needs sgd with a momentum above 0: --optimizer sgd --set optimizer.momentum=0.9")
        ours = self.name in ("sgd", "adamw") or ":" in self.name
        has_momentum = self.name == "sgd" if ours else _has_momentum(self.name)
        if self.momentum is not None and not has_momentum:
            raise UserError(
                f"momentum does not matter to {self.name}: leave it out, or set what it has instead, for instance "
                "--set optimizer.betas=[0.9,0.99]"
            )


SHAPES = ("constant", "cosine", "multistep")


@dataclass(frozen=True)
class RateSpec:
    """The learning rate as a function of the step: a factor on the optimizer's `lr`."""

    shape: str = "constant"
    """how the learning rate goes: constant, cosine, multistep, or a function of the step as package.module:name"""
    floor: float = 0.0
    """a cosine ends at this part of lr"""
    milestones: tuple[Duration, ...] = ()
    """a multistep rate is multiplied by `factor` at each of these: 60ep 120ep"""
    factor: float = 0.1
    """what a multistep rate is multiplied by"""
    warmup: Duration = Duration(0, "ep")
    """rise linearly to lr over this long"""
    warmup_start: float = 0.001
    """the part of lr a warm-up begins with"""
    restart_after_warmup: bool = True
    """a cosine begins where the warm-up ends; else it runs from the first step, hidden below the warm-up"""
    per_epoch: bool = False
    """change only at the beginning of an epoch"""

    def __post_init__(self) -> None:
        check_fields(self)
        check_between("floor", self.floor, 0, 1)
        check_between("warmup_start", self.warmup_start, 0, 1)
        check_between("factor", self.factor, 0, 1)
        object.__setattr__(self, "shape", same_name(self.shape, SHAPES))
        if self.shape not in SHAPES and ":" not in self.shape:
            raise unknown("rate", self.shape, SHAPES)
        if self.shape == "multistep" and not self.milestones:
            raise UserError("A multistep rate needs milestones to fall at: --milestones 60ep 120ep")
        self._check_used()

    def _check_used(self) -> None:
        """Refuse what is given and cannot matter."""
        cosine, multistep, warm = self.shape == "cosine", self.shape == "multistep", self.warmup.amount > 0
        used = {
            "floor": cosine,
            "milestones": multistep,
            "factor": multistep,
            "warmup": self.shape in SHAPES,
            "warmup_start": warm,
            "restart_after_warmup": cosine and warm,
            "per_epoch": self.shape in SHAPES,
        }
        for name in changed_fields(self):
            if not used.get(name, True):
                needs = {"floor": "--rate cosine", "milestones": "--rate multistep", "factor": "--rate multistep"}
                way_out = needs.get(name, "a cosine with --warmup" if self.shape in SHAPES else "one of ours")
                raise UserError(f"{name} does not matter to rate {self.shape}: leave it out, or use {way_out}.")


# The optimizers of timm 1.0.30. timm itself, and with it torch, is imported only to ask about any other name.
WITH_MOMENTUM = """
    adamuon bnbsgd bnbsgd8bit crmsproptf csgdc csgdp csgdw fusedsgd kron kronc kronw larc lars madgrad madgradw
    momentum muon nadamuon nesterov nesterovw nlarc nlars nmuon rmsprop rmsproptf rmsproptfc sgd sgdc sgdp sgdw
""".split()
WITHOUT_MOMENTUM = """
    adabelief adadelta adafactor adafactorbv adafactorbvc adagrad adam adamax adamc adamp adamw adamwlegacy adan adanw
    adopt adoptc adoptw bnbadam bnbadam8bit bnbadamw bnbadamw8bit bnbademamix bnbademamix8bit bnblion bnblion8bit
    cadafactor cadafactorbv cadafactorbvc cadamc cadamp cadamw cadan cadanw cadopt cadoptc cadoptw clamb clambw
    claprop clion clionc cmars cnadamc cnadamw fusedadam fusedadamw fusedlamb fusednovograd lamb lambc lambcd lambcw
    lambw laprop lapropc lion lionc mars nadam nadamc nadamlegacy nadamw novograd radabelief radam radamlegacy radamw
""".split()


def _has_momentum(name: str) -> bool:
    """Whether timm's optimizer of that name has a momentum to set; a name timm does not know is refused.

    >>> _has_momentum("lion"), _has_momentum("lookahead_rmsproptf")
    (False, True)
    """
    own = name.lower().removeprefix("lookahead_")  # timm's way to write it inside Lookahead
    if own in (*WITH_MOMENTUM, *WITHOUT_MOMENTUM):
        return own in WITH_MOMENTUM
    declare_missing()
    optim = import_module("timm.optim")
    try:
        info = optim.get_optimizer_info(own)
    except ValueError:
        raise unknown("optimizer", name, ["sgd", "adamw", *optim.list_optimizers()]) from None
    if info.second_order:
        raise UserError(f"Optimizer {name} wants second derivatives, which are not computed here: choose another.")
    return bool(info.has_momentum)


# Where a run is computed.

ACCELERATORS = ("auto", "cpu", "cuda", "gpu", "mps")


@dataclass(frozen=True)
class EngineSpec:
    """Where a run is computed. Not a part of its identity: it does not decide what is computed."""

    accelerator: str = "auto"
    """cpu, cuda, mps or auto"""
    devices: int = 1
    """GPUs (or CPU processes) to share each batch"""
    nodes: int = 1
    """machines to share each batch"""
    workers: int = 0
    """processes that prepare batches ahead of time; the batches are the same for any number"""
    threads: int | None = None
    """CPU threads of each process; None takes all cores"""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """how devices share a network: each has all of it (ddp), or a part of its weights (fsdp) where it does not fit"""
    compile: bool = False
    """let torch compile the networks, which takes minutes once and makes steps faster on most GPUs"""
    pipeline: bool = False
    """teacher and student learn at the same time, in two processes with a device each"""
    keep_path: bool = False
    """keep what is recorded of teachers that arms share, or that --pipeline hands over"""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.accelerator not in ACCELERATORS:
            raise unknown("accelerator", self.accelerator, ACCELERATORS)
        for name, value in (("devices", self.devices), ("nodes", self.nodes), ("threads", self.threads or 1)):
            check_between(name, value, 1, 4096)
        check_between("workers", self.workers, 0, 4096)
        if self.threads == 0:
            raise UserError("threads must be at least 1, got 0. Leave it out to use all cores.")
        if self.strategy == "fsdp" and self.processes == 1:
            raise UserError("strategy fsdp shares the weights among several devices: give --devices too.")
        if self.strategy == "fsdp" and self.compile:
            raise UserError("compile wants whole networks, which strategy fsdp does not keep: leave one of them out.")

    @property
    def processes(self) -> int:
        return self.devices * self.nodes


# Where a run goes on that makes another one longer, and the schedule it then has.


@dataclass(frozen=True)
class Extends:
    """A run like this one, but for its epochs, was trained so far; this one goes on from there."""

    epochs: float
    """it was asked for"""
    turn: int
    """its last"""
    how: Literal["exact", "warm", "anew"]
    """exact: a run in one go has the same turns and learning rates until then, and so the same bits; warm: the same
    turns, but other learning rates; anew: the blocks of the schedule begin anew there"""

    def __post_init__(self) -> None:
        check_fields(self)
        check_between("extends.epochs", self.epochs, 0)
        check_between("extends.turn", self.turn, 1)


def with_extensions(schedule: Schedule, extends: Sequence[Extends], steps_per_epoch: int, total: int) -> Schedule:
    """The schedule of a run of `total` steps, written in steps; lengths in percent are of what was added."""
    at = [Duration(one.epochs, "ep").whole_steps(steps_per_epoch, 0) for one in extends if one.how == "anew"]
    lengths = [stop - start for start, stop in pairwise((0, *at, total))]
    parts = tuple(in_steps(schedule, steps_per_epoch, length) for length in lengths)
    return Joined(parts, tuple(at)) if at else parts[0]


# What one run is: frozen dataclasses that go to JSON and back.

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
        if not is_user_code(self.name):  # whose parameters have types that decide
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
                raise UserError(
                    f"objects.{name} must be the name and the digest of an object, got {format_value(one)}."
                )
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


# A spec in a few words.


def describe(spec: RunSpec) -> str:
    """A name for a run that was given none: its method and schedule.

    >>> describe(RunSpec(schedule="1.5ep"))
    'kd, spaced 1.5ep'
    """
    variant = spec.method.options.get("variant")
    alone = spec.method.name == "none" or variant == "plain"
    parts = (spec.method.name, variant, None if alone else describe_schedule(spec.schedule))
    return ", ".join(part for part in parts if part)
