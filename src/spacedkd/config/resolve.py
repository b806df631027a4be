"""What a run will do, decided before anything is built or written; a pure function of its spec and objects."""

import math
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
from spacedkd.config.objects import Objects
from spacedkd.config.spec import EngineSpec, MethodSpec, NetworkSpec, RunSpec, with_extensions
from spacedkd.data.sources import Library
from spacedkd.data.splits import RunData, from_datasets
from spacedkd.data.stream import Stream, View
from spacedkd.learning_rate import LearningRate
from spacedkd.methods import METHODS, build_method, describe
from spacedkd.methods.base import Method, Progress
from spacedkd.models import factory
from spacedkd.models.classifier import class_count
from spacedkd.runtime.errors import UserError, unknown
from spacedkd.runtime.files import resolve_links
from spacedkd.runtime.machine import check_count, check_threads
from spacedkd.runtime.user_code import check_trusted, failed, is_user_code, load_object, user_code
from spacedkd.schedule import Duration, Online, Schedule, Turn
from spacedkd.timeline import Timeline, forward_only_turns, timeline_turns

MOST_STEPS = 10_000_000
"""in a run; all turns are walked through before the first"""


class Every(NamedTuple):
    """After how many steps something happens again."""

    log: int
    evaluate: int
    save: int


