"""A run that diverges, or whose process dies, costs the others nothing."""

from __future__ import annotations

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

from spacedkd import Diverged, Moment, UserError, compare, train
from spacedkd.cli import main
from spacedkd.cli.changes import to_spec
from spacedkd.cli.flags import parse
from spacedkd.experiments.pool import LeftAlone, train_all
from spacedkd.experiments.runner import plan
from spacedkd.experiments.sharing import Job, without_diverged
from spacedkd.files import write_json
from spacedkd.stopping import Stopped
from tests.conftest import TINY
from tests.experiments.processes import holder

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

    with pytest.raises(UserError) as said:
        compare(ARMS, out, seeds=1, jobs=1, callback=kill)
    assert (out / "spaced/seed0/result.json").exists(), "the others go on"
    assert (out / "killed/seed0/checkpoint/latest.safetensors").exists()
    compare(ARMS, out, seeds=1, against="online", jobs=1)
    return out, str(said.value)


def test_a_process_that_dies_says_which_signal_whose_and_how_to_go_on(failed: tuple[Path, str]) -> None:
    assert failed[1] == (
        "1 of the runs did not finish; the same command goes on with them. killed, seed 0: Its process was killed by "
        "SIGSEGV (a crash in native code, not want of memory). The same command goes on from what it saved last."
    )


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
    (job,) = plan({"spaced": ARMS["spaced"]}, [0], tmp_path)
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

    def __init__(self) -> None:
        self.gave_way: list[int] = []

    def places(self) -> int:
        return 2

    def submit(self, number: int, job: Job) -> int:
        return number

    def wait(self, running: Iterable[int]) -> list[int]:
        return [number for number in running if number == 0 or number in self.gave_way]

    def finished(self, ended: int) -> bool:
        if ended == 0:
            raise Diverged("It diverged.", "student", 7)
        return False

    def news(self) -> list[tuple[int, Moment]]:
        return [(1, Moment(3, 9, "student", 1.0, None, "waiting for the other"))]

    def give_way(self, number: int) -> None:
        self.gave_way.append(number)


def test_of_a_comparison_that_is_stopped_runs_are_counted(tmp_path: Path) -> None:
    job = Job("online", 0, TINY, tmp_path)
    with pytest.raises(Stopped, match="The comparison was stopped after 0 of 2 runs, and everything is saved") as end:
        train_all(None, [job, job], lambda job, moment: None, stop=lambda: True)  # type: ignore[arg-type]
    assert str(pickle.loads(pickle.dumps(end.value))) == str(end.value)


def test_nobody_waits_for_a_run_that_has_ended_without_being_finished(tmp_path: Path) -> None:
    leads = Job("leads", 0, TINY, tmp_path / "leads")
    (tmp_path / "leads/path/teacher").mkdir(parents=True)
    (tmp_path / "leads/path/teacher/000000001.safetensors").touch()
    follows = Job("follows", 0, replace(TINY, teacher_path=str(leads.folder)), tmp_path / "follows", 1)
    found = train_all(Fake(), [leads, follows], lambda job, moment: None)
    assert isinstance(found[0], Diverged)
    assert isinstance(found[1], LeftAlone)
    assert str(found[0]) == "leads, seed 0: It diverged."
    assert (found[0].role, found[0].step) == ("student", 7)
    assert str(found[1]) == "follows, seed 0: it follows leads, seed 0, which did not finish."


def test_a_teacher_that_is_trained_alone_is_taken_up_again(tmp_path: Path) -> None:
    """By who followed the run that diverged, and by who began when it had."""
    leads = Job("leads", 0, TINY, tmp_path / "leads")
    (tmp_path / "leads/path").mkdir(parents=True)
    write_json(tmp_path / "leads/path/path.json", {"teacher": {}})
    alone = str(tmp_path / "leads/teacher")
    for path in (str(leads.folder), alone):
        follows = Job("follows", 0, replace(TINY, teacher_path=path), tmp_path / "follows")
        teacher, follower = without_diverged([follows], {leads.folder: (leads, Diverged("", "student", 7))})
        assert (str(teacher.folder), teacher.spec.only) == (alone, "teacher")
        assert follower.spec.teacher_path == alone
