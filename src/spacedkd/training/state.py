"""The state of training: the models of a run on its devices, with optimizers, data and replayed trajectories."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from spacedkd.models.freezing import set_mode
from spacedkd.models.pretrained import move_average
from spacedkd.runs.folder import RunFolder
from spacedkd.runs.schema import ClassesDocument, ClassName, read_checked
from spacedkd.runtime.errors import Damaged, UserError
from spacedkd.runtime.processes import print_notice
from spacedkd.runtime.user_code import is_user_code, user_code
from spacedkd.training import device
from spacedkd.training.build import build_models
from spacedkd.training.device import (
    compile_blocks,
    patch_strided_convolutions,
    set_plain_attention,
    supports_channels_last,
)
from spacedkd.training.distributed import Fabric, broadcast_buffers, synchronize_batch_norm, uses_fsdp
from spacedkd.training.learner import Learner, LossScaler
from spacedkd.trajectory.cached_teacher import (
    CachedTeacher,
    CachingTeacher,
    RunTargets,
    open_cached_teacher,
    teacher_of,
    uses_targets,
)
from spacedkd.trajectory.identity import find_averages, find_trajectories, shared_roles, trajectory_settings
from spacedkd.trajectory.replay import RecordedTrajectory
from spacedkd.trajectory.store import Settings

BATCH_NORM_BATCHES = 20
"""number of batches that BatchNorm's statistics of an average are recomputed from"""


