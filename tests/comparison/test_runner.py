"""Arms times seeds in parallel: fairness, reuse, controls."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spacedkd import DataSpec, EngineSpec, MethodSpec, RunSpec, Spaced, UserError, read_run, train
from spacedkd import compare as compare_arms
from spacedkd.comparison.job import Job
from spacedkd.comparison.results import compare_runs, find_runs
from spacedkd.comparison.scheduler import equal_cost_controls, plan_jobs, run_jobs
from spacedkd.data import folders as below
from spacedkd.data import folders as disk
from spacedkd.runs.folder import RunFolder
from spacedkd.training import Event
from tests.conftest import TINY, tensors
from tests.data.on_disk import class_folders

QUICK = replace(TINY, epochs=2)
ARMS = {
    "no KD": replace(QUICK, method=MethodSpec("none")),
    "online KD": QUICK,
    "spaced KD": replace(QUICK, schedule=Spaced("1ep")),
}


def silent(job: Job, moment: Event) -> None:
    pass


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Job]]:
    out = tmp_path_factory.mktemp("compared")
    jobs = plan_jobs(ARMS, [0, 1], out)
    run_jobs(jobs, 2, silent)
    return out, jobs


def test_runs_are_folders_named_by_arm_and_seed(compared: tuple[Path, list[Job]]) -> None:
    out, jobs = compared
    assert [str(job.folder.relative_to(out)) for job in jobs[:3]] == [
        "no-kd/seed0",
        "online-kd/seed0",
        "spaced-kd/seed0",
    ]
    assert all((job.folder / "result.json").exists() for job in jobs)


def test_arms_of_a_seed_share_their_teacher_and_seeds_do_not(compared: tuple[Path, list[Job]]) -> None:
    """The arm without KD is the other arms' teacher: same data order, same initial weights."""
    out, _ = compared
    weight = "model/{}/network.layer4.0.conv2.weight".format
    alone = tensors(out / "no-kd" / "seed0")[weight("student")]
    assert torch.equal(alone, tensors(out / "online-kd" / "seed0")[weight("teacher")])
    assert torch.equal(alone, tensors(out / "spaced-kd" / "seed0")[weight("teacher")])
    assert not torch.equal(alone, tensors(out / "no-kd" / "seed1")[weight("student")])


def test_the_comparison_says_what_the_runs_say(compared: tuple[Path, list[Job]]) -> None:
    _out, jobs = compared
    found = compare_runs([job.folder for job in jobs], against="online KD")
    assert [arm["label"] for arm in found["arms"]] == ["no KD", "online KD", "spaced KD"]
    for arm in found["arms"]:
        folders = [job.folder for job in jobs if job.label == arm["label"]]
        results = [json.loads((folder / "result.json").read_text()) for folder in folders]
        scores = [r["accuracy"]["student"]["test"]["final"]["last"] for r in results]
        assert arm["last"]["mean"] == pytest.approx(sum(scores) / 2)
        assert arm["cost"]["updates"] == results[0]["cost"]["updates"]
    reference, spaced = found["arms"][1], found["arms"][2]
    assert reference["difference"] is None
    assert spaced["difference"]["mean"] == pytest.approx(spaced["last"]["mean"] - reference["last"]["mean"])
    assert (reference["schedule"], spaced["schedule"]) == ("online", "spaced 1ep")


def test_finished_runs_are_not_run_again(compared: tuple[Path, list[Job]]) -> None:
    _, jobs = compared
    before = {job.folder: (job.folder / "result.json").stat().st_mtime_ns for job in jobs}
    told: list[Job] = []
    run_jobs(jobs, 1, lambda job, moment: told.append(job))
    assert not told
    assert before == {job.folder: (job.folder / "result.json").stat().st_mtime_ns for job in jobs}


def test_a_folder_with_another_run_stops_everything_before_it_starts(
    compared: tuple[Path, list[Job]], tmp_path: Path
) -> None:
    out, _ = compared
    longer = {"new": ARMS["no KD"], "online KD": replace(QUICK, epochs=3)}
    with pytest.raises(UserError, match="online-kd/seed0 holds another run"):
        run_jobs(plan_jobs(longer, [0], out), 1, silent)
    assert not (out / "new").exists()


def test_a_bad_arm_stops_everything_before_it_starts(tmp_path: Path) -> None:
    bad = plan_jobs({"good": QUICK, "bad": replace(QUICK, schedule=Spaced("50ep"))}, [0], tmp_path)
    with pytest.raises(UserError, match="longer than the run"):
        run_jobs(bad, 1, silent)
    assert list(tmp_path.iterdir()) == []


def test_a_run_keeps_the_threads_it_began_with(tmp_path: Path) -> None:
    """Their number shows in the bits, so another number of jobs must not change a run that goes on."""
    open_ended = {"a": replace(QUICK, engine=EngineSpec())}
    (job,) = plan_jobs(open_ended, [0], tmp_path, at_once=1)
    RunFolder(job.folder).create(replace(job.spec, engine=EngineSpec(threads=7)))
    (again,) = plan_jobs(open_ended, [0], tmp_path, at_once=2)
    assert again.spec.engine.threads == 7
    assert plan_jobs({"a": replace(QUICK, engine=EngineSpec(threads=3))}, [1], tmp_path)[0].spec.engine.threads == 3


