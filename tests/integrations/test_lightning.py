"""Two runs of Lightning are one run of ours, to the bit: teacher, student, and both after a stop."""

from __future__ import annotations

import importlib.util
import os
import random
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader

import spacedkd.integrations
from spacedkd import SnapshotTeacher, Spacing, UserError, seeded_loader
from spacedkd.data import SeededBatchSampler
from tests.conftest import assert_same_bits
from tests.integrations.digits import BATCH, INTERVAL, STEPS, TRAIN, loader, loss_of, network, ours, sgd
from tests.training.two_processes import finished, started, torchrun_variables

pytest.importorskip("lightning.pytorch")
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import FSDPStrategy

from spacedkd.integrations.lightning import SnapshotCallback, TeacherCallback

# Lightning's own, with this version of torch.
pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}


class Stop(Exception):
    """A run that is cut off."""


class StopAfter(Callback):
    def __init__(self, batches: int) -> None:
        self.left = batches

    def on_train_batch_start(self, *_: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise Stop


class Module(LightningModule):
    def __init__(self, teacher: SnapshotTeacher | None = None, batch_norm: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.network, self.teacher = network(batch_norm), teacher
        if dropout:
            self.network.insert(4, nn.Dropout(dropout))  # type: ignore[operator]
        self.updates: list[int | None] = []

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        x, y = batch
        taught = None
        if self.teacher is not None:
            self.updates.append(self.teacher.updates)
            taught = self.teacher(x)
        return loss_of(self.network(x), y, taught)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return sgd(self)


def fit(module: Module, *callbacks: Any, data: Any = None, resume: Path | None = None, **options: Any) -> Module:
    options = {"max_steps": STEPS, "enable_checkpointing": False, **QUIET, **options}
    trainer = Trainer(callbacks=[*callbacks], **options)
    trainer.fit(module, data or loader(), ckpt_path=resume)
    return module


def leaving(folder: Path, every: int = INTERVAL) -> SnapshotCallback:
    return Spacing(folder, every).lightning.teacher(part="network")


def taught_by(folder: Path, batch_norm: bool = True) -> tuple[Module, TeacherCallback]:
    return Module(None, batch_norm), Spacing(folder, INTERVAL).lightning.student(lambda: network(batch_norm))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Tensor]]:
    return ours(tmp_path_factory.mktemp("ours") / "run")


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("snapshots")
    fit(Module(), leaving(folder))
    return folder


def test_both_runs_have_the_bits_of_ours(expected: dict[str, dict[str, Tensor]], snapshots: Path) -> None:
    assert {path.name for path in snapshots.glob("step-*")} == {f"step-{n}.safetensors" for n in (7, 14, 20)}
    assert_same_bits(load_file(snapshots / "step-20.safetensors"), expected["teacher"])
    module, seeking = taught_by(snapshots)
    fit(module, seeking)
    assert_same_bits(module.network.state_dict(), expected["student"])
    assert module.updates == [7] * 7 + [14] * 7 + [20] * 6