@dataclass(frozen=True)
class TrainingState:
    """The models of a run on its devices, and everything else that an update needs."""

    run: ResolvedRun
    fabric: Fabric
    data: RunData
    stream: Stream
    models: dict[str, nn.Module]
    """all models by name, wrapped for the current turn: to learn, or frozen"""
    learners: dict[str, Learner]
    """each model that learns here, with its optimizer"""
    trajectories: Mapping[str, Settings]
    """role -> settings that determine its weights, for roles that are recorded or replayed"""
    replayed: dict[str, RecordedTrajectory]
    """role -> its recorded trajectory, for roles that do not learn here"""
    replayed_averages: dict[str, RecordedTrajectory]
    """role -> recorded averages of its weights, if other roles see the average in its place"""
    channels_last: bool
    frozen: Mapping[str, nn.Module]
    """models that no optimizer updates here: those of replayed roles, memory, averages of weights"""
    teacher_outputs: CachingTeacher | CachedTeacher | None = None
    """the module in the place of the student's teacher, where its outputs are cached or are read from a cache"""

    @property
    def average(self) -> nn.Module | None:
        """The average of the student's weights, if one is kept."""
        return self.frozen.get(STUDENT_AVERAGE) if STUDENT_AVERAGE in self.run.averages else None

    @property
    def cached_teacher(self) -> CachedTeacher | None:
        """The module that answers from a cache in the teacher's place, if the run reads its targets."""
        return self.teacher_outputs if isinstance(self.teacher_outputs, CachedTeacher) else None

    @property
    def trained(self) -> Sequence[str]:
        """The roles that learn here."""
        return [role for role in self.run.roles if role not in self.replayed]

    def learner(self, role: str) -> Learner:
        """Return the model that a role updates, with its optimizer."""
        return self.learners[self.run.method.learners[role]]

    def scalers(self) -> dict[str, LossScaler]:
        """Return the loss scaler of every model that learns in 16-mixed; none in other precisions."""
        return {name: learner.scaler for name, learner in self.learners.items() if learner.scaler is not None}

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
            if average is not None and teacher != role and average in self.frozen:
                self.models[self.run.method.learners[teacher]] = self.frozen[average]
        for model in self.models.values():
            if model is not learner.model:
                set_mode(model, mode != "eval")
            if mode == "shared":
                _keep_statistics(model, model is learner.model)
        set_mode(learner.model, True)
        if self.teacher_outputs is not None and role == self.run.roles[-1]:
            name = self.teacher_outputs.model_name
            self.models[name] = self.teacher_outputs.around(self.models[name])

    def moves_student(self, role: str) -> bool:
        """Return whether turns of this role, which is not the student's, may change the student's model too."""
        spec, shared = self.run.spec, self.run.method.learners[role] == self.run.student
        may_move = shared or spec.optimizer.moves_frozen or spec.frozen_mode == "train"
        return role != self.run.roles[-1] and may_move

    def share_frozen(self, previous: str) -> None:
        """Broadcast the first rank's BatchNorm statistics of the model that has stopped learning, and of copies.

        They differ, because each rank has seen another part of each batch. A memory has no parameters and is equal on
        all ranks already.
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
            self.refresh_averages(role)  # so that the saved average is the one that other roles saw

    def refresh_averages(self, role: str, only: str | None = None) -> None:
        """Recompute BatchNorm's statistics of the averages of a role's weights, where the run recomputes them.

        With `only` a name, those of that average alone.
        """
        for name, average in self.run.averages.items():
            if average.role != role or only not in (None, name):
                continue
            if average.batch_norm == "recompute" and role not in self.replayed:
                model = self.frozen[name]
                recompute_batch_norm(model, model, self._first_inputs(), self._mean_of_processes)

    def _mean_of_processes(self, statistic: Tensor) -> Tensor:
        mean: Tensor = self.fabric.all_reduce(statistic, reduce_op="mean")  # type: ignore[assignment]
        return mean

    def _first_inputs(self) -> Iterator[Inputs]:
        """Yield the inputs of the first batches of the run; they are the same at every call."""
        view_lists = ([View(step)] for step in range(min(BATCH_NORM_BATCHES, self.run.steps_per_epoch)))
        for batch in batches(self.stream, view_lists, self.run.workers):
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
    if uses_targets(run):
        teacher_of(run)  # a run whose targets cannot be cached is refused in those words
    trajectories, replayed, replayed_averages = _find_trajectories(run, models)
    learning = [role for role in run.roles if role not in replayed]
    learned = sorted({run.method.learners[role] for role in learning})

    fabric = device.start_fabric(run.spec, find_unused_parameters=len(learned) < len(learning))
    data = _place_data(run, fabric)
    channels_last = _use_channels_last(run, models, fabric, data)
    models = _prepare_networks(run, models, fabric, learned=learned, channels_last=channels_last)
    teacher_outputs = _teacher_outputs(run, models, trajectories, fabric)
    if isinstance(teacher_outputs, CachedTeacher):
        models = models | {teacher_outputs.model_name: teacher_outputs}  # the teacher itself is let go

    averages = _copy_averages(run, models, fabric, learning)  # before the models are wrapped
    learners = _make_learners(run, models, fabric, learned)
    wrapped = _wrap(run, models | averages, fabric, learners=learners, replayed=replayed)
    if run.spec.engine.compile:
        compile_blocks(models.values(), fabric.device)
    return TrainingState(
        run=run,
        fabric=fabric,
        data=data,
        stream=make_stream(run.spec, data, fabric.global_rank, fabric.world_size),
        models=wrapped,
        learners=learners,
        trajectories=trajectories,
        replayed=replayed,
        replayed_averages=replayed_averages,
        channels_last=channels_last,
        teacher_outputs=teacher_outputs,
        frozen={name: model for name, model in wrapped.items() if name not in learners},
    )


def _find_trajectories(
    run: ResolvedRun, models: Mapping[str, nn.Module]
) -> tuple[dict[str, Settings], dict[str, RecordedTrajectory], dict[str, RecordedTrajectory]]:
    """Return the settings of shared roles, the trajectories of replayed roles, and those of their averages."""
    spec = run.spec
    if spec.teacher_path is not None:
        check_same_data(RunFolder(spec.teacher_path), run.data, "--teacher-path: ")
    settings: dict[str, Settings] = {role: trajectory_settings(run, role, models) for role in shared_roles(run)}
    replayed = {} if spec.teacher_path is None else find_trajectories(run, settings)
    averages = find_averages(run, settings, replayed)
    if spec.record and not settings.keys() - replayed.keys():
        raise UserError(
            "--record has nothing to record: --teacher-path replays every teacher. Leave one of the two out."
        )
    return settings, replayed, averages


def _teacher_outputs(
    run: ResolvedRun, models: Mapping[str, nn.Module], trajectories: Mapping[str, Settings], fabric: Fabric
) -> CachingTeacher | CachedTeacher | None:
    """Return the module that caches the outputs of the student's teacher, or has them from a cache; None for neither.

    The settings of the targets are computed from the models as they are built, so they are compared before the teacher
    of a student that reads its targets is let go.
    """
    if not uses_targets(run):
        return None
    run_targets = RunTargets.of(run, models, trajectories)
    if run.spec.targets_path is None:
        return CachingTeacher(run_targets, run)
    check_same_data(RunFolder(run.spec.targets_path), run.data, "--targets-path: ")
    return open_cached_teacher(run_targets, run, fabric.global_rank, fabric.device)


def _place_data(run: ResolvedRun, fabric: Fabric) -> RunData:
    """Return the run's data on the device, or in the host's memory, where workers prepare batches."""
    on_device = fabric.device.type != "cpu" and run.workers == 0
    return run.data.to(fabric.device) if on_device else run.data


def _use_channels_last(run: ResolvedRun, models: Mapping[str, nn.Module], fabric: Fabric, data: RunData) -> bool:
    """Return whether all models can have the memory layout channels_last, and the spec wants it."""
    samples, precision = data.samples(), run.spec.precision
    wanted = run.spec.channels_last and not uses_fsdp(fabric)  # FSDP shards weights and does not accept this layout
    return wanted and all(supports_channels_last(model, fabric.device, samples, precision) for model in models.values())


def _prepare_networks(
    run: ResolvedRun, models: dict[str, nn.Module], fabric: Fabric, *, learned: Sequence[str], channels_last: bool
) -> dict[str, nn.Module]:
    """Set the layout and the attention of networks, replace slow convolutions, share BatchNorm of those that learn."""
    if channels_last:
        models = {name: model.to(memory_format=torch.channels_last) for name, model in models.items()}  # type: ignore[call-overload]
    for model in models.values():
        patch_strided_convolutions(model, fabric.device, run.spec.precision)
    if run.spec.attention == "plain":
        set_plain_attention(models.values())
    if run.spec.sync_batchnorm and fabric.world_size > 1:
        for name in learned:
            synchronize_batch_norm(models[name])
    return models


def _copy_averages(
    run: ResolvedRun, models: Mapping[str, nn.Module], fabric: Fabric, learning: Sequence[str]
) -> dict[str, nn.Module]:
    """Return the averages of weights as they start: copies of the models, in the run's precision."""
    return {
        name: fabric.strategy.precision.convert_module(deepcopy(models[run.method.learners[average.role]]))
        for name, average in run.averages.items()
        if average.role in learning or (name == run.average_seen(average.role) and run.spec.targets_path is None)
    }


