"""Symbolic links in a run's folder are refused, and what they lead to stays as it was."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from spacedkd import Spaced, UserError, load_student, train
from spacedkd.cli import main
from spacedkd.runs.status import state_of
from spacedkd.runtime.errors import Linked
from tests.conftest import TINY
from tests.training.stopping import train_until

SPEC = replace(TINY, schedule=Spaced("1ep"), record=("1ep",), log=("csv",), data=replace(TINY.data, holdout=0.25))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("links") / "stopped"
    train_until(SPEC, folder, 14)
    (folder / "commands.jsonl").write_text('{"event": "command", "date": "2026-01-01", "line": "spacedkd train"}\n')
    return folder


@pytest.fixture(scope="module")
def finished(stopped: Path) -> Path:
    folder = shutil.copytree(stopped, stopped.parent / "finished")
    train(SPEC, folder, if_exists="resume")
    (folder / "comparison.json").write_text("{}")
    return folder


def contents(folder: Path) -> dict[str, bytes | None]:
    paths = [folder, *folder.rglob("*")] if folder.is_dir() else [folder]
    return {str(path): path.read_bytes() if path.is_file() else None for path in paths}


def put_away(run: Path, name: str, elsewhere: Path) -> dict[str, bytes | None]:
    """Move a file or folder of a run away, with a link in its place; gives what lies there then."""
    elsewhere.mkdir()
    target = elsewhere / "target"
    if (run / name).exists():
        shutil.move(run / name, target)
    else:
        target.write_text("{}\n")
    if target.is_dir():
        (target / "precious.safetensors.unfinished").write_text("mine")
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).symlink_to(target)
    return contents(elsewhere)


def refused(words: Sequence[str], capsys: pytest.CaptureFixture[str], named: Path) -> None:
    """Exit code 2 and one line that names the link."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main([*words])
    said = capsys.readouterr().err
    assert stop.value.code == 2
    assert said.count("\n") == 1, said
    assert f"{named} is a symbolic link" in said
    assert "Remove the link" in said


NAMES = [
    *("journal.jsonl", "commands.jsonl", "checkpoint", "checkpoint/latest.safetensors"),
    *("checkpoint/previous.safetensors", "student", "student/model.safetensors", "best", "best/model.safetensors"),
    *("best/measured.json", "path", "path/path.json", "path/teacher", "path/teacher/journal.jsonl", "logs", "logs/csv"),
    *("logs/csv/metrics.csv", "begin", "evaluation.json", ".progress.json", ".lock", "spec.json", "classes.json"),
    *("result.json", "passed.json", "diverged.json", "teacher", "average"),
]


@pytest.mark.parametrize(
    ("name", "restart"), [*((name, False) for name in NAMES), ("logs", True), ("path", True), ("checkpoint", True)]
)
def test_resume_follows_none(
    tmp_path: Path, stopped: Path, capsys: pytest.CaptureFixture[str], name: str, restart: bool
) -> None:
    run = shutil.copytree(stopped, tmp_path / "run")
    before = put_away(run, name, tmp_path / "elsewhere")
    rest = {path: content for path, content in contents(run).items() if path != str(run / name)}
    refused(["train", "--resume", str(run), *(["--restart"] if restart else [])], capsys, run / name)
    assert contents(tmp_path / "elsewhere") == before
    assert {path: content for path, content in contents(run).items() if path != str(run / name)} == rest