def cut_off(module: Module, folder: Path, callback: Any, batches: int) -> Path:
    """The last checkpoint of a run that did not come further than this many batches."""
    saving = ModelCheckpoint(folder, "last", every_n_train_steps=1, enable_version_counter=False)
    with pytest.raises(Stop):
        fit(module, callback, saving, StopAfter(batches), enable_checkpointing=True)
    return folder / "last.ckpt"


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`:UserWarning")  # saving is not gone on with
@pytest.mark.parametrize("batches", [3, 10, 14])
def test_a_resume_changes_no_bit(
    batches: int, expected: dict[str, dict[str, Tensor]], snapshots: Path, tmp_path: Path
) -> None:
    """In the middle of an epoch and of a block, at the end of an epoch, at the end of a block."""
    checkpoint = cut_off(Module(), tmp_path / "teacher", leaving(tmp_path / "left"), batches)
    teacher = fit(Module(), leaving(tmp_path / "left"), resume=checkpoint)
    assert_same_bits(teacher.network.state_dict(), expected["teacher"])
    assert {path.name for path in (tmp_path / "left").iterdir()} == {path.name for path in snapshots.iterdir()}
    for file in snapshots.glob("step-*"):
        assert_same_bits(load_file(tmp_path / "left" / file.name), load_file(file))

    module, seeking = taught_by(snapshots)
    checkpoint = cut_off(module, tmp_path / "student", seeking, batches)
    module, seeking = taught_by(snapshots)
    fit(module, seeking, resume=checkpoint)
    assert_same_bits(module.network.state_dict(), expected["student"])
    assert module.updates == ([7] * 7 + [14] * 7 + [20] * 6)[batches:]

    saved = torch.load(checkpoint, weights_only=True)
    assert {name.partition(".")[0] for name in saved["state_dict"]} == {"network"}
    (group,) = saved["optimizer_states"][0]["param_groups"]
    assert len(group["params"]) == len([*network().parameters()])


class Drawing(Module):
    """Draws from all generators that a training may draw from."""

    def __init__(self, teacher: SnapshotTeacher | None = None) -> None:
        super().__init__(teacher, dropout=0.5)
        self.generator: torch.Generator | None = torch.Generator()

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
        noise = 0.01 * (random.random() + np.random.rand())
        return super().training_step((batch[0] + noise, batch[1]), number)

    def val_dataloader(self) -> Any:
        return DataLoader([*zip(TRAIN.images, TRAIN.labels, strict=True)], BATCH, generator=self.generator)

    def validation_step(self, batch: tuple[Tensor, Tensor], _: int) -> None:
        self.network(batch[0])


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`:UserWarning")
@pytest.mark.filterwarnings("ignore:The 'val_dataloader' does not have many workers")
@pytest.mark.parametrize("batches", [3, 10, 14])
def test_a_resume_with_dropout_changes_no_bit(batches: int, tmp_path: Path) -> None:
    """Lightning restores no generators; the teacher's own snapshots would refuse other weights."""
    seed_everything(1)
    whole = fit(Drawing(), leaving(tmp_path / "left", 4))
    seed_everything(1)
    checkpoint = cut_off(Drawing(), tmp_path / "teacher", leaving(tmp_path / "left", 4), batches)
    seed_everything(2)
    again = fit(Drawing(), leaving(tmp_path / "left", 4), resume=checkpoint)
    assert_same_bits(again.network.state_dict(), whole.network.state_dict())

    def student() -> tuple[Drawing, TeacherCallback]:
        return Drawing(), Spacing(tmp_path / "left", 4).lightning.student(whole.network)

    seed_everything(3)
    whole = fit(*student())
    seed_everything(3)
    module, seeking = student()
    checkpoint = cut_off(module, tmp_path / "student", seeking, batches)
    seed_everything(4)
    assert_same_bits(fit(*student(), resume=checkpoint).network.state_dict(), whole.network.state_dict())
    torch.load(checkpoint, weights_only=True)  # nothing but tensors and plain values


