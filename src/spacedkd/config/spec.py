"""The spec of a run: frozen dataclasses that go to JSON and back.

A `RunSpec` holds everything that decides a run; what is left open has a default or is decided by `config.resolve`. The
text below a field is the help of its flag. What depends on a field (the fingerprint, pairs of runs, a resume, a shared
teacher) is declared on the field itself, with `option`.

>>> spec = RunSpec(data="digits", schedule="1.5ep", epochs=30)
>>> spec.data.source, str(spec.schedule.interval), spec.optimizer.lr
('digits', '1.5ep', 0.01)
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from importlib.util import find_spec
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from spacedkd.averages import Average, BatchNormOfAverage, Exponential, average_so_far, parse_average
from spacedkd.config.optimizer import OptimizerSpec, Options, RateSpec
from spacedkd.config.serialization import (
    check_fields,
    from_json,
    identity_json,
    option,
    to_json,
    with_truth,
)
from spacedkd.runtime.documents import read_document
from spacedkd.runtime.errors import (
    PYTHON_NAMES,
    UserError,
    check_between,
    format_value,
    install_command,
    same_name,
    unknown,
)
from spacedkd.runtime.user_code import is_user_code, mark_names
from spacedkd.schedule import Duration, Joined, Schedule, describe_schedule, in_steps

# --- Data

DATASETS = ("digits", "mnist1d", "cifar10", "cifar100", "tiny-imagenet", "imagenet-100", "imagenet-1k")
"""datasets that are known by name"""


def resolve_source(source: str) -> str:
    """Return the dataset that a source names, in any case and spelling; a folder or file of that name is left alone."""
    return source if source in DATASETS or Path(source).exists() else same_name(source, DATASETS)


MOST_GENERATED = 10_000_000
"""items of a split of a generated dataset"""


@dataclass(frozen=True)
class AugmentSpec:
    """Random augmentation of the training images, in this order: shifted crop, mirror, rotation.

    >>> RunSpec(data=DataSpec("digits", augment=AugmentSpec(crop=2, rotate=10))).data.augment.crop
    2
    """

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
    """The dataset of a run, which part of it is used, and how training images are augmented.

    >>> DataSpec("cifar100", augmentation="paper", holdout=0.1).holdout
    0.1
    >>> DataSpec(holdout=1)
    Traceback (most recent call last):
    spacedkd.runtime.errors.UserError: holdout must be a part from 0 up to (not including) 1, got 1.
    """

    source: str = "digits"
    """a dataset by name (see `spacedkd list data`), a folder, a .parquet or .npz file, a hub name owner/name, or a
    function of yours as package.module:name that returns a training and a test dataset"""
    augment: AugmentSpec | None = None
    """crop, mirror and rotation of the training images; None takes what suits the dataset"""
    train_limit: int | None = None
    """use only this many training images, evenly from all classes"""
    class_limit: int | None = option(None, later=True)
    """use only the first classes, this many"""
    holdout: float = 0.0
    """part of the training images kept aside, so that the best epoch can be chosen without the test set"""
    drop_last: bool = False
    """leave out the last, smaller batch of an epoch"""
    augmentation: str | None = None
    """augmentation of training images, by name (see `spacedkd list augmentations`); None takes what suits the data"""
    mixup: float = 0.0
    """mix every image and label with those of a partner; the share is drawn from Beta(mixup, mixup)"""
    cutmix: float = 0.0
    """paste a box of a partner into every image, sized after Beta(cutmix, cutmix)"""
    image_size: int | None = None
    """side of the square images that networks see, in pixels; None takes what suits the augmentation and the data"""
    root: str = option("data", identity="default")
    """the folder that holds datasets known by name"""
    class_list: str | None = None
    """a file with one class folder a line: only these classes, in this order"""
    image_column: str | None = None
    """the images of a table; None: detected where only one column can be meant"""
    label_column: str | None = None
    """the labels of a table; None: detected where only one column can be meant"""
    train_split: str | None = None
    """the part of the data to train on; None: detected where only one can be meant"""
    test_split: str | None = None
    """the part of the data to test on; None: detected where only one can be meant"""
    test_part: float | None = None
    """where the data has no part to test on, this part of its images, evenly from all classes"""
    skip_bad: bool = False
    """leave out images that cannot be read"""
    label_noise: float = option(0.0, later=True)
    """this part of the training labels is replaced by other classes, the same for every seed; test and held-out labels
    stay"""
    train_items: int | None = option(None, later=True)
    """training items to generate, where the dataset is a generated one; None takes the usual number"""
    test_items: int | None = option(None, later=True)
    """test items to generate, where the dataset is a generated one; None takes the usual number"""

    def __post_init__(self) -> None:
        check_fields(self)
        check_between("mixup", self.mixup, 0, 1000)
        check_between("cutmix", self.cutmix, 0, 1000)
        check_between("train_limit", self.train_limit, 1)
        check_between("class_limit", self.class_limit, 2)
        check_between("train_items", self.train_items, 10, MOST_GENERATED)
        check_between("test_items", self.test_items, 10, MOST_GENERATED)
        check_between("image_size", self.image_size, 1, 100_000)
        if self.image_column is not None and self.image_column == self.label_column:
            raise UserError(
                f"image_column and label_column are both {self.image_column!r}: a column holds images or labels."
            )
        if not 0 <= self.holdout < 1:
            raise UserError(f"holdout must be a part from 0 up to (not including) 1, got {self.holdout:g}.")
        if not 0 <= self.label_noise < 1:
            raise UserError(f"label_noise must be a part from 0 up to (not including) 1, got {self.label_noise:g}.")
        if self.test_part is not None and not 0 < self.test_part < 1:
            raise UserError(f"test_part must be between 0 and 1, got {self.test_part:g}.")


# --- Machine

ACCELERATORS = ("auto", "cpu", "cuda", "gpu", "mps")


@dataclass(frozen=True)
class EngineSpec:
    """The machine of a run: devices, processes and threads. It decides where a run is computed, and not what.

    Only the number of processes belongs to a run's fingerprint, because BatchNorm sees one process's part of a batch.

    >>> EngineSpec(accelerator="cuda", devices=2, workers=8).processes
    2
    """

    accelerator: str = "auto"
    """cpu, cuda, mps or auto"""
    devices: int = option(1, resumable=True)
    """GPUs (or CPU processes) to share each batch"""
    nodes: int = option(1, resumable=True)
    """machines to share each batch"""
    workers: int | None = None
    """processes that prepare batches ahead of time, for each device; the batches are the same for any number; None
    takes a GPU's share of the cores but one, and 0 on CPUs or where the data is ready in memory"""
    threads: int | None = None
    """CPU threads of each process; None takes all cores"""
    strategy: Literal["ddp", "fsdp"] = option("ddp", resumable=True)
    """how devices share a network: each has all of it (ddp), or a part of its weights (fsdp) where it does not fit"""
    deterministic: bool = option(True, later=True)
    """compute with kernels that give the same bits each time; without, torch may take faster ones on GPUs, and bits are
    not promised"""
    compile: bool = option(False, teacher="compiler")
    """let torch compile the networks, which takes minutes once and makes steps faster on most GPUs"""
    pipeline: bool = False
    """teacher and student learn at the same time, in two processes with a device each"""
    keep_path: bool = False
    """keep a shared teacher's snapshots and cached targets after a comparison or --pipeline; they are deleted
    otherwise"""

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
        """The number of processes that share each batch."""
        return self.devices * self.nodes


