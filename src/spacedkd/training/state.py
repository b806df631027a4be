"""The state of training: the models of a run on its devices, with optimizers, data and replayed trajectories."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spacedkd.averages import STUDENT_AVERAGE
from spacedkd.config.resolve import ResolvedRun, make_stream
from spacedkd.data.inputs import Inputs
from spacedkd.data.run_data import RunData, describe_difference
from spacedkd.data.stream import Stream, View, batches
from spacedkd.models.batch_norm import recompute_batch_norm
from spacedkd.models.pretrained import move_average
from spacedkd.runs.folder import RunFolder
from spacedkd.runs.schema import ClassesDocument, ClassName, read_checked
from spacedkd.runtime.errors import Damaged, UserError
from spacedkd.runtime.processes import print_notice
from spacedkd.runtime.user_code import is_user_code, user_code
from spacedkd.training import device
from spacedkd.training.build import build_models
from spacedkd.training.device import compile_blocks, patch_strided_convolutions, supports_channels_last
from spacedkd.training.distributed import Fabric, broadcast_buffers, synchronize_batch_norm, uses_fsdp
from spacedkd.training.learner import Learner, set_mode
from spacedkd.trajectory.identity import find_averages, find_trajectories, shared_roles, trajectory_settings
from spacedkd.trajectory.replay import RecordedTrajectory
from spacedkd.trajectory.store import Settings

BATCH_NORM_BATCHES = 20
"""from which BatchNorm's statistics of an average are recomputed"""


@dataclass(frozen=True)
class TrainingState:
    """The models of a run on its devices, and all that an update works with."""

    run: ResolvedRun
    fabric: Fabric
    data: RunData
    stream: Stream
    models: dict[str, nn.Module]
    """all models by name, wrapped as they are called now: to learn, or frozen"""
    learners: dict[str, Learner]
    """each model that learns here, with its optimizer"""
    trajectories: Mapping[str, Settings]
    """role -> what its weights depend on, for roles that are recorded or replayed"""
    replayed: dict[str, RecordedTrajectory]
    """role -> its recorded trajectory, for roles that do not learn here"""
    replayed_averages: dict[str, RecordedTrajectory]
    """role -> the recorded averages of its weights, where others see those"""
    channels_last: bool
    frozen: Mapping[str, nn.Module]
    """models that no optimizer updates here: those of replayed roles, memory, averages of weights"""

    @property
    def average(self) -> nn.Module | None:
        """The average of the student's weights, if one is kept."""
        return self.frozen.get(STUDENT_AVERAGE) if STUDENT_AVERAGE in self.run.averages else None

    @property
    def trained(self) -> Sequence[str]:
        """The roles that learn here."""
        return [role for role in self.run.roles if role not in self.replayed]

    def learner(self, role: str) -> Learner:
        """Return the model that a role updates, with its optimizer."""
        return self.learners[self.run.method.learners[role]]

    def modules(self) -> dict[str, nn.Module]:
        """Return the models as they are saved: without the wrappers of devices and precision."""
        learned = {name: learner.module for name, learner in self.learners.items()}
        return {name: learned[name] if name in learned else self.frozen[name] for name in self.models}

    def activate(self, role: str) -> None:
        """Let the role's model learn from here on, and freeze every other one."""
        learner, mode = self.learner(role), self.run.spec.frozen_mode
        for name, other in self.learners.items():
            self.models[name] = other.model if other is learner else other.frozen
        for teacher in self.run.roles[:-1]:
            average = self.run.average_seen(teacher)
            if average is not None and teacher != role:
                self.models[self.run.method.learners[teacher]] = self.frozen[average]
        for model in self.models.values():
            if model is not learner.model:
                set_mode(model, mode != "eval")
            if mode == "shared":
                _keep_statistics(model, model is learner.model)
        set_mode(learner.model, True)

    def moves_student(self, role: str) -> bool:
        """Return whether turns of this role, which is not the student's, may change the student's model too."""
        spec, shared = self.run.spec, self.run.method.learners[role] == self.run.student
        may_move = shared or spec.optimizer.moves_frozen or spec.frozen_mode == "train"
        return role != self.run.roles[-1] and may_move

    def share_frozen(self, previous: str) -> None:
        """Broadcast the first rank's BatchNorm statistics of the model that has stopped learning, and of copies.

        Ranks have seen other parts of each batch. Memory has no parameters and is equal on all ranks already.
        """
        if self.fabric.world_size == 1:
            return
        stopped = self.run.method.learners.get(previous)
        for name, module in self.modules().items():
            if name == stopped or (name not in self.learners and any(True for _ in module.parameters())):
                broadcast_buffers(module)

    def update_others(self, role: str, step: int, lr: float) -> None:
        """Update what changes with a role's model: the student's average and, with `moves_frozen`, all others."""
        learner, spec = self.learner(role), self.run.spec
        if spec.optimizer.moves_frozen:
            for other in self.learners.values():
                if other is not learner:
                    other.zero_gradient_step(lr)
        for name, average in self.run.averages.items():
            if average.role == role:
                move_average(self.frozen[name], learner.module, average.share(step))
        if role != self.run.roles[-1] and step == self.run.last_step[role]:
            self.refresh_averages(role)  # so that what is saved at the end is what others were shown

    def refresh_averages(self, role: str) -> None:
        """Recompute BatchNorm's statistics of the averages of a role's weights, where the run recomputes them."""
        for name, average in self.run.averages.items():
            if average.role == role and average.batch_norm == "recompute" and role not in self.replayed:
                model = self.frozen[name]
                recompute_batch_norm(model, model, self._first_inputs(), self._mean_of_processes)

    def _mean_of_processes(self, statistic: Tensor) -> Tensor:
        mean: Tensor = self.fabric.all_reduce(statistic, reduce_op="mean")  # type: ignore[assignment]
        return mean

    def _first_inputs(self) -> Iterator[Inputs]:
        """Yield the inputs of the first batches of the run, which are the same whenever they are asked for."""
        views = ([View(step)] for step in range(min(BATCH_NORM_BATCHES, self.run.steps_per_epoch)))
        for batch in batches(self.stream, views, self.run.spec.engine.workers):
            yield batch.to(self.fabric.device, self.channels_last).inputs