class DrawingLoaders(Drawing):
    """With loaders that draw from the global generator, for their order and their workers."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = None

    def train_dataloader(self) -> Any:
        return DataLoader(TRAIN, BATCH, shuffle=True)


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`:UserWarning")
@pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:The dirpath has changed:UserWarning")
@pytest.mark.parametrize(
    ("when", "more_options"),
    [
        ({"save_on_train_epoch_end": True}, {}),
        # From a checkpoint of the last batch Lightning resumes after the epoch's validation, without it.
        ({"every_n_train_steps": 10}, {"limit_val_batches": 0}),
    ],
)
def test_plain_loaders_go_on_after_an_epoch(when: dict[str, Any], more_options: dict[str, Any], tmp_path: Path) -> None:
    def trained(folder: Path, *more: Callback, resume: Path | None = None) -> Module:
        saving = ModelCheckpoint(folder, "epoch", enable_version_counter=False, **when)
        callbacks = [leaving(tmp_path / "left"), saving, *more]
        options = {"max_steps": STEPS, **QUIET, "callbacks": callbacks, **more_options}
        module = DrawingLoaders()
        Trainer(**options).fit(module, ckpt_path=resume)
        return module

    seed_everything(1)
    whole = trained(tmp_path / "whole")
    seed_everything(1)
    with pytest.raises(Stop):
        trained(tmp_path / "part", StopAfter(13))
    seed_everything(2)
    resumed = trained(tmp_path / "rest", resume=tmp_path / "part" / "epoch.ckpt")
    assert_same_bits(resumed.network.state_dict(), whole.network.state_dict())


class WithHyperparameters(Module):
    def __init__(self, width: int, teacher: SnapshotTeacher | None = None) -> None:
        super().__init__(teacher)
        self.save_hyperparameters()


@pytest.mark.filterwarnings("ignore:Attribute 'teacher' is an instance of `nn.Module`:UserWarning")
@pytest.mark.parametrize("weights_only", [False, True])
def test_the_teacher_is_no_hyperparameter(weights_only: bool, snapshots: Path, tmp_path: Path) -> None:
    spacing = Spacing(snapshots, INTERVAL)
    teacher = spacing.teacher(network)
    module = WithHyperparameters(3, teacher)
    saving = ModelCheckpoint(tmp_path / "saved", "one", every_n_train_steps=5, save_weights_only=weights_only)
    logger = CSVLogger(tmp_path / "log")
    options = {"max_steps": 5, "enable_checkpointing": True, "logger": logger, "log_every_n_steps": 1}
    fit(module, saving, spacing.lightning.student(), **options)
    assert module.teacher is teacher
    assert torch.load(tmp_path / "saved" / "one.ckpt", weights_only=True)["hyper_parameters"] == {"width": 3}
    assert Path(logger.log_dir, "hparams.yaml").read_text() == "width: 3\n"
    loaded = WithHyperparameters.load_from_checkpoint(tmp_path / "saved" / "one.ckpt", teacher=teacher)
    assert_same_bits(loaded.network.state_dict(), module.network.state_dict())
    assert loaded.teacher is teacher
    assert WithHyperparameters.load_from_checkpoint(tmp_path / "saved" / "one.ckpt").teacher is None


class Distilled(Module):
    """Has KD in its validation too; what it notes are the teacher's updates there and in training."""

    teacher: Any = None  # type: ignore[assignment]  # a class attribute, which would hide a submodule

    def __init__(self) -> None:
        super().__init__()
        del self.teacher
        self.notes: list[tuple[str, int, int | None]] = []

    def note(self, kind: str, x: Tensor) -> Tensor:
        answer: Tensor = self.teacher(x)
        self.notes.append((kind, self.trainer.global_step, self.teacher.updates))
        return answer

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        return loss_of(self.network(batch[0]), batch[1], self.note("train", batch[0]))

    def validation_step(self, batch: tuple[Tensor, Tensor], _: int) -> None:
        loss_of(self.network(batch[0]), batch[1], self.note("validate", batch[0]))

    def val_dataloader(self) -> Any:
        return DataLoader([*zip(TRAIN.images, TRAIN.labels, strict=True)][:BATCH], BATCH)


@pytest.mark.filterwarnings("ignore:The 'val_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`:UserWarning")
def test_validation_has_the_teacher_of_the_step_just_learned(snapshots: Path, tmp_path: Path) -> None:
    """And the sanity check before training that of the first step."""

    def expected(first: int) -> list[tuple[str, int, int]]:
        teacher = [7] * 7 + [14] * 7 + [20] * 6
        notes = []
        for step in range(first, STEPS):
            notes.append(("train", step, teacher[step]))
            if (step + 1) % 5 == 0:
                notes.append(("validate", step + 1, teacher[step]))
        return notes

    module = Distilled()
    fit(module, Spacing(snapshots, INTERVAL).lightning.student(network), val_check_interval=5, num_sanity_val_steps=1)
    assert module.notes == [("validate", 0, 7), *expected(0)]
    with_parts, seeking = taught_by(snapshots)
    fit(with_parts, seeking)
    assert_same_bits(module.network.state_dict(), with_parts.network.state_dict())

    checkpoint = cut_off(Distilled(), tmp_path, Spacing(snapshots, INTERVAL).lightning.student(network), 8)
    resumed = Distilled()
    callback = Spacing(snapshots, INTERVAL).lightning.student(network)
    fit(resumed, callback, resume=checkpoint, val_check_interval=5)
    assert [note for note in resumed.notes if note[0] == "train"] == [n for n in expected(8) if n[0] == "train"]
    assert {note for note in resumed.notes if note[0] == "validate"} <= {*expected(8), ("validate", 8, 14)}
    assert_same_bits(resumed.network.state_dict(), module.network.state_dict())


