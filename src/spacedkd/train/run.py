"""Everything one run consists of, put together from its spec."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import torch
from lightning_fabric import Fabric
from torch import nn

from spacedkd.data import sources
from spacedkd.data.sources import Splits
from spacedkd.data.stream import Batch, TrainingStream, batches, in_order
from spacedkd.duration import in_steps
from spacedkd.evaluate import accuracy
from spacedkd.methods import build_method, describe
from spacedkd.methods.method import Ingredients, Method, Progress
from spacedkd.models import build
from spacedkd.schedule import Schedule, Turn
from spacedkd.seeds import seed_for
from spacedkd.spec import NetworkSpec, RunSpec
from spacedkd.train import checkpoint, engine
from spacedkd.train.checkpoint import Position
from spacedkd.train.cost import Cost
from spacedkd.train.folder import Journal, RunFolder
from spacedkd.train.learner import Learner
from spacedkd.train.rate import learning_rate


class Every(NamedTuple):
    """After how many steps something happens again."""

    log: int
    evaluate: int
    save: int


@dataclass
class Run:
    """The parts of a run. The loop asks them; they do not know the loop."""

    spec: RunSpec
    """as given, with everything it left open filled in"""
    schedule: Schedule
    """the spec's, in steps"""
    folder: RunFolder
    fabric: Fabric
    method: Method
    data: Splits
    stream: TrainingStream
    models: dict[str, nn.Module]
    learners: dict[str, Learner]
    lr: Callable[[int], float]
    total_steps: int
    every: Every
    turn_count: int
    last_step: dict[str, int]
    """of each role"""
    position: Position
    cost: Cost
    journal: Journal | None = None
    started: float = 0.0

    def turns(self) -> Iterator[Turn]:
        """All turns of the run, from the first."""
        return self.schedule.turns(self.method.roles, range(self.total_steps))

    def remaining(self) -> Iterator[tuple[Turn, Batch]]:
        """The turns still to be done with their batches: resuming is skipping the turns that are done."""
        seen = batches(self.stream, (t.step for t in self._from(self.position.turns)), self.spec.engine.workers)
        for turn, batch in zip(self._from(self.position.turns), seen, strict=True):
            yield turn, batch.to(self.fabric.device, self.spec.channels_last)

    def _from(self, turn: int) -> Iterator[Turn]:
        return islice(self.turns(), turn, None)

    def progress(self, turn: Turn) -> Progress:
        return Progress(turn.step, self.stream.steps_per_epoch, self.total_steps)

    def learner(self, role: str) -> Learner:
        return self.learners[self.method.learners[role]]

    def begin(self, role: str) -> None:
        """From here on the role's model learns and every other one stands still."""
        for model in self.models.values():
            model.eval()
        self.learner(role).model.train()
        if role != self.position.role:  # equal when a stretch of turns is resumed in its middle
            self.method.take_over(role, self.models)
            self._share_frozen()
            self.position.role = role

    def _share_frozen(self) -> None:
        """Give all ranks the first one's frozen models: BatchNorm statistics differ a little between ranks."""
        if self.fabric.world_size > 1:
            for name in self.models.keys() - self.learners.keys():
                self.models[name].load_state_dict(self.fabric.broadcast(self.models[name].state_dict()))

    def evaluate(self, role: str) -> dict[str, dict[str, float]]:
        """Accuracy of every head of a role's model on every part of the data that is not trained on."""
        learner, fabric = self.learner(role), self.fabric
        was_training = learner.model.training
        learner.model.eval()
        heads: tuple[str, ...] = learner.module.head_names  # type: ignore[assignment]
        scores = {}
        for part, images in self.data.evaluated().items():
            mine = images.subset(torch.arange(fabric.global_rank, len(images.labels), fabric.world_size))
            moved = (
                b.to(fabric.device, self.spec.channels_last) for b in in_order(mine, max(256, self.spec.batch_size))
            )
            counts = accuracy.correct(learner.model, heads, moved)
            total = len(images.labels)
            scores[part] = {head: _summed(fabric, count) / total for head, count in counts.items()}
        learner.model.train(was_training)
        return scores

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Hold the folder, with the run taken up where it was left."""
        with ExitStack() as stack:
            if self.fabric.is_global_zero:
                if not self.folder.spec.exists():
                    self.folder.create(self.spec)
                stack.enter_context(self.folder.lock())
            self.fabric.barrier()
            if self.folder.checkpoint.exists():
                self.restore()
            if self.fabric.is_global_zero:
                self.journal = stack.enter_context(Journal(self.folder.journal, self.position.journal_bytes))
            self.started = time.monotonic() - self.position.seconds
            yield

    def restore(self) -> None:
        """Everything as it was when it was saved."""
        self.position = checkpoint.load(self.folder.checkpoint, *self._state(), device=str(self.fabric.device))
        self.cost.counts.update(self.position.cost)

    def write(self, entry: dict[str, Any]) -> None:
        if self.journal is not None:
            self.journal.write(entry)

    def save(self) -> None:
        """Make everything up to this turn safe."""
        if self.journal is not None:
            self.position.journal_bytes = self.journal.sync()
            self.position.seconds = time.monotonic() - self.started
            self.position.cost = dict(self.cost.counts)
            checkpoint.save(self.folder.checkpoint, self.position, *self._state())

    def _state(self) -> tuple[dict[str, nn.Module], dict[str, torch.optim.Optimizer]]:
        frozen = {name: model for name, model in self.models.items() if name not in self.learners}
        learning = {name: learner.module for name, learner in self.learners.items()}
        return frozen | learning, {name: learner.optimizer for name, learner in self.learners.items()}


def _summed(fabric: Fabric, count: torch.Tensor) -> int:
    return int(fabric.all_reduce(count, reduce_op="sum"))  # type: ignore[arg-type]


def fill_in(spec: RunSpec, method: Method | None = None) -> RunSpec:
    """The spec with everything it leaves open decided, so that it will mean the same tomorrow."""
    method = method or build_method(spec.method)
    precision = engine.best_precision(spec.engine.accelerator) if spec.precision == "auto" else spec.precision
    return replace(spec, data=sources.fill_in(spec.data), method=describe(method), precision=precision)


def prepare(spec: RunSpec, folder: RunFolder, method: Method | None = None) -> Run:
    """Build a run and check all of it; nothing is written yet."""
    method = method or build_method(spec.method)
    spec = fill_in(spec, method)
    data = sources.load(spec.data)
    models = _models(spec, method, data)
    names = sorted({*method.learners.values()})
    fabric = engine.start(spec, parts_learn_in_turn=len(names) < len(method.roles))
    if fabric.device.type != "cpu" and spec.engine.workers == 0:
        data = data.to(fabric.device)
    rank = {"rank": fabric.global_rank, "ranks": fabric.world_size}
    stream = TrainingStream(data.train, spec.batch_size, spec.seed, spec.data.augment, spec.data.drop_last, **rank)
    total = max(1, round(spec.epochs * stream.steps_per_epoch))
    in_run = (stream.steps_per_epoch, total)
    schedule, rate = in_steps(spec.schedule, *in_run), in_steps(spec.rate, *in_run)
    every = Every(*(d.as_period(*in_run) for d in (spec.log_every, spec.evaluate_every, spec.save_every)))
    turn_count, last_step = _survey(schedule.turns(method.roles, range(total)))
    cost = Cost(models)
    if spec.channels_last:
        models = {name: model.to(memory_format=torch.channels_last) for name, model in models.items()}  # type: ignore[call-overload]
    learners = {name: Learner(fabric, models[name], spec.optimizer) for name in names}
    ready = {
        name: learners[name].model if name in learners else engine.add_frozen(fabric, model)
        for name, model in models.items()
    }
    return Run(
        spec=spec,
        schedule=schedule,
        folder=folder,
        fabric=fabric,
        method=method,
        data=data,
        stream=stream,
        models=ready,
        learners=learners,
        lr=learning_rate(spec.optimizer, rate, total),
        total_steps=total,
        every=every,
        turn_count=turn_count,
        last_step=last_step,
        position=Position(),
        cost=cost,
    )


def _survey(turns: Iterator[Turn]) -> tuple[int, dict[str, int]]:
    """How many turns there are, and the last step of each role; a schedule that cannot be followed fails here."""
    count, last = 0, {}
    for turn in turns:
        count += 1
        last[turn.role] = turn.step
    return count, last


def _models(spec: RunSpec, method: Method, data: Splits) -> dict[str, nn.Module]:
    """The method's models; a network's weights depend on the seed and its spec, not on the method."""

    def network(role: str) -> nn.Module:
        same = spec.same_init or role == "student"
        seed = seed_for(spec.seed, "weights") if same else seed_for(spec.seed, "weights", role)
        return build.build(network_of(spec, role), data.train, seed)

    sample = data.train.normalised(data.train.pixels[:2])
    with build.seeded(seed_for(spec.seed, "extra modules")):
        return method.models(Ingredients(network, sample))


def network_of(spec: RunSpec, role: str) -> NetworkSpec:
    """The network of a role: the student's own, and the teacher's for all that lead it."""
    return spec.network if role == "student" or spec.teacher is None else spec.teacher
