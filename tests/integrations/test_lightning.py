"""Two runs of Lightning are one run of ours, to the bit: teacher, student, and both after a stop."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import spacedkd.integrations
from spacedkd import Snapshots, SnapshotTeacher, UserError
from tests.conftest import assert_same_bits
from tests.integrations.digits import INTERVAL, STEPS, loader, loss_of, network, ours, sgd
from tests.training.two_processes import finished, started, torchrun_variables

pytest.importorskip("lightning.pytorch")
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
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
    def __init__(self, teacher: SnapshotTeacher | None = None, batch_norm: bool = True) -> None:
        super().__init__()
        self.network, self.teacher = network(batch_norm), teacher
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
    return SnapshotCallback(Snapshots(folder, every), part="network")


def taught_by(folder: Path, batch_norm: bool = True) -> tuple[Module, TeacherCallback]:
    teacher = SnapshotTeacher(folder, INTERVAL, lambda: network(batch_norm), total=STEPS)
    return Module(teacher, batch_norm), TeacherCallback(teacher)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Tensor]]:
    return ours(tmp_path_factory.mktemp("ours") / "run")


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("snapshots")
    fit(Module(), leaving(folder))
    return folder


def test_both_runs_have_the_bits_of_ours(expected: dict[str, dict[str, Tensor]], snapshots: Path) -> None:
    assert {path.name for path in snapshots.iterdir()} == {f"step-{n}.safetensors" for n in (7, 14, 20)}
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
    for file in snapshots.iterdir():
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
    """And where they end before the run does, it is said, and mended as frameworks.md says."""
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
    assert sorted(int(path.stem.partition("-")[2]) for path in tmp_path.iterdir()) == [3, 6, 8]
    assert_same_bits(load_file(tmp_path / "step-8.safetensors"), teacher.network.state_dict())
    seen = SnapshotTeacher(tmp_path, 3, network, total=8)
    student = fit(Module(seen), TeacherCallback(seen), **options)
    assert student.updates == [3] * 9 + [6] * (1 + 6) + [8] * (3 + 1)


def test_a_part_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="^Module has no part 'model'; it has: network.$"):
        fit(Module(), SnapshotCallback(Snapshots(tmp_path, 7), part="model"))


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


def both_runs(folder: Path, **options: Any) -> Module:
    """Without BatchNorm, which would see the statistics of a half."""
    fit(Module(batch_norm=False), leaving(folder), **options)
    module, seeking = taught_by(folder, batch_norm=False)
    return fit(module, seeking, **options)


def one_of_two(folder: Path) -> None:
    """What each process does; Lightning is not to split batches a second time."""
    data = loader(rank=int(os.environ["RANK"]), ranks=2)
    module = both_runs(folder, devices=2, strategy="ddp", use_distributed_sampler=False, data=data)
    if os.environ["RANK"] == "0":
        save_file(module.network.state_dict(), folder / "student.safetensors")
        (folder / "updates").write_text(str(module.updates))


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
        "pip install 'lightning>=2.5'"
    )


if __name__ == "__main__":
    one_of_two(Path(sys.argv[1]))
