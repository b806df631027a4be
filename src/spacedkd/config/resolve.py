"""Resolution of a spec, which may leave things open, to a `ResolvedRun`, in which everything is decided.

`resolve` is the only place that decides what a spec leaves open, and that refuses what does not go together. It is a
pure function of the spec, the objects given with it, and the data: nothing is built, and nothing is written.
"""

import math
import multiprocessing
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spacedkd import learning_rate
from spacedkd.averages import (
    STUDENT_AVERAGE,
    Average,
    RoleAverage,
    average_share,
    batch_norm_of,
    parse_average,
    teacher_average_name,
)
from spacedkd.config.objects import Objects
from spacedkd.config.spec import EngineSpec, MethodSpec, NetworkSpec, RunSpec, with_extensions
from spacedkd.data.dataset import Items
from spacedkd.data.run_data import RunData, from_datasets
from spacedkd.data.sources import Library
from spacedkd.data.stream import Stream, View
from spacedkd.learning_rate import LearningRate
from spacedkd.methods.base import Method, Progress
from spacedkd.methods.registry import METHODS, build_method, describe
from spacedkd.models import factory
from spacedkd.models.classifier import class_count
from spacedkd.runtime.errors import UserError, pluralize, unknown
from spacedkd.runtime.files import resolve_links
from spacedkd.runtime.processes import check_count, check_threads, cores_per_process
from spacedkd.runtime.user_code import check_trusted, is_user_code, load_object, user_code, user_code_error
from spacedkd.schedule import Duration, Offline, Online, Schedule, Turn
from spacedkd.task import make_task
from spacedkd.timeline import Timeline, forward_only_turns, timeline_turns

MOST_STEPS = 10_000_000
"""greatest number of steps of a run: all of its turns are listed before the first is taken"""


class Periods(NamedTuple):
    """The number of steps from one logged loss, one evaluation, and one save to the next."""

    log: int
    evaluate: int
    save: int


