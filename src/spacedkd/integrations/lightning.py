"""Spaced KD as two runs of Lightning: the teacher's run saves snapshots, the student's run has them as its teacher.

    spacing = Spacing("runs/teacher", every=30)
    Trainer(max_steps=600, callbacks=[spacing.lightning.teacher(part="network")])
    Trainer(max_steps=600, callbacks=[spacing.lightning.student(make_network)])

A step is an update: Lightning's `global_step`, so accumulated gradients need nothing more. In manual optimisation
`global_step` counts the steps of all optimizers, and an update is a batch after which at least one of them has stepped.
Both callbacks keep that count and the states of all random generators in Lightning's checkpoints, so that `ckpt_path`
gives the bits of a run that was never stopped. In the student's `training_step` the teacher is called like any network:
`self.teacher(x)`; it goes neither into checkpoints nor into hyperparameters.
"""

import math
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any

from torch import distributed

from spacedkd.data.dataloader import SeededBatchSampler, SeededLoader
from spacedkd.integrations.spacing import Spacing, TrainerRun, generator_states, set_generator_states
from spacedkd.runtime.errors import UserError, install_command
from spacedkd.trajectory.snapshot_teacher import SnapshotTeacher

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.utilities import CombinedLoader
except ModuleNotFoundError:
    try:
        from pytorch_lightning import Callback, LightningModule, Trainer  # the same under its older name
        from pytorch_lightning.utilities import CombinedLoader
    except ModuleNotFoundError as error:
        raise UserError(
            f"spacedkd.integrations.lightning needs Lightning ({error}): {install_command('lightning')}"
        ) from None


SPREADING = ("DeepSpeedStrategy", "FSDPStrategy", "ModelParallelStrategy")
"""strategies under which no process has whole weights"""


STATE = "spacedkd"
"""key of the state of `ResumableCallback` in Lightning's checkpoints"""


BATCH, LAST_BATCH, EPOCH = "batch", "last batch", "epoch"
"""time at which a checkpoint was saved: after a batch within an epoch, its last batch, or the end of the epoch"""


