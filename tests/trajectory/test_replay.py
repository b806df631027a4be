"""A teacher gives the same bits when it learns beside the student, was recorded before, or is recorded meanwhile."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from torch import nn

from spacedkd import (
    Ahead,
    DataSpec,
    MethodSpec,
    NetworkSpec,
    Offline,
    Online,
    OptimizerSpec,
    RateSpec,
    RunSpec,
    Spaced,
    UserError,
    read_spec,
    train,
)
from spacedkd.config.serialization import to_json
from spacedkd.runs.tensor_file import digest
from spacedkd.runtime.errors import SnapshotsGone
from spacedkd.runtime.files import Folder
from spacedkd.schedule import Blocks, Growing, Schedule, Window
from spacedkd.training import Event
from spacedkd.trajectory.record import TrajectoryWriter
from spacedkd.trajectory.replay import RecordedTrajectory
from tests import forked
from tests.conftest import TINY, assert_same_bits, of_model
from tests.training.stopping import Stopped, train_in_parts

Make = Callable[..., RunSpec]
SCHEDULES: dict[str, Schedule] = {
    "online": Online(),
    "spaced": Spaced("1.5ep"),
    "dropped tail": Spaced("4st", tail="drop"),
    "offline": Offline(),
    "ahead": Ahead("1ep"),
    "window": Window(Spaced("1ep"), Online(), "1ep", stop="2ep"),
    "speed": Spaced("3st", speed=2),
    "speed 1.5, dropped tail": Spaced("4st", "drop", 1.5),
    "blocks": Blocks([2, 5, 4]),
    "growing": Growing("2st", 1.5),
}


def assert_same_but_for_cost(one: Path, other: Path) -> None:
    """Compare student, journal and result; a run that replays its teacher has no optimizer of it."""
    for model in ("student", "teacher"):
        weights = [
            {k: v for k, v in of_model(folder, model).items() if k.startswith("model/") or model == "student"}
            for folder in (one, other)
        ]
        assert_same_bits(*weights)
    assert (one / "journal.jsonl").read_bytes() == (other / "journal.jsonl").read_bytes()
    assert (one / "student/model.safetensors").read_bytes() == (other / "student/model.safetensors").read_bytes()
    results = [json.loads((folder / "result.json").read_text()) for folder in (one, other)]
    for result in results:
        del result["seconds"]
        result["plan"].pop("computed_here", None)
    assert results[0] == results[1]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a run that records what all these schedules need."""
    folder = tmp_path_factory.mktemp("trajectories") / "recorded"
    train(replace(TINY, schedule=Spaced("1ep"), record=tuple(SCHEDULES.values())), folder)
    return folder


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_replayed_teacher_gives_the_bits_of_one_that_learns_beside_the_student(
    tmp_path: Path, tiny: RunSpec, recorded: Path, name: str
) -> None:
    spec = replace(tiny, schedule=SCHEDULES[name])
    train(spec, tmp_path / "alone")
    train(replace(spec, teacher_path=recorded), tmp_path / "replays")
    assert_same_but_for_cost(tmp_path / "alone", tmp_path / "replays")
    train_in_parts(replace(spec, teacher_path=recorded), tmp_path / "stopped", 13, 21)
    assert_same_but_for_cost(tmp_path / "alone", tmp_path / "stopped")


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "bf16-true", "64-true"])
def test_a_replayed_teacher_answers_in_the_precision_it_learns_in(
    tmp_path: Path, tiny: RunSpec, precision: str
) -> None:
    spec = replace(tiny, epochs=1, schedule=Spaced("2st"), precision=precision)
    train(replace(spec, record=("2st",)), tmp_path / "alone")
    train(replace(spec, teacher_path=tmp_path / "alone"), tmp_path / "replays")
    assert_same_but_for_cost(tmp_path / "alone", tmp_path / "replays")


def test_recording_changes_nothing(tmp_path: Path, tiny: RunSpec, recorded: Path) -> None:
    train(replace(tiny, schedule=Spaced("1ep")), tmp_path / "plain")
    assert_same_but_for_cost(tmp_path / "plain", recorded)


