"""A run that diverges, raises, or whose process dies, costs the others nothing."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import shutil
import signal
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spacedkd import Diverged, UserError, compare, read_spec, train
from spacedkd.cli import main
from spacedkd.cli.flags import parse
from spacedkd.cli.overrides import to_spec
from spacedkd.comparison.job import Job, LostRuns, read_failure
from spacedkd.comparison.pool import RecorderLost, as_failure, train_in_pool
from spacedkd.comparison.scheduler import plan_jobs
from spacedkd.comparison.teacher_sharing import replace_lost_recorders
from spacedkd.runs.status import state_of
from spacedkd.runtime.errors import CannotWrite, Moved, RunFailed, SnapshotsGone
from spacedkd.runtime.files import write_json
from spacedkd.runtime.signals import Stopped
from spacedkd.training import Event
from tests.comparison.fragile import VARIABLE, Fragile, Own
from tests.comparison.processes import holder
from tests.conftest import TINY

BASE = (
    "--data digits --train-limit 40 --width 4 --epochs 2 --batch-size 8 --lr 0.02 --precision 32-true --threads 1 "
    "--log-every 1st --save-every 2st"
).split()
FLAGS = {
    "online": "--method kd --set method.feature_weight=1e37",
    "spaced": "--method kd --interval 1ep",
    "wild": "--method kd --lr 1e30",
    "wild, spaced": "--method kd --lr 1e30 --interval 1ep",
    "killed": "--method self-kd --epochs 6",
}
"""the first trains the teacher of the second, and its student diverges; of the wild ones the teacher does"""
ARMS = {label: to_spec(parse([*BASE, *flags.split()])) for label, flags in FLAGS.items()}


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A comparison of which one run is killed, gone on with to its end; and what was said first."""
    out = tmp_path_factory.mktemp("failing") / "runs"

    def kill(job: Job, moment: Any) -> None:
        if job.label == "killed" and 4 < moment.turn < moment.turns:
            os.kill(holder(job.folder), signal.SIGSEGV)

    found = compare(ARMS, out, seeds=1, jobs=1, callback=kill).document
    assert [(one["label"], one["seed"]) for one in found["failed"]] == [("killed", 0)]
    assert [arm["label"] for arm in found["arms"]] == ["spaced"], "the others go on"
    assert (out / "killed/seed0/checkpoint/latest.safetensors").exists()
    assert state_of(out / "killed/seed0").state == "failed"
    assert compare(ARMS, out, seeds=1, against="online", jobs=1).failed == []
    return out, found["failed"][0]["said"]


def test_a_process_that_dies_says_which_signal_and_how_to_go_on(failed: tuple[Path, str]) -> None:
    assert "SIGSEGV" in failed[1]
    assert "The same command" in failed[1]
    assert not [*failed[0].rglob("failed.json")], "it has finished since"


def test_the_comparison_says_who_diverged_and_pools_the_others(failed: tuple[Path, str]) -> None:
    found = json.loads((failed[0] / "comparison.json").read_text())
    assert [arm["label"] for arm in found["arms"]] == ["spaced", "killed"]
    assert found["against"] == "spaced", "the arm that was asked for has no numbers"
    assert [(one["label"], one["seed"]) for one in found["diverged"]] == [
        ("online", 0),
        ("wild", 0),
        ("wild, spaced", 0),
    ]
    online, _, follower = found["diverged"]
    assert (online["role"], follower["role"]) == ("student", "teacher")
    journal = (failed[0] / online["folder"] / "journal.jsonl").read_text().splitlines()
    assert json.loads(journal[-1])["step"] == online["step"]


def test_who_follows_a_run_that_diverged_has_the_bits_it_has_alone(failed: tuple[Path, str], tmp_path: Path) -> None:
    (job,) = plan_jobs({"spaced": ARMS["spaced"]}, [0], tmp_path)
    train(job.spec, job.folder)
    for name in ("journal.jsonl", "student/model.safetensors"):
        assert (failed[0] / "spaced/seed0" / name).read_bytes() == (job.folder / name).read_bytes()
    assert not [*failed[0].rglob("path")], "what was recorded for it is gone"
    assert not [*failed[0].rglob("teacher")]