# --- Extensions


@dataclass(frozen=True)
class ShorterRun:
    """A shorter run that this one continues: it is like this run but for its epochs."""

    epochs: float
    """the epochs of the shorter run"""
    turn: int
    """the last turn of the shorter run"""
    how: Literal["exact", "warm", "anew"]
    """exact: one long run has the same turns and learning rates until then, and so the same bits; warm: the same turns,
    but other learning rates; anew: the blocks of the schedule start again there"""

    def __post_init__(self) -> None:
        check_fields(self)
        check_between("extends.epochs", self.epochs, 0)
        check_between("extends.turn", self.turn, 1)


def with_extensions(schedule: Schedule, extends: Sequence[ShorterRun], steps_per_epoch: int, total: int) -> Schedule:
    """Return the schedule of a run of `total` steps, written in steps; lengths in percent are of what was added."""
    restarts = [extension for extension in extends if extension.how == "anew"]
    boundaries = [Duration(extension.epochs, "ep").whole_steps(steps_per_epoch, 0) for extension in restarts]
    lengths = [stop - start for start, stop in pairwise((0, *boundaries, total))]
    parts = tuple(in_steps(schedule, steps_per_epoch, length) for length in lengths)
    return Joined(parts, tuple(boundaries)) if boundaries else parts[0]


