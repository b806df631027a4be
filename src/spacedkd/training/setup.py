"""A plan's models on its devices: who can learn, who stands still, what moves along, how good they are."""

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from spacedkd.data.images import Encoded, Images
from spacedkd.data.items import Items
from spacedkd.data.splits import RunData
from spacedkd.data.stream import Stream, in_order
from spacedkd.errors import UserError
from spacedkd.evaluation.scores import NotFinite, check_finite, count
from spacedkd.models.weights import ema_update
from spacedkd.own_code import is_own, user_code
from spacedkd.training import engine, path
from spacedkd.training.building import build_models
from spacedkd.training.compiling import compile_blocks
from spacedkd.training.fabric import Fabric
from spacedkd.training.folder import RunFolder
from spacedkd.training.following import RecordedPath
from spacedkd.training.layout import can_be_channels_last, mend_strides
from spacedkd.training.learner import Learner, set_mode
from spacedkd.training.path import Settings
from spacedkd.training.plan import Plan, stream_of
from spacedkd.training.same_data import check_same_data
from spacedkd.training.same_path import find_paths
from spacedkd.training.sharding import is_sharding
from spacedkd.training.shared_norm import share_batch_norm


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
    paths: Mapping[str, Settings]
    """what decides the weights of each role whose path is recorded or followed"""
    followed: dict[str, RecordedPath]
    """of the roles that do not learn here, because their weights are known already"""
    channels_last: bool
    average: nn.Module | None
    """the moving average of the student's weights, if one is kept; it is among the models too"""

    @property
    def learning(self) -> Sequence[str]:
        """The roles that learn here."""
        return [role for role in self.plan.roles if role not in self.followed]

    def learner(self, role: str) -> Learner:
        return self.learners[self.plan.method.learners[role]]

    def modules(self) -> dict[str, nn.Module]:
        """The models as they are saved: without what devices and precision wrap around them."""
        return {name: self.learners[name].module if name in self.learners else m for name, m in self.models.items()}

    def begin(self, role: str) -> None:
        """From here on the role's model learns and every other one stands still."""
        learner, mode = self.learner(role), self.plan.spec.frozen_mode
        for name, one in self.learners.items():
            self.models[name] = one.model if one is learner else one.frozen
        for model in self.models.values():
            if model is not learner.model:
                set_mode(model, mode != "eval")
            if mode == "shared":
                _keep_statistics(model, model is learner.model)
        set_mode(learner.model, True)

    def moves_student(self, role: str) -> bool:
        """Whether turns of another role than the student's may move the student's model, too."""
        spec, shared = self.plan.spec, self.plan.method.learners[role] == self.plan.student
        may_move = shared or spec.optimizer.moves_frozen or spec.frozen_mode == "train"
        return role != self.plan.roles[-1] and may_move

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
        if self.average is not None and role == self.plan.roles[-1]:
            assert spec.ema is not None
            update_average(self.average, learner.module, spec.ema, step)


def _keep_statistics(model: nn.Module, keeps: bool) -> None:
    """Whether BatchNorm in train mode remembers the statistics of the batches it sees, where it remembers any."""
    for part in model.modules():
        if isinstance(part, _BatchNorm) and part.running_mean is not None:
            part.__dict__["track_running_stats"] = keeps


@user_code()
def set_up(plan: Plan, models: dict[str, nn.Module] | None = None) -> Setup:
    """The plan's models on its devices; nothing is written yet."""
    models = build_models(plan) if models is None else models
    spec, method = plan.spec, plan.method
    if spec.teacher_path is not None:
        check_same_data(RunFolder(spec.teacher_path), plan.data, "--teacher-path: ")
    paths = {role: path.settings(plan, role, models) for role in path.leaders(plan)}
    followed = {} if spec.teacher_path is None else find_paths(plan, paths)
    if spec.record and not paths.keys() - followed.keys():
        raise UserError("--record: everybody who leads learns elsewhere, by --teacher-path. Leave one of them out.")
    learning = [role for role in plan.roles if role not in followed]
    names = sorted({method.learners[role] for role in learning})
    fabric = engine.start(spec, parts_learn_in_turn=len(names) < len(learning))
    on_device = fabric.device.type != "cpu" and spec.engine.workers == 0
    data = plan.data.to(fabric.device) if on_device else plan.data
    channels_last = spec.channels_last and not is_sharding(fabric)  # which wants weights that can be cut
    samples = data.samples()
    channels_last &= all(can_be_channels_last(m, fabric.device, samples, spec.precision) for m in models.values())
    if channels_last:
        models = {name: model.to(memory_format=torch.channels_last) for name, model in models.items()}  # type: ignore[call-overload]
    for model in models.values():
        mend_strides(model, fabric.device, spec.precision)
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
    elsewhere = {method.learners[role] for role in followed}
    ready = {}
    for name, model in models.items():
        add = engine.add_followed if name in elsewhere else engine.add_frozen
        ready[name] = learners[name].model if name in learners else add(fabric, model)
    if average is not None:
        ready["average"] = engine.add_frozen(fabric, average)
    if spec.engine.compile:
        compile_blocks(models.values(), fabric.device)
    stream = stream_of(spec, data, fabric.global_rank, fabric.world_size)
    return Setup(plan, fabric, data, stream, ready, learners, paths, followed, channels_last, average)