def test_what_diverged_is_not_trained_again_but_reported_on(
    failed: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """With a code of its own, and wherever all of it is moved to."""
    moved = shutil.copytree(failed[0], failed[0].with_name("moved"))
    before = {path: path.stat().st_mtime_ns for path in moved.rglob("journal.jsonl")}
    arms = [word for label, flags in FLAGS.items() for word in ("--arm", f"{label}: {flags}")]
    words = ["compare", *BASE, *arms, "--seeds", "1", "--jobs", "1", "--out", str(moved)]
    with pytest.raises(SystemExit) as stop:
        main(words)
    said = capsys.readouterr()
    assert stop.value.code == 3
    assert "3 of 5 runs diverged. To train one again, delete " in said.err
    assert before == {path: path.stat().st_mtime_ns for path in moved.rglob("journal.jsonl")}
    main(["report", str(moved)])
    for text in ((moved / "report.html").read_text(), said.out, capsys.readouterr().out):
        assert "wild, spaced" in text
        assert "diverged" in text.lower()
    nothing_left = ["compare", *BASE, *arms[4:6], "--seeds", "1", "--jobs", "1", "--out", str(moved)]
    with pytest.raises(SystemExit) as stop:
        main(nothing_left)
    assert stop.value.code == 2
    assert "wild, seed 0: Training diverged: the " in capsys.readouterr().err


class Fake:
    """A pool in which a run that leads dies while another waits for it."""

    def __init__(self, error: UserError) -> None:
        self.gave_way: list[int] = []
        self.error = error

    def capacity(self) -> int:
        return 2

    def submit(self, number: int, job: Job) -> int:
        return number

    def wait(self, running: Iterable[int]) -> list[int]:
        return [number for number in running if number == 0 or number in self.gave_way]

    def finished(self, ended: int) -> bool:
        if ended == 0:
            raise self.error
        return False

    def events(self) -> list[tuple[int, Event]]:
        return [(1, Event(3, 9, "student", 1.0, None, "waiting for the other"))]

    def release(self, number: int) -> None:
        self.gave_way.append(number)


def test_a_comparison_that_is_renamed_ends_and_goes_on_there(tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    arms = {"self": replace(ARMS["killed"], epochs=20)}

    def rename(job: Job, moment: Any) -> None:
        if moment.turn > 2 and out.exists():
            out.rename(elsewhere)

    with pytest.raises(Moved, match=rf"moved to {elsewhere} .* the new name of the folder"):
        compare(arms, out, seeds=1, jobs=1, callback=rename)
    assert not out.exists(), "no other folder is made in its place"
    assert compare(arms, elsewhere, seeds=1, jobs=1).failed == []


def test_a_run_that_is_renamed_leaves_no_other_folder_in_its_place(tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    arms = {label: ARMS[label] for label in ("spaced", "killed")}

    def rename(job: Job, moment: Any) -> None:
        if job.label == "killed" and moment.turn > 2 and not elsewhere.exists():
            job.folder.rename(elsewhere)

    found = compare(arms, out, seeds=1, jobs=1, callback=rename).document
    assert [one["label"] for one in found["failed"]] == ["killed"]
    assert str(elsewhere) in found["failed"][0]["said"]
    assert not (out / "killed/seed0").exists()
    assert state_of(elsewhere).state != "damaged"


def test_of_a_comparison_that_is_stopped_runs_are_counted(tmp_path: Path) -> None:
    job = Job("online", 0, TINY, tmp_path)
    with pytest.raises(Stopped, match="The comparison was stopped after 0 of 2 runs, and everything is saved") as end:
        train_in_pool(None, [job, job], lambda job, moment: None, stop=lambda: True)  # type: ignore[arg-type]
    assert str(pickle.loads(pickle.dumps(end.value))) == str(end.value)


@pytest.mark.parametrize("error", [Diverged("It ended.", "student", 7), RunFailed("It ended.")])
def test_nobody_waits_for_a_run_that_has_ended_without_being_finished(tmp_path: Path, error: UserError) -> None:
    leads = Job("leads", 0, TINY, tmp_path / "leads")
    (tmp_path / "leads/path/teacher").mkdir(parents=True)
    (tmp_path / "leads/path/teacher/000000001.safetensors").touch()
    follows = Job("follows", 0, replace(TINY, teacher_path=str(leads.folder)), tmp_path / "follows", 1)
    found = train_in_pool(Fake(error), [leads, follows], lambda job, moment: None)
    assert type(found[0]) is type(error)
    assert isinstance(found[1], RecorderLost)
    assert str(found[0]) == "leads, seed 0: It ended."
    assert vars(found[0]) == vars(error), "role and step, or the traceback"
    assert str(found[1]) == "follows, seed 0: it replays leads, seed 0, which did not finish."
    assert read_failure(leads.folder) == (None if isinstance(error, Diverged) else "It ended.")
    assert read_failure(follows.folder) is None


@pytest.mark.parametrize("error", [Diverged("", "student", 7), RunFailed("")])
def test_a_teacher_that_is_trained_alone_is_taken_up_again(tmp_path: Path, error: UserError) -> None:
    """By who followed the run that ended, and by who began when it had; whether it has recorded anything or not."""
    leads = Job("leads", 0, TINY, tmp_path / "leads")
    alone = str(tmp_path / "leads/teacher")
    for path, recorded in itertools.product((str(leads.folder), alone), (False, True)):
        if recorded:
            (tmp_path / "leads/path").mkdir(parents=True, exist_ok=True)
            write_json(tmp_path / "leads/path/path.json", {"teacher": {}})
        follows = Job("follows", 0, replace(TINY, teacher_path=path), tmp_path / "follows")
        leaders = {str(leads.folder): leads}
        teacher, follower = replace_lost_recorders([follows], leaders, {leads.folder: (leads, error)})
        assert (str(teacher.folder), teacher.spec.only) == (alone, "teacher")
        assert follower.spec.teacher_path == alone
    (taken_up, _) = replace_lost_recorders([follows], leaders, {})
    assert taken_up == teacher, "it was left unfinished by another command"
    lost: LostRuns = {teacher.folder: (teacher, type(error)("leads, seed 0: It ended."))}
    assert replace_lost_recorders([follows], leaders, lost) == []
    assert type(lost[follows.folder][1]) is type(error)


def test_what_ended_a_run_can_be_handed_to_another_process() -> None:
    for error in (Own(1, 2), RuntimeError("first\nsecond"), KeyError(), UserError("wrong"), CannotWrite("full")):
        try:
            raise error
        except Exception as raised:
            found = pickle.loads(pickle.dumps(as_failure(raised)))
        assert type(found) is RunFailed
        assert len(str(found).splitlines()) == 1
        assert (str(found) == str(error)) == isinstance(error, UserError)
        assert bool(found.trace) != isinstance(error, UserError)
    assert "RuntimeError: first" in str(as_failure(RuntimeError("first\nsecond")))
    gone = SnapshotsGone("gone")
    assert as_failure(gone) is gone


OWN = Fragile.__module__
FRAGILE = {
    "online": f"--network {OWN}:Fragile --teacher {OWN}:Sound --method kd",
    "spaced": f"--network {OWN}:Sound --teacher {OWN}:Sound --method kd --interval 1ep",
    "fragile": f"--network {OWN}:Fragile --method kd",
    "fragile, spaced": f"--network {OWN}:Fragile --method kd --interval 1ep",
}
"""the student of the first one fails, which trains the teacher of the second; of the others the teacher fails"""
WORDS = (
    "compare --data digits --train-limit 40 --epochs 2 --batch-size 8 --lr 0.02 --precision 32-true --threads 1 "
    "--log-every 1st --save-every 2st --seeds 1 --jobs 1"
).split()


def fragile(out: Path, capsys: pytest.CaptureFixture[str], arms: Iterable[str] = FRAGILE) -> tuple[Any, str]:
    """Compare from the command line: the exit code, 0 where there is none, and what was written to both streams."""
    words = [word for label in arms for word in ("--arm", f"{label}: {FRAGILE[label]}")]
    try:
        main([*WORDS, *words, "--out", str(out)])
        code: Any = 0
    except SystemExit as end:
        code = end.code
    streams = capsys.readouterr()
    return code, streams.out + streams.err


def test_exceptions_are_the_failures_of_their_runs_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, how = tmp_path / "runs", tmp_path / "how"
    monkeypatch.setenv(VARIABLE, str(how))
    how.write_text("strange")
    code, text = fragile(out, capsys)
    assert code == 3, text
    found = json.loads((out / "comparison.json").read_text())
    assert [arm["label"] for arm in found["arms"]] == ["spaced"], "its teacher was trained alone"
    assert [one["label"] for one in found["failed"]] == ["online", "fragile", "fragile, spaced"]
    assert found["diverged"] == []
    assert "strange" in found["failed"][0]["said"]
    assert "teacher of fragile, seed 0" in found["failed"][2]["said"], "which it follows"
    assert "3 of 4 runs failed; the same command tries them again." in text
    main(["report", str(out)])
    for page in (text, (out / "report.html").read_text(), capsys.readouterr().out):
        assert "fragile, spaced" in page
        assert "failed, and not among the numbers" in page or "These runs failed" in page
    main(["status", str(out)])
    assert "1 finished, 3 failed." in capsys.readouterr().out

    finished = out / "spaced/seed0/journal.jsonl"
    before = finished.stat().st_mtime_ns
    how.unlink()
    code, text = fragile(out, capsys)
    assert code == 0, text
    assert finished.stat().st_mtime_ns == before
    assert not [*out.rglob("failed.json")]
    assert not [*out.rglob("path")], "what was recorded is gone"
    assert not [*out.rglob("teacher")]
    assert fragile(tmp_path / "whole", capsys)[0] == 0
    for run in (tmp_path / "whole").rglob("result.json"):
        again = out / run.parent.relative_to(tmp_path / "whole")
        for name in ("journal.jsonl", "student/model.safetensors"):
            assert (run.parent / name).read_bytes() == (again / name).read_bytes(), run


@pytest.mark.parametrize("kind", ["memory", "own", "dies"])
def test_a_run_that_cannot_go_on_ends_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """Out of memory, an exception that cannot be pickled, a process that is killed."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "how"))
    (tmp_path / "how").write_text(kind)
    code, text = fragile(tmp_path / "runs", capsys, ["fragile", "spaced"])
    assert code == 3, text
    found = json.loads((tmp_path / "runs/comparison.json").read_text())
    expected = {"memory": "CUDA out of memory.", "own": "of user code, 1 and 2", "dies": "killed by SIGKILL"}
    assert [(one["label"], expected[kind] in one["said"]) for one in found["failed"]] == [("fragile", True)]
    code, text = fragile(tmp_path / "runs", capsys, ["fragile"])
    assert code == 2, "there is nothing to compare"
    assert expected[kind] in text


def test_a_run_that_failed_before_it_saved_gives_its_folder_to_another_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "how"))
    (tmp_path / "how").write_text("at once")
    arms = ["fragile", "spaced"]
    with monkeypatch.context() as patched:
        patched.setitem(FRAGILE, "fragile", f"{FRAGILE['fragile']} --save-every 1ep")
        assert fragile(tmp_path / "runs", capsys, arms)[0] == 3
    assert not (tmp_path / "runs/fragile/seed0/checkpoint").exists()
    monkeypatch.setitem(FRAGILE, "fragile", f"--network {OWN}:Sound --method none")
    assert fragile(tmp_path / "runs", capsys, arms)[0] == 0
    assert read_spec(tmp_path / "runs/fragile/seed0").method.name == "none"
