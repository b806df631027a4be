"""A plan's models on its devices: who can learn, who stands still, what moves along, how good they are."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from spacedkd.config.resolve import ResolvedRun, stream_of
from spacedkd.config.spec import NetworkSpec
from spacedkd.data.dataset import Items
from spacedkd.data.digest import describe_difference
from spacedkd.data.images import Encoded, Images
from spacedkd.data.splits import RunData
from spacedkd.data.stream import Stream, evaluation_batches, last_batch_error
from spacedkd.evaluation.accuracy import NotFinite, check_finite, count
from spacedkd.methods.base import Ingredients
from spacedkd.models import factory
from spacedkd.models.pretrained import check_trained, ema_update, keep_normalisation
from spacedkd.runs.folder import RunFolder
from spacedkd.runtime.documents import read_json
from spacedkd.runtime.errors import Linked, UserError
from spacedkd.runtime.processes import print_notice
from spacedkd.runtime.seeds import seed_for
from spacedkd.runtime.user_code import is_user_code, user_code
from spacedkd.training import device
from spacedkd.training.device import compile_blocks, patch_strided_convolutions, supports_channels_last
from spacedkd.training.distributed import synchronize_batch_norm, uses_fsdp
from spacedkd.training.fabric import Fabric
from spacedkd.training.learner import Learner, set_mode
from spacedkd.trajectory import recording
from spacedkd.trajectory.matching import find_paths
from spacedkd.trajectory.recording import Settings
from spacedkd.trajectory.replay import RecordedPath

# Whether the data is still what a run began with; its folder keeps the classes and a digest in classes.json.

_WAY_OUT = "Put the old data back, or train again in a new folder."


def check_same_data(folder: RunFolder, data: RunData, who: str = "", begins_again: bool = False) -> None:
    """Refuse data that has changed since the run in a folder began; `who` asks, if it is not that run itself.

    A run that begins again may learn from other data, and one line tells that it does. Runs of before there were
    digests are told by their classes and by how many images they have.
    """
    if not folder.classes.exists():
        return
    try:
        changed = _change(folder, data)
    except Linked:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        if begins_again:
            return
        raise UserError(
            f"{folder.classes} cannot be read. Delete it to go on without knowing whether the data is the same."
        ) from None
    if changed is None:
        return
    if not begins_again:
        raise UserError(f"{who}The data of {folder.path} {changed}. {_WAY_OUT}")
    print_notice(f"The data of {folder.path} {changed}. It begins again with the data as it is now.")


def _change(folder: RunFolder, data: RunData) -> str | None:
    """The rest of a sentence."""
    now, before = data.describe(), read_json(folder.classes, within=folder.path)
    if before["classes"] != now["classes"]:
        return _other_classes(before["classes"], now["classes"])
    digest = before.get("digest")
    counts = {part: {"images": count} for part, count in before["items"].items()} if digest is None else digest
    found = {part: {"images": count} for part, count in now["items"].items()} if digest is None else data.digest
    changed = describe_difference(counts, found)
    return None if changed is None else f"has changed since it began: {changed}"


def _other_classes(trained: list[Any], found: list[Any]) -> str:
    then, now = f"{len(trained)} classes", f"{len(found)} classes"
    if len(trained) == len(found):
        then, now = next((str(a["name"]), str(b["name"])) for a, b in zip(trained, found, strict=True) if a != b)
    return f"has other classes than it was trained on: {then} then, {now} now"


# A plan's models, built.


class Networks:
    """Makes the network of any role: the last role has the student's own, all others the teacher's if there is one."""

    def __init__(self, plan: ResolvedRun) -> None:
        self.plan = plan
        self.teacher_was_asked_for = False

    def __call__(
        self,
        role: str,
        *,
        fresh: bool = False,
        frozen: bool = False,
        like: str | None = None,
        spec: NetworkSpec | None = None,
    ) -> nn.Module:
        run, shown, roles = self.plan.spec, self.plan.data.info, self.plan.method.roles
        if spec is None:
            spec = self.plan.network(like or role)
            self.teacher_was_asked_for |= (like or role) != roles[-1]
            make = self.plan.objects.teacher if spec is run.teacher else self.plan.objects.network
        else:
            make = None
        seed = self._seed(role, fresh)
        if not frozen:
            chain = (*self.plan.method.frozen, *roles)
            trained = role in (chain[0], chain[-1])
            return factory.build_network(spec if trained else spec.untrained(), shown, seed, make)
        check_trained(spec, len(shown.classes))
        teacher = factory.build_network(spec, shown, seed, make)
        keep_normalisation(teacher, spec, shown.normalisation)
        return teacher

    def _seed(self, role: str, fresh: bool) -> int:
        # A trained teacher may come from a run with this seed, so a student that is to differ must not start as it did.
        run = self.plan.spec
        trained = (run.teacher or run.network).pretrained
        is_student = role == self.plan.method.roles[-1]
        differs = fresh or not run.same_init
        same = not differs or (is_student and not trained)
        return seed_for(run.seed, "weights") if same else seed_for(run.seed, "weights", role)


@user_code()
def build_models(plan: ResolvedRun) -> dict[str, nn.Module]:
    """Every model of the plan's method, by name."""
    networks, data = Networks(plan), plan.data
    ingredients = Ingredients(
        networks,
        sample=data.info.sample,
        classes=len(data.info.classes),
        images=data.count,
        batch_size=plan.spec.batch_size,
        mixed=data.mixed,
        micro_batches=plan.spec.accumulate,
    )
    with factory.seeded(seed_for(plan.spec.seed, "extra modules")):
        models = plan.method.models(ingredients)
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
    left_out = {learner for role, learner in plan.method.learners.items() if role not in plan.roles}
    kept = {plan.method.learners[role] for role in plan.roles}
    return {name: model for name, model in models.items() if name in kept or name not in left_out}


