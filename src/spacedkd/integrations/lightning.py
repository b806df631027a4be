"""Spaced KD as two runs of Lightning: a teacher's that leaves snapshots, and a student's whose teacher is one of them.

    Trainer(max_steps=600, callbacks=[SnapshotCallback(Snapshots("runs/teacher", every=30), part="network")])

    teacher = SnapshotTeacher("runs/teacher", interval=30, network=make_network, total=600)
    Trainer(max_steps=600, callbacks=[TeacherCallback(teacher)])

Both runs have one optimizer and automatic optimisation. Steps are Lightning's `global_step`, which counts updates, so
accumulated gradients, several processes and `ckpt_path` need nothing more. In the student's `training_step` the teacher
is called like any network: `self.teacher(x)`.
"""

from typing import Any

from spacedkd.errors import UserError, install_command
from spacedkd.snapshots.teacher import SnapshotTeacher
from spacedkd.snapshots.writer import Snapshots

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError:
    try:
        from pytorch_lightning import Callback, LightningModule, Trainer  # the same under its older name
    except ModuleNotFoundError as error:
        raise UserError(
            f"spacedkd.integrations.lightning needs Lightning ({error}): {install_command('lightning')}"
        ) from None


SPREADING = ("DeepSpeedStrategy", "FSDPStrategy", "ModelParallelStrategy")
"""strategies under which no process has whole weights"""


class SnapshotCallback(Callback):
    """Leaves the snapshots of a teacher's run: every so many updates, and after the last one.

    `part` names the network inside of the LightningModule, "network" for `self.network`; all of it if empty.
    """

    def __init__(self, snapshots: Snapshots, part: str = "") -> None:
        self.snapshots, self.part = snapshots, part
        self._updates = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if (strategy := type(trainer.strategy).__name__) in SPREADING:
            raise UserError(f"{strategy} spreads the weights that a snapshot must hold whole: use strategy='ddp'.")
        self._network(pl_module)  # a wrong name is said before anything is trained
        self._updates = trainer.global_step

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if trainer.global_step > self._updates:  # not a batch whose gradients are kept for the next one
            self._updates = trainer.global_step
            self.snapshots.after(self._updates, self._network(pl_module))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.snapshots.save(trainer.global_step, self._network(pl_module))

    def _network(self, pl_module: LightningModule) -> Any:
        try:
            return pl_module.get_submodule(self.part)
        except AttributeError:
            parts = ", ".join(name for name, _ in pl_module.named_children())
            raise UserError(f"{type(pl_module).__name__} has no part {self.part!r}; it has: {parts}.") from None


class TeacherCallback(Callback):
    """Gives the teacher of a student's run the weights of the step before every batch."""

    def __init__(self, teacher: SnapshotTeacher) -> None:
        self.teacher = teacher

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.teacher.to(pl_module.device)
        # Its network is in eval mode for ever; Lightning warns of parts that say so when training starts.
        self.teacher.training = True

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self.teacher.seek(trainer.global_step)