def test_the_teacher_alone_can_be_recorded(tmp_path: Path, tiny: RunSpec) -> None:
    """As a run without distillation, whose network is the teacher's, or as the first part of a run with it."""
    spaced = replace(tiny, schedule=Spaced("1.5ep"))
    train(spaced, tmp_path / "alone")
    train(replace(tiny, method="none", record=("1.5ep",)), tmp_path / "no kd")
    train(replace(spaced, only="teacher", record=("1.5ep",)), tmp_path / "only")
    assert (tmp_path / "no kd/student/model.safetensors").read_bytes() == (
        tmp_path / "only/student/model.safetensors"
    ).read_bytes()
    for recorder in ("no kd", "only"):
        train(replace(spaced, teacher_path=tmp_path / recorder), tmp_path / f"after {recorder}")
        assert_same_but_for_cost(tmp_path / "alone", tmp_path / f"after {recorder}")


def test_no_kd_is_the_teacher_and_need_not_be_trained(tmp_path: Path, tiny: RunSpec, recorded: Path) -> None:
    spec = replace(tiny, method="none")
    train(spec, tmp_path / "trained")
    run = train(replace(spec, teacher_path=recorded), tmp_path / "copied")
    assert run.computed["forward_passes"] == 0
    for name in ("journal.jsonl", "student/model.safetensors"):
        assert (tmp_path / "trained" / name).read_bytes() == (tmp_path / "copied" / name).read_bytes()


@pytest.mark.parametrize("method", ["ban", "takd"])
def test_every_network_of_a_chain_but_the_last_is_recorded(tmp_path: Path, tiny_with: Make, method: str) -> None:
    spec = tiny_with(method, schedule=Spaced("1ep"))
    train(replace(spec, record=("1ep",)), tmp_path / "recorded")
    roles = sorted(path.name for path in (tmp_path / "recorded/path").iterdir() if path.is_dir())
    assert roles == {"ban": ["generation 1", "teacher"], "takd": ["assistant", "teacher"]}[method]
    run = train(replace(spec, teacher_path=tmp_path / "recorded"), tmp_path / "replays")
    assert run.computed["updates"] == 15
    assert_same_but_for_cost(tmp_path / "recorded", tmp_path / "replays")


def test_what_differs_further_down_a_chain_learns_here(tmp_path: Path, tiny_with: Make) -> None:
    train(tiny_with("ban", schedule=Spaced("1ep"), record=("1ep", "2ep")), tmp_path / "recorded")
    other = tiny_with("ban", schedule=Spaced("2ep"))
    train(other, tmp_path / "alone")
    run = train(replace(other, teacher_path=tmp_path / "recorded"), tmp_path / "replays")
    assert run.computed["updates"] == 30, "generation 1 learned from the teacher at other intervals"
    assert_same_but_for_cost(tmp_path / "alone", tmp_path / "replays")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"data": DataSpec("digits", train_limit=42)}, "another data"),
        ({"seed": 1}, "another seed"),
        ({"batch_size": 9}, "another batch size"),
        ({"optimizer": OptimizerSpec(lr=0.03)}, "another optimizer"),
        ({"rate": RateSpec("cosine")}, "another learning rate"),
        ({"teacher": NetworkSpec("resnet18_small", {"width": 5})}, "another network"),
        ({"label_smoothing": 0.1}, "another label smoothing"),
        ({"epochs": 4}, "another epochs"),
        ({"precision": "64-true"}, "another precision"),
        ({"same_init": False}, "another first weights"),
        ({"schedule": Spaced("6st")}, "teacher after 6 updates, .* 5, 10, 15"),
        ({"method": MethodSpec("dml")}, "of dml learns"),
        ({"method": MethodSpec("shake")}, "of shake learns"),
        ({"method": MethodSpec("self-kd")}, "of self-kd learns"),
        ({"method": MethodSpec("ban")}, "another first weights"),
        ({"frozen_mode": "train"}, "frozen_mode=train"),
        ({"optimizer": OptimizerSpec(lr=0.02, moves_frozen=True)}, "moves_frozen"),
    ],
)
def test_another_trajectory_is_refused_in_one_line(
    tmp_path: Path, tiny: RunSpec, every_epoch: Path, changes: dict[str, Any], named: str
) -> None:
    spec = replace(tiny, **{"schedule": Spaced("1ep"), **changes}, teacher_path=every_epoch)
    with pytest.raises(UserError, match=named) as refused:
        train(spec, tmp_path / "run")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def every_epoch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trajectories") / "every epoch"
    train(replace(TINY, schedule=Spaced("1ep"), record=("1ep",)), folder)
    return folder


