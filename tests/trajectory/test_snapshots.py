"""Snapshots of any loop: whole, once, by the first process, under plain names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from spacedkd import Ahead, Snapshots, SnapshotTeacher, Spaced, UserError
from spacedkd.schedule import Blocks, Growing, Schedule
from tests.conftest import assert_same_bits
from tests.trajectory.bare_loop import network


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_every_interval_and_the_end(tmp_path: Path) -> None:
    model = network()
    snapshots = Snapshots(tmp_path / "a" / "b", "1.5ep", steps_per_epoch=2, total=7)
    files = [snapshots.after(updates, model) for updates in range(1, 8)]
    assert [path and path.name for path in files] == [
        None,
        None,
        "step-3.safetensors",
        None,
        None,
        "step-6.safetensors",
        "step-7.safetensors",
    ]
    assert_same_bits(load_file(files[2] or ""), model.state_dict())
    assert "1.running_var" in load_file(files[2] or "")
    open_end = Snapshots(tmp_path / "open", 3)
    assert [open_end.due(updates) for updates in range(5)] == [False, False, False, True, False]
    open_end.save(4, model)
    assert names(tmp_path / "open") == ["step-4.safetensors"]


@pytest.mark.parametrize(
    ("schedule", "updates"),
    [
        (Spaced(2, speed=2), [4, 8, 12, 14]),
        (Spaced(4, speed=1.5), [6, 12, 14]),
        (Spaced(2, speed="inf"), [14]),
        (Blocks([1, 3]), [1, 4, 7, 10, 13, 14]),
        (Growing(2), [2, 6, 14]),
        (Ahead(11), [12, 13, 14]),
    ],
)
def test_what_the_student_of_any_schedule_sees_is_saved_and_read(
    tmp_path: Path, schedule: Schedule, updates: list[int]
) -> None:
    model, snapshots = network(), Snapshots(tmp_path, schedule, total=14)
    for update in range(1, 15):
        with torch.no_grad():
            model[-1].bias.fill_(update)  # type: ignore[index]
        snapshots.after(update, model)
    assert names(tmp_path) == sorted(f"step-{update}.safetensors" for update in updates)
    teacher, seen = SnapshotTeacher(tmp_path, schedule, network, total=14), []
    for step in range(14):
        seen.append(int(teacher.seek(step).network[-1].bias[0]))  # type: ignore[index]
        assert seen[-1] == teacher.updates
    assert sorted({*seen}) == updates
    assert not snapshots.due(3)
    with pytest.raises(UserError, match="total=14"):
        snapshots.due(15)


def test_updates_are_whole_numbers(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path, 2)
    assert snapshots.due(torch.tensor(2))  # type: ignore[arg-type]
    snapshots.after(torch.tensor(2), network())  # type: ignore[arg-type]
    snapshots.save(torch.tensor(3), network())  # type: ignore[arg-type]
    assert names(tmp_path) == ["step-2.safetensors", "step-3.safetensors"]
    for call in (
        snapshots.due,
        lambda updates: snapshots.after(updates, network()),
        lambda n: snapshots.save(n, network()),
    ):
        for wrong in (2.0, "2", -1):
            with pytest.raises(UserError, match=f"updates .* got {wrong!r}"):
                call(wrong)  # type: ignore[operator]


def test_a_restart_leaves_equal_bits_and_refuses_others(tmp_path: Path) -> None:
    model, snapshots = network(), Snapshots(tmp_path, 3)
    path = snapshots.save(3, model)
    before = path.stat()
    snapshots.save(3, model)
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert path.stat().st_ino == before.st_ino
    other = network()
    with pytest.raises(UserError, match="step-3.safetensors"):
        snapshots.save(3, other)
    assert_same_bits(load_file(path), model.state_dict())
    Snapshots(tmp_path, 3, overwrite=True).save(3, other)
    assert_same_bits(load_file(path), other.state_dict())
    assert names(tmp_path) == ["step-3.safetensors"]


def test_tied_weights_are_whole(tmp_path: Path) -> None:
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    Snapshots(tmp_path, 1).save(1, tied)
    assert {"0.weight", "1.weight"} <= load_file(tmp_path / "step-1.safetensors").keys()
    teacher = SnapshotTeacher(tmp_path, 1, lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    x = torch.rand(3, 2)
    assert torch.equal(teacher.seek(0)(x), tied(x))


def test_the_first_process_writes_and_wrappers_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    monkeypatch.setenv("RANK", "1")
    Snapshots(tmp_path / "second", 1).save(1, model)
    assert not (tmp_path / "second").exists()
    monkeypatch.delenv("RANK")
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    try:
        snapshots = Snapshots(tmp_path / "first", 1)
        snapshots.save(1, model)

        class Student(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.network, self.teacher = network(), SnapshotTeacher(tmp_path / "first", 1, network)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                apart: torch.Tensor = (self.network(x) - self.teacher.seek(0)(x)).square().mean()
                return apart

        student = DistributedDataParallel(Student())
        student(torch.rand(2, 1, 8, 8)).backward()
        assert all(weight.grad is not None for weight in student.parameters())
        snapshots.save(2, torch.compile(DistributedDataParallel(model)))
        assert_same_bits(load_file(tmp_path / "first" / "step-2.safetensors"), model.state_dict())
    finally:
        distributed.destroy_process_group()


def test_what_is_no_tensor_is_refused(tmp_path: Path) -> None:
    class Odd(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"a": 1}

    with pytest.raises(UserError, match="_extra_state of Odd is dict"):
        Snapshots(tmp_path, 1).save(1, Odd(1, 1))
    assert names(tmp_path) == []