def _make_learners(
    run: ResolvedRun, models: Mapping[str, nn.Module], fabric: Fabric, learned: Sequence[str]
) -> dict[str, Learner]:
    """Return each model that learns here with its optimizer."""
    spec = run.spec
    own_lr = is_user_code(spec.optimizer.name) and not is_user_code(spec.rate.shape)
    learners = {name: Learner(fabric, models[name], spec.optimizer, run.objects.optimizer, own_lr) for name in learned}
    if spec.optimizer.moves_frozen and any(learner.needs_closure for learner in learners.values()):
        raise UserError("moves_frozen cannot be combined with an optimizer that computes losses again (SAM, LBFGS).")
    return learners


def _wrap(
    run: ResolvedRun,
    models: Mapping[str, nn.Module],
    fabric: Fabric,
    *,
    learners: Mapping[str, Learner],
    replayed: Iterable[str],
) -> dict[str, nn.Module]:
    """Return all models as they are called: those that learn from their learners, all others frozen."""
    replayed_models = {run.method.learners[role] for role in replayed}
    wrapped: dict[str, nn.Module] = {}
    for name, model in models.items():
        if isinstance(model, CachedTeacher):
            wrapped[name] = model
            continue
        set_up = device.setup_replayed if name in replayed_models else device.setup_frozen
        wrapped[name] = learners[name].model if name in learners else set_up(fabric, model)
    return wrapped


# The data of a run must not change: classes.json in its folder has the classes and a digest.

_WAY_OUT = "Restore the old data, or train in a new folder."


def check_same_data(folder: RunFolder, data: RunData, who: str = "", restart: bool = False) -> None:
    """Refuse data that has changed since the run in a folder began; the message starts with `who`.

    With `restart` other data is allowed, and a notice names the change. Runs of earlier versions have no digest; they
    are compared by their classes and their number of images.
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
    """Return how the data has changed, as the end of a sentence; None if it has not."""
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