def test_a_teacher_that_was_evaluated_less_often_is_refused(tmp_path: Path, tiny: RunSpec, recorded: Path) -> None:
    """Its accuracies would be missing in the journal, and its best one in the result."""
    with pytest.raises(UserError, match=r"every 1ep, .* every 2st: give evaluate_every=1ep"):
        train(replace(tiny, teacher_path=recorded, evaluate_every="2st"), tmp_path / "more often")
    spec = replace(tiny, evaluate_every="3ep")
    train(spec, tmp_path / "alone")
    train(replace(spec, teacher_path=recorded), tmp_path / "replays")
    assert_same_but_for_cost(tmp_path / "alone", tmp_path / "replays")


def test_snapshots_that_are_gone_are_not_waited_for(tmp_path: Path, tiny: RunSpec) -> None:
    train(replace(tiny, epochs=1, record=("offline",)), tmp_path / "recorded")
    shutil.rmtree(tmp_path / "recorded/path")

    def stop(moment: Event) -> None:
        raise Stopped

    with pytest.raises(SnapshotsGone, match="recorded"):
        train(replace(tiny, epochs=1, teacher_path=tmp_path / "recorded"), tmp_path / "run", callback=stop)


def test_a_run_that_recorded_nothing_cannot_be_replayed(tmp_path: Path, tiny: RunSpec) -> None:
    with pytest.raises(UserError, match="nowhere"):
        train(replace(tiny, teacher_path=tmp_path / "nowhere"), tmp_path / "run")
    train(tiny, tmp_path / "plain")
    with pytest.raises(UserError, match="plain .*record"):
        train(replace(tiny, teacher_path=tmp_path / "plain"), tmp_path / "run")


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_damaged_snapshots_are_noticed(tmp_path: Path, tiny: RunSpec, every_epoch: Path, damage: str) -> None:
    shutil.copytree(every_epoch, tmp_path / "recorded")
    file = tmp_path / "recorded/path/teacher/000000010.safetensors"
    whole = bytearray(file.read_bytes())
    whole[-5] ^= 1
    {
        "cut": lambda: file.write_bytes(whole[:-9]),
        "changed": lambda: file.write_bytes(whole),
        "gone": file.unlink,
    }[damage]()
    with pytest.raises(SnapshotsGone, match="000000010.safetensors"):
        train(replace(tiny, schedule=Spaced("1ep"), teacher_path=tmp_path / "recorded"), tmp_path / "run")


@pytest.mark.parametrize("damage", ['"final": 0.', '"label": ', '"teacher images": '])
def test_a_changed_digit_in_a_recorded_journal_is_noticed(
    tmp_path: Path, tiny: RunSpec, every_epoch: Path, damage: str
) -> None:
    run = shutil.copytree(every_epoch, tmp_path / "run")
    journal = run / "path/teacher/journal.jsonl"
    text = journal.read_text()
    place = text.index(damage) + len(damage)
    journal.write_text(f"{text[:place]}{(int(text[place]) + 1) % 10}{text[place + 1 :]}")
    with pytest.raises(SnapshotsGone, match=r"journal.jsonl"):
        train(replace(tiny, schedule=Spaced("1ep"), teacher_path=str(run)), tmp_path / "student")
    (run / "result.json").unlink()
    with pytest.raises(UserError, match=rf"journal.jsonl .*--resume {run} --restart"):
        train(read_spec(run), run, if_exists="resume")


