"""A teacher from snapshots: frozen, no part of who holds it, a function of the step, in every form there is."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from spacedkd import RunSpec, Snapshots, SnapshotTeacher, Spaced, UserError, train
from spacedkd.training.trained_models import load_run
from spacedkd.trajectory.store import FolderSnapshots
from tests.conftest import assert_same_bits
from tests.trajectory.bare_loop import network

Write = Callable[[Path, int, dict[str, Tensor]], None]


def numbered(updates: int) -> nn.Module:
    """A network whose weights tell how many updates it has had."""
    made = nn.Linear(2, 1)
    for weight in made.parameters():
        nn.init.constant_(weight, updates)
    return made


def linear() -> nn.Module:
    return nn.Linear(2, 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    snapshots = Snapshots(tmp_path / "teacher", 3, total=8)
    for updates in range(1, 9):
        snapshots.after(updates, numbered(updates))
    return tmp_path / "teacher"


def output(teacher: SnapshotTeacher) -> float:
    return float(teacher(torch.ones(1, 2))) / 3


def test_weights_are_a_function_of_the_step_and_read_when_they_change(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = SnapshotTeacher(folder, 3, linear, total=8)
    updates: list[int] = []
    read = FolderSnapshots.read

    def count(store: FolderSnapshots, update: int) -> dict[str, Tensor]:
        updates.append(update)
        return read(store, update)

    monkeypatch.setattr(FolderSnapshots, "read", count)
    assert [output(teacher.seek(step)) for step in range(8)] == [3, 3, 3, 6, 6, 6, 8, 8]
    assert updates == [3, 6, 8]
    assert [output(teacher.seek(step)) for step in (7, 0, 4)] == [8, 3, 6]


def test_it_is_frozen_and_no_part_of_who_holds_it(folder: Path, tmp_path: Path) -> None:
    class Student(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)
            self.teacher = SnapshotTeacher(folder, 3, lambda: nn.Sequential(nn.Dropout(0.9), linear()), prefix="")

    (tmp_path / "named").mkdir()
    for file in folder.iterdir():
        save_file({f"1.{k}": v for k, v in load_file(file).items()}, tmp_path / "named" / file.name)
    folder = tmp_path / "named"
    student = Student().train()
    alone = {"layer.weight", "layer.bias"}
    assert {name for name, _ in student.named_parameters()} == alone
    assert student.state_dict().keys() == alone
    assert not [*student.teacher.buffers()]
    teacher = student.teacher.seek(0)
    assert not teacher.training
    assert not any(part.training for part in teacher.network.modules())
    x = torch.ones(1, 2, requires_grad=True)
    assert [float(teacher(x)) for _ in range(3)] == [9, 9, 9], "dropout is off"
    assert not teacher(x).requires_grad

    student.to(torch.float64)
    assert teacher(x.double()).dtype == torch.float64
    assert float(teacher.seek(4)(x.double())) == 18
    copied = deepcopy(student)
    assert output(copied.teacher.seek(0).to(torch.float32)) == 3
    assert float(teacher(x.double())) == 18, "the copy has weights of its own"


def test_a_network_that_is_given_stays_what_it_is(folder: Path) -> None:
    student = numbered(1)
    assert output(SnapshotTeacher(folder, 3, student).seek(0)) == 3
    assert student(torch.ones(1, 2)).item() == 3
    assert student.weight.requires_grad


def test_it_has_what_its_network_has(folder: Path) -> None:
    teacher = SnapshotTeacher(folder, 3, linear)
    assert (teacher.in_features, deepcopy(teacher).out_features) == (2, 1)
    with pytest.raises(AttributeError, match="'Linear' object has no attribute 'config'"):
        _ = teacher.config


def as_hugging_face(folder: Path, updates: int, weights: dict[str, Tensor]) -> None:
    (folder / f"checkpoint-{updates}").mkdir(parents=True)
    save_file(weights, folder / f"checkpoint-{updates}" / "model.safetensors", {"format": "pt"})


def as_lightning(folder: Path, updates: int, weights: dict[str, Tensor]) -> None:
    state = {f"model.{name}": value for name, value in weights.items()} | {"other.weight": torch.zeros(1)}
    folder.mkdir(exist_ok=True)
    torch.save({"state_dict": state, "epoch": 1}, folder / f"epoch=1-step={updates}.ckpt")
    torch.save({"state_dict": {}}, folder / "last.ckpt")


@pytest.mark.parametrize(("write", "prefix"), [(as_hugging_face, None), (as_lightning, "model.")])
def test_other_forms(tmp_path: Path, write: Write, prefix: str | None) -> None:
    for updates in (3, 6, 12):
        write(tmp_path / "runs", updates, numbered(updates).state_dict())
    teacher = SnapshotTeacher(tmp_path / "runs", 3, linear, prefix=prefix)
    assert [output(teacher.seek(step)) for step in (0, 2, 3)] == [3, 3, 6]
    with pytest.raises(UserError, match="no snapshot after 9 updates, which step 6 needs; it has those after 3, 6, 12"):
        teacher.seek(6)


def test_a_sharded_checkpoint_of_transformers_with_tied_weights(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    made = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=8, n_embd=8, n_layer=1, n_head=2))
    made.save_pretrained(tmp_path / "checkpoint-2", max_shard_size="2KB")
    assert (tmp_path / "checkpoint-2" / "model.safetensors.index.json").exists()
    held = json.loads((tmp_path / "checkpoint-2" / "model.safetensors.index.json").read_text())["weight_map"]
    assert "lm_head.weight" not in held, "it is the embedding once more"
    teacher = SnapshotTeacher(tmp_path, 2, lambda: GPT2LMHeadModel(made.config))
    tokens = torch.arange(6)[None]
    assert torch.equal(teacher.seek(0)(tokens).logits, made.eval()(tokens).logits)
    assert torch.equal(teacher(input_ids=tokens).logits, made(tokens).logits)


def test_pickles_are_never_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.makedirs, (str(tmp_path / "run"),)

    folder = tmp_path / "runs"
    folder.mkdir()
    torch.save({"state_dict": numbered(2).state_dict(), "hyper_parameters": Trap()}, folder / "step=2.ckpt")
    with pytest.raises(UserError) as error:
        SnapshotTeacher(folder, 2, linear, wait=60).seek(0)
    for named in ("step=2.ckpt", "os.makedirs", "save_weights_only=True"):
        assert named in str(error.value)
    assert "weights_only=False" not in str(error.value), "torch's own advice, which would run it"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("write", [as_hugging_face, as_lightning])
def test_a_snapshot_that_is_being_written_is_waited_for(tmp_path: Path, write: Write) -> None:
    runs = tmp_path / "runs"
    write(runs, 2, numbered(2).state_dict())
    file = next(path for path in runs.rglob("*") if path.name.endswith(("step=2.ckpt", "model.safetensors")))
    whole = file.read_bytes()
    prefix = "" if file.suffix == ".safetensors" else "model."
    for length in (0, 3, 20, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(UserError, match=f"{file.name} cannot be read: .* Make it again"):
            SnapshotTeacher(runs, 2, linear, prefix=prefix, wait=0.3).seek(0)
        writer = threading.Timer(0.3, file.write_bytes, [whole])
        writer.start()
        assert output(SnapshotTeacher(runs, 2, linear, prefix=prefix, wait=30).seek(0)) == 2
        writer.join()


@pytest.mark.parametrize(
    ("names", "prefix", "part"),
    [
        ({"model.weight": "weight", "model.bias": "bias", "other": "bias"}, None, "Give prefix='model.'"),
        ({"weight": "weight", "bias": "bias"}, "model.", "Leave prefix= out"),
        (
            {"weigth": "weight", "bias": "bias"},
            None,
            "'weight' is missing in the file .1 name in all.; a similar name there is 'weigth'",
        ),
        ({"weight": "weight", "bias": "bias", "gain": "bias"}, None, "'gain' is unknown to the network"),
        ({"weight": "bias", "bias": "bias"}, None, r"'weight' is \[1\] there and \[1, 2\] in the network"),
    ],
)
def test_names_that_do_not_fit(tmp_path: Path, names: dict[str, str], prefix: str | None, part: str) -> None:
    weights = {name: numbered(2).state_dict()[taken] for name, taken in names.items()}
    save_file(weights, tmp_path / "step-2.safetensors")
    with pytest.raises(UserError, match=part):
        SnapshotTeacher(tmp_path, 2, linear, prefix=prefix).seek(0)


@pytest.mark.parametrize(
    ("options", "step", "named"),
    [
        ({"folder": "none"}, 0, "step-N.safetensors"),
        ({"network": None}, 0, "network="),
        ({"interval": 2}, 0, "after 2 updates, which step 0 needs"),
        ({}, 6, "after 9 updates, which step 6 needs.* total="),
        ({"total": 7}, 6, "after 7 updates, which step 6 needs.* last block"),
        ({"interval": 1}, 0, "after 1 update, which step 0 needs"),
        ({}, 1.0, "step .* got 1.0"),
        ({"role": "teacher"}, 0, "role="),
        ({"network": int}, 0, "got int"),
        ({"wait": -1}, 0, "wait .* -1"),
    ],
)
def test_what_cannot_be_had_is_named(folder: Path, options: dict[str, Any], step: Any, named: str) -> None:
    options = {"folder": "teacher", "interval": 3, "network": linear, **options}
    with pytest.raises(UserError, match=named):
        SnapshotTeacher(folder.parent / options.pop("folder"), **options).seek(step)


def test_a_teacher_is_not_called_before_the_first_step(folder: Path) -> None:
    with pytest.raises(UserError, match=r"teacher.seek\(step\)"):
        SnapshotTeacher(folder, 3, linear)(torch.ones(1, 2))


def test_a_folder_has_snapshots_of_one_kind(folder: Path) -> None:
    as_lightning(folder, 3, {})
    with pytest.raises(UserError, match=r"step=N.ckpt and step-N.safetensors"):
        SnapshotTeacher(folder, 3, linear)


def test_a_changed_byte_is_noticed(folder: Path) -> None:
    whole = (folder / "step-3.safetensors").read_bytes()
    (folder / "step-3.safetensors").write_bytes(whole[:-1] + b"?")
    with pytest.raises(UserError, match="step-3.safetensors .* checksum"):
        SnapshotTeacher(folder, 3, linear).seek(0)


def test_what_is_still_to_come_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def later() -> None:
        for updates in (2, 4):
            time.sleep(0.3)
            Snapshots(tmp_path, 2).after(updates, numbered(updates))

    writer = threading.Thread(target=later)
    writer.start()
    teacher = SnapshotTeacher(tmp_path, 2, linear, wait=30)
    assert [output(teacher.seek(step)) for step in (0, 2)] == [2, 4]
    writer.join()
    notice = capsys.readouterr().err
    assert "its snapshot after 4 updates" in notice
    assert "30 s" in notice
    begun = time.monotonic()
    teacher.wait = 0.3
    with pytest.raises(UserError, match=r"after 6 updates.*\(waited 0.3 s\)"):
        teacher.seek(4)
    assert 0.3 <= time.monotonic() - begun < 5


def test_a_recorded_run_says_what_its_own_teacher_said(tmp_path: Path, tiny: RunSpec) -> None:
    """Without being told which network, how long the run is or how long an epoch is."""
    run = tmp_path / "run"
    train(replace(tiny, schedule=Spaced("1.5ep"), record=(Spaced("1.5ep"), Spaced("2st"))), run)
    own = load_run(run, accelerator="cpu")
    layout = torch.channels_last if own.channels_last else torch.contiguous_format
    images = own.data.info.sample.contiguous(memory_format=layout)
    for interval, step, updates in (("1.5ep", 0, 7), ("1.5ep", 7, 14), (2, 3, 4), (2, 14, 15)):
        teacher = SnapshotTeacher(run, interval).to(memory_format=layout).seek(step)  # type: ignore[call-overload]
        assert teacher.updates == updates
        own.models["teacher"].load_state_dict(load_file(run / "path" / "teacher" / f"{updates:09d}.safetensors"))
        with torch.no_grad():
            (expected,) = own.predict("teacher")(images)
        assert torch.equal(teacher(images), expected.logits)
    assert_same_bits(own.models["teacher"].state_dict(), dict(teacher.network.model.state_dict()))
    with pytest.raises(UserError) as error:
        SnapshotTeacher(run, 3, wait=60).seek(0)
    for named in (str(run), "after 3 updates", "step 0", "2, 4, 6, ..., 15", "record"):
        assert named in str(error.value)
    with pytest.raises(UserError, match="leave prefix= out"):
        SnapshotTeacher(run, 2, prefix="model.")


def test_a_run_with_a_network_of_ones_own_needs_it_again(tmp_path: Path, tiny: RunSpec) -> None:
    run = tmp_path / "run"
    spec = replace(tiny, network=RunSpec().network, schedule=Spaced(5), record=(Spaced(5),), epochs=1)
    train(spec, run, network=Ten)
    with pytest.raises(UserError, match="was given a network of your own: give network="):
        SnapshotTeacher(run, 5)
    teacher = SnapshotTeacher(run, 5, Ten).seek(0)
    held = load_file(run / "path" / "teacher" / "000000005.safetensors")
    assert_same_bits(held, {f"network.{name}": value for name, value in teacher.network.state_dict().items()})


class Ten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = network()
        self.head = nn.Linear(4, 10)

    def forward(self, images: Tensor) -> Tensor:
        answer: Tensor = self.head(self.layers(images))
        return answer