# --- Networks, methods and runs

OURS = re.compile(r"resnet\d+(_small(_w\d+)?|x\d)|(mlp|cnn)_1d")
"""the names of our networks: ResNets for small images, and small networks for signals"""
PRECISIONS = ("auto", "32-true", "bf16-mixed", "16-mixed", "bf16-true", "64-true")
TARGETS_FORM = re.compile(
    r"(whole|float16|bfloat16)|(top-k):([1-9]\d{0,5})|(sample):([1-9]\d{0,5})(?:@((?!0+(?:\.0+)?$)\d{1,4}(?:\.\d+)?))?"
)
"""names of the forms in which a teacher's logits are cached, which `trajectory.targets` reads"""


@dataclass(frozen=True)
class NetworkSpec:
    """A network by name: the keyword arguments it is built with, and the weights it starts from.

    >>> NetworkSpec("resnet18_small", {"width": 16}).is_ours
    True
    >>> NetworkSpec("resnet34", {"pretrained": True}).untrained()
    NetworkSpec(name='resnet34', options={}, weights=None)
    """

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
        """Whether the network starts from trained weights."""
        return self != self.untrained()

    @property
    def is_ours(self) -> bool:
        """Whether it is one of our own networks, which are known by their names without importing them."""
        return OURS.fullmatch(self.name) is not None

    def untrained(self) -> NetworkSpec:
        """Return the same network without trained weights."""
        trained = ("pretrained", "checkpoint_path")
        return NetworkSpec(self.name, {key: value for key, value in self.options.items() if key not in trained})


TASKS: Mapping[str, Mapping[str, str]] = {
    "classification": {"accuracy": "accuracy"},
    "regression": {"r2": "R²"},
    "dense": {"miou": "mean IoU", "accuracy": "pixel accuracy"},
}
"""task -> the metrics that a run may choose its best epoch by, and what tables call them; the first is the default"""

METHOD_CLASSES: Mapping[str, str] = {
    "none": "spacedkd.methods.no_kd:NoKD",
    "kd": "spacedkd.methods.kd:KD",
    "hinton": "spacedkd.methods.hinton:Hinton",
    "fitnet": "spacedkd.methods.fitnet:FitNet",
    "lskd": "spacedkd.methods.lskd:LSKD",
    "ctkd": "spacedkd.methods.ctkd:CTKD",
    "dkd": "spacedkd.methods.dkd:DKD",
    "eskd": "spacedkd.methods.eskd:ESKD",
    "shake": "spacedkd.methods.shake:SHAKE",
    "takd": "spacedkd.methods.takd:TAKD",
    "ban": "spacedkd.methods.ban:BAN",
    "dml": "spacedkd.methods.dml:DML",
    "kdcl": "spacedkd.methods.kdcl:KDCL",
    "tsb-like": "spacedkd.methods.tsb:TSB",
    "pcl": "spacedkd.methods.pcl:PCL",
    "one": "spacedkd.methods.one:ONE",
    "self-kd": "spacedkd.methods.self_kd:SelfKD",
    "dlb": "spacedkd.methods.dlb:DLB",
    "ps-kd": "spacedkd.methods.ps_kd:PSKD",
}
"""name -> where the class is written: a method, and torch, is imported only when it is used"""