def update_average(average: nn.Module, module: nn.Module, decay: float, step: int) -> None:
    """average <- d average + (1 - d) module, with d = min(decay, (1 + step) / (10 + step)).

    The smaller d of the first steps keeps the random weights of the beginning from lingering. BatchNorm's statistics
    are averaged like the weights they belong to.
    """
    ema_update(average, module, min(decay, (1 + step) / (10 + step)))


Scores = dict[str, dict[str, float]]
"""part of the data -> head -> accuracy"""


def measured(setup: Setup, role: str, at_end: bool) -> Iterator[tuple[str, Scores]]:
    """How good a role is after its turn, and what else there is to measure then, by name.

    After the student's turn that is its moving average; after the last one of the run the student, if that turn was
    another role's and may have moved it: what is reported are the weights that are saved.
    """
    learner, student = setup.learner(role), setup.plan.roles[-1]
    scores = measure(setup, learner.frozen, learner.module, role)
    yield role, scores
    if setup.average is not None and role == student:
        yield "average", measure(setup, setup.average, setup.average, "average")
    if at_end and setup.moves_student(role):
        saved = setup.learner(student)
        yield student, scores if saved is learner else measure(setup, saved.frozen, saved.module, student)


def measure(setup: Setup, model: nn.Module, module: nn.Module, name: str | None = None) -> Scores:
    """Accuracy of every head of a model on every part of the data that is not trained on; its mode is given back.

    `module` is the model without what devices and precision wrap around it, and knows its heads. With a `name`, which
    the message has, logits that are not finite are refused: `NotFinite`, in all processes.
    """
    fabric, spec = setup.fabric, setup.plan.spec
    was_training = module.training
    module.eval()
    if fabric.world_size > 1:
        engine.share_buffers(module)
    heads: tuple[str, ...] = module.head_names  # type: ignore[assignment]
    scores, wrong = {}, {}
    for part, items in setup.data.evaluated().items():
        rows = torch.arange(fabric.global_rank, len(items), fabric.world_size)
        mine = items if fabric.world_size == 1 else items.subset(rows)
        shown = in_order(mine, _batch_size(spec.batch_size, len(items), fabric.world_size), spec.engine.workers)
        moved = (batch.to(fabric.device, setup.channels_last) for batch in shown)
        names, counts = count(model, heads, moved)
        right, undefined = fabric.all_reduce(counts, reduce_op="sum").tolist()  # type: ignore[union-attr]
        scores[part] = {head: total / len(items) for head, total in zip(names, right, strict=True)}
        wrong[part] = dict(zip(names, undefined, strict=True))
    module.train(was_training)
    if name is not None:
        for part, undefined in wrong.items():
            _check_defined(setup.data.evaluated()[part], part, undefined, name)
    return scores


def _check_defined(items: Images | Encoded | Items, part: str, undefined: Mapping[str, int], name: str) -> None:
    """Refuse logits that are not finite; where an input is the cause, name it."""
    try:
        check_finite(undefined, [*undefined.values()], len(items), f"{part} images by the {name}")
    except NotFinite as error:
        row = items.first_not_finite() if isinstance(items, Items) else None
        source = "training" if part == "holdout" else part  # of which an item is held out under the number it has there
        cause = (
            "" if row is None else f" Item {row} of the {source} data holds NaN or infinity: mend it or leave it out."
        )
        raise NotFinite(f"{error}{cause}", row) from None


def _batch_size(trained_with: int, items: int, ranks: int) -> int:
    """Of evaluation: all ranks, some of which have an item more, get through theirs in as many batches."""
    size, fewest, most = max(256, trained_with), items // ranks, math.ceil(items / ranks)
    while fewest and math.ceil(fewest / size) != math.ceil(most / size):
        size += 1
    return size