@dataclass(frozen=True)
class ResolvedRun:
    """A run in which everything is decided, and everything that changes is a function of the turn."""

    spec: RunSpec
    """as given, with everything decided that it left open"""
    objects: Objects
    method: Method
    roles: Sequence[str]
    """from the one that leads to the one that is saved; all of the method's, unless the spec says `only`"""
    data: RunData
    timeline: Timeline
    steps_per_epoch: int
    total_steps: int
    periods: Periods
    stops: dict[str, int]
    """role -> the step from which on it learns no more (`Method.learns_for`); usually `total_steps`"""
    last_step: dict[str, int]
    """role -> the step of its last turn"""
    base_lr: LearningRate
    """the learning rate of every step"""
    averages: Mapping[str, RoleAverage]
    """the averages of roles' weights that are kept, by the names they have among the models"""
    leader_steps: Mapping[str, Sequence[int]]
    """role -> for each of its steps, the leader's step whose rate it takes; empty unless `follower_rate` asks for it"""

    def average_seen(self, role: str) -> str | None:
        """Return the name of the average of a role's weights that others see in place of them, if they do."""
        if self.spec.teacher_average is None or role == self.method.roles[-1]:
            return None
        return teacher_average_name(role, parse_average(self.spec.teacher_average), self.spec.average_bn)

    @property
    def student(self) -> str:
        """The name of the model that is reported and saved: the last role's."""
        return str(self.method.learners[self.roles[-1]])

    def network(self, role: str) -> NetworkSpec:
        """Return the network of a role: the run's own for the last one, the teacher's, if there is one, for others."""
        leads = role != self.method.roles[-1]
        return self.spec.teacher if leads and self.spec.teacher is not None else self.spec.network

    def lr(self, turn: Turn) -> float:
        """Return a turn's learning rate; a role that stops early has gone through the rate's whole schedule by then."""
        if turn.role in self.leader_steps:
            turn = Turn(self.roles[0], self.leader_steps[turn.role][turn.step])
        stop = self.stops[turn.role]
        return self.base_lr(turn.step if stop == self.total_steps else turn.step * self.total_steps // stop)

    def views(self, turn: Turn) -> Sequence[View]:
        """Return the views of a turn, which are of its own step.

        With `redraw_replay` each role but the first reads other batches: those of steps beyond the end of the run.
        """
        views = self.method.views(turn.role, turn.step)
        if not self.spec.redraw_replay:
            return views
        epochs = -(-self.total_steps // self.steps_per_epoch)
        later = self.method.roles.index(turn.role) * epochs * self.steps_per_epoch
        return [View(step + later, view) for step, view in views]

    def progress(self, turn: Turn, gather: Callable[[Tensor], Tensor], micro_batch: int = 0) -> Progress:
        """Return what the method gets about a turn in addition to its batch."""
        is_replay = partial(self.timeline.is_replay, turn)
        task = self.data.task
        return Progress(turn.step, self.steps_per_epoch, self.total_steps, gather, micro_batch, is_replay, task)

    @property
    def workers(self) -> int:
        """The number of processes that prepare batches for each process of the run."""
        return self.spec.engine.workers or 0

    def updates(self, turns: int) -> Counter[str]:
        """Return how many updates each role has made after this number of turns."""
        return Counter(turn.role for turn in islice(self.timeline.after(0), turns))

    def logs(self, turn: Turn) -> bool:
        """Return whether losses are logged after a turn: also before every save, so that nothing diverged is saved."""
        return turn.step % self.periods.log == 0 or self.saves(turn) or self._is_last(turn)

    def evaluates(self, turn: Turn) -> bool:
        """Return whether the role is evaluated after a turn."""
        return (turn.step + 1) % self.periods.evaluate == 0 or self._is_last(turn)

    def saves(self, turn: Turn) -> bool:
        """Return whether everything is saved after a turn."""
        return (turn.step + 1) % self.periods.save == 0

    def _is_last(self, turn: Turn) -> bool:
        return turn.step == self.last_step[turn.role]


@user_code()
def resolve(spec: RunSpec, objects: Objects | None = None, library: Library | None = None) -> ResolvedRun:
    """Decide everything about a run; what is wrong with a spec is refused here, or when the models are built.

    `objects` are given in place of names in the spec. A `library` keeps the data for other runs.
    """
    objects, library, engine = objects or Objects(), library or Library(), spec.engine
    spec = resolve_spec(spec, objects, library)
    if spec.sync_batchnorm and spec.engine.processes == 1 and not spec.processes_before:
        raise UserError("sync_batchnorm does not matter on one device: give --devices too, or leave it out.")
    method = objects.method or build_method(spec.method)
    method.check_task(spec.task)
    data = _load_data(spec, objects, library)
    spec = replace(spec, engine=replace(spec.engine, workers=choose_workers(engine, data).count))
    steps_per_epoch = make_stream(spec, data, 0, spec.engine.processes).steps_per_epoch
    total = _total_steps(spec, steps_per_epoch)
    schedule = with_extensions(spec.schedule or Online(), spec.extends, steps_per_epoch, total)
    method.check_schedule(schedule)
    stops = {role: _stop_step(method, role, steps_per_epoch, total) for role in method.roles}
    roles = _trained_roles(spec, method)
    turns = timeline_turns(schedule, method.roles, spec.follower_first, stops, total)
    timeline = Timeline(method.roles, turns, roles, forward_only_turns(schedule, method.roles, total))
    last_step = dict(timeline.after(0))  # the last turn of a role wins; a role without turns is not in it
    if roles[-1] not in last_step:
        raise UserError(f"In this schedule the {roles[-1]} never has a turn, so nothing would be trained.")
    durations = (spec.log_every, spec.evaluate_every, spec.save_every)
    return ResolvedRun(
        spec=spec,
        objects=objects,
        method=method,
        roles=roles,
        data=data,
        timeline=timeline,
        steps_per_epoch=steps_per_epoch,
        total_steps=total,
        periods=Periods(*(duration.as_period(steps_per_epoch, total) for duration in durations)),
        stops=stops,
        last_step=last_step,
        base_lr=_learning_rate(spec, objects, steps_per_epoch, total),
        averages=_averages(spec, method, roles, steps_per_epoch, total),
        leader_steps=timeline.leader_steps() if spec.follower_rate == "leader" else {},
    )


@user_code()
def resolve_spec(spec: RunSpec, objects: Objects | None = None, library: Library | None = None) -> RunSpec:
    """Return the spec with everything decided that it leaves open, so that it will mean the same tomorrow.

    This is the part of `resolve` that needs no images: it tells whether a folder holds the same run.
    """
    objects = objects or Objects()
    objects.check(spec.objects, "This spec")
    spec = objects.named_in(spec)
    names = {"network": spec.network.name, "optimizer": spec.optimizer.name, "lr": spec.rate.shape}
    check_trusted(name for field, name in names.items() if field not in objects.described)
    method, schedule = resolve_method(spec, objects.method)
    spec = _with_teachers_journal(spec, method)
    teacher = None if spec.teacher is None else factory.with_converted_options(spec.teacher, objects.teacher)
    return replace(
        spec,
        network=factory.with_converted_options(spec.network, objects.network),
        teacher=teacher,
        data=spec.data
        if is_user_code(spec.data.source)
        else (library or Library()).resolve(spec.data, spec.engine.devices),
        method=describe(method),
        schedule=schedule,
        teacher_path=None if spec.teacher_path is None else str(resolve_links(Path(spec.teacher_path))),
        targets_path=None if spec.targets_path is None else str(resolve_links(Path(spec.targets_path))),
        precision=_choose_precision(spec) if spec.precision == "auto" else spec.precision,
        engine=_resolve_engine(spec.engine),
    )


def _with_teachers_journal(spec: RunSpec, method: Method) -> RunSpec:
    """Return a spec that also records the teacher if it caches targets, and replays the teacher if it reads them.

    A run that reads targets needs no weights of the teacher, but the teacher's turns in its journal: it copies them
    from the run that has written the targets. A teacher that never learns has none.
    """
    if spec.cache_targets and spec.targets_path is not None:
        raise UserError("--targets-path reads the targets of another run, so there are none to cache: leave one out.")
    if len(method.roles) == 1 or spec.teacher_path is not None:
        return spec
    if spec.targets_path is not None:
        return replace(spec, teacher_path=spec.targets_path)
    return replace(spec, record=(Offline(),)) if spec.cache_targets and not spec.record else spec


def resolve_method(spec: RunSpec, method: Method | None = None) -> tuple[Method, Schedule | None]:
    """Return the method and its schedule: a spec with a schedule gets the form of its method that can be spaced.

    A schedule for a method without a role that leads is refused. `method` is given where the spec does not name it.
    """
    named, method = method is None, method or build_method(spec.method)
    if named and spec.schedule is not None and len(method.roles) == 1 and spec.method.name in METHODS:
        spaced_options = METHODS[spec.method.name].card.when_spaced
        method = build_method(MethodSpec(spec.method.name, {**spaced_options, **spec.method.options}))
    if len(method.roles) > 1:
        return method, spec.schedule or Online()
    if spec.schedule is not None:
        way_out = "leave out the interval, or use --method kd."
        if spec.teacher is not None and spec.teacher.pretrained:
            way_out = "leave out the interval, or let the trained teacher learn on: --set method.teacher_learns=true"
        raise UserError(
            f"Method {spec.method.name} with these options has no role that leads, so there is nothing to space: "
            f"{way_out}"
        )
    return method, None


def best_precision(accelerator: str) -> str:
    """Return bf16-mixed where the hardware computes in bfloat16, 16-mixed on other GPUs of CUDA, else plain float32."""
    if accelerator in ("auto", "cuda", "gpu") and torch.cuda.is_available():
        return "bf16-mixed" if torch.cuda.is_bf16_supported(including_emulation=False) else "16-mixed"
    if accelerator in ("auto", "cpu") and not torch.backends.mps.is_available():
        return "bf16-mixed" if torch.cpu._is_avx512_bf16_supported() else "32-true"
    return "32-true"


def _choose_precision(spec: RunSpec) -> str:
    """Return the best precision for a run; 32-true for what 16-mixed does not support.

    That is sharded weights, and optimizers that may compute losses again, as any of a user's may.
    """
    best = best_precision(spec.engine.accelerator)
    unsupported = spec.engine.strategy == "fsdp" or is_user_code(spec.optimizer.name)
    return "32-true" if best == "16-mixed" and unsupported else best


def make_stream(spec: RunSpec, data: RunData, rank: int, ranks: int) -> Stream:
    """Return the batches of a run as one of its processes sees them."""
    return data.stream(
        spec.batch_size,
        spec.seed,
        drop_last=spec.data.drop_last,
        label_smoothing=spec.label_smoothing,
        rank=rank,
        ranks=ranks,
    )


def _resolve_engine(engine: EngineSpec) -> EngineSpec:
    """Set the threads, and refuse what this machine cannot do: a spec may have been written on another one."""
    check_threads(engine.threads)
    check_count("workers", engine.workers, always_allowed=64)
    if not torch.cuda.is_available():
        check_count("devices", engine.devices, always_allowed=64)
    share = max(1, torch.get_num_threads() // _processes_here(engine))
    return replace(engine, threads=engine.threads or share)


def _processes_here(engine: EngineSpec) -> int:
    """Return the number of a run's processes on each machine."""
    return 2 if engine.pipeline else engine.devices


MOST_WORKERS = 16
"""workers that are started for a process unless more are asked for"""


@dataclass(frozen=True)
class Workers:
    """The number of processes that prepare batches for each process of a run, and why it is that number."""

    count: int
    reason: str


def choose_workers(engine: EngineSpec, data: RunData) -> Workers:
    """Return the workers of a run: those that it asks for, or what its data and the cores of this machine suggest.

    `engine` is as it was given, not resolved: CPU threads that are given are all the cores that a process may use.
    """
    if engine.workers is not None:
        return Workers(engine.workers, "as given")
    if data.instant:
        return Workers(0, "the data is ready in memory")
    if engine.accelerator == "cpu" or not torch.cuda.is_available():
        return Workers(0, "training takes the cores")
    if isinstance(data.train, Items) and multiprocessing.get_start_method() != "fork":
        return Workers(0, "a dataset of yours is copied to workers only where you give --workers")
    cores = engine.threads or cores_per_process(_processes_here(engine))
    count = min(MOST_WORKERS, max(0, cores - 1))
    return Workers(count, f"of {pluralize(cores, 'core')} for each GPU, training takes one")


def _total_steps(spec: RunSpec, steps_per_epoch: int) -> int:
    total = Duration(spec.epochs, "ep").whole_steps(steps_per_epoch, 0)
    if total == 0:
        raise UserError(f"{spec.epochs:g} epochs are less than one step; an epoch has {steps_per_epoch}.")
    if total > MOST_STEPS:
        raise UserError(
            f"{spec.epochs:g} epochs are {total:g} steps, and a run may have {MOST_STEPS:g}: lower --epochs."
        )
    return total


def _averages(
    spec: RunSpec, method: Method, roles: Sequence[str], steps_per_epoch: int, total: int
) -> dict[str, RoleAverage]:
    """Return the averages that a run keeps, by name: of its student, and of teachers for the roles they teach."""

    def role_average(role: str, average: Average) -> RoleAverage:
        batch_norm = batch_norm_of(average, spec.average_bn)
        return RoleAverage(role, average, batch_norm, average_share(average, steps_per_epoch, total))

    *teachers, student = method.roles
    averages = {}
    if spec.student_average is not None and student in roles:
        averages[STUDENT_AVERAGE] = role_average(student, spec.student_average)
    if spec.teacher_average is not None:
        _check_teacher_average(spec, method)
    of_teachers = dict.fromkeys(text for text in (spec.teacher_average, *spec.record_average) if text is not None)
    # Where a method has one role, it is recorded as the teacher of other runs.
    for role in (teacher for teacher in teachers or [student] if teacher in roles):
        for average in map(parse_average, of_teachers):
            averages[teacher_average_name(role, average, spec.average_bn)] = role_average(role, average)
    return averages


def _check_teacher_average(spec: RunSpec, method: Method) -> None:
    """Refuse an average of teachers that share a network with others, learn from their students, or are not frozen."""
    teachers, models = method.roles[:-1], [method.learners[role] for role in method.roles]
    is_frozen = spec.frozen_mode == "eval" and not spec.optimizer.moves_frozen
    alone = len({*models}) == len(models) and all(method.determined_by(role) is not None for role in teachers)
    if not (teachers and is_frozen and alone):
        raise UserError(
            f"--teacher-average needs a teacher that has a network of its own and is frozen while others learn; method "
            f"{spec.method.name} with these options has none: leave it out."
        )


def _trained_roles(spec: RunSpec, method: Method) -> Sequence[str]:
    """Return the roles up to the one that the spec says is trained `only`, or all of them."""
    roles: Sequence[str] = method.roles
    if spec.only is None:
        return roles
    if spec.only not in roles:
        raise unknown("role in --only", spec.only, roles)
    return roles[: roles.index(spec.only) + 1]


def _stop_step(method: Method, role: str, steps_per_epoch: int, total: int) -> int:
    try:
        return method.learns_for(role).in_steps(steps_per_epoch, total)
    except UserError as error:
        raise UserError(f"The time for which the {role} is to learn does not fit the run: {error}") from None


def _load_data(spec: RunSpec, objects: Objects, library: Library) -> RunData:
    """Return the data of a run; where datasets do not say how many classes there are, the student's network does."""
    if not is_user_code(spec.data.source):
        if spec.task != "classification":
            raise UserError(
                f"Task {spec.task} is learned from datasets of yours, and {spec.data.source} has classes: give "
                "--data package.module:function, which returns two torch datasets, to train and to test on."
            )
        return library.load(spec.data, spec.engine.devices)
    pair = objects.data
    if pair is None:
        pair = _call("Data", spec.data.source, load_object(spec.data.source))
    data = from_datasets(pair, objects.collate, spec.data.holdout, make_task(spec))
    if spec.task == "regression" and not data.class_names:
        data = data.with_classes(data.test.inputs_and_labels(torch.arange(1))[1].shape[1])
    if not data.class_names:
        network = factory.build_network(spec.network, data.info, spec.seed, objects.network)
        data = data.with_classes(class_count(network, data.info.sample))
    return data.with_label_noise(spec.data.label_noise)


def _learning_rate(spec: RunSpec, objects: Objects, steps_per_epoch: int, total: int) -> LearningRate:
    """Return the learning rate as a function of the step; a user's function is tried at every step of the run first."""
    function = objects.lr or (load_object(spec.rate.shape) if is_user_code(spec.rate.shape) else None)
    if function is None:
        return learning_rate.from_spec(spec.optimizer, spec.rate, steps_per_epoch, total)

    def checked(step: int) -> float:
        lr = _call("Learning rate", spec.rate.shape, function, step)
        if not (isinstance(lr, Real) and math.isfinite(lr) and float(lr) >= 0):
            raise UserError(
                f"Learning rate {spec.rate.shape} must be a finite number from 0 up at every step; lr({step}) is "
                f"{lr!r}."
            )
        return float(lr)

    for step in range(total):
        checked(step)
    return checked


def _call(what: str, name: str, function: Any, *arguments: int) -> Any:
    """Call a function of the user; what it raises becomes an error of one line."""
    if not callable(function):
        raise UserError(f"{what} {name} must be a function, got {function!r}.")
    try:
        return function(*arguments)
    except UserError:
        raise
    except Exception as error:
        raise user_code_error(f"{what} {name}", error, f"at step {arguments[0]}" if arguments else "") from error