def test_a_part_that_is_called_teacher_stays(snapshots: Path) -> None:
    module = Module()
    module.teacher = nn.Linear(1, 1)  # type: ignore[assignment]
    with pytest.raises(UserError, match="^Module.teacher is a Linear already, and the teacher of spaced KD goes there"):
        fit(module, Spacing(snapshots, INTERVAL).lightning.student(network))


@pytest.mark.filterwarnings("ignore:.* does not have many workers")
def test_other_batches_of_lightning_are_refused(snapshots: Path) -> None:
    def student(data: Any) -> None:
        fit(Module(), Spacing(snapshots, INTERVAL).lightning.student(network), data=data)

    with pytest.raises(UserError, match="batch size: 4 here, 8 there; steps per epoch: 20 here, 10 there"):
        student(seeded_loader(TRAIN, 4, 0))
    with pytest.raises(UserError, match="digest of the first batch: "):
        student(DataLoader(TRAIN, BATCH, shuffle=True))
    with pytest.raises(UserError, match="The student's run has 21 steps, and the teacher's in .* has 20 steps"):
        fit(Module(), Spacing(snapshots, INTERVAL).lightning.student(network), max_steps=21)


def test_a_trial_run_leaves_no_snapshots(tmp_path: Path) -> None:
    fit(Module(), leaving(tmp_path / "none"), fast_dev_run=2)
    assert not (tmp_path / "none").exists()


def test_checkpoints_and_an_interval_in_epochs(tmp_path: Path) -> None:
    """Lightning's own, of a training that is over; the length of an epoch is the trainer's."""
    saving = ModelCheckpoint(tmp_path, every_n_train_steps=5, save_top_k=-1)
    fit(Module(), saving, enable_checkpointing=True)
    module = Module()
    fit(module, Spacing(tmp_path, "0.5ep").lightning.student(network, prefix="network."))
    assert module.updates == [5] * 5 + [10] * 5 + [15] * 5 + [20] * 5


class TwoOptimizers(Module):
    """One for the convolution, one for the rest; the third batch of each three is for neither."""

    def __init__(self, teacher: SnapshotTeacher | None = None) -> None:
        super().__init__(teacher)
        self.automatic_optimization = False

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
        loss = super().training_step(batch, number)
        optimizers = self.optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(loss)
        if number % 3 < 2:
            for optimizer in optimizers:
                optimizer.step()
        return loss

    def configure_optimizers(self) -> Any:
        return [sgd(self.network[0]), sgd(self.network[1:])]  # type: ignore[index]


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`:UserWarning")
@pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization:UserWarning")
def test_two_optimizers_are_one_update(tmp_path: Path) -> None:
    """7 of 10 batches of an epoch are learned from, by two steps each: Lightning's global_step is twice the updates."""
    whole = fit(TwoOptimizers(), leaving(tmp_path / "left", 4), max_steps=-1, max_epochs=2)
    assert whole.trainer.global_step == 28
    assert {path.name for path in (tmp_path / "left").glob("step-*")} == {
        f"step-{n}.safetensors" for n in (4, 8, 12, 14)
    }
    assert_same_bits(load_file(tmp_path / "left" / "step-14.safetensors"), whole.network.state_dict())

    def student() -> tuple[TwoOptimizers, TeacherCallback]:
        return TwoOptimizers(), Spacing(tmp_path / "left", 4).lightning.student(network)

    module, seeking = student()
    fit(module, seeking, max_steps=-1, max_epochs=2)
    # Updates made before each batch: 0 1 2 2 3 4 4 5 6 6, then 7 8 9 9 10 11 11 12 13 13
    assert module.updates == [4] * 5 + [8] * 5 + [8] + [12] * 6 + [14] * 3
    first = student()
    checkpoint = cut_off(first[0], tmp_path / "student", first[1], 12)
    resumed, seeking = student()
    fit(resumed, seeking, max_steps=-1, max_epochs=2, resume=checkpoint)
    assert resumed.updates == module.updates[12:]
    assert_same_bits(resumed.network.state_dict(), module.network.state_dict())


@pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization:UserWarning")
@pytest.mark.parametrize("weights_only", [False, True])
def test_checkpoints_of_two_optimizers_are_no_snapshots(weights_only: bool, tmp_path: Path) -> None:
    """Their step=8 is after 5 batches, of which 4 were learned from."""
    saving = ModelCheckpoint(tmp_path, every_n_train_steps=8, save_top_k=-1, save_weights_only=weights_only)
    fit(TwoOptimizers(), saving, enable_checkpointing=True, max_steps=8)
    with pytest.raises(UserError, match=r"step=8.ckpt counts 8 steps of all optimizers in 5 batches"):
        SnapshotTeacher(tmp_path, 8, network, prefix="network.").seek(0)


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`:UserWarning")
@pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization:UserWarning")
def test_updates_that_nobody_has_counted(snapshots: Path, tmp_path: Path) -> None:
    checkpoint = cut_off(TwoOptimizers(), tmp_path, Callback(), 5)
    with pytest.raises(
        UserError, match="^In manual optimisation global_step=8 does not say how many updates were made"
    ):
        fit(TwoOptimizers(), Spacing(snapshots, INTERVAL).lightning.student(network), resume=checkpoint)