@dataclass(frozen=True)
class MethodSpec:
    """A distillation method by name, and its settings.

    >>> MethodSpec("dkd", {"temperature": 4}).name
    'dkd'
    >>> MethodSpec("Self_KD").name
    'self-kd'
    """

    name: str = "kd"
    """what is learned (see `spacedkd list methods`), or a class of yours as package.module:Name"""
    options: Options = field(default_factory=dict)
    """the method's own settings; what is left open is the method's default"""

    def __post_init__(self) -> None:
        check_fields(self)
        if ":" in self.name:
            return
        object.__setattr__(self, "name", same_name(self.name, METHOD_CLASSES))
        object.__setattr__(self, "options", with_truth(self.options))
        if self.name not in METHOD_CLASSES:
            raise unknown("method", self.name, METHOD_CLASSES)


LOGGERS = {
    "csv": ("", ""),
    "tensorboard": ("tensorboard", ""),
    "wandb": ("wandb", "wandb"),
    "mlflow": ("mlflow", ""),
}
"""name -> the module a logger needs, if any, and the package that pip installs; empty where an extra has that name"""


def check_loggers(names: Iterable[str]) -> None:
    """Refuse a logger that does not exist, and one that is named twice."""
    seen = set()
    for name in names:
        if name not in LOGGERS:
            raise unknown("logger", name, LOGGERS)
        if name in seen:
            raise UserError(f"Logger {name} is named twice: once is enough.")
        seen.add(name)


def check_loggers_installed(names: Iterable[str]) -> None:
    """Refuse a logger whose library is not installed, before anything is trained."""
    for name in names:
        module, package = LOGGERS[name]
        if module and find_spec(module) is None:
            command = f"pip install {package}" if package else install_command(name)
            raise UserError(f"Logging to {name} needs a library that is not installed: {command}")


if TYPE_CHECKING:
    Kept = TypeVar("Kept")
    Given = TypeVar("Given")

    class Accepts(Generic[Kept, Given]):
        """A field that is made of a name, a length or a dictionary too: what type checkers see of `check_fields`."""

        def __get__(self, spec: Any, owner: Any) -> Kept: ...
        def __set__(self, spec: Any, value: Kept | Given) -> None: ...

    AnyData = Accepts[DataSpec, str | Mapping[str, Any]]
    AnyNetwork = Accepts[NetworkSpec, str | Mapping[str, Any]]
    AnyTeacher = Accepts[NetworkSpec | None, str | Mapping[str, Any]]
    AnyMethod = Accepts[MethodSpec, str | Mapping[str, Any]]
    AnySchedule = Accepts[Schedule | None, str | Duration]
    AnyOptimizer = Accepts[OptimizerSpec, str | Mapping[str, Any]]
    AnyRate = Accepts[RateSpec, str | Mapping[str, Any]]
    AnyDuration = Accepts[Duration, str]
else:
    AnyData, AnyNetwork, AnyTeacher, AnyMethod = DataSpec, NetworkSpec, NetworkSpec | None, MethodSpec
    AnySchedule, AnyOptimizer, AnyRate, AnyDuration = Schedule | None, OptimizerSpec, RateSpec, Duration


