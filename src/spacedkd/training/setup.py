"""A plan's models on its devices: who can learn, who stands still, what moves along, and how good they are."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import torch
from lightning_fabric import Fabric
from torch import nn

from spacedkd.data.datasets import RunData
from spacedkd.data.stream import Stream, in_order
from spacedkd.errors import UserError
from spacedkd.evaluation.scores import correct
from spacedkd.models.weights import ema_update
from spacedkd.training import engine
from spacedkd.training.learner import Learner
from spacedkd.training.networks import build_models
from spacedkd.training.plan import Plan, stream_of


@dataclass(frozen=True)
class Setup:
    """What the loop works with."""

    plan: Plan
    fabric: Fabric
    data: RunData
    stream: Stream
    models: dict[str, nn.Module]
    """all of them, as they are called"""
    learners: dict[str, Learner]
    channels_last: bool
    average: nn.Module | None
    """the moving average of the student's weights, if one is kept; it is among the models too"""

    def learner(self, role: str) -> Learner:
        return self.learners[self.plan.method.learners[role]]

    def modules(self) -> dict[str, nn.Module]:
        """The models as they are saved: without what devices and precision wrap around them."""
        return {name: self.learners[name].module if name in self.learners else m for name, m in self.models.items()}

    def begin(self, role: str) -> None:
        """From here on the role's model learns and every other one stands still."""
        for model in self.models.values():
            model.train(self.plan.spec.frozen_mode == "train")
        self.learner(role).model.train()

    def share_frozen(self) -> None:
        """Give all ranks the first one's frozen models: BatchNorm statistics differ a little between ranks.

        Memory has no parameters and is equal on all ranks already.
        """
        if self.fabric.world_size == 1:
            return
        for name, model in self.models.items():
            if name not in self.learners and any(True for _ in model.parameters()):
                model.load_state_dict(self.fabric.broadcast(model.state_dict()))

    def move_along(self, role: str, step: int, lr: float) -> None:
        """Move what an update moves besides the role's model: the student's average and, by a quirk, all others."""
        learner, spec = self.learner(role), self.plan.spec
        if spec.optimizer.moves_frozen:
            for other in self.learners.values():
                if other is not learner:
                    other.drift(lr)
        if self.average is not None and role == self.plan.method.roles[-1]:
            assert spec.ema is not None
            update_average(self.average, learner.module, spec.ema, step)


def set_up(plan: Plan, models: dict[str, nn.Module] | None = None) -> Setup:
    """The plan's models on its devices; nothing is written yet."""
    models = build_models(plan) if models is None else models
    spec, method = plan.spec, plan.method
    names = sorted({*method.learners.values()})
    fabric = engine.start(spec, parts_learn_in_turn=len(names) < len(method.roles))
    on_device = fabric.device.type != "cpu" and spec.engine.workers == 0
    data = plan.data.to(fabric.device) if on_device else plan.data
    channels_last = spec.channels_last and all(engine.can_be_channels_last(m, fabric.device) for m in models.values())
    if channels_last:
        models = {name: model.to(memory_format=torch.channels_last) for name, model in models.items()}  # type: ignore[call-overload]
    own_lr = ":" in spec.optimizer.name and ":" not in spec.rate.shape
    learners = {name: Learner(fabric, models[name], spec.optimizer, plan.objects.optimizer, own_lr) for name in names}
    if spec.optimizer.moves_frozen and any(learner.wants_closure for learner in learners.values()):
        raise UserError("moves_frozen gives others a step without losses: it needs an optimizer of torch's or timm's.")
    ready = {
        name: learners[name].model if name in learners else engine.add_frozen(fabric, model)
        for name, model in models.items()
    }
    average = None
    if spec.ema is not None:
        average = engine.add_frozen(fabric, deepcopy(learners[plan.student].module))
        ready["average"] = average
    stream = stream_of(spec, data, fabric.global_rank, fabric.world_size)
    return Setup(plan, fabric, data, stream, ready, learners, channels_last, average)


def update_average(average: nn.Module, module: nn.Module, decay: float, step: int) -> None:
    """average <- d average + (1 - d) module, with d = min(decay, (1 + step) / (10 + step)).

    The smaller d of the first steps keeps the random weights of the beginning from lingering. BatchNorm's statistics
    are averaged like the weights they belong to.
    """
    ema_update(average, module, min(decay, (1 + step) / (10 + step)))


Scores = dict[str, dict[str, float]]
"""part of the data -> head -> accuracy"""


def measure(setup: Setup, model: nn.Module, module: nn.Module) -> Scores:
    """Accuracy of every head of a model on every part of the data that is not trained on; its mode is given back.

    `module` is the model without what devices and precision wrap around it, and knows its heads.
    """
    fabric, spec = setup.fabric, setup.plan.spec
    was_training = model.training
    model.eval()
    heads: tuple[str, ...] = module.head_names  # type: ignore[assignment]
    scores = {}
    for part, items in setup.data.evaluated().items():
        rows = torch.arange(fabric.global_rank, len(items), fabric.world_size)
        mine = items if fabric.world_size == 1 else items.subset(rows)
        shown = in_order(mine, max(256, spec.batch_size), spec.engine.workers)
        moved = (batch.to(fabric.device, setup.channels_last) for batch in shown)
        counts = correct(model, heads, moved)
        totals = {head: int(fabric.all_reduce(count, reduce_op="sum")) for head, count in counts.items()}  # type: ignore[arg-type]
        scores[part] = {head: total / len(items) for head, total in totals.items()}
    model.train(was_training)
    return scores