@pytest.mark.parametrize("name", ["report.html", "comparison.json", "journal.jsonl", "result.json", "spec.json"])
def test_report_follows_none(tmp_path: Path, finished: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    before = put_away(run, name, tmp_path / "elsewhere")
    refused(["report", str(run)], capsys, run / name)
    assert contents(tmp_path / "elsewhere") == before


def test_neither_does_the_report_of_several_runs(
    tmp_path: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished, tmp_path / "all" / "one")
    before = put_away(tmp_path / "all", "report.html", tmp_path / "elsewhere")
    refused(["report", str(tmp_path / "all")], capsys, tmp_path / "all" / "report.html")
    assert contents(tmp_path / "elsewhere") == before


@pytest.mark.parametrize("name", ["evaluation.json", "checkpoint", "checkpoint/latest.safetensors", "classes.json"])
def test_evaluate_follows_none(tmp_path: Path, finished: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    before = put_away(run, name, tmp_path / "elsewhere")
    refused(["evaluate", str(run)], capsys, run / name)
    assert contents(tmp_path / "elsewhere") == before


@pytest.mark.parametrize("name", ["student", "student/model.safetensors", "student/config.json", "classes.json"])
def test_export_follows_none(tmp_path: Path, finished: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """A link could have somebody publish a file of theirs."""
    run = shutil.copytree(finished, tmp_path / "run")
    put_away(run, name, tmp_path / "elsewhere")
    refused(["export", str(run), "--to", str(tmp_path / "exported")], capsys, run / name)
    assert not (tmp_path / "exported").exists()
    if name.startswith("student"):
        with pytest.raises(Linked):
            load_student(run)


@pytest.mark.parametrize("name", [".progress.json", "journal.jsonl", "spec.json", ".lock"])
def test_the_status_of_a_run_says_so(tmp_path: Path, stopped: Path, name: str) -> None:
    run = shutil.copytree(stopped, tmp_path / "run")
    put_away(run, name, tmp_path / "elsewhere")
    state = state_of(run)
    assert state.state == "damaged"
    assert f"{run / name} is a symbolic link" in state.reason


def test_a_comparison_follows_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    words = (
        "compare --data digits --train-limit 40 --width 4 --set network.layers=[1,1,1,1] --epochs 1 --seeds 1".split()
    )
    words += ["--jobs", "1", "--threads", "1", "--arm", "one: --method none", "--out", str(out)]
    main(words)
    for name in ("report.html", "comparison.json", "commands.jsonl", "one/seed0/result.json", "one/seed0/spec.json"):
        before = put_away(out, name, tmp_path / f"elsewhere-{Path(name).name}")
        if name != "commands.jsonl":
            refused(words, capsys, out / name)
        else:
            (out / "one/seed0/result.json").rename(tmp_path / "result.json")
            refused(words, capsys, out / name)
        assert contents(tmp_path / f"elsewhere-{Path(name).name}") == before
        (out / name).unlink()
        shutil.move(tmp_path / f"elsewhere-{Path(name).name}" / "target", out / name)


def test_a_run_itself_may_be_reached_by_links(tmp_path: Path, stopped: Path, finished: Path) -> None:
    (tmp_path / "disk").mkdir()
    shutil.copytree(stopped, tmp_path / "disk" / "run")
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    (tmp_path / "mine").symlink_to(tmp_path / "runs" / "run")
    main(["train", "--resume", str(tmp_path / "mine")])
    for name in ("journal.jsonl", "student/model.safetensors"):
        assert (tmp_path / "disk" / "run" / name).read_bytes() == (finished / name).read_bytes()
    main(["report", str(tmp_path / "mine")])
    assert (tmp_path / "disk" / "run" / "report.html").is_file()


def test_what_loggers_keep_in_their_own_folders_may_be_links(tmp_path: Path, stopped: Path) -> None:
    """Weights & Biases makes some."""
    run = shutil.copytree(stopped, tmp_path / "run")
    (run / "logs" / "wandb" / "wandb").mkdir(parents=True)
    (run / "logs" / "wandb" / "wandb" / "latest-run").symlink_to("run-1")
    train(SPEC, run, if_exists="resume")


@pytest.mark.parametrize("moves", ["renamed", "replaced", "removed"])
def test_a_run_that_is_moved_while_it_runs_stops_and_says_where_it_is(
    tmp_path: Path, finished: Path, moves: str
) -> None:
    run, now = tmp_path / "run", tmp_path / "now"

    def callback(moment: object) -> None:
        if getattr(moment, "turn", 0) != 12:
            return
        if moves == "removed":
            shutil.rmtree(run)
        else:
            run.rename(now)
        if moves == "replaced":
            shutil.copytree(now, run)

    with pytest.raises(UserError) as stop:
        train(SPEC, run, callback=callback)
    if moves == "removed":
        assert f"{run} was removed" in str(stop.value)
        assert not run.exists()
        return
    assert f"{run} was moved to {now}" in str(stop.value)
    assert f"spacedkd train --resume {now}" in str(stop.value)
    if moves == "replaced":
        assert not (run / "result.json").exists()
        assert len((run / "journal.jsonl").read_bytes()) == len((now / "journal.jsonl").read_bytes())
    else:
        assert not run.exists(), "no ghost of it"
    main(["train", "--resume", str(now)])
    assert (now / "journal.jsonl").read_bytes() == (finished / "journal.jsonl").read_bytes()
    assert (now / "student/model.safetensors").read_bytes() == (finished / "student/model.safetensors").read_bytes()