class ResumableCallback(Callback):
    """Counts the updates of a run, and keeps their number and all generators' states in Lightning's checkpoints.

    Lightning restores no random generator, so a network with dropout would have other masks after a resume.
    """

    def __init__(self) -> None:
        self._updates = self._global_step = 0
        self._epoch_is_over = False
        self._resumed: Mapping[str, Any] | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._resumed = None

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: Mapping[str, Any]) -> None:
        if trainer.state.fn == "fit":
            self._resumed = checkpoint.get(STATE)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # From here Lightning iterates the loader once, and a plain loader draws a seed. After a checkpoint of the last
        # batch of an epoch that is the loader of the next epoch, which is not iterated again.
        if self._resumed is not None and self._resumed["saved after"] == LAST_BATCH:
            self._restore_generators(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _check_shared_out(trainer)
        if self._resumed is not None:
            self._updates = self._resumed["updates"]
        elif trainer.global_step == 0:
            self._updates = 0
        elif trainer.global_step != self._global_step and not pl_module.automatic_optimization:
            raise UserError(
                f"In manual optimisation global_step={trainer.global_step} does not say how many updates were made, "
                f"and the checkpoint was saved without {type(self).__name__}. Start without a "
                "checkpoint, or from one that has it."
            )
        self._global_step = trainer.global_step
        # After a checkpoint of an epoch's end the loader that Lightning has just iterated is that of the epoch that is
        # over. The next one is iterated later, so the draws of now must not count.
        if self._resumed is not None and self._resumed["saved after"] != LAST_BATCH:
            self._restore_generators(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._epoch_is_over = False
        if self._resumed is not None:
            if self._resumed["saved after"] == BATCH:  # where a run that was never stopped iterates no loader
                self._restore_generators(trainer)
            self._resumed = None

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self.updates(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epoch_is_over = True

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if STATE not in checkpoint:  # another callback has not put it there
            checkpoint[STATE] = {
                "updates": self.updates(trainer, pl_module),
                "saved after": EPOCH if self._epoch_is_over else LAST_BATCH if trainer.is_last_batch else BATCH,
                "generators": _of_all_processes(generator_states(trainer.strategy.root_device)),
            }

    def updates(self, trainer: Trainer, pl_module: LightningModule) -> int:
        """Return how many updates the run has made, the batch that has just been learned included."""
        if pl_module.automatic_optimization:
            return int(trainer.global_step)
        if trainer.global_step > self._global_step:  # by one or more, as many optimizers as have stepped
            self._global_step = trainer.global_step
            self._updates += 1
        return self._updates

    def _restore_generators(self, trainer: Trainer) -> None:
        """Set the generators to the states of a checkpoint, if as many processes saved it as there are now."""
        if self._resumed is not None and len(self._resumed["generators"]) == trainer.world_size:
            set_generator_states(self._resumed["generators"][trainer.global_rank], trainer.strategy.root_device)


def _of_all_processes(state: Any) -> list[Any]:
    """Return the state of every process, in their order; Lightning saves on all of them at once, the first writes."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return [state]
    states = [None] * distributed.get_world_size()
    distributed.all_gather_object(states, state)
    return states


def _check_shared_out(trainer: Trainer) -> None:
    """Refuse seeded batches of which several processes would not get the slices that the strategy gives them."""
    if trainer.world_size == 1:
        return
    expected = trainer.distributed_sampler_kwargs or {}
    parallel = expected.get("num_replicas", trainer.world_size), expected.get("rank", trainer.global_rank)
    for loader in CombinedLoader(trainer.train_dataloader, "sequential").flattened:
        sampler = getattr(loader, "batch_sampler", None)
        if not isinstance(sampler, SeededBatchSampler) or sampler.rank_is_given:
            continue
        if not isinstance(loader, SeededLoader) or parallel != (trainer.world_size, trainer.global_rank):
            raise UserError(
                f"{trainer.world_size} processes need to know which slice of a seeded batch each of them gets: give "
                f"{type(loader).__name__}'s sampler rank={parallel[1]} and ranks={parallel[0]} in this process, or "
                "rank=0, ranks=1 for whole batches everywhere."
            )


def _training(trainer: Trainer, pl_module: LightningModule) -> TrainerRun:
    """Return the length and the batches of a run; in manual optimisation updates are not known before they are made."""
    total, batches = trainer.estimated_stepping_batches, trainer.num_training_batches
    loaders = CombinedLoader(trainer.train_dataloader, "sequential").flattened
    accumulate = trainer.accumulate_grad_batches
    is_total_known = pl_module.automatic_optimization and 0 <= total < math.inf
    return TrainerRun(
        int(total) if is_total_known else None,
        math.ceil(batches / accumulate) if batches < math.inf else None,
        loaders[0] if loaders else None,
        accumulate,
    )


class SnapshotCallback(ResumableCallback):
    """Saves the snapshots of a teacher's run at their interval of updates, and after the last update.

    `part` names the network inside of the LightningModule, "network" for `self.network`; all of it if empty.
    """

    def __init__(self, spacing: Spacing, part: str = "") -> None:
        super().__init__()
        self.spacing, self.part = spacing, part
        self._seen = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if (strategy := type(trainer.strategy).__name__) in SPREADING:
            raise UserError(f"{strategy} spreads the weights that a snapshot must hold whole: use strategy='ddp'.")
        self._network(pl_module)  # refuse a wrong name before anything is trained
        super().on_train_start(trainer, pl_module)
        self._seen = self.updates(trainer, pl_module)
        if trainer.fast_dev_run:  # a trial of a few batches, which leaves no files
            self._seen = sys.maxsize
            return
        self.spacing.start_teacher(_training(trainer, pl_module), self._seen)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(trainer, pl_module)
        if trainer.fit_loop.total_batch_idx == 0 and not trainer.fast_dev_run:
            self.spacing.see_first_batch(batch)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        updates = self.updates(trainer, pl_module)
        if updates > self._seen:  # not a batch whose gradients are kept for the next one
            self._seen = updates
            self.spacing.snapshots.after(updates, self._network(pl_module))

    def state_dict(self) -> dict[str, Any]:
        """Return the average so far, where snapshots are averaged, for Lightning's checkpoint."""
        return self.spacing.snapshots.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with the average of a checkpoint."""
        self.spacing.snapshots.load_state_dict(state_dict)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.fast_dev_run:
            return
        updates = self.updates(trainer, pl_module)
        self.spacing.snapshots.save(updates, self._network(pl_module))
        self.spacing.end_teacher(updates)

    def _network(self, pl_module: LightningModule) -> Any:
        try:
            return pl_module.get_submodule(self.part)
        except AttributeError:
            parts = ", ".join(name for name, _ in pl_module.named_children())
            raise UserError(f"{type(pl_module).__name__} has no part {self.part!r}; it has: {parts}.") from None


class TeacherCallback(ResumableCallback):
    """Gives the teacher of a student's run the weights of the step before every batch, as `pl_module.teacher`.

    In validation it has the weights of the last step that was learned; before the first step, those of that one.
    """

    def __init__(self, spacing: Spacing, network: Any = None, **options: Any) -> None:
        """Make the teacher when the run starts; without a network it is the one `spacing.teacher(...)` has made."""
        super().__init__()
        self.spacing, self.teacher = spacing, None if network is not None else next(iter(spacing.teachers), None)
        self._network, self._options = network, options

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage != "fit":
            return
        if self.teacher is None:
            self.teacher = self.spacing.teacher(self._network, **self._options)
        before = getattr(pl_module, "teacher", None)
        if before is None:
            pl_module.teacher = self.teacher
            pl_module.__dict__["teacher"] = self.teacher  # a class attribute `teacher = None` would hide a submodule
        elif not isinstance(before, SnapshotTeacher):
            raise UserError(
                f"{type(pl_module).__name__}.teacher is a {type(before).__name__} already, and the teacher of spaced "
                "KD goes there: give it another name."
            )
        elif self._network is not None and before is not self.teacher:
            raise UserError(
                f"{type(pl_module).__name__} has a teacher already: call spacing.lightning.student() without a network."
            )
        # `save_hyperparameters()` has taken the teacher for one: it would be pickled into every checkpoint, which could
        # not be read again without running code. Loggers are told the hyperparameters as they were at first.
        for name in ("_hparams", "_hparams_initial"):
            _forget_teachers(getattr(pl_module, name, None))

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_fit_start(trainer, pl_module)
        for teacher in self.spacing.teachers:
            teacher.to(pl_module.device)
            # Its network is in eval mode for ever; Lightning warns of parts that say so when training starts.
            teacher.training = True

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != "fit":
            return
        updates = self.updates(trainer, pl_module) if self._resumed is None else self._resumed["updates"]
        if trainer.sanity_checking:  # the run starts after it
            self.spacing.start_student(_training(trainer, pl_module), updates)
        self._seek(max(updates - 1, 0), pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self.spacing.start_student(_training(trainer, pl_module), self.updates(trainer, pl_module))

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(trainer, pl_module)
        if trainer.fit_loop.total_batch_idx == 0:
            self.spacing.see_first_batch(batch)
        self._seek(self.updates(trainer, pl_module), pl_module)

    def _seek(self, step: int, pl_module: LightningModule) -> None:
        total = self.spacing.total
        if total is not None and not pl_module.automatic_optimization:
            step = min(step, total - 1)  # batches after the last update, in manual optimisation
        self.spacing.seek(step)


class LightningCallbacks:
    """The callbacks of a `Spacing` for Lightning's Trainer."""

    def __init__(self, spacing: Spacing) -> None:
        self._spacing = spacing

    def teacher(self, part: str = "") -> SnapshotCallback:
        """Return the callback of the teacher's run, which saves `part` of the LightningModule, or all of it."""
        return SnapshotCallback(self._spacing, part)

    def student(self, network: Any = None, **options: Any) -> TeacherCallback:
        """Return the callback of the student's run, which makes `pl_module.teacher`.

        `network` and `options` are those of `Spacing.teacher`. A module that has its teacher already, made by
        `spacing.teacher(...)`, needs none.
        """
        return TeacherCallback(self._spacing, network, **options)


def _forget_teachers(hyperparameters: Any) -> None:
    """Remove every SnapshotTeacher from a module's hyperparameters."""
    if isinstance(hyperparameters, MutableMapping):
        for name in [name for name, value in hyperparameters.items() if isinstance(value, SnapshotTeacher)]:
            del hyperparameters[name]
