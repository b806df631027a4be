"""Everything one run consists of."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import torch
from lightning_fabric import Fabric
from torch import nn
from torch.nn import functional as F

from spacedkd.data.sources import Splits
from spacedkd.data.stream import Batch, TrainingStream, View, batches, in_order
from spacedkd.evaluation import accuracy
from spacedkd.methods.method import Method, Progress
from spacedkd.schedule import Schedule, Turn
from spacedkd.seeds import seed_for
from spacedkd.spec import RunSpec
from spacedkd.training import checkpoint, engine
from spacedkd.training.average import ema_update
from spacedkd.training.checkpoint import Position
from spacedkd.training.cost import Cost
from spacedkd.training.folder import Journal, RunFolder, write_json
from spacedkd.training.learner import Learner

Scores = dict[str, dict[str, float]]
"""part of the data -> head -> accuracy"""


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
    channels_last: bool
    turn_count: int
    stops: dict[str, int]
    """the step at which each role has learned enough"""
    last_step: dict[str, int]
    """of each role"""
    position: Position
    cost: Cost
    average: nn.Module | None = None
    journal: Journal | None = None
    started: float = 0.0
    learning: str = ""
    """the role that began last; in a run taken up again nobody has"""

    def turns(self) -> Iterator[Turn]:
        """All turns of the run, from the first; a role that has learned enough has no more."""
        turns = self.schedule.turns(turn_order(self.spec, self.method), range(self.total_steps))
        return (turn for turn in turns if turn.step < self.stops[turn.role])

    def remaining(self) -> Iterator[tuple[Turn, Batch]]:
        """The turns still to be done with their batches: resuming is skipping the turns that are done."""
        views = (self._views(turn) for turn in self._from(self.position.turns))
        seen = batches(self.stream, views, self.spec.engine.workers)
        for turn, batch in zip(self._from(self.position.turns), seen, strict=True):
            yield turn, self._smoothed(batch.to(self.fabric.device, self.channels_last))

    def _views(self, turn: Turn) -> Sequence[View]:
        """What a turn sees: its step's batch, or, where replays are redrawn, one of epochs the run never reaches."""
        views = self.method.views(turn.role, turn.step)
        if not self.spec.redraw_replay:
            return views
        epochs = -(-self.total_steps // self.stream.steps_per_epoch)
        later = self.method.roles.index(turn.role) * epochs * self.stream.steps_per_epoch
        return [View(step + later, view) for step, view in views]

    def _smoothed(self, batch: Batch) -> Batch:
        if self.spec.label_smoothing == 0:
            return batch
        others = tuple(self._smoothed(other) for other in batch.others)
        return batch._replace(labels=self._smoothed_labels(batch.labels), others=others)

    def _smoothed_labels(self, labels: torch.Tensor) -> torch.Tensor:
        classes = len(self.data.train.classes)
        hard = F.one_hot(labels, classes).float() if labels.ndim == 1 else labels
        return hard.lerp(torch.full_like(hard, 1 / classes), self.spec.label_smoothing)

    def _from(self, turn: int) -> Iterator[Turn]:
        return islice(self.turns(), turn, None)

    def progress(self, turn: Turn) -> Progress:
        gather = partial(engine.gather_rows, self.fabric)
        return Progress(turn.step, self.stream.steps_per_epoch, self.total_steps, gather)

    def rate(self, turn: Turn) -> float:
        """The turn's learning rate; a role that stops early goes through the whole course of it until then."""
        stop = self.stops[turn.role]
        return self.lr(turn.step if stop == self.total_steps else turn.step * self.total_steps // stop)

    def learner(self, role: str) -> Learner:
        return self.learners[self.method.learners[role]]

    def take(self, turn: Turn, batch: Batch) -> Mapping[str, torch.Tensor]:
        """One turn: its role learns from the batch. Gives the losses it had before."""
        self.begin(turn.role)
        masks = seed_for(self.spec.seed, "masks", turn.role, turn.step, self.fabric.global_rank)
        engine.seed(self.fabric.device, masks)
        with self.cost.turn(self.method.learners[turn.role], self.stream.size(turn.step)):
            losses = self.method.losses(turn.role, self.models, batch, self.progress(turn))
            self._update(turn, losses, len(batch.labels))
        self.position.turns += 1
        return losses

    def begin(self, role: str) -> None:
        """From here on the role's model learns and every other one stands still."""
        if role == self.learning:
            return
        self.learning = role
        for model in self.models.values():
            model.train(self.spec.frozen_mode == "train")
        self.learner(role).model.train()
        if role != self.position.role:  # equal when a stretch of turns is resumed in its middle
            self.method.take_over(role, self.models)
            self._share_frozen()
            self.position.role = role

    def _update(self, turn: Turn, losses: Mapping[str, torch.Tensor], images: int) -> None:
        """One step of the role's learner on its part of the batch, and of whatever moves along with it."""
        learner, lr = self.learner(turn.role), self.rate(turn)
        # Ranks average their gradients, so a rank with a larger part of the batch must count for more.
        share = images * self.fabric.world_size / self.stream.size(turn.step)
        learner.update(losses if share == 1 else {name: loss * share for name, loss in losses.items()}, lr)
        if self.spec.optimizer.moves_frozen:
            for other in self.learners.values():
                if other is not learner:
                    other.drift(lr)
        if self.average is not None and turn.role == self.method.roles[-1]:
            assert self.spec.ema is not None
            ema_update(self.average, learner.module, self.spec.ema, turn.step)

    def _share_frozen(self) -> None:
        """Give all ranks the first one's frozen models: BatchNorm statistics differ a little between ranks.

        Memory has no parameters and is equal on all ranks already.
        """
        if self.fabric.world_size == 1:
            return
        for name, model in self.models.items():
            if name not in self.learners and any(True for _ in model.parameters()):
                model.load_state_dict(self.fabric.broadcast(model.state_dict()))

    def evaluate(self, role: str) -> Scores:
        """Accuracy of every head of a role's model on every part of the data that is not trained on."""
        learner = self.learner(role)
        return self._evaluate(learner.model, learner.module)

    def evaluate_average(self) -> Scores | None:
        """The same of the moving average of the student's weights, if one is kept."""
        return None if self.average is None else self._evaluate(self.average, self.average)

    def _evaluate(self, model: nn.Module, module: nn.Module) -> Scores:
        fabric = self.fabric
        was_training = model.training
        model.eval()
        heads: tuple[str, ...] = module.head_names  # type: ignore[assignment]
        scores = {}
        for part, images in self.data.evaluated().items():
            rows = torch.arange(fabric.global_rank, len(images.labels), fabric.world_size)
            mine = images if fabric.world_size == 1 else images.subset(rows)
            shown = in_order(mine, max(256, self.spec.batch_size), self.spec.engine.workers)
            moved = (batch.to(fabric.device, self.channels_last) for batch in shown)
            counts = accuracy.correct(model, heads, moved)
            scores[part] = {head: _summed(fabric, count) / len(images.labels) for head, count in counts.items()}
        model.train(was_training)
        return scores

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Hold the folder, with the run taken up where it was left."""
        with ExitStack() as stack:
            if self.fabric.is_global_zero:
                if not self.folder.spec.exists():
                    self.folder.create(self.spec)
                stack.enter_context(self.folder.lock())
                write_json(self.folder.classes, self.data.describe())
            self.fabric.barrier()
            if self.folder.checkpoint.exists():
                self.restore()
            if self.fabric.is_global_zero:
                self.journal = stack.enter_context(Journal(self.folder.journal, self.position.journal_bytes))
            self.started = time.monotonic() - self.position.seconds
            yield

    def restore(self) -> None:
        """Everything as it was when it was saved."""
        self.learning = ""
        self.position = checkpoint.load(self.folder.checkpoint, self.spec.fingerprint(), *self._state())
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
            checkpoint.save(self.folder.checkpoint, self.spec.fingerprint(), self.position, *self._state())

    def _state(self) -> tuple[dict[str, nn.Module], dict[str, torch.optim.Optimizer]]:
        frozen = {name: model for name, model in self.models.items() if name not in self.learners}
        learning = {name: learner.module for name, learner in self.learners.items()}
        return frozen | learning, {name: learner.optimizer for name, learner in self.learners.items()}


def _summed(fabric: Fabric, count: torch.Tensor) -> int:
    return int(fabric.all_reduce(count, reduce_op="sum"))  # type: ignore[arg-type]


def turn_order(spec: RunSpec, method: Method) -> Sequence[str]:
    """The roles in the order in which they take their turns."""
    return method.roles[::-1] if spec.follower_first else method.roles