def test_a_recorded_journal_without_digests_is_replayed(tmp_path: Path, tiny: RunSpec, every_epoch: Path) -> None:
    run = shutil.copytree(every_epoch, tmp_path / "run")
    journal = run / "path/teacher/journal.jsonl"
    entries = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [*entries[-1]] == ["version", "cost", "digest"]
    plain = [{name: value for name, value in entry.items() if name != "digest"} for entry in entries]
    journal.write_text("".join(json.dumps(entry) + "\n" for entry in plain))
    train(replace(tiny, schedule=Spaced("1ep"), teacher_path=str(run)), tmp_path / "student")


def test_snapshots_of_earlier_versions_are_replayed(tmp_path: Path, tiny: RunSpec, every_epoch: Path) -> None:
    """They have a digest of their tensors in the place of a checksum."""
    shutil.copytree(every_epoch, tmp_path / "recorded")
    for file in (tmp_path / "recorded/path/teacher").glob("*.safetensors"):
        tensors = load_file(file)
        save_file(tensors, file, {"role": "teacher", "version": str(int(file.stem)), "digest": digest(tensors)})
    spec = replace(tiny, schedule=Spaced("1ep"), teacher_path=tmp_path / "recorded")
    train(spec, tmp_path / "run")
    assert_same_but_for_cost(tmp_path / "run", every_epoch)
    del tensors["network.fc.bias"]
    save_file(tensors, file, {"role": "teacher", "version": str(int(file.stem)), "digest": digest(load_file(file))})
    with pytest.raises(UserError, match="checksum"):
        train(spec, tmp_path / "again")


def test_what_either_checkpoint_of_a_pipeline_may_ask_for_stays(tmp_path: Path) -> None:
    """When the fourth save is written the checkpoints there are were made after 10 and 15 updates of the teacher."""
    folder = tmp_path / "path" / "teacher"
    folder.mkdir(parents=True)
    model, trajectory = nn.Linear(2, 2), RecordedTrajectory(tmp_path, "teacher", [0, 5, 10, 15])
    for update in trajectory.recorded:
        TrajectoryWriter(Folder(tmp_path), "teacher", model, [update]).save(update, {})
    for update in (0, 5, 10, 15):
        if update:
            trajectory.load(update, model)
        trajectory.store.remove_before(trajectory.mark_save())
    assert sorted(int(file.stem) for file in folder.glob("*.safetensors")) == [10, 15]


def test_a_teacher_is_replayed_while_it_is_recorded_and_its_process_is_killed(tmp_path: Path, tiny: RunSpec) -> None:
    """The student waits, is stopped itself, says that nobody records, and resumes when the teacher does."""
    spec = replace(tiny, epochs=12, schedule=Spaced("1ep"), evaluate_every="6ep")
    (tmp_path / "spec.json").write_text(json.dumps(to_json(replace(spec, record=("1ep",)))))
    started = ["-m", "spacedkd", "train"]
    teacher = forked.Command(*started, "--spec", "spec.json", "--out", "teacher", cwd=tmp_path)
    while not [*tmp_path.glob("teacher/path/teacher/*.safetensors")]:
        time.sleep(0.002)
    teacher.kill()
    teacher.wait()
    assert not (tmp_path / "teacher/result.json").exists(), "it was to be killed on its way"
    messages: list[str] = []

    def callback(moment: Event) -> None:
        if moment.waiting and moment.waiting not in messages:
            messages.append(moment.waiting)
            raise Stopped

    replays = replace(spec, teacher_path=tmp_path / "teacher")
    with pytest.raises(Stopped):
        train(replays, tmp_path / "student", callback=callback)
    assert f"spacedkd train --resume {tmp_path / 'teacher'}" in messages[0]
    teacher = forked.Command(*started, "--resume", "teacher", cwd=tmp_path)
    train(replays, tmp_path / "student", if_exists="resume")
    assert teacher.wait() == 0
    train(spec, tmp_path / "alone")
    assert_same_but_for_cost(tmp_path / "alone", tmp_path / "student")
    assert_same_but_for_cost(tmp_path / "alone", tmp_path / "teacher")
