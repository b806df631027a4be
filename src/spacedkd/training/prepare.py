"""A run put together from its spec, and checked, before anything is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import NamedTuple

import torch
from lightning_fabric import Fabric
from torch import nn

from spacedkd.data import sources
from spacedkd.data.sources import Splits
from spacedkd.data.stream import TrainingStream
from spacedkd.duration import Duration, in_steps
from spacedkd.errors import UserError, unknown
from spacedkd.methods import build_method, describe
from spacedkd.methods.method import Ingredients, Method
from spacedkd.models import build
from spacedkd.models.weights import check_trained, keep_normalisation
from spacedkd.schedule import Schedule, Turn
from spacedkd.seeds import seed_for
from spacedkd.spec import NetworkSpec, RateSpec, RunSpec
from spacedkd.training import engine
from spacedkd.training.checkpoint import Position
from spacedkd.training.cost import Cost
from spacedkd.training.folder import RunFolder
from spacedkd.training.learner import Learner
from spacedkd.training.rate import learning_rate
from spacedkd.training.run import Every, Run, turn_order


def fill_in(spec: RunSpec, method: Method | None = None) -> RunSpec:
    """The spec with everything it leaves open decided, so that it will mean the same tomorrow."""
    method = method or build_method(spec.method)
    precision = engine.best_precision(spec.engine.accelerator) if spec.precision == "auto" else spec.precision
    threads = spec.engine.threads or torch.get_num_threads()
    return replace(
        spec,
        data=sources.fill_in(spec.data),
        method=describe(method),
        precision=precision,
        engine=replace(spec.engine, threads=threads),
    )


class Parts(NamedTuple):
    """Everything of a run that does not need its devices."""

    spec: RunSpec
    method: Method
    data: Splits
    models: dict[str, nn.Module]
    schedule: Schedule
    rate: RateSpec
    every: Every
    total_steps: int
    turn_count: int
    stops: dict[str, int]
    last_step: dict[str, int]


def assemble(spec: RunSpec, method: Method | None = None) -> Parts:
    """Put the parts together; whatever is wrong with a spec shows here, before anything is started or written."""
    method = method or build_method(spec.method)
    spec = fill_in(spec, method)
    data = sources.load(spec.data)
    models = _models(spec, method, data)
    steps_per_epoch = _stream(spec, data, 0, spec.engine.devices * spec.engine.nodes).steps_per_epoch
    total = Duration(spec.epochs, "ep").whole_steps(steps_per_epoch, 0)
    if total == 0:
        raise UserError(f"{spec.epochs:g} epochs are less than one step; an epoch has {steps_per_epoch}.")
    in_run = (steps_per_epoch, total)
    schedule, rate = in_steps(spec.schedule, *in_run), in_steps(spec.rate, *in_run)
    every = Every(*(d.as_period(*in_run) for d in (spec.log_every, spec.evaluate_every, spec.save_every)))
    method.check_schedule(schedule)
    stops = {role: _stop(method, role, in_run) for role in method.roles}
    turn_count, last_step = _survey(schedule.turns(turn_order(spec, method), range(total)), method, stops)
    return Parts(spec, method, data, models, schedule, rate, every, total, turn_count, stops, last_step)


def prepare(spec: RunSpec, folder: RunFolder, method: Method | None = None) -> Run:
    """A run on its devices, checked; nothing is written yet."""
    parts = assemble(spec, method)
    spec, method, models = parts.spec, parts.method, parts.models
    names = sorted({*method.learners.values()})
    fabric = engine.start(spec, parts_learn_in_turn=len(names) < len(method.roles))
    on_device = fabric.device.type != "cpu" and spec.engine.workers == 0
    data = parts.data.to(fabric.device) if on_device else parts.data
    stream = _stream(spec, data, fabric.global_rank, fabric.world_size)
    cost = Cost(models)
    channels_last = spec.channels_last and all(engine.can_be_channels_last(m, fabric.device) for m in models.values())
    if channels_last:
        models = {name: model.to(memory_format=torch.channels_last) for name, model in models.items()}  # type: ignore[call-overload]
    learners = {name: Learner(fabric, models[name], spec.optimizer) for name in names}
    ready = {
        name: learners[name].model if name in learners else engine.add_frozen(fabric, model)
        for name, model in models.items()
    }
    average = _average_of(spec, method, learners, fabric)
    return Run(
        spec=spec,
        schedule=parts.schedule,
        folder=folder,
        fabric=fabric,
        method=method,
        data=data,
        stream=stream,
        models=ready if average is None else {**ready, "average": average},
        learners=learners,
        lr=learning_rate(spec.optimizer, parts.rate, stream.steps_per_epoch, parts.total_steps),
        total_steps=parts.total_steps,
        every=parts.every,
        channels_last=channels_last,
        turn_count=parts.turn_count,
        stops=parts.stops,
        last_step=parts.last_step,
        position=Position(),
        cost=cost,
        average=average,
    )


def _stream(spec: RunSpec, data: Splits, rank: int, ranks: int) -> TrainingStream:
    return TrainingStream(
        data.train,
        spec.batch_size,
        spec.seed,
        data.augmentation,
        spec.data.drop_last,
        mix=data.mix,
        rank=rank,
        ranks=ranks,
    )


def _average_of(spec: RunSpec, method: Method, learners: Mapping[str, Learner], fabric: Fabric) -> nn.Module | None:
    if spec.ema is None:
        return None
    student = learners[method.learners[method.roles[-1]]].module
    return engine.add_frozen(fabric, deepcopy(student))


def _stop(method: Method, role: str, in_run: tuple[int, int]) -> int:
    try:
        return method.learns_for(role).in_steps(*in_run)
    except UserError as error:
        raise UserError(f"The time for which the {role} is to learn does not fit the run: {error}") from None


def _survey(turns: Iterator[Turn], method: Method, stops: Mapping[str, int]) -> tuple[int, dict[str, int]]:
    """How many turns there are, and the last step of each role; a schedule that cannot be followed fails here."""
    count, last = 0, {}
    for turn in turns:
        if turn.role not in method.roles:
            raise unknown("role in the schedule's turns", turn.role, method.roles)
        if turn.step < stops[turn.role]:
            count += 1
            last[turn.role] = turn.step
    if method.roles[-1] not in last:
        raise UserError(f"In this schedule the {method.roles[-1]} never has a turn, so nothing would be trained.")
    return count, last


def _models(run: RunSpec, method: Method, data: Splits) -> dict[str, nn.Module]:
    """The method's models; a network's weights depend on the seed and its spec, not on the method."""

    trained = network_of(run, "teacher").pretrained

    def network(
        role: str,
        *,
        fresh: bool = False,
        fixed: bool = False,
        like: str | None = None,
        spec: NetworkSpec | None = None,
    ) -> nn.Module:
        # A trained teacher may come from a run with this seed, so a student that is to differ must not start like it.
        same = (run.same_init and not fresh) or (role == "student" and not (fresh and trained))
        seed = seed_for(run.seed, "weights") if same else seed_for(run.seed, "weights", role)
        spec = spec or network_of(run, like or role)
        if not fixed:
            return build.build(spec if role in ("teacher", "student") else spec.untrained(), data.train, seed)
        check_trained(spec, len(data.train.classes))
        teacher = build.build(spec, data.train, seed)
        keep_normalisation(teacher, spec, (data.train.mean, data.train.std))
        return teacher

    given = Ingredients(
        network,
        sample=data.train.shown(torch.arange(2)),
        classes=len(data.train.classes),
        images=len(data.train.labels),
        batch_size=run.batch_size,
        mixed=data.mix is not None,
    )
    with build.seeded(seed_for(run.seed, "extra modules")):
        return method.models(given)


def network_of(spec: RunSpec, role: str) -> NetworkSpec:
    """The network of a role: the student's own, and the teacher's for all that lead it."""
    return spec.network if role == "student" or spec.teacher is None else spec.teacher
