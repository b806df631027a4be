"""The store of snapshots: folders as they were always written are read, byte for byte, and nothing else is."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from spacedkd import SnapshotTeacher, UserError
from spacedkd.runtime.errors import Damaged, SnapshotsGone
from spacedkd.trajectory.record import JournalReader
from spacedkd.trajectory.replay import RecordedTrajectory
from spacedkd.trajectory.store import FolderSnapshots, RunSnapshots, open_store, read_index
from tests.conftest import assert_same_bits


def filled(value: float) -> nn.Module:
    network = nn.Linear(2, 1)
    for weight in network.parameters():
        nn.init.constant_(weight, value)
    return network


def write_tensors(file: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write float32 tensors byte by byte as safetensors with a checksum: SHA-256 of the file with zeros for it."""
    header: dict[str, object] = {"__metadata__": {"checksum": "0" * 64, **metadata}}
    data = b""
    for name in sorted(tensors):
        values = struct.pack(f"<{tensors[name].numel()}f", *tensors[name].flatten().tolist())
        offsets = [len(data), len(data) + len(values)]
        header[name] = {"dtype": "F32", "shape": [*tensors[name].shape], "data_offsets": offsets}
        data += values
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    whole = len(text).to_bytes(8, "little") + text + data
    checksum = hashlib.sha256(whole).hexdigest().encode()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(whole.replace(b"0" * 64, checksum, 1))


def write_run(run: Path, role: str = "teacher") -> None:
    """Write a recorded run as it lies on disk: index, journal and snapshots after 0, 5 and 8 updates."""
    for update in (0, 5, 8):
        tensors = {f"network.{name}": value for name, value in filled(update).state_dict().items()}
        file = run / "path" / role / f"{update:09d}.safetensors"
        write_tensors(file, tensors, {"role": role, "version": str(update)})
    index = {role: {"settings": {"seed": 0, "steps to learn": 8}, "versions": [0, 5, 8]}}
    (run / "path/path.json").write_text(json.dumps(index))
    lines: list[str] = []
    for first, last in ((0, 5), (5, 8)):
        for step in range(first, last):
            entry = {"event": "loss", "turn": step + 1, "role": role, "step": step, "epoch": step / 5}
            lines.append(json.dumps({**entry, "lr": 0.1, "losses": {"label": 1.5}}))
        snapshot = {"version": last, "cost": {f"{role} images": 8 * last}}
        before = "".join(f"{line}\n" for line in lines)
        digest = hashlib.sha256((before + json.dumps(snapshot)).encode()).hexdigest()
        lines.append(json.dumps({**snapshot, "digest": digest}))
    (run / f"path/{role}/journal.jsonl").write_text("".join(f"{line}\n" for line in lines))


def test_a_folder_of_snapshots_written_by_hand(tmp_path: Path) -> None:
    """With our checksum, and as anybody's plain safetensors."""
    write_tensors(tmp_path / "step-2.safetensors", filled(2).state_dict(), {"updates": "2"})
    save_file(filled(4).state_dict(), tmp_path / "step-4.safetensors")
    store, network = open_store(tmp_path), filled(0)
    assert isinstance(store, FolderSnapshots)
    assert {update: file.name for update, file in store.available().items()} == {
        2: "step-2.safetensors",
        4: "step-4.safetensors",
    }
    for update in (2, 4):
        store.load(update, network)
        assert_same_bits(network.state_dict(), filled(update).state_dict())
    assert float(SnapshotTeacher(tmp_path, 2, filled(0)).seek(3)(torch.ones(1, 2))) == 12
    written = (tmp_path / "step-2.safetensors").read_bytes()
    FolderSnapshots(tmp_path, overwrite=True).save(2, filled(2))
    assert (tmp_path / "step-2.safetensors").read_bytes() == written, "the format is the same to the byte"


