"""A plan's models, built and put on its devices: who can learn, who stands still, what moves along, how good they are.

A network's first weights depend on the seed and its spec, not on the method.
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass

import torch
from lightning_fabric import Fabric
from torch import nn

from spacedkd.data.datasets import RunData
from spacedkd.data.stream import Stream, in_order, too_small
from spacedkd.errors import UserError
from spacedkd.evaluation.scores import correct
from spacedkd.json_form import is_own
from spacedkd.methods.method import Ingredients
from spacedkd.models import build
from spacedkd.models.weights import check_trained, ema_update, keep_normalisation
from spacedkd.seeds import seed_for
from spacedkd.spec import NetworkSpec
from spacedkd.training import engine
from spacedkd.training.compiling import compile_blocks
from spacedkd.training.learner import Learner
from spacedkd.training.plan import Plan, stream_of
from spacedkd.training.sharding import is_sharding
from spacedkd.training.shared_norm import share_batch_norm


class Networks:
    """Makes the network of any role: the last role has the student's own, all others the teacher's if there is one."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.teacher_was_asked_for = False

    def __call__(
        self,
        role: str,
        *,
        fresh: bool = False,
        fixed: bool = False,
        like: str | None = None,
        spec: NetworkSpec | None = None,
    ) -> nn.Module:
        run, shown, roles = self.plan.spec, self.plan.data.shown, self.plan.method.roles
        leads = (like or role) != roles[-1]
        if spec is None:
            spec = run.teacher if leads and run.teacher is not None else run.network
            self.teacher_was_asked_for |= leads
            make = self.plan.objects.teacher if spec is run.teacher else self.plan.objects.network
        else:
            make = None
        seed = self._seed(role, fresh)
        if not fixed:
            chain = (*self.plan.method.fixed, *roles)
            trained = role in (chain[0], chain[-1])
            return build.build(spec if trained else spec.untrained(), shown, seed, make)
        check_trained(spec, len(shown.classes))
        teacher = build.build(spec, shown, seed, make)
        keep_normalisation(teacher, spec, shown.normalisation)
        return teacher

    def _seed(self, role: str, fresh: bool) -> int:
        # A trained teacher may come from a run with this seed, so a student that is to differ must not start like it.
        run = self.plan.spec
        trained = (run.teacher or run.network).pretrained
        is_student = role == self.plan.method.roles[-1]
        same = (run.same_init and not fresh) or (is_student and not (fresh and trained))
        return seed_for(run.seed, "weights") if same else seed_for(run.seed, "weights", role)


def build_models(plan: Plan) -> dict[str, nn.Module]:
    """Every model of the plan's method, by name."""
    networks, data = Networks(plan), plan.data
    given = Ingredients(
        networks,
        sample=data.shown.sample,
        classes=len(data.shown.classes),
        images=data.count,
        batch_size=plan.spec.batch_size,
        mixed=data.mixed,
    )
    with build.seeded(seed_for(plan.spec.seed, "extra modules")):
        models = plan.method.models(given)
    for role, learner in plan.method.learners.items():
        if not isinstance(models.get(learner), nn.Module):
            raise UserError(f"Method {plan.spec.method.name} has no model {learner!r}, which its {role} would update.")
    if plan.spec.ema is not None and "average" in models:
        raise UserError("--ema keeps a model called 'average', and the method has one of that name: rename it.")
    if plan.spec.teacher is not None and not networks.teacher_was_asked_for:
        raise UserError(
            f"--teacher {plan.spec.teacher.name} does not matter: method {plan.spec.method.name} as asked for has no "
            "teacher network. Leave it out, or use --method kd."
        )
    _check_last_batch(plan, models)
    return models


def _check_last_batch(plan: Plan, models: dict[str, nn.Module]) -> None:
    """Refuse a last batch that is too small for BatchNorm, where there is one."""
    ranks = plan.spec.engine.processes
    smallest = stream_of(plan.spec, plan.data, 0, ranks).size(plan.steps_per_epoch - 1)
    parts = (part for model in models.values() for part in model.modules())
    if smallest < 2 * ranks and any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in parts):
        raise too_small(smallest, "items", plan.spec.batch_size, ranks)


@dataclass(frozen=True)
class Setup:
    """What the loop works with."""

    plan: Plan
    fabric: Fabric
    data: RunData
    stream: Stream
    models: dict[str, nn.Module]
    """all of them, as they are called now"""
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
        for name, learner in self.learners.items():
            self.models[name] = learner.model if learner is self.learner(role) else learner.frozen
        for model in self.models.values():
            model.train(self.plan.spec.frozen_mode == "train")
        self.learner(role).model.train()

    def share_frozen(self, before: str) -> None:
        """Give all ranks the first one's BatchNorm statistics of what has just stopped learning, and of copies.

        Ranks have seen other parts of each batch. Memory has no parameters and is equal on all ranks already.
        """
        if self.fabric.world_size == 1:
            return
        stopped = self.plan.method.learners.get(before)
        for name, module in self.modules().items():
            if name == stopped or (name not in self.learners and any(True for _ in module.parameters())):
                engine.share_buffers(module)

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
    channels_last &= not is_sharding(fabric)  # which wants weights that can be cut
    if channels_last:
        models = {name: model.to(memory_format=torch.channels_last) for name, model in models.items()}  # type: ignore[call-overload]
    if spec.sync_batchnorm and fabric.world_size > 1:
        for name in names:
            share_batch_norm(models[name])
    own_lr = is_own(spec.optimizer.name) and not is_own(spec.rate.shape)
    average = None
    if spec.ema is not None:  # from the weights as they are in the run's precision
        average = fabric.strategy.precision.convert_module(deepcopy(models[plan.student]))
    learners = {name: Learner(fabric, models[name], spec.optimizer, plan.objects.optimizer, own_lr) for name in names}
    if spec.optimizer.moves_frozen and any(learner.wants_closure for learner in learners.values()):
        raise UserError("moves_frozen gives others a step without losses: it needs an optimizer of torch's or timm's.")
    ready = {
        name: learners[name].model if name in learners else engine.add_frozen(fabric, model)
        for name, model in models.items()
    }
    if average is not None:
        ready["average"] = engine.add_frozen(fabric, average)
    if spec.engine.compile:
        compile_blocks(models.values(), fabric.device)
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
    was_training = module.training
    module.eval()
    if fabric.world_size > 1:
        engine.share_buffers(module)
    heads: tuple[str, ...] = module.head_names  # type: ignore[assignment]
    scores = {}
    for part, items in setup.data.evaluated().items():
        rows = torch.arange(fabric.global_rank, len(items), fabric.world_size)
        mine = items if fabric.world_size == 1 else items.subset(rows)
        shown = in_order(mine, _batch_size(spec.batch_size, len(items), fabric.world_size), spec.engine.workers)
        moved = (batch.to(fabric.device, setup.channels_last) for batch in shown)
        counts = correct(model, heads, moved)
        totals = {head: int(fabric.all_reduce(count, reduce_op="sum")) for head, count in counts.items()}  # type: ignore[arg-type]
        scores[part] = {head: total / len(items) for head, total in totals.items()}
    module.train(was_training)
    return scores


def _batch_size(trained_with: int, items: int, ranks: int) -> int:
    """Of evaluation: all ranks, some of which have an item more, get through theirs in as many batches."""
    size, fewest, most = max(256, trained_with), items // ranks, math.ceil(items / ranks)
    while fewest and math.ceil(fewest / size) != math.ceil(most / size):
        size += 1
    return size
