"""Looking at runs from outside, and at one while it is trained."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from dataclasses import replace
from datetime import datetime
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from spacedkd import Diverged, Duration, OptimizerSpec, RunSpec, Spaced, Stopped, train
from spacedkd.cli import main
from spacedkd.cli.status import listed
from spacedkd.reporting.progress import RoleBars, in_words, line
from spacedkd.runs.status import PROGRESS, state_of
from spacedkd.runtime.files import HOST
from spacedkd.training import Event
from tests.reporting.fake_runs import FakeArm, write_runs
from tests.training.stopping import train_until


def said(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    capsys.readouterr()
    main([*words])
    return capsys.readouterr().out.splitlines()


def test_runs_that_are_finished_have_a_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arms = [FakeArm("online", [0.70, 0.71]), FakeArm("spaced", [0.805], schedule=Spaced("1.5ep"))]
    runs = write_runs(tmp_path, arms)
    os.utime(runs[0] / "result.json", (1e9, 1e9))
    shutil.copytree(runs[0], runs[1] / "teacher")  # a run within a run is none of its own
    heads, *lines = said(capsys, "list", "runs", str(tmp_path))
    assert heads.split() == "run method interval network data seed epochs last best state date".split()
    name, *rest = lines[0].split()
    assert tmp_path / name == runs[0]
    when = datetime.fromtimestamp(1e9).strftime("%Y-%m-%d %H:%M")
    assert rest == ["kd", "online", "resnet18_small/8", "digits", "0", "4", "70.0", "71.0", "finished", *when.split()]
    assert [row.split()[2:10] for row in lines[1:]] == [
        ["online", "resnet18_small/8", "digits", "1", "4", "71.0", "72.0", "finished"],
        ["1.5ep", "resnet18_small/8", "digits", "0", "4", "80.5", "81.5", "finished"],
    ]
    assert len(said(capsys, "list", "runs", str(tmp_path), "--pattern", f"*{name}")) == 2

    *rows, count = said(capsys, "status", str(tmp_path))
    assert [row.split()[1:4] for row in rows] == 3 * [["finished", "4", "epochs"]]
    assert rows[2].endswith("student 80.5 %, teacher 80.5 %")
    assert count == "3 finished."


def test_a_list_fits_into_its_terminal(tmp_path: Path) -> None:
    """What is said of no row any more is said once of all of them, or named as lost."""
    online = FakeArm("online", [0.70, 0.71])
    first, *_ = write_runs(tmp_path, [online, replace(online, schedule=Spaced("1.5ep"))])
    os.utime(first / "result.json", (1e9, 1e9))
    whole = [*listed(tmp_path)]
    assert len(whole) == 5
    assert max(map(len, whole)) > 80
    heads, *rows, alike = listed(tmp_path, width=80)
    assert max(map(len, (heads, *rows, alike))) <= 80
    assert heads.split() == "run method interval seed last best state date".split()
    assert [row.split()[2:5] for row in rows] == [
        ["online", "0", "70.0"],
        ["online", "1", "71.0"],
        ["1.5ep", "0", "70.0"],
        ["1.5ep", "1", "71.0"],
    ]
    assert alike == "In every row: data digits, epochs 4, network resnet18_small/8."
    heads, *rows = listed(tmp_path, width=40)
    assert max(map(len, (heads, *rows))) <= 40
    assert heads.split() == "run interval last state".split()
    assert " ".join(rows[-4:]) == (
        "In every row: data digits, epochs 4, network resnet18_small/8, method kd. "
        "No room for date, best, seed: a wider terminal shows all."
    )


def test_a_run_that_was_stopped_says_how_to_go_on(
    tmp_path: Path, tiny: RunSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    run, turns = tmp_path / "a run", iter(range(99))
    with pytest.raises(Stopped):
        train(tiny, run, stop=lambda: next(turns) == 12)
    row, count, way = said(capsys, "status", str(tmp_path))
    assert re.match(r"a run  stopped  teacher 1\.4 of 3 epochs, 43 %  \d+ s left  student \d+\.\d %, teacher", row)
    assert count == "1 stopped."
    assert way == f"'{run}': Resume from turn 13 of 30 with: spacedkd train --resume '{run}'"
    with pytest.raises(SystemExit):
        main(["report", str(run)])
    assert f"No finished run in {run}. Resume one with: spacedkd train --resume '{run}'" in " ".join(
        capsys.readouterr().err.split()
    )
    train(tiny, run, if_exists="resume")
    assert not (run / PROGRESS).exists()
    assert state_of(run).state == "finished"


def test_a_run_that_is_trained_says_by_whom_and_one_that_was_killed_does_not(
    tmp_path: Path, tiny: RunSpec, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spacedkd.training.callbacks.HEARTBEAT_SECONDS", 0.01)
    run, seen = tmp_path / "run", list[list[str]]()

    def look(moment: Event) -> None:
        if moment.turn == 12:
            time.sleep(0.5)
            seen.append(said(capsys, "status", str(run)))
            shutil.copy(run / PROGRESS, tmp_path / "kept")

    train(replace(tiny, label="arm"), run, callback=look)
    ((row, count, who),) = seen
    assert row.startswith(f"{run}  training  student 1.2 of 3 epochs, 40 %  ")
    assert count == "1 training."
    assert re.fullmatch(rf"{re.escape(str(run))}: process {os.getpid()} on {HOST}, \d+(\.\d)? images/s", who)

    (run / "result.json").unlink()
    shutil.copy(tmp_path / "kept", run / PROGRESS)  # as a kill leaves it
    _, count, way = said(capsys, "status", str(run))
    assert count == "1 killed."
    assert way.startswith(f"{run}: Resume from turn 8 of 30 with: ")
    elsewhere = json.loads((run / PROGRESS).read_text()) | {"host": "another", "process": 1}
    (run / PROGRESS).write_text(json.dumps(elsewhere))
    assert state_of(run).state == "training", "it was heard of a moment ago"
    os.utime(run / PROGRESS, (1e9, 1e9))
    assert state_of(run).state == "killed"


def test_runs_that_diverged_failed_or_are_damaged_say_so(
    tmp_path: Path, tiny: RunSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = replace(tiny, optimizer=OptimizerSpec(lr=1e30), log_every=Duration(1, "st"))
    with pytest.raises(Diverged):
        train(spec, tmp_path / "diverged")
    train_until(tiny, tmp_path / "failed", 2)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/spec.json").write_text("{")
    *rows, count, first, second, third = said(capsys, "status", str(tmp_path))
    assert [row.split()[:2] for row in rows] == [[name, name] for name in ("damaged", "diverged", "failed")]
    assert count == "1 failed, 1 diverged, 1 damaged."
    assert "spec.json is not valid JSON" in first
    assert "Training diverged" in second
    assert f"spacedkd train --resume {tmp_path}/failed" in third
    assert [row.split()[-3] for row in said(capsys, "list", "runs", str(tmp_path))[1:]] == [
        "damaged",
        "diverged",
        "failed",
    ]


@pytest.mark.parametrize(
    "written",
    [
        "",
        "[]",
        '{"turn": "x", "turns": 0, "role": 3, "epoch": null, "host": [], "roles": [], "ended": "well"}',
        '{"seconds_left": Infinity, "turns": 5, "role": "student", "epoch": NaN, "saved": 3, "ended": "stopped"}',
    ],
)
def test_what_a_run_says_of_itself_may_be_nonsense(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], written: str
) -> None:
    (run,) = write_runs(tmp_path, [FakeArm("online", [0.7])])
    (run / "result.json").unlink()
    (run / PROGRESS).write_text(written)
    row, count, way = said(capsys, "status", str(run))
    assert " stopped " in row
    assert "70.0 %" in row
    assert (count, f"--resume {run}" in way) == ("1 stopped.", True)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("status nowhere", "There is no folder nowhere."),
        ("status .", "There is no run in .."),
        ("list runs", "There is no folder runs."),
        ("list data .", "Only runs lie in a folder"),
        ("train --log tensorbord", "Available: csv, tensorboard, wandb, mlflow."),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(words.split())
    assert stop.value.code == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert line in error


TEACHER = Event(586, 62560, "teacher", 1.5, 0.73, "", 586, 31280, 80.0, {"label": 1.25}, 0.1, 12345.6, 5400.0)
STUDENT = TEACHER._replace(
    turn=600, role="student", step=14, losses={"label": 2.30259, "logit": 0.0123, "feature": 0.5}, accuracy=None
)


def test_bars_fit_into_eighty_columns() -> None:
    bars, console = RoleBars(), Console(width=80, record=True, file=StringIO(), force_terminal=True)
    for moment in (TEACHER, STUDENT):
        bars.update(moment, in_words(moment.losses))
    console.print(bars)
    rows = [row.rstrip() for row in console.export_text().splitlines()]
    assert max(map(len, rows)) <= 80
    assert [row.split() for row in rows if "teacher" in row or "student" in row] == [
        ["teacher", 18 * "━", "586/31280", "epoch", "1.5/80", "lr", "1.0e-01", "12346", "img/s"],
        ["student", 18 * "━", "14/31280", "epoch", "1.5/80", "lr", "1.0e-01", "12346", "img/s"],
    ]
    assert rows[1].strip() == "label 1.250"
    assert rows[3].strip() == "label 2.303, logit 0.0123, feature 0.5"
    assert rows[4] == "600 of 62560 turns, 1 %, 0:00:00 so far, 1:30:00 left"
    bars.update(Event(600, 62560, "student", 0.0, None, "waiting for the teacher's process"), "")
    console.print(bars)
    assert console.export_text().splitlines()[-1].strip() == "waiting for the teacher's process"


def test_a_log_file_has_the_same_facts() -> None:
    assert line(TEACHER, datetime(2026, 1, 2, 3, 4, 5)) == (
        "03:04:05 teacher step 586 of 31280, epoch 1.5 of 80, accuracy 73.0 %, label 1.250, lr 0.1, "
        "12346 images/s, 90 min left"
    )
    assert line(TEACHER._replace(turn=TEACHER.turns), datetime(2026, 1, 2)).endswith("images/s"), "nothing is left"