class SavedAtTheStart(Callback):
    """A run that is saved, and stopped, before its first batch."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        trainer.save_checkpoint(self.file)
        raise Stop


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`:UserWarning")
def test_two_resumes_one_after_the_other(expected: dict[str, dict[str, Tensor]], tmp_path: Path) -> None:
    """The second from a checkpoint that was written before the first had taken a batch."""
    first = cut_off(Module(), tmp_path / "teacher", leaving(tmp_path / "left"), 3)
    second = tmp_path / "second.ckpt"
    with pytest.raises(Stop):
        fit(Module(), SavedAtTheStart(second), resume=first)
    teacher = fit(Module(), leaving(tmp_path / "left"), resume=second)
    assert_same_bits(teacher.network.state_dict(), expected["teacher"])


def test_checkpoints_of_lightning_are_snapshots(expected: dict[str, dict[str, Tensor]], tmp_path: Path) -> None:
    """And where they end before the run does, the error says what to save."""
    saving = ModelCheckpoint(tmp_path, every_n_train_steps=INTERVAL, save_top_k=-1)
    trained = fit(Module(), saving, enable_checkpointing=True)
    teacher = SnapshotTeacher(tmp_path, INTERVAL, network, total=STEPS, prefix="network.")
    assert [teacher.seek(step).updates for step in (6, 13)] == [7, 14]
    with pytest.raises(UserError, match="after 20 updates, .* Save the teacher at the end of its run too"):
        teacher.seek(14)
    trained.trainer.save_checkpoint(tmp_path / "step=20.ckpt")
    assert_same_bits(teacher.seek(14).network.state_dict(), expected["teacher"])


def test_accumulated_gradients(tmp_path: Path) -> None:
    """Three batches an update, and what is left of an epoch: 4 updates for 10 batches, 8 in all."""
    options = {"max_steps": 8, "accumulate_grad_batches": 3}
    teacher = fit(Module(), leaving(tmp_path, every=3), **options)
    assert sorted(int(path.stem.partition("-")[2]) for path in tmp_path.glob("step-*")) == [3, 6, 8]
    assert_same_bits(load_file(tmp_path / "step-8.safetensors"), teacher.network.state_dict())
    student = fit(Module(), Spacing(tmp_path, 3).lightning.student(network), **options)
    assert student.updates == [3] * 9 + [6] * (1 + 6) + [8] * (3 + 1)


def test_a_part_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="^Module has no part 'model'; it has: network.$"):
        fit(Module(), Spacing(tmp_path, 7).lightning.teacher(part="model"))


def test_weights_that_are_spread(tmp_path: Path) -> None:
    trainer = SimpleNamespace(strategy=FSDPStrategy(), global_step=0)
    with pytest.raises(UserError, match="^FSDPStrategy spreads the weights that a snapshot must hold whole"):
        leaving(tmp_path).on_train_start(trainer, Module())


def test_two_processes(tmp_path: Path) -> None:
    """Each batch split in two halves: what one process learns, up to rounding."""
    for code, _, errors in finished(started(["-m", __name__, str(tmp_path / "two")], torchrun_variables())):
        assert code == 0, errors
    student = both_runs(tmp_path / "one")
    assert {path.name for path in (tmp_path / "two").glob("step-*")} == {f"step-{n}.safetensors" for n in (7, 14, 20)}
    assert (tmp_path / "two" / "updates").read_text() == str(student.updates)
    torch.testing.assert_close(load_file(tmp_path / "two" / "student.safetensors"), student.network.state_dict())
    assert (tmp_path / "two" / "refused").read_text() == (
        "2 processes need to know which slice of a seeded batch each of them gets: give DataLoader's sampler rank=0 "
        "and ranks=2 in this process, or rank=0, ranks=1 for whole batches everywhere."
    )


def both_runs(folder: Path, **options: Any) -> Module:
    """Without BatchNorm, which would see the statistics of a half."""
    fit(Module(batch_norm=False), leaving(folder), **options)
    module, seeking = taught_by(folder, batch_norm=False)
    return fit(module, seeking, **options)


def one_of_two(folder: Path) -> None:
    """What each process does; Lightning does not split seeded batches a second time."""
    first = os.environ["RANK"] == "0"
    options = {"devices": 2, "strategy": "ddp"}
    module = both_runs(folder, data=loader(), **options)  # which knows of two processes when it is iterated
    if first:
        save_file(module.network.state_dict(), folder / "student.safetensors")
        (folder / "updates").write_text(str(module.updates))

    told = loader(rank=int(os.environ["RANK"]), ranks=2)
    torch.manual_seed(int(os.environ["RANK"]))  # dropout is another one in each process
    whole = fit(Module(dropout=0.5), leaving(folder / "whole"), data=told, **options)
    torch.manual_seed(int(os.environ["RANK"]))
    part = leaving(folder / "whole"), StopAfter(3)
    saving = ModelCheckpoint(folder / "saved", "last", every_n_train_steps=1, enable_version_counter=False)
    with pytest.raises(Stop):
        fit(Module(dropout=0.5), *part, saving, data=told, enable_checkpointing=True, **options)
    saved = folder / "saved" / "last.ckpt"
    resumed = fit(Module(dropout=0.5), leaving(folder / "whole"), data=told, resume=saved, **options)
    assert_same_bits(resumed.network.state_dict(), whole.network.state_dict())

    off = {"use_distributed_sampler": False}
    seeded = told.batch_sampler
    alone = SeededBatchSampler(seeded.count, BATCH, 0)  # in a loader that is torch's, and asks nobody
    with pytest.raises(UserError) as error:
        fit(Module(), leaving(folder / "none"), data=DataLoader(told.dataset, batch_sampler=alone), **off, **options)
    with pytest.raises(UserError, match="^Seeded batches .* DistributedSampler.* use_distributed_sampler=False"):
        fit(Module(), leaving(folder / "none"), data=DataLoader(told.dataset, batch_sampler=alone), **options)
    if first:
        (folder / "refused").write_text(str(error.value))


def loaded_without(monkeypatch: pytest.MonkeyPatch, *absent: str) -> ModuleType:
    """The module anew, on a machine where some packages are not installed."""
    for name in absent:
        monkeypatch.setitem(sys.modules, name, None)
    file = Path(spacedkd.integrations.__file__).with_name("lightning.py")
    spec = importlib.util.spec_from_file_location("lightning_anew", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_older_name_of_lightning_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    older = pytest.importorskip("pytorch_lightning")
    found = loaded_without(monkeypatch, "lightning", "lightning.pytorch")
    assert issubclass(found.SnapshotCallback, older.Callback)
    assert issubclass(found.TeacherCallback, older.Callback)


def test_without_lightning(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError) as error:
        loaded_without(monkeypatch, "lightning", "lightning.pytorch", "pytorch_lightning")
    assert str(error.value) == (
        "spacedkd.integrations.lightning needs Lightning (import of pytorch_lightning halted; None in sys.modules): "
        "pip install 'spacedkd[lightning]'"
    )


if __name__ == "__main__":
    one_of_two(Path(sys.argv[1]))