def _keep_statistics(model: nn.Module, keeps: bool) -> None:
    """Set whether BatchNorm in train mode updates its running statistics, where it has any."""
    for part in model.modules():
        if isinstance(part, _BatchNorm) and part.running_mean is not None:
            part.__dict__["track_running_stats"] = keeps


@user_code()
def build_state(run: ResolvedRun, models: dict[str, nn.Module] | None = None) -> TrainingState:
    """Build the models of a run and move them to its devices; nothing is written yet."""
    models = build_models(run) if models is None else models
    spec, method = run.spec, run.method
    if spec.teacher_path is not None:
        check_same_data(RunFolder(spec.teacher_path), run.data, "--teacher-path: ")
    trajectories = {role: trajectory_settings(run, role, models) for role in shared_roles(run)}
    replayed = {} if spec.teacher_path is None else find_trajectories(run, trajectories)
    replayed_averages = find_averages(run, trajectories, replayed)
    if spec.record and not trajectories.keys() - replayed.keys():
        raise UserError(
            "--record has nothing to record: --teacher-path replays every teacher. Leave one of the two out."
        )
    learning = [role for role in run.roles if role not in replayed]
    names = sorted({method.learners[role] for role in learning})
    fabric = device.start_fabric(spec, find_unused_parameters=len(names) < len(learning))
    on_device = fabric.device.type != "cpu" and spec.engine.workers == 0
    data = run.data.to(fabric.device) if on_device else run.data
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
    # From the weights as they are in the run's precision.
    averages = {
        name: fabric.strategy.precision.convert_module(deepcopy(models[method.learners[average.role]]))
        for name, average in run.averages.items()
        if average.role in learning or name == run.average_seen(average.role)
    }
    learners = {name: Learner(fabric, models[name], spec.optimizer, run.objects.optimizer, own_lr) for name in names}
    if spec.optimizer.moves_frozen and any(learner.needs_closure for learner in learners.values()):
        raise UserError("moves_frozen gives others a step without losses: it needs an optimizer of torch's or timm's.")
    elsewhere = {method.learners[role] for role in replayed}
    ready = {}
    for name, model in models.items():
        add = device.setup_replayed if name in elsewhere else device.setup_frozen
        ready[name] = learners[name].model if name in learners else add(fabric, model)
    ready |= {name: device.setup_frozen(fabric, average) for name, average in averages.items()}
    frozen = {name: model for name, model in ready.items() if name not in learners}
    if spec.engine.compile:
        compile_blocks(models.values(), fabric.device)
    return TrainingState(
        run=run,
        fabric=fabric,
        data=data,
        stream=make_stream(spec, data, fabric.global_rank, fabric.world_size),
        models=ready,
        learners=learners,
        trajectories=trajectories,
        replayed=replayed,
        replayed_averages=replayed_averages,
        channels_last=channels_last,
        frozen=frozen,
    )


# The data of a run must stay what it was: classes.json in its folder has the classes and a digest.

_WAY_OUT = "Restore the old data, or train in a new folder."


def check_same_data(folder: RunFolder, data: RunData, who: str = "", restart: bool = False) -> None:
    """Refuse data that has changed since the run in a folder began; `who` asks, if it is not that run itself.

    With `restart` other data is allowed, and one line says so. Runs of earlier versions have no digest; they are
    compared by their classes and their number of images.
    """
    if not folder.classes.exists():
        return
    way_out = "Delete it to continue without knowing whether the data is the same."
    try:
        before = read_checked(folder.classes, ClassesDocument, within=folder.path, way_out=way_out)
    except Damaged:
        if restart:
            return
        raise
    changed = _change(before, data)
    if changed is None:
        return
    if not restart:
        raise UserError(f"{who}The data of {folder.path} {changed}. {_WAY_OUT}")
    print_notice(f"The data of {folder.path} {changed}. The run restarts with the data as it is now.")


def _change(before: ClassesDocument, data: RunData) -> str | None:
    """Return how the data differs from what it was, as the end of a sentence, or None where it does not."""
    now = data.describe()
    if before["classes"] != now["classes"]:
        return _other_classes(before["classes"], now["classes"])
    digest = before.get("digest")
    counts = {part: {"images": count} for part, count in before["items"].items()} if digest is None else digest
    counts_now = {part: {"images": count} for part, count in now["items"].items()} if digest is None else data.digest
    changed = describe_difference(counts, counts_now)
    return None if changed is None else f"has changed since it began: {changed}"


def _other_classes(trained: Sequence[ClassName], given: Sequence[ClassName]) -> str:
    then, now = f"{len(trained)} classes", f"{len(given)} classes"
    if len(trained) == len(given):
        then, now = next((str(a["name"]), str(b["name"])) for a, b in zip(trained, given, strict=True) if a != b)
    return f"has other classes than it was trained on: {then} then, {now} now"