def test_runs_that_differ_are_not_pooled(tmp_path: Path) -> None:
    for name, spec in {"a": QUICK, "b": replace(QUICK, batch_size=10), "c": replace(QUICK, seed=1)}.items():
        train(replace(spec, epochs=1), tmp_path / name)
    found = compare_runs(find_runs([tmp_path])[0])
    assert {arm["label"]: arm["last"]["n"] for arm in found["arms"]} == {"kd, online (1)": 2, "kd, online (2)": 1}
    train(replace(QUICK, epochs=1), tmp_path / "again")
    with pytest.raises(UserError, match="has seed 0 twice"):
        compare_runs(find_runs([tmp_path])[0])


def test_a_run_named_twice_counts_once(compared: tuple[Path, list[Job]]) -> None:
    out, _ = compared
    run = out / "no-kd" / "seed0"
    assert find_runs([run, out / ".." / out.name / "no-kd" / "seed0"])[0] == [run.resolve()]


def test_the_run_in_the_current_folder_is_found(
    compared: tuple[Path, list[Job]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = compared[0] / "no-kd" / "seed0"
    monkeypatch.chdir(run)
    assert find_runs([Path()])[0] == [run.resolve()]


def test_equal_cost_controls_double_the_epochs_of_spaced_self_kd() -> None:
    spaced = replace(
        QUICK, method=MethodSpec("self-kd", {"variant": "live", "temperature": 4.0}), schedule=Spaced("1ep")
    )
    plain = replace(QUICK, method=MethodSpec("self-kd"))
    controls = equal_cost_controls({**ARMS, "self": plain, "spaced self": spaced})
    assert list(controls) == ["spaced self, unspaced, 2x epochs"]
    assert len(equal_cost_controls({"a": spaced, "b": replace(spaced, schedule=Spaced("2ep"))})) == 1
    with pytest.raises(UserError, match="Give yours another name"):
        equal_cost_controls({"spaced self": spaced, "spaced self, unspaced, 2x epochs": plain})
    (control,) = controls.values()
    assert control.epochs == 2 * spaced.epochs
    assert control.method == MethodSpec("self-kd", {"variant": "plain", "temperature": 4.0})


def test_runs_are_found_below_folders(compared: tuple[Path, list[Job]], tmp_path: Path) -> None:
    out, jobs = compared
    finished, unfinished = find_runs([out, out / "no-kd"])
    assert sorted(finished) == sorted(job.folder.resolve() for job in jobs)
    assert unfinished == []
    with pytest.raises(UserError, match="There is no folder"):
        find_runs([tmp_path / "nowhere"])
    with pytest.raises(UserError, match="No finished run.*Train one with: spacedkd train$"):
        find_runs([tmp_path])


def test_an_unknown_reference_is_refused(compared: tuple[Path, list[Job]]) -> None:
    _, jobs = compared
    with pytest.raises(UserError, match="Did you mean 'online KD'"):
        compare_runs([job.folder for job in jobs], against="online kd")


@pytest.mark.parametrize("label", ["../../etc", "..", "/", "a/b: c"])
def test_a_label_cannot_lead_out_of_the_folder(tmp_path: Path, label: str) -> None:
    (job,) = plan_jobs({label: RunSpec()}, [0], tmp_path)
    assert job.folder.resolve().parent.parent == tmp_path.resolve()


def test_arms_that_would_share_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="share a folder"):
        plan_jobs({"my arm": RunSpec(), "my-arm": RunSpec()}, [0], tmp_path)


def test_the_runs_of_a_comparison_are_planned_with_one_look_at_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three arms, five seeds, fifteen runs: each of the four class folders is walked through once."""
    place = class_folders(tmp_path / "data")
    walked: list[str] = []
    walk = below.files_below

    def counted(folder: Path) -> Any:
        walked.append(f"{folder.parent.name}/{folder.name}")
        return walk(folder)

    monkeypatch.setattr(disk, "files_below", counted)
    arms = {name: replace(spec, data=DataSpec(place), batch_size=4) for name, spec in ARMS.items()}
    assert len(plan_jobs(arms, range(5), tmp_path / "out")) == 15
    assert sorted(walked) == ["train/cat", "train/dog", "val/cat", "val/dog"]


def test_comparing_from_python(tmp_path: Path) -> None:
    told: list[tuple[str, int]] = []
    found = compare_arms(
        {"none": replace(QUICK, method="none", schedule=None), "kd": QUICK},
        tmp_path,
        seeds=[3],
        against="none",
        jobs=1,
        callback=lambda job, moment: told.append((job.label, job.seed)),
    ).document
    assert [arm["label"] for arm in found["arms"]] == ["none", "kd"]
    assert found["arms"][1]["last"]["mean"] == read_run(tmp_path / "kd" / "seed3").score()
    written = json.loads((tmp_path / "comparison.json").read_text())
    assert [run["folder"] for arm in written["arms"] for run in arm["runs"]] == ["none/seed3", "kd/seed3"]
    for arm, other in zip(found["arms"], written["arms"], strict=True):
        assert {**arm, "runs": 0} == {**other, "runs": 0}
    assert {*told} == {("none", 3), ("kd", 3)}
    for arms, seeds, message in (({}, 1, "at least one arm"), ({"kd": QUICK}, 0, "at least one arm")):
        with pytest.raises(UserError, match=message):
            compare_arms(arms, tmp_path, seeds=seeds)