@dataclass(frozen=True)
class RunSpec:
    """A run in one object: data, networks, method, schedule, optimizer, and where it is computed.

    Names, lengths and dictionaries stand for the objects they describe: "digits" for `DataSpec("digits")`, "1.5ep" for
    `Spaced("1.5ep")`. A field that does not fit is refused with a `UserError` when the spec is made.

    >>> spec = RunSpec(data=DataSpec("digits"), network=NetworkSpec("resnet18_small", {"width": 16}), epochs=30)
    >>> spec == RunSpec(data="digits", network={"name": "resnet18_small", "options": {"width": 16}}, epochs=30)
    True
    >>> RunSpec(epochs=-1)
    Traceback (most recent call last):
    spacedkd.runtime.errors.UserError: epochs must be more than 0 and finite, less than 1e9; got -1.
    """

    data: AnyData = option(factory=DataSpec, teacher="data")
    network: AnyNetwork = option(factory=NetworkSpec)
    teacher: AnyTeacher = option(None)
    """the teacher's network; None takes the student's"""
    method: AnyMethod = option(factory=MethodSpec)
    schedule: AnySchedule = option(None, paired=False)
    """order of the roles' turns; None is online for two or more roles"""
    task: Literal["classification", "regression", "dense"] = option("classification", later=True)
    """what is learned from datasets of yours: a class, numbers (regression), or a class for every pixel (dense)"""
    metric: str | None = option(None, later=True)
    """what chooses the best epoch and is compared: accuracy, r2, miou, of which more is better; others, such as the
    MSE, are reported beside it; None takes r2 for regression, miou for dense"""
    ignore_index: int | None = option(None, later=True)
    """the label of pixels that do not count, in a dense task"""
    epochs: float = option(80.0, teacher="epochs")
    """passes over the training images"""
    batch_size: int = option(128, teacher="batch size")
    """images in a batch, over all devices"""
    optimizer: AnyOptimizer = option(factory=OptimizerSpec, teacher="optimizer")
    rate: AnyRate = option(factory=RateSpec, teacher="learning rate")
    seed: int = option(0, paired=False, teacher="seed")
    """decides data order, augmentation and initial weights"""
    same_init: bool = True
    """teacher and student start from the same weights where their networks are the same"""
    label_smoothing: float = option(0.0, teacher="label smoothing")
    """this part of every label is spread evenly over all classes"""
    ema: float | None = None
    """keep a moving average of the student's weights with this decay, and evaluate it too"""
    average: str | None = option(None, later=True)
    """keep an average of the student's weights, and evaluate it too: poly:2 (later weights count more), ema:0.999, or
    swa:50% (the mean over the last part of the run)"""
    teacher_average: str | None = option(None, later=True)
    """roles that learn from a frozen teacher see the average of its weights so far: poly:2, ema:0.999; the teacher
    itself learns as it does without"""
    average_bn: BatchNormOfAverage | None = option(None, later=True)
    """BatchNorm's statistics of an average are recomputed on the same twenty batches each time, or averaged as the
    weights are; None takes recompute for poly and swa, average for ema"""
    frozen_mode: Literal["eval", "train", "shared"] = "eval"
    """mode of a model while another one learns; eval: BatchNorm keeps its statistics, dropout is off; train: the
    statistics move, dropout is on; shared: the dropout masks and batch statistics of its own turn at that step, and its
    running statistics move in its own turn alone"""
    follower_first: bool = False
    """reverse the order of turns: the student learns a batch before the teacher does"""
    redraw_replay: bool = False
    """followers see other batches than the leader: another order, other augmentation"""
    follower_rate: Literal["own", "leader"] = option("own", identity="changed")
    """followers have the learning rate of their own step, or that of the step the leader has reached"""
    precision: str = option("auto", teacher="precision")
    """32-true, bf16-mixed, 16-mixed, bf16-true or 64-true; auto takes bf16-mixed where the hardware is fast at it, and
    16-mixed on GPUs without it"""
    channels_last: bool = option(True, teacher="memory layout")
    """keep the channels of images last in memory, which is faster on most hardware"""
    attention: Literal["fused", "plain"] = option("fused", later=True)
    """attention of timm's transformers: fused, one kernel of torch, or plain, two matrix products; on CPUs in bfloat16
    plain is the faster one, elsewhere fused"""
    sync_batchnorm: bool = option(False, identity="changed", teacher="shared BatchNorm")
    """BatchNorm takes its statistics from the whole batch, not from each device's part of it"""
    evaluate_every: AnyDuration = option(Duration(1, "ep"), paired=False)
    """how often every role is evaluated, in its own steps"""
    save_every: AnyDuration = option(Duration(1, "ep"), identity="never")
    """how often a checkpoint is saved"""
    log_every: AnyDuration = option(Duration(25, "st"), identity="never")
    """how often losses are written to the journal"""
    log: tuple[str, ...] = option((), identity="never", resumable=True, later=True)
    """loggers of losses and accuracies, in addition to the journal: csv, tensorboard, wandb, mlflow"""
    on_nonfinite: Literal["stop", "skip"] = option("stop", identity="changed")
    """what happens when losses or weights are no finite numbers: stop the run, or skip that update"""
    only: str | None = option(None, identity="changed")
    """the last role that is trained; roles after it are left out"""
    record: tuple[Schedule, ...] = option((), identity="never")
    """record the snapshots of the teacher that students of these intervals see, for other runs with --teacher-path"""
    record_average: tuple[str, ...] = option((), identity="never", later=True)
    """record these averages of the teacher's weights too (poly:2), for other runs with --teacher-average"""
    record_average_for: tuple[Schedule, ...] = option((), identity="never", later=True)
    """record the averages for students of these intervals only; none given, for all intervals of --record"""
    teacher_path: str | None = option(None, identity="never")
    """a run whose recorded teacher is replayed here: this run trains the student alone, to the same bits"""
    cache_targets: bool = option(False, identity="never", later=True)
    """write the outputs of the student's frozen teacher at each step to RUN/targets, for other students with
    --targets-path"""
    targets_path: str | None = option(None, identity="never", later=True)
    """a run with --cache-targets whose targets are read here: this run trains the student alone, to the same bits, and
    no teacher is loaded or called"""
    targets_form: str = option("whole", later=True)
    """the teacher's logits as the student sees them: whole, float16, bfloat16, top-k:50 (the rest of the probability is
    spread evenly), or sample:50@3 (50 classes drawn at temperature 3)"""
    label: str = option("", identity="never")
    """the arm of a comparison this run belongs to"""
    objects: Options = field(default_factory=dict)
    """objects that were given to `train()`: the qualified name of each, and the digest of its source"""
    accumulate: int = option(1, later=True)
    """compute every batch in this number of parts, one after the other, for one update: less memory at the same batch
    size; BatchNorm and losses over a whole batch, such as the feature norm, see a part at a time, as they do on
    devices"""
    extends: tuple[ShorterRun, ...] = option((), later=True)
    """the shorter runs that this one continues (`spacedkd train --extend RUN --epochs 120`)"""
    processes_before: tuple[str, ...] = option((), identity="changed")
    """of a run that was resumed on another number of processes: '2 until turn 586'; no run in one go has its bits"""
    engine: EngineSpec = option(factory=EngineSpec, identity="never")

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 < self.epochs < 1e9:
            raise UserError(f"epochs must be more than 0 and finite, less than 1e9; got {self.epochs:g}.")
        check_between("batch_size", self.batch_size, 1, 10**9)
        check_between("accumulate", self.accumulate, 1, self.batch_size)
        lengths = [*(extension.epochs for extension in self.extends), self.epochs]
        if lengths != sorted({*lengths}):
            raise UserError(f"epochs must be more with each extension, got {', '.join(f'{n:g}' for n in lengths)}.")
        check_between("seed", self.seed, 0, 2**63)
        for name, entry in self.objects.items():
            if not (
                isinstance(entry, Mapping)
                and {*entry} == {"name", "digest"}
                and all(isinstance(text, str) for text in entry.values())
            ):
                raise UserError(
                    f"objects.{name} must be the name and the digest of an object, got {format_value(entry)}."
                )
        if self.precision not in PRECISIONS:
            raise unknown("precision", self.precision, PRECISIONS)
        if self.precision == "16-mixed" and self.engine.strategy == "fsdp":
            raise UserError(
                "precision 16-mixed checks the gradients of whole networks, which strategy fsdp does not keep: leave "
                "one of them out."
            )
        check_loggers(self.log)
        for name in ("evaluate_every", "save_every", "log_every"):
            if getattr(self, name).amount == 0:
                raise UserError(f"{name} must be at least one step, got 0. Write 1ep for once an epoch.")
        if not 0 <= self.label_smoothing < 1:
            raise UserError(f"label_smoothing must be from 0 up to (not including) 1, got {self.label_smoothing:g}.")
        self._check_task()
        if TARGETS_FORM.fullmatch(self.targets_form) is None:
            raise UserError(
                f"targets_form must be whole, float16, bfloat16, top-k:COUNT or sample:COUNT@TEMPERATURE, for instance "
                f"top-k:50; got {self.targets_form!r}."
            )
        self._check_average()

    def _check_task(self) -> None:
        """Refuse a metric that the task does not have, and settings that do not matter for it."""
        if self.metric == "mse":
            raise UserError("metric must be one of which more is better, such as r2; the MSE is reported beside it.")
        if self.metric is not None and self.metric not in TASKS[self.task]:
            raise unknown(f"metric of task {self.task}", self.metric, TASKS[self.task])
        if self.ignore_index is not None and self.task != "dense":
            raise UserError(f"ignore_index is about the pixels of task dense, not about {self.task}: leave it out.")
        if self.task == "classification":
            return
        if self.label_smoothing or self.data.label_noise:
            name = "label_smoothing" if self.label_smoothing else "label_noise"
            raise UserError(f"{name} is about the labels of whole items, not about task {self.task}: leave it out.")

    @property
    def judged_by(self) -> str:
        """The name of the metric that the run is judged by: accuracy, r2, miou."""
        return self.metric or next(iter(TASKS[self.task]))

    @property
    def metric_title(self) -> str:
        """The title of that metric in tables: accuracy, R², mean IoU."""
        return TASKS[self.task][self.judged_by]

    def _check_average(self) -> None:
        """Refuse averages that do not go together, and write the average as `averages.parse_average` does."""
        if self.ema is not None:
            Exponential(self.ema)
        if self.ema is not None and self.average is not None:
            raise UserError(f"ema {self.ema:g} and average {self.average} are two averages: leave one of them out.")
        if self.average is not None:
            object.__setattr__(self, "average", str(parse_average(self.average)))
        if self.teacher_average is not None:
            object.__setattr__(self, "teacher_average", str(average_so_far(self.teacher_average)))
        object.__setattr__(self, "record_average", tuple(str(average_so_far(text)) for text in self.record_average))
        kept = (self.average, self.teacher_average, *self.record_average)
        if self.average_bn is not None and not any(kept):
            raise UserError(
                "average_bn does not matter without an average: give --average or --teacher-average, or leave it out."
            )
        if self.record_average and not self.record:
            raise UserError("record_average adds to what --record records: give --record too.")
        if self.record_average_for and not (self.record_average or (self.teacher_average and self.record)):
            raise UserError("record_average_for does not matter without record_average: give both, or leave it out.")

    @property
    def student_average(self) -> Average | None:
        """The average of the student's weights that is kept, if one is: that of `average`, or of `ema`."""
        if self.ema is not None:
            return Exponential(self.ema)
        return None if self.average is None else parse_average(self.average)

    def without_average(self) -> RunSpec:
        """Return the same run without an average of the student's weights."""
        teachers = self.teacher_average is not None or bool(self.record_average)
        return replace(self, ema=None, average=None, average_bn=self.average_bn if teachers else None)

    def fingerprint(self) -> str:
        """Return a digest of what the run computes, equal for equal computations wherever they are made.

        The fields declare whether they belong to it (see `option`). The number of processes does: BatchNorm and the
        feature norm look at one process's part of a batch.
        """
        described = {**identity_json(self), "processes": self.engine.processes}
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]

    def fingerprints(self) -> tuple[str, ...]:
        """Return the run's fingerprint, and those it had before it was resumed on other numbers of processes."""
        if not self.processes_before:
            return (self.fingerprint(),)
        *earlier, last = self.processes_before
        engine = replace(self.engine, devices=int(last.split()[0]), nodes=1, strategy="ddp")
        return (self.fingerprint(), *replace(self, processes_before=tuple(earlier), engine=engine).fingerprints())


