"""Students that see one teacher at the same steps share its outputs; nothing but the cost tells."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spacedkd import MethodSpec, NetworkSpec, Offline, RunSpec, Spaced, Targets, compare, read_spec, train
from spacedkd.comparison import teacher_sharing
from spacedkd.comparison.job import Job
from spacedkd.comparison.scheduler import plan_jobs, run_jobs, share_arms_teachers
from spacedkd.comparison.teacher_sharing import find_target_readers, jobs_to_begin, remove_passed_targets
from spacedkd.runtime.signals import Stopped
from tests.conftest import TINY
from tests.trajectory.test_targets import assert_same_student

SPACED = replace(TINY, schedule=Spaced("1.5ep"))
ARMS = {
    "kd": SPACED,
    "warm": replace(SPACED, method=MethodSpec("kd", {"temperature": 5, "feature_weight": 0})),
    "dkd": replace(SPACED, method=MethodSpec("dkd")),
    "offline": replace(SPACED, schedule=Offline()),
}


def train_alone(arms: dict[str, RunSpec], out: Path) -> Path:
    for job in plan_jobs(arms, [0], out):
        train(job.spec, job.folder)
    return out


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_alone(ARMS, tmp_path_factory.mktemp("targets") / "alone")


def assert_same_runs(one: Path, other: Path, runs: int) -> None:
    folders = sorted(path.parent.relative_to(other) for path in other.rglob("result.json"))
    assert len(folders) == runs
    for folder in folders:
        assert_same_student(one / folder, other / folder)


def shared(arms: dict[str, RunSpec], out: Path) -> dict[str, Job]:
    return {job.label: job for job in share_arms_teachers(plan_jobs(arms, [0], out))[0]}


def test_every_run_has_the_bits_it_has_alone(tmp_path: Path, alone: Path) -> None:
    compared = compare(ARMS, tmp_path, seeds=1, jobs=2).document
    assert_same_runs(alone, tmp_path, 4)
    forward = {arm["label"]: arm["computed"]["forward_passes"] for arm in compared["arms"]}
    assert forward == {"kd": 45, "warm": 15, "dkd": 15, "offline": 30}
    writer = str((tmp_path / "kd/seed0").resolve())
    assert read_spec(tmp_path / "kd/seed0").cache_targets
    assert [read_spec(tmp_path / arm / "seed0").targets_path for arm in ("warm", "dkd", "offline")] == [
        *(writer, writer),
        None,
    ]
    assert not [*tmp_path.rglob("targets")], "nobody needs them any more"


def test_eight_students_of_one_interval_take_four_fifths_of_the_passes(tmp_path: Path) -> None:
    """Today: 7 + 7 x 4 passes' worth a batch; with targets 7 + 7 x 3."""
    arms = {
        f"weight {weight}": replace(SPACED, epochs=2, method=MethodSpec("kd", {"logit_weight": weight / 10}))
        for weight in range(1, 9)
    }
    compared = compare(arms, tmp_path, seeds=1, jobs=1).document
    worth = sum(a["computed"]["forward_passes"] + 2 * a["computed"]["backward_passes"] for a in compared["arms"])
    assert worth / 10 == 28
    assert 28 / 35 <= 0.8


def test_students_of_a_trained_teacher(tmp_path: Path, alone: Path) -> None:
    teacher = replace(TINY.network, weights=str(alone / "kd/seed0"))
    spec = replace(TINY, teacher=teacher)
    arms = {
        "one": replace(spec, method=MethodSpec("kd", {"teacher_learns": False})),
        "other": replace(spec, method=MethodSpec("kd", {"teacher_learns": False, "temperature": 2}), ema=0.9),
    }
    train_alone(arms, tmp_path / "alone")
    compare(arms, tmp_path / "shared", seeds=1, jobs=1)
    assert_same_runs(tmp_path / "alone", tmp_path / "shared", 2)
    assert read_spec(tmp_path / "shared/other/seed0").targets_path is not None


@pytest.mark.parametrize(
    "other",
    [
        replace(SPACED, schedule=Spaced("1ep")),
        replace(SPACED, redraw_replay=True),
        replace(SPACED, teacher_average="poly:2"),
        replace(SPACED, evaluate_every="2ep"),
        replace(SPACED, targets_form="float16"),
        replace(SPACED, network=NetworkSpec("resnet18_small", {"width": 6, "layers": [1, 1, 1, 1]})),
        replace(SPACED, method=MethodSpec("dml")),
        replace(SPACED, method=MethodSpec("none"), schedule=None),
    ],
    ids=str,
)
def test_students_that_see_other_outputs_share_none(tmp_path: Path, other: RunSpec) -> None:
    for job in shared({"kd": SPACED, "other": other}, tmp_path).values():
        assert not job.spec.cache_targets
        assert job.spec.targets_path is None


def test_who_uses_other_features_calls_the_teacher(tmp_path: Path) -> None:
    fitnet = replace(SPACED, method=MethodSpec("fitnet"))
    jobs = shared({"kd": SPACED, "dkd": ARMS["dkd"], "fitnet": fitnet}, tmp_path)
    assert [label for label, job in jobs.items() if job.spec.cache_targets] == ["kd"]
    assert [label for label, job in jobs.items() if job.spec.targets_path] == ["dkd"]
    assert jobs["fitnet"].spec.teacher_path == str(jobs["kd"].folder.resolve())
    jobs = shared({"dkd": ARMS["dkd"], "kd": SPACED, "other": replace(SPACED, ema=0.9)}, tmp_path)
    assert [label for label, job in jobs.items() if job.spec.cache_targets] == ["kd"], "the recorder has no features"
    assert [label for label, job in jobs.items() if job.spec.targets_path] == ["other"]