@dataclass(frozen=True)
class ResolvedRun:
    """Everything that is decided about a run."""

    spec: RunSpec
    """as given, with everything it left open filled in"""
    objects: Objects
    method: Method
    roles: Sequence[str]
    """who learns, from the one that leads to the one that is saved; all of the method's unless the spec says `only`"""
    data: RunData
    timeline: Timeline
    steps_per_epoch: int
    total_steps: int
    every: Every
    stops: dict[str, int]
    """the step at which each role has learned enough"""
    last_step: dict[str, int]
    """of each role"""
    course: LearningRate
    """the learning rate of every step"""
    led: Mapping[str, Sequence[int]]
    """where the leader stands at each step of those that have its learning rate then"""

    @property
    def student(self) -> str:
        """The model that is reported and saved: the last role's."""
        return self.method.learners[self.roles[-1]]

    def network(self, role: str) -> NetworkSpec:
        """The last of the method's roles has the run's own network, all others the teacher's, if there is one."""
        leads = role != self.method.roles[-1]
        return self.spec.teacher if leads and self.spec.teacher is not None else self.spec.network

    def lr(self, turn: Turn) -> float:
        """A turn's learning rate; a role that stops early goes through the whole course of it until then."""
        if turn.role in self.led:
            turn = Turn(self.roles[0], self.led[turn.role][turn.step])
        stop = self.stops[turn.role]
        return self.course(turn.step if stop == self.total_steps else turn.step * self.total_steps // stop)

    def updates(self, turns: int) -> Counter[str]:
        """How many updates each role has made after so many turns."""
        return Counter(turn.role for turn in islice(self.timeline.after(0), turns))

    def logs(self, turn: Turn) -> bool:
        """Whether losses are written down after a turn: also where all is saved, so that nothing diverged is."""
        return turn.step % self.every.log == 0 or self.saves(turn) or self._is_last(turn)

    def evaluates(self, turn: Turn) -> bool:
        """Whether the role is measured after a turn."""
        return (turn.step + 1) % self.every.evaluate == 0 or self._is_last(turn)

    def saves(self, turn: Turn) -> bool:
        """Whether everything is saved after a turn."""
        return (turn.step + 1) % self.every.save == 0

    def _is_last(self, turn: Turn) -> bool:
        return turn.step == self.last_step[turn.role]

    def progress(self, turn: Turn, gather: Callable[[Tensor], Tensor], part: int = 0) -> Progress:
        is_replay = partial(self.timeline.is_replay, turn)
        return Progress(turn.step, self.steps_per_epoch, self.total_steps, gather, part, is_replay)

    def views(self, turn: Turn) -> Sequence[View]:
        """What a turn sees: its step's batch, or, where replays are redrawn, one of epochs the run never reaches."""
        views = self.method.views(turn.role, turn.step)
        if not self.spec.redraw_replay:
            return views
        epochs = -(-self.total_steps // self.steps_per_epoch)
        later = self.method.roles.index(turn.role) * epochs * self.steps_per_epoch
        return [View(step + later, view) for step, view in views]


@user_code()
def resolve_spec(spec: RunSpec, objects: Objects | None = None, library: Library | None = None) -> RunSpec:
    """The spec with everything it leaves open decided, so that it will mean the same tomorrow."""
    objects = objects or Objects()
    objects.check(spec.objects, "This spec")
    spec = objects.named_in(spec)
    named = {"network": spec.network.name, "optimizer": spec.optimizer.name, "lr": spec.rate.shape}
    check_trusted(name for what, name in named.items() if what not in objects.described)
    method, schedule = method_and_schedule(spec, objects.method)
    teacher = None if spec.teacher is None else factory.with_converted_options(spec.teacher, objects.teacher)
    return replace(
        spec,
        network=factory.with_converted_options(spec.network, objects.network),
        teacher=teacher,
        data=spec.data if is_user_code(spec.data.source) else (library or Library()).resolve(spec.data),
        method=describe(method),
        schedule=schedule,
        teacher_path=None if spec.teacher_path is None else str(resolve_links(Path(spec.teacher_path))),
        precision=best_precision(spec.engine.accelerator) if spec.precision == "auto" else spec.precision,
        engine=replace(_checked(spec.engine), threads=spec.engine.threads or _threads(spec.engine)),
    )


def _checked(spec: EngineSpec) -> EngineSpec:
    """Refuse what this machine cannot do; a spec may have been made on another one."""
    check_threads(spec.threads)
    check_count("workers", spec.workers, least=64)
    if not torch.cuda.is_available():
        check_count("devices", spec.devices, least=64)
    return spec


def _threads(spec: EngineSpec) -> int:
    return max(1, torch.get_num_threads() // (2 if spec.pipeline else spec.devices))


def method_and_schedule(spec: RunSpec, own: Method | None = None) -> tuple[Method, Schedule | None]:
    """The method, in the form that can be spaced where a schedule is asked for, and the schedule it follows."""
    method = own or build_method(spec.method)
    if own is None and spec.schedule is not None and len(method.roles) == 1 and spec.method.name in METHODS:
        implied = METHODS[spec.method.name].card.when_spaced
        method = build_method(MethodSpec(spec.method.name, {**implied, **spec.method.options}))
    if len(method.roles) > 1:
        return method, spec.schedule or Online()
    if spec.schedule is not None:
        way_out = "leave out the interval, or use --method kd."
        if spec.teacher is not None and spec.teacher.pretrained:
            way_out = "leave out the interval, or let the trained teacher learn on: --set method.teacher_learns=true"
        raise UserError(
            f"Method {spec.method.name} as asked for has nobody who leads, so there is nothing to space: {way_out}"
        )
    return method, None


@user_code()
def resolve(spec: RunSpec, objects: Objects | None = None, library: Library | None = None) -> ResolvedRun:
    """Decide everything; whatever is wrong with a spec shows here or when the models are built."""
    objects, library = objects or Objects(), library or Library()
    spec = resolve_spec(spec, objects, library)
    if spec.sync_batchnorm and spec.engine.processes == 1 and not spec.processes_before:
        raise UserError("sync_batchnorm does not matter on one device: give --devices too, or leave it out.")
    method = objects.method or build_method(spec.method)
    data = load_data(spec, objects, library)
    per_epoch = stream_of(spec, data, 0, spec.engine.processes).steps_per_epoch
    total = Duration(spec.epochs, "ep").whole_steps(per_epoch, 0)
    if total == 0:
        raise UserError(f"{spec.epochs:g} epochs are less than one step; an epoch has {per_epoch}.")
    if total > MOST_STEPS:
        raise UserError(
            f"{spec.epochs:g} epochs are {total:g} steps, and a run may have {MOST_STEPS:g}: lower --epochs."
        )
    in_run = (per_epoch, total)
    schedule = with_extensions(spec.schedule or Online(), spec.extends, *in_run)
    method.check_schedule(schedule)
    stops = {role: _stop(method, role, in_run) for role in method.roles}
    roles = method.roles if spec.only is None else method.roles[: _place(spec.only, method.roles) + 1]
    order = timeline_turns(schedule, method.roles, spec.follower_first, stops, total)
    turns = Timeline(method.roles, order, roles, forward_only_turns(schedule, method.roles, total))
    last_step = dict(turns.after(0))  # a role that never has a turn is not in it
    if roles[-1] not in last_step:
        raise UserError(f"In this schedule the {roles[-1]} never has a turn, so nothing would be trained.")
    every = Every(*(d.as_period(*in_run) for d in (spec.log_every, spec.evaluate_every, spec.save_every)))
    course, led = _course(spec, objects, in_run), turns.leader_steps() if spec.follower_rate == "leader" else {}
    return ResolvedRun(
        spec, objects, method, roles, data, turns, per_epoch, total, every, stops, last_step, course, led
    )


def _place(role: str, roles: Sequence[str]) -> int:
    if role not in roles:
        raise unknown("role in --only", role, roles)
    return roles.index(role)


def load_data(spec: RunSpec, objects: Objects, library: Library) -> RunData:
    """The data of a run. Of datasets that do not say how many classes there are, the student's network says it."""
    if not is_user_code(spec.data.source):
        return library.load(spec.data)
    pair = _called("Data", spec.data.source, load_object(spec.data.source)) if objects.data is None else objects.data
    data = from_datasets(pair, objects.collate, spec.data.holdout)
    if data.names:
        return data
    network = factory.build_network(spec.network, data.info, spec.seed, objects.network)
    return data.with_classes(class_count(network, data.info.sample))


def stream_of(spec: RunSpec, data: RunData, rank: int, ranks: int) -> Stream:
    """The batches of a run, as one of its processes sees them."""
    return data.stream(spec.batch_size, spec.seed, spec.data.drop_last, spec.label_smoothing, rank, ranks)


def _stop(method: Method, role: str, in_run: tuple[int, int]) -> int:
    try:
        return method.learns_for(role).in_steps(*in_run)
    except UserError as error:
        raise UserError(f"The time for which the {role} is to learn does not fit the run: {error}") from None


def _course(spec: RunSpec, objects: Objects, in_run: tuple[int, int]) -> LearningRate:
    """The learning rate of every step, tried before the first."""
    own = objects.lr or (load_object(spec.rate.shape) if is_user_code(spec.rate.shape) else None)
    if own is None:
        return learning_rate.from_spec(spec.optimizer, spec.rate, *in_run)

    def checked(step: int) -> float:
        lr = _called("Learning rate", spec.rate.shape, own, step)
        if not (isinstance(lr, Real) and math.isfinite(lr) and float(lr) >= 0):
            raise UserError(
                f"Learning rate {spec.rate.shape} must be a finite number from 0 up at every step; lr({step}) is "
                f"{lr!r}."
            )
        return float(lr)

    for step in range(in_run[1]):
        checked(step)
    return checked


def _called(what: str, name: str, function: Any, *arguments: int) -> Any:
    """Return what a function of the user's gives for a step, or for nothing; that it fails is said in one line."""
    if not callable(function):
        raise UserError(f"{what} {name} must be a function, got {function!r}.")
    try:
        return function(*arguments)
    except UserError:
        raise
    except Exception as error:
        raise failed(f"{what} {name}", error, f"at step {arguments[0]}" if arguments else "") from error


def best_precision(accelerator: str) -> str:
    """bf16-mixed where the hardware computes in bfloat16, else plain float32."""
    if accelerator in ("auto", "cuda", "gpu") and torch.cuda.is_available():
        return "bf16-mixed" if torch.cuda.is_bf16_supported(including_emulation=False) else "32-true"
    if accelerator in ("auto", "cpu") and not torch.backends.mps.is_available():
        return "bf16-mixed" if torch.cpu._is_avx512_bf16_supported() else "32-true"
    return "32-true"