def test_a_recorded_run_written_by_hand(tmp_path: Path) -> None:
    write_run(tmp_path)
    role = read_index(tmp_path)["teacher"]
    assert (role.settings["steps to learn"], role.updates) == (8, [0, 5, 8])
    trajectory = RecordedTrajectory(tmp_path, "teacher", role.updates)
    model = nn.ModuleDict({"network": filled(-1)})
    for update in (0, 5, 8):
        assert trajectory.waits_for(update) is None
        trajectory.load(update, model)
        assert_same_bits(model["network"].state_dict(), filled(update).state_dict())
    assert [entry["step"] for step in range(8) for entry in trajectory.entries(step)] == [*range(8)]
    assert trajectory.cost(8) == {"teacher images": 64}
    assert float(SnapshotTeacher(tmp_path, 5, filled(0)).seek(7)(torch.ones(1, 2))) == 24
    written = (tmp_path / "path/teacher/000000005.safetensors").read_bytes()
    RunSnapshots(tmp_path, "teacher").save(5, nn.ModuleDict({"network": filled(5)}))
    assert (tmp_path / "path/teacher/000000005.safetensors").read_bytes() == written


def test_snapshots_before_an_update_are_removed(tmp_path: Path) -> None:
    write_run(tmp_path)
    store = RunSnapshots(tmp_path, "teacher")
    for update, rest in ((0, [0, 5, 8]), (5, [5, 8]), (7, [8]), (9, [])):
        store.remove_before(update)
        assert [*store.available()] == rest


def test_a_snapshot_under_another_name_is_damaged(tmp_path: Path) -> None:
    write_run(tmp_path)
    (tmp_path / "path/teacher/000000005.safetensors").rename(tmp_path / "path/teacher/000000006.safetensors")
    with pytest.raises(Damaged, match=r"000000006.safetensors"):
        RunSnapshots(tmp_path, "teacher").read(6)
    with pytest.raises(SnapshotsGone, match=r"000000006.safetensors"):
        RecordedTrajectory(tmp_path, "teacher", [0, 6, 8]).load(6, filled(0))


def test_a_link_in_a_recorded_run_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    file = tmp_path / "run/path/teacher/000000005.safetensors"
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=file.name):
        RunSnapshots(tmp_path / "run", "teacher").read(5)
    with pytest.raises(UserError, match=file.name):
        open_store(tmp_path / "run")


@pytest.mark.parametrize(
    ("role", "named"), [(None, "teacher, assistant: give role="), ("student", "student.*teacher, assistant")]
)
def test_of_several_recorded_networks_one_is_named(tmp_path: Path, role: str | None, named: str) -> None:
    write_run(tmp_path, "assistant")
    assistant = json.loads((tmp_path / "path/path.json").read_text())
    write_run(tmp_path)
    teacher = json.loads((tmp_path / "path/path.json").read_text())
    (tmp_path / "path/path.json").write_text(json.dumps({**teacher, **assistant}))
    store = open_store(tmp_path, "assistant")
    assert store.folder == tmp_path / "path/assistant"
    with pytest.raises(UserError, match=named):
        open_store(tmp_path, role)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"teacher": {}}', '{"teacher": {"settings": {}, "versions": [null]}}']
)
def test_a_damaged_index_is_gone(tmp_path: Path, text: str) -> None:
    write_run(tmp_path)
    (tmp_path / "path/path.json").write_text(text)
    with pytest.raises(SnapshotsGone, match=r"path.json"):
        read_index(tmp_path)


def test_a_journal_is_read_while_it_is_written(tmp_path: Path) -> None:
    """Entries count when the line of a later snapshot is there; half a line counts for nothing."""
    write_run(tmp_path)
    store = RunSnapshots(tmp_path, "teacher")
    file = store.folder / "journal.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    reader = JournalReader(store.handle, file)
    for text, reached, steps in (
        (lines[:4], 0, 0),
        (lines[:6], 5, 5),
        ([*lines[:8], lines[8][:9]], 5, 5),
        (lines, 8, 8),
    ):
        file.write_bytes(b"".join(text))
        reader.refresh()
        assert (reader.reached, len(reader.entries)) == (reached, steps)