def test_only_where_there_is_room_and_it_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(teacher_sharing, "_has_room", lambda size, folder: size < 15 * 8 * 4 * (10 + 32))
        assert not any(job.spec.cache_targets for job in shared(ARMS, tmp_path).values())
    with monkeypatch.context() as patch:
        patch.setattr(teacher_sharing, "FLOPS_PER_BYTE", {False: 10**9, True: 10**9})
        assert not any(job.spec.cache_targets for job in shared(ARMS, tmp_path).values())
    assert any(job.spec.cache_targets for job in shared(ARMS, tmp_path).values())


def test_a_comparison_that_was_stopped_goes_on(tmp_path: Path, alone: Path) -> None:
    class Interrupted(Exception):
        pass

    def stop(job: Job, event: Any) -> None:
        if job.label == "warm":
            raise Interrupted

    with pytest.raises(Interrupted):
        run_jobs(plan_jobs(ARMS, [0], tmp_path / "out"), 1, stop)
    (tmp_path / "out/warm/seed0/result.json").unlink(missing_ok=True)  # so short a run may have ended before the stop
    moved = (tmp_path / "out").rename(tmp_path / "moved")
    run_jobs(plan_jobs(ARMS, [0], moved), 1, lambda job, event: None)
    assert_same_runs(alone, moved, 4)
    assert read_spec(moved / "warm/seed0").targets_path is not None


def stopped_reader(out: Path) -> Iterator[Job]:
    """Yield the job that writes, trained, and one that reads, stopped on its way."""
    jobs = shared({label: ARMS[label] for label in ("kd", "warm")}, out)
    train(jobs["kd"].spec, jobs["kd"].folder)
    left = iter(range(12, -1, -1))
    with pytest.raises(Stopped):
        train(jobs["warm"].spec, jobs["warm"].folder, stop=lambda: next(left) == 1)
    yield from (jobs["kd"], jobs["warm"])


@pytest.mark.parametrize("damage", ["byte", "file", "index", "all"])
def test_a_student_whose_targets_are_gone_calls_the_teacher(tmp_path: Path, alone: Path, damage: str) -> None:
    writer, _ = stopped_reader(tmp_path)
    targets = writer.folder / "targets"
    last = sorted(targets.glob("*.safetensors"))[-1]
    if damage == "byte":
        contents = last.read_bytes()
        last.write_bytes(bytes([*contents[:-1], contents[-1] ^ 1]))
    elif damage == "file":
        last.unlink()
    elif damage == "index":
        (targets / "targets.json").write_text("{")
    else:
        shutil.rmtree(targets)
    arms = {label: ARMS[label] for label in ("kd", "warm")}
    lost = run_jobs(plan_jobs(arms, [0], tmp_path), 1, lambda job, event: None)
    assert not lost
    assert_same_runs(alone, tmp_path, 2)
    assert read_spec(tmp_path / "warm/seed0").targets_path is None


def test_a_writer_that_diverges_costs_the_others_its_targets_alone(tmp_path: Path) -> None:
    """Its student diverges: the teacher is trained alone, and the student that followed calls it."""
    wild = MethodSpec("kd", {"feature_weight": 1e37})
    arms = {"wild": replace(SPACED, log_every="1st", method=wild), "kd": replace(SPACED, log_every="1st")}
    train_alone({"kd": arms["kd"]}, tmp_path / "alone")
    compared = compare(arms, tmp_path / "shared", seeds=1, jobs=2).document
    assert [run["label"] for run in compared["diverged"]] == ["wild"]
    assert_same_student(tmp_path / "alone/kd/seed0", tmp_path / "shared/kd/seed0")


def test_what_every_reader_has_passed_is_removed(tmp_path: Path, alone: Path) -> None:
    jobs = shared({label: ARMS[label] for label in ("kd", "warm", "dkd")}, tmp_path)
    train(jobs["kd"].spec, jobs["kd"].folder)
    targets = Targets(jobs["kd"].folder / "targets")

    def go_on(job: Job, turns: int) -> bool:
        left = iter(range(turns, -1, -1))
        try:
            train(job.spec, job.folder, if_exists="resume", stop=lambda: next(left) == 1)
        except Stopped:
            remove_passed_targets(find_target_readers(tmp_path, [*jobs.values()]))
            return True
        return False

    assert go_on(jobs["warm"], 12)
    assert targets.steps == [*range(15)], "the other has not begun"
    first = []
    while go_on(jobs["warm"], 3) | go_on(jobs["dkd"], 3):
        first.append(min(targets.steps))
    assert first == sorted(first)
    assert first[-1] > 4
    for label in ("warm", "dkd"):
        assert_same_student(alone / label / "seed0", tmp_path / label / "seed0")
    remove_passed_targets(find_target_readers(tmp_path, ()))
    assert not (jobs["kd"].folder / "targets").exists()


def test_readers_begin_when_the_first_targets_are_there(tmp_path: Path) -> None:
    jobs = shared({label: ARMS[label] for label in ("kd", "warm")}, tmp_path)
    writer, reader = jobs["kd"], jobs["warm"]
    waiting = [(0, writer), (1, reader)]
    assert jobs_to_begin(waiting, [], 2) == [(0, writer)]
    recorded = writer.folder / "path/teacher"
    recorded.mkdir(parents=True)
    (recorded / "000000007.safetensors").touch()
    assert jobs_to_begin([(1, reader)], [writer], 2) == []
    (writer.folder / "targets").mkdir()
    (writer.folder / "targets/targets.json").write_text(json.dumps({}))
    assert jobs_to_begin([(1, reader)], [writer], 2) == [(1, reader)]
    assert jobs_to_begin([(1, reader)], [], 2) == [], "nobody writes any more"
