"""A teacher that several arms have is trained once; nothing but the cost tells."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spacedkd import Ahead, MethodSpec, NetworkSpec, Offline, RunSpec, Spaced, compare, read_spec, train
from spacedkd.comparison.job import Job
from spacedkd.comparison.results import compare_runs as compare_folders
from spacedkd.comparison.scheduler import plan_jobs, run_jobs
from spacedkd.comparison.teacher_sharing import (
    find_replaying_runs,
    jobs_to_begin,
    remove_passed_snapshots,
    share_teachers,
    shareable_teacher,
    teacher_job,
)
from spacedkd.config.resolve import resolve
from spacedkd.data.sources import Library
from spacedkd.runs.folder import RunFolder
from spacedkd.runtime.files import write_json
from spacedkd.runtime.signals import Stopped
from spacedkd.schedule import Blocks, Schedule
from spacedkd.training.build import build_models
from spacedkd.trajectory.replay import _needed_document, read_oldest_needed
from tests.conftest import TINY, of_model

ARMS = {
    "no KD": replace(TINY, method=MethodSpec("none")),
    "half": replace(TINY, schedule=Spaced("0.5ep")),
    "online": TINY,
    "spaced": replace(TINY, schedule=Spaced("1.5ep")),
    "offline": replace(TINY, schedule=Offline()),
}
PASSES = {"forward_passes": 1, "backward_passes": 2}
"""a backward pass computes about twice what a forward pass does"""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("sharing")
    for job in plan_jobs(ARMS, [0], out / "alone"):
        train(job.spec, job.folder)
    write_json(out / "alone/comparison.json", compare_folders([out / "alone" / run for run in runs(out / "alone")]))
    compare(ARMS, out / "shared", seeds=1, jobs=2)
    return {"alone": out / "alone", "shared": out / "shared"}


def runs(out: Path) -> list[Path]:
    return sorted(path.parent.relative_to(out) for path in out.rglob("result.json"))


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def test_every_run_has_the_bits_it_has_alone(both: dict[str, Path]) -> None:
    assert runs(both["alone"]) == runs(both["shared"])
    assert len(runs(both["alone"])) == 5
    for run in runs(both["alone"]):
        one, other = (out / run for out in both.values())
        assert (one / "journal.jsonl").read_bytes() == (other / "journal.jsonl").read_bytes()
        assert (one / "student/model.safetensors").read_bytes() == (other / "student/model.safetensors").read_bytes()
        results = [result(one), result(other)]
        for found in results:
            del found["seconds"]
            found["plan"].pop("computed_here", None)
        assert results[0] == results[1]
        models = [
            {name: value for name, value in of_model(folder, "student").items() if name.startswith("model/")}
            for folder in (one, other)
        ]
        assert models[0].keys() == models[1].keys()
        assert all(models[0][name].equal(models[1][name]) for name in models[0])


def test_five_arms_cost_19_passes_instead_of_31(both: dict[str, Path]) -> None:
    """In forward passes and their worth a step: a network that learns 3, one that is looked at 1 more."""
    costs = []
    for out in both.values():
        cost = 0
        for run in runs(out):
            found = result(out / run)
            really = found["plan"].get("computed_here", found["cost"])
            cost += sum(worth * really[name] for name, worth in PASSES.items())
        costs.append(cost / 15)
    assert costs == [31, 19]


def test_the_finest_schedule_records_and_what_it_recorded_is_gone(both: dict[str, Path]) -> None:
    shared = both["shared"]
    assert [*map(str, read_spec(shared / "online/seed0").record)] != []
    for arm in ("no-kd", "half", "spaced", "offline"):
        assert read_spec(shared / arm / "seed0").teacher_path == str((shared / "online/seed0").resolve())
    assert not [*shared.rglob("path")]


def test_the_comparison_says_what_was_computed(both: dict[str, Path]) -> None:
    alone, shared = (json.loads((out / "comparison.json").read_text()) for out in both.values())
    by_label = {arm["label"]: arm for arm in shared["arms"]}
    for one in alone["arms"]:
        other = by_label[one["label"]]
        assert {**one["cost"], "seconds": 0} == {**other["cost"], "seconds": 0}
        assert one["computed"]["forward_passes"] == one["cost"]["forward_passes"]
    computed = {arm["label"]: arm["computed"]["backward_passes"] for arm in shared["arms"]}
    assert computed == {"no KD": 0, "half": 15, "online": 30, "spaced": 15, "offline": 15}
    assert all(pair["cost_ratio"]["seconds"] is None for pair in shared["spacing"])
    assert all(pair["cost_ratio"]["seconds"] > 0 for pair in alone["spacing"])
    assert all(pair["cost_ratio"]["updates"] == 1 for pair in shared["spacing"] + alone["spacing"])
    assert len(shared["spacing"]) == len(alone["spacing"]) == 2


def planned(arms: dict[str, RunSpec], out: Path) -> list[Job]:
    jobs, library = plan_jobs(arms, [0], out), Library()
    plans = {job.label: resolve(job.spec, library=library) for job in jobs}
    return share_teachers(jobs, {label: shareable_teacher(one, build_models(one)) for label, one in plans.items()})


@pytest.mark.parametrize(
    "other",
    [
        replace(TINY, batch_size=10),
        replace(TINY, label_smoothing=0.1),
        replace(TINY, teacher=NetworkSpec("resnet18_small", {"width": 6})),
        replace(TINY, evaluate_every="2ep"),
        replace(TINY, frozen_mode="train"),
        replace(TINY, method=MethodSpec("dml")),
        replace(TINY, method=MethodSpec("self-kd"), schedule=Spaced("1ep")),
        replace(TINY, method=MethodSpec("eskd")),
        replace(TINY, method=MethodSpec("ban")),
    ],
)
def test_teachers_that_differ_are_not_shared(tmp_path: Path, other: RunSpec) -> None:
    for job in planned({"one": TINY, "other": other}, tmp_path):
        assert not job.spec.record
        assert job.spec.teacher_path is None


def test_methods_share_a_teacher_too(tmp_path: Path) -> None:
    kd, dkd = planned({"kd": TINY, "dkd": replace(TINY, method=MethodSpec("dkd"), schedule=Spaced("1ep"))}, tmp_path)
    assert kd.spec.record == (Spaced("1ep"),)
    assert dkd.spec.teacher_path == str(kd.folder.resolve())


def test_dropout_keeps_no_kd_from_being_the_teacher(tmp_path: Path) -> None:
    """Masks are seeded by the name of a role."""
    dropping = replace(TINY, network=NetworkSpec("resnet18_small", {"width": 4, "drop_rate": 0.5}))
    alone, kd, _ = planned(
        {
            "no KD": replace(dropping, method=MethodSpec("none")),
            "kd": dropping,
            "spaced": replace(dropping, schedule="1ep"),
        },
        tmp_path,
    )
    assert alone.spec.teacher_path is None
    assert kd.spec.record == (Spaced("1ep"),)


def test_who_must_wait_comes_last(tmp_path: Path) -> None:
    jobs = planned({"spaced": ARMS["spaced"], "online": TINY}, tmp_path)
    later = Job("later", 1, TINY, tmp_path / "later")
    waiting = [*enumerate([*jobs, later])]
    spaced, online, _ = waiting
    assert jobs_to_begin(waiting, [], 2) == [online, waiting[2]], "nothing is recorded yet"
    recorded = jobs[1].folder / "path/teacher"
    recorded.mkdir(parents=True)
    (recorded / "000000007.safetensors").touch()
    left = [spaced, waiting[2]]
    assert jobs_to_begin(left, [jobs[1]], 1) == [waiting[2]], "it would have to wait, the other need not"
    assert jobs_to_begin(left, [jobs[1]], 2) == [waiting[2], spaced]
    assert jobs_to_begin([spaced], [], 2) == [], "nobody goes on recording"


def test_a_comparison_that_was_stopped_goes_on(tmp_path: Path, both: dict[str, Path]) -> None:
    """Whoever records is stopped in the middle; the others find what it has recorded, then and later."""

    class Stopped(Exception):
        pass

    def stop(job: Job, moment: Any) -> None:
        if job.label == "online" and moment.turn > 16:
            raise Stopped

    jobs = plan_jobs(ARMS, [0], tmp_path)
    with pytest.raises(Stopped):
        run_jobs(jobs, 1, stop)
    run_jobs(plan_jobs(ARMS, [0], tmp_path), 1, lambda job, moment: None)
    for run in runs(tmp_path):
        assert (tmp_path / run / "journal.jsonl").read_bytes() == (both["alone"] / run / "journal.jsonl").read_bytes()
    assert len(runs(tmp_path)) == 5
    assert read_spec(tmp_path / "spaced/seed0").teacher_path == str((tmp_path / "online/seed0").resolve())


def test_a_comparison_that_was_stopped_after_the_teacher_was_trained_goes_on(tmp_path: Path) -> None:
    """The arm that records is finished: the others follow it all the same, wherever it was moved, and what it has
    recorded goes at the end.
    """

    class Stopped(Exception):
        pass

    def stop(job: Job, moment: Any) -> None:
        if job.label != "online":
            raise Stopped

    arms = {label: ARMS[label] for label in ("online", "spaced", "offline")}
    tmp_path /= "out"
    with pytest.raises(Stopped):
        run_jobs(plan_jobs(arms, [0], tmp_path), 1, stop)
    assert (tmp_path / "online/seed0/result.json").exists()
    (tmp_path / "spaced/seed0/result.json").unlink(missing_ok=True)  # so short a run may have ended before the stop
    shutil.rmtree(tmp_path / "offline", ignore_errors=True)
    tmp_path = tmp_path.rename(tmp_path.with_name("moved"))
    recorded = tmp_path / "online/seed0/path"
    fewer = {"online": arms["online"], "offline": arms["offline"]}
    run_jobs(plan_jobs(fewer, [0], tmp_path), 1, lambda job, moment: None)
    assert "computed_here" in result(tmp_path / "offline/seed0")["plan"]
    assert recorded.exists(), "an arm that was left out this time has need of it"
    run_jobs(plan_jobs(arms, [0], tmp_path), 1, lambda job, moment: None)
    assert "computed_here" in result(tmp_path / "spaced/seed0")["plan"]
    assert not recorded.exists()


def test_what_every_follower_has_passed_is_removed_while_they_go_on(tmp_path: Path, both: dict[str, Path]) -> None:
    """They are stopped again and again, and go on from their checkpoints, to the bits they have alone."""
    jobs = planned({label: ARMS[label] for label in ("online", "half", "spaced")}, tmp_path)
    online, *others = sorted(jobs, key=lambda job: job.label != "online")
    train(online.spec, online.folder)
    recorded = online.folder / "path/teacher"

    def first() -> int:
        return min(int(file.stem) for file in recorded.glob("*.safetensors"))

    def go_on(job: Job, turns: int) -> bool:
        left = iter(range(turns, -1, -1))
        try:
            train(job.spec, job.folder, if_exists="resume", stop=lambda: next(left) == 1)
        except Stopped:
            remove_passed_snapshots(find_replaying_runs(tmp_path, jobs))
            return True
        return False

    half, spaced = others
    assert go_on(half, 9)
    assert first() == 2, "the other has not begun"
    lowest = []
    while go_on(half, 3) | go_on(spaced, 3):
        lowest.append(first())
    assert lowest == sorted(lowest)
    assert lowest[-1] > 2
    for job in (half, spaced):
        run = job.folder.relative_to(tmp_path)
        assert (job.folder / "journal.jsonl").read_bytes() == (both["alone"] / run / "journal.jsonl").read_bytes()
    remove_passed_snapshots(find_replaying_runs(tmp_path, ()))
    assert not (online.folder / "path").exists()


def follower(tmp_path: Path) -> tuple[Job, Job, list[Job]]:
    """A run that has recorded, one that follows it and was stopped on its way, and the jobs of both."""
    jobs = planned({label: ARMS[label] for label in ("online", "spaced")}, tmp_path)
    online, spaced = sorted(jobs, key=lambda job: job.label != "online")
    train(online.spec, online.folder)
    left = iter(range(10, -1, -1))
    with pytest.raises(Stopped):
        train(spaced.spec, spaced.folder, stop=lambda: next(left) == 1)
    return online, spaced, jobs


def test_a_damaged_passed_json_removes_nothing(tmp_path: Path) -> None:
    online, spaced, jobs = follower(tmp_path)
    recorded, file, run = online.folder / "path/teacher", spaced.folder / "passed.json", RunFolder(spaced.folder)
    before = sorted(recorded.iterdir())
    passed = json.loads(file.read_text())
    fingerprint = passed["fingerprint"]
    for damaged in (
        passed | {"versions": {"teacher": 15}},
        passed | {"fingerprint": "0" * 16},
        {"teacher": 15},  # as earlier versions wrote it
        _needed_document({"teacher": 10**6}, fingerprint),
        _needed_document({"teacher": "15"}, fingerprint),  # type: ignore[dict-item]
        _needed_document({"teacher": True}, fingerprint),
        _needed_document({"teacher": -1}, fingerprint),
        _needed_document({"teacher": 7}, "0" * 16),
        [passed],
        15,
    ):
        file.write_text(json.dumps(damaged))
        remove_passed_snapshots(find_replaying_runs(tmp_path, jobs))
        assert sorted(recorded.iterdir()) == before
        assert read_oldest_needed(run) == {}
    file.write_text(json.dumps(passed))
    assert read_oldest_needed(run) == passed["versions"]
    shutil.rmtree(spaced.folder / "checkpoint")
    assert read_oldest_needed(run) == {}, "without a checkpoint it begins anew"


def snapshots(folder: Path) -> list[Path]:
    return sorted((folder / "path/teacher").glob("*.safetensors"))


@pytest.mark.parametrize("damage", ["last", "swapped", "journal", "path.json"])
def test_a_teacher_whose_snapshots_are_gone_is_trained_again(
    tmp_path: Path, both: dict[str, Path], damage: str
) -> None:
    """To the bits of a comparison that nothing happened to; the follower goes on from its checkpoint."""
    online, spaced, jobs = follower(tmp_path)
    before = (spaced.folder / "checkpoint/latest.safetensors").stat().st_mtime_ns
    path = online.folder / "path"
    if damage == "last":
        snapshots(online.folder)[-1].unlink()
    elif damage == "swapped":
        *_, one, other = snapshots(online.folder)
        shutil.copy(one, other)
    elif damage == "journal":
        (path / "teacher/journal.jsonl").write_text('{"event": 1}\n')
    else:
        (path / "path.json").write_text('{"teacher": {}}')
    told: list[str] = []
    lost = run_jobs(
        plan_jobs({job.label: ARMS[job.label] for job in jobs}, [0], tmp_path),
        1,
        lambda job, moment: told.append(job.label),
    )
    assert not lost
    assert "teacher of online" in told
    assert (spaced.folder / "journal.jsonl").read_bytes() == (both["alone"] / "spaced/seed0/journal.jsonl").read_bytes()
    ours, alone = result(spaced.folder), result(both["alone"] / "spaced/seed0")
    assert (ours["cost"], ours["accuracy"]) == (alone["cost"], alone["accuracy"])
    assert (spaced.folder / "checkpoint/previous.safetensors").stat().st_mtime_ns >= before
    assert not [*tmp_path.rglob("path")]
    assert not [*tmp_path.rglob("teacher")], "and all of it is removed in the end"


def test_a_run_whose_leader_is_no_part_of_the_comparison_begins_anew(tmp_path: Path, both: dict[str, Path]) -> None:
    online, spaced, _ = follower(tmp_path)
    for file in snapshots(online.folder):
        file.unlink()
    assert not run_jobs(plan_jobs({"spaced": ARMS["spaced"]}, [0], tmp_path), 1, lambda job, moment: None)
    assert (spaced.folder / "journal.jsonl").read_bytes() == (both["alone"] / "spaced/seed0/journal.jsonl").read_bytes()
    assert read_spec(spaced.folder).teacher_path is None


def test_a_spec_that_cannot_be_read_hinders_no_comparison(both: dict[str, Path]) -> None:
    """Whose it is may follow a teacher that was recorded: then all of that is kept."""
    out = both["shared"]
    (other := out / "x/y/spec.json").parent.mkdir(parents=True)
    other.write_text("{")
    (recorded := out / "online/seed0/path/teacher/000000007.safetensors").parent.mkdir(parents=True)
    recorded.touch()
    (out / "comparison.json").unlink()
    compare(ARMS, out, seeds=1)
    assert (out / "comparison.json").exists()
    assert recorded.exists()
    shutil.rmtree(out / "x")
    compare(ARMS, out, seeds=1)
    assert not recorded.exists()


def test_a_path_of_which_something_is_gone_is_not_followed_by_others(tmp_path: Path) -> None:
    arms = {"online": TINY, "spaced": ARMS["spaced"]}
    online, _ = planned(arms, tmp_path)
    train(online.spec, online.folder)
    assert planned(arms, tmp_path)[1].spec.teacher_path == str(online.folder.resolve())
    (online.folder / "path/teacher/000000007.safetensors").unlink()
    assert planned(arms, tmp_path)[1].spec.teacher_path is None


@pytest.mark.parametrize("schedule", [Spaced("3st", speed=2), Blocks([2, 5, 4])])
def test_a_faster_schedule_and_blocks_share_the_teacher(tmp_path: Path, schedule: Schedule) -> None:
    """Spaced(3, speed=2) sees the teacher after 6, 12 and 15 updates, which 1.5 epochs (7, 14, 15) do not record."""
    arms = {"spaced": ARMS["spaced"], "other": replace(TINY, schedule=schedule)}
    compare(arms, tmp_path / "shared", seeds=1)
    train(arms["other"], tmp_path / "alone")
    (shared,) = [path.parent for path in (tmp_path / "shared").rglob("spec.json") if "other" in str(path)]
    replaying = [
        path.parent for path in (tmp_path / "shared").rglob("spec.json") if read_spec(path.parent).teacher_path
    ]
    assert len(replaying) == 1
    for name in ("journal.jsonl", "student/model.safetensors"):
        assert (tmp_path / "alone" / name).read_bytes() == (shared / name).read_bytes()


def test_a_path_takes_a_quarter_of_the_free_disk_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Students who meet their teacher at every step would need all of its versions."""
    jobs = plan_jobs({**ARMS, "ahead": replace(TINY, schedule=Ahead("2st"))}, [0], tmp_path)
    plans = {job.label: resolve(job.spec) for job in jobs}
    teachers = {label: shareable_teacher(one, build_models(one)) for label, one in plans.items()}
    size = sum(
        tensor.numel() * tensor.element_size()
        for tensor in build_models(plans["online"])["teacher"].state_dict().values()
    )

    def replaying(versions: int) -> set[str]:
        usage = SimpleNamespace(free=4 * size * versions)
        monkeypatch.setattr(shutil, "disk_usage", lambda place: usage)
        return {job.label for job in share_teachers(jobs, teachers) if job.spec.teacher_path is not None}

    # offline needs 1 version of 15; 1.5 epochs 3 (of 7, 14 and 15 updates), half an epoch 8; a lead of 2 steps 13
    assert replaying(20) == {"no KD", "half", "spaced", "offline", "ahead"}
    assert replaying(10) == {"no KD", "half", "spaced", "offline"}
    assert replaying(3) == {"no KD", "spaced", "offline"}
    assert replaying(1) == {"no KD", "offline"}


def test_a_teacher_that_was_trained_alone_and_is_damaged_is_trained_again(
    tmp_path: Path, both: dict[str, Path]
) -> None:
    """The command that trained it was killed before the run that follows it came to its end."""
    online, spaced, jobs = follower(tmp_path)
    snapshots(online.folder)[-1].unlink()
    teacher = teacher_job(online)
    train(teacher.spec, teacher.folder)
    snapshots(teacher.folder)[-1].write_bytes(b"damaged")
    assert not run_jobs(
        plan_jobs({job.label: ARMS[job.label] for job in jobs}, [0], tmp_path), 1, lambda job, moment: None
    )
    assert (spaced.folder / "journal.jsonl").read_bytes() == (both["alone"] / "spaced/seed0/journal.jsonl").read_bytes()
    assert not [*tmp_path.rglob("teacher")]