def pairing_json(spec: RunSpec) -> dict[str, Any]:
    """Return the JSON of the fields in which two runs must agree to be compared seed by seed: see `option`."""
    written = to_json(spec)
    declared = {entry.name: entry.metadata for entry in fields(spec)}
    return {
        name: value
        for name, value in written.items()
        if declared[name].get("identity") != "never" and declared[name].get("paired", True)
    }


def teacher_settings(spec: RunSpec) -> dict[str, Any]:
    """Return what a teacher's weights depend on, by the words of a refusal: see `option`."""
    declared = {**_declared(spec, "teacher"), **_declared(spec.engine, "teacher")}
    return {words: to_json(value) for words, value in declared.items()}


def _declared(spec: Any, key: str) -> dict[str, Any]:
    return {entry.metadata[key]: getattr(spec, entry.name) for entry in fields(spec) if entry.metadata.get(key)}


def resumable_fields(spec: type[Any] = RunSpec, prefix: str = "") -> set[str]:
    """Return the paths of the fields that --resume may change.

    >>> sorted(resumable_fields())
    ['engine.devices', 'engine.nodes', 'engine.strategy', 'log']
    """
    paths = {f"{prefix}{entry.name}" for entry in fields(spec) if entry.metadata.get("resumable")}
    return paths if prefix else paths | resumable_fields(EngineSpec, "engine.")