def _check_last_batch(plan: ResolvedRun, models: dict[str, nn.Module]) -> None:
    """Refuse a last batch that is too small for BatchNorm, where there is one, or for the parts it is computed in."""
    ranks, cut = plan.spec.engine.processes, plan.spec.accumulate
    smallest = stream_of(plan.spec, plan.data, 0, ranks).size(plan.steps_per_epoch - 1)
    parts = (part for model in models.values() for part in model.modules())
    least = 2 if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in parts) else 1
    if smallest < least * ranks and least > 1:
        raise last_batch_error(smallest, "items", plan.spec.batch_size, ranks)
    if smallest < least * ranks * cut:
        norm = ", two for BatchNorm" if least > 1 else ""
        way_out = "--drop-last True or fewer parts" if plan.spec.batch_size >= least * ranks * cut else "fewer parts"
        raise UserError(
            f"The last batch of an epoch has {smallest} images for {ranks * cut} parts (--accumulate {cut} on {ranks} "
            f"device(s)), and each needs one{norm}: use {way_out}."
        )


@contextmanager
def one_thread() -> Iterator[None]:
    """For work that is too small to be shared: threads that wait for each other on busy cores take 36 times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


# A plan's models on its devices: who can learn, who stands still, what moves along, how good they are.


@dataclass(frozen=True)
class Setup:
    """What the loop works with."""

    plan: ResolvedRun
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
                device.broadcast_buffers(module)

    def move_along(self, role: str, step: int, lr: float) -> None:
        """Move what an update moves besides the role's model: the student's average and, by a quirk, all others."""
        learner, spec = self.learner(role), self.plan.spec
        if spec.optimizer.moves_frozen:
            for other in self.learners.values():
                if other is not learner:
                    other.zero_gradient_step(lr)
        if self.average is not None and role == self.plan.roles[-1]:
            assert spec.ema is not None
            update_average(self.average, learner.module, spec.ema, step)


def _keep_statistics(model: nn.Module, keeps: bool) -> None:
    """Whether BatchNorm in train mode remembers the statistics of the batches it sees, where it remembers any."""
    for part in model.modules():
        if isinstance(part, _BatchNorm) and part.running_mean is not None:
            part.__dict__["track_running_stats"] = keeps


@user_code()
def set_up(plan: ResolvedRun, models: dict[str, nn.Module] | None = None) -> Setup:
    """The plan's models on its devices; nothing is written yet."""
    models = build_models(plan) if models is None else models
    spec, method = plan.spec, plan.method
    if spec.teacher_path is not None:
        check_same_data(RunFolder(spec.teacher_path), plan.data, "--teacher-path: ")
    paths = {role: recording.settings(plan, role, models) for role in recording.leaders(plan)}
    followed = {} if spec.teacher_path is None else find_paths(plan, paths)
    if spec.record and not paths.keys() - followed.keys():
        raise UserError("--record: everybody who leads learns elsewhere, by --teacher-path. Leave one of them out.")
    learning = [role for role in plan.roles if role not in followed]
    names = sorted({method.learners[role] for role in learning})
    fabric = device.start_fabric(spec, find_unused_parameters=len(names) < len(learning))
    on_device = fabric.device.type != "cpu" and spec.engine.workers == 0
    data = plan.data.to(fabric.device) if on_device else plan.data
    channels_last = spec.channels_last and not uses_fsdp(fabric)  # which wants weights that can be cut
    samples = data.samples()
    channels_last &= all(supports_channels_last(m, fabric.device, samples, spec.precision) for m in models.values())
    if channels_last:
        models = {name: model.to(memory_format=torch.channels_last) for name, model in models.items()}  # type: ignore[call-overload]
    for model in models.values():
        patch_strided_convolutions(model, fabric.device, spec.precision)
    if spec.sync_batchnorm and fabric.world_size > 1:
        for name in names:
            synchronize_batch_norm(models[name])
    own_lr = is_user_code(spec.optimizer.name) and not is_user_code(spec.rate.shape)
    average = None
    if spec.ema is not None:  # from the weights as they are in the run's precision
        average = fabric.strategy.precision.convert_module(deepcopy(models[plan.student]))
    learners = {name: Learner(fabric, models[name], spec.optimizer, plan.objects.optimizer, own_lr) for name in names}
    if spec.optimizer.moves_frozen and any(learner.needs_closure for learner in learners.values()):
        raise UserError("moves_frozen gives others a step without losses: it needs an optimizer of torch's or timm's.")
    elsewhere = {method.learners[role] for role in followed}
    ready = {}
    for name, model in models.items():
        add = device.setup_replayed if name in elsewhere else device.setup_frozen
        ready[name] = learners[name].model if name in learners else add(fabric, model)
    if average is not None:
        ready["average"] = device.setup_frozen(fabric, average)
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
        device.broadcast_buffers(module)
    heads: tuple[str, ...] = module.head_names  # type: ignore[assignment]
    scores, wrong = {}, {}
    for part, items in setup.data.evaluated_splits().items():
        rows = torch.arange(fabric.global_rank, len(items), fabric.world_size)
        mine = items if fabric.world_size == 1 else items.subset(rows)
        shown = evaluation_batches(
            mine, _batch_size(spec.batch_size, len(items), fabric.world_size), spec.engine.workers
        )
        moved = (batch.to(fabric.device, setup.channels_last) for batch in shown)
        names, counts = count(model, heads, moved)
        right, undefined = fabric.all_reduce(counts, reduce_op="sum").tolist()  # type: ignore[union-attr]
        scores[part] = {head: total / len(items) for head, total in zip(names, right, strict=True)}
        wrong[part] = dict(zip(names, undefined, strict=True))
    module.train(was_training)
    if name is not None:
        for part, undefined in wrong.items():
            _check_defined(setup.data.evaluated_splits()[part], part, undefined, name)
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