def _python_names(spec: type, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the flag of every field, and its name in Python: batch-size and batch_size, lr and optimizer.lr.

    A flag that is on or off has its value with it: drop-last and data.drop_last=True.
    """
    for entry in fields(spec):
        made = entry.default_factory() if callable(entry.default_factory) else None
        if is_dataclass(made):
            yield entry.name, entry.name  # a name alone stands for all of it
            yield from _python_names(type(made), f"{entry.name}.")
        else:
            flag = {"augmentation": "augment"}.get(entry.name, entry.name).replace("_", "-")
            yield flag, f"{prefix}{entry.name}{'=True' * isinstance(entry.default, bool)}"


PYTHON_NAMES.update(_python_names(RunSpec))
PYTHON_NAMES.update(_python_names(AugmentSpec, "data.augment."))
PYTHON_NAMES["augment"] = "data.augmentation"


def check_spec(spec: object) -> None:
    """Refuse an object that is no RunSpec."""
    if not isinstance(spec, RunSpec):
        raise UserError(
            f"The spec must be a RunSpec, got {spec!r}. One of defaults is RunSpec(), that of a dictionary "
            "RunSpec(**dictionary), that of a file read_spec(FILE)."
        )


def check_folder(what: str, path: object) -> None:
    """Refuse an object that names no folder."""
    if not isinstance(path, str | PathLike) or not str(path):
        raise UserError(f"{what} must name a folder, for instance 'runs/mine'; got {path!r}.")


def read_spec(path: str | PathLike[str], trust_code: bool = False) -> RunSpec:
    """Return the spec in a spec.json, in a YAML or TOML file like it, or in a run folder.

    Reading imports nothing. User code that the file names, `package.module:Name`, can be trained or evaluated only if
    you trust the file with `trust_code`, or have named the code yourself in this process.
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
        return from_json(RunSpec, mark_names(plain, path, trust_code))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no spec: {str(error).splitlines()[0]}.") from None


# --- Descriptions


def describe(spec: RunSpec) -> str:
    """Return a name for a run that was given none: its method and schedule.

    >>> describe(RunSpec(schedule="1.5ep"))
    'kd, spaced 1.5ep'
    """
    variant = spec.method.options.get("variant")
    alone = spec.method.name == "none" or variant == "plain"
    parts = (spec.method.name, variant, None if alone else describe_schedule(spec.schedule))
    return ", ".join(part for part in parts if part)
