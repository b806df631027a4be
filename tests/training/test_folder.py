"""A run's folder when disks fill up, when two want it at once, and while a save is still being written."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError, safe_open

from spacedkd import MethodSpec, UserError, read_spec, train
from spacedkd.cli import main
from spacedkd.config.serialization import to_json
from spacedkd.models import student_io
from spacedkd.runs import tensor_file
from spacedkd.runs.folder import RunFolder
from spacedkd.runs.journal import Journal
from spacedkd.runtime.errors import CannotWrite
from spacedkd.runtime.files import HOST
from spacedkd.training import Event
from tests.conftest import TINY, assert_same_bits, tensors
from tests.training.stopping import assert_same_run, train_until

SPEC = replace(TINY, method=MethodSpec("none"))
"""Fifteen turns; all is saved after every fourth, and at the end."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folders") / "whole"
    train(SPEC, folder)
    return folder


def position(folder: Path) -> dict[str, Any]:
    with safe_open(folder / "checkpoint" / "latest.safetensors", framework="pt") as file:
        found: dict[str, Any] = json.loads(file.metadata()["position"])
        return found


def test_training_goes_on_while_a_save_is_written(tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written is the state, the position and the journal's length of turn 4, though two turns are taken."""
    write, released, written = tensor_file.write, threading.Event(), threading.Event()

    def slow(*args: Any, **named: Any) -> None:
        assert released.wait(60)
        write(*args, **named)
        written.set()

    def callback(moment: Event) -> None:
        if moment.turn == 6:
            assert not (tmp_path / "run" / "checkpoint" / "latest.safetensors").exists()
            released.set()
            assert written.wait(60)
            raise KeyboardInterrupt

    monkeypatch.setattr(tensor_file, "write", slow)
    with pytest.raises(KeyboardInterrupt):
        train(SPEC, tmp_path / "run", callback=callback)
    monkeypatch.undo()
    train_until(SPEC, tmp_path / "four", 4)
    assert_same_bits(tensors(tmp_path / "run"), tensors(tmp_path / "four"))
    assert {**position(tmp_path / "run"), "seconds": 0} == {**position(tmp_path / "four"), "seconds": 0}
    train(SPEC, tmp_path / "run", if_exists="resume")
    assert_same_run(tmp_path / "run", whole)


def test_whatever_ends_a_run_lets_its_save_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, released = tensor_file.write, threading.Event()

    def slow(*args: Any, **named: Any) -> None:
        released.wait(0.2)
        write(*args, **named)

    monkeypatch.setattr(tensor_file, "write", slow)
    train_until(SPEC, tmp_path / "run", 5)
    assert position(tmp_path / "run")["turns"] == 4


def full(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the system itself refuse whatever is written to files of such a name: their bytes go to /dev/full."""
    really: Callable[..., int] = os.open

    def opened(path: Any, flags: int, *args: Any, **named: Any) -> int:
        if pattern in str(path) and flags & os.O_CREAT:
            os.close(really(path, flags, *args, **named))
            return really("/dev/full", os.O_RDWR)
        return really(path, flags, *args, **named)

    monkeypatch.setattr(os, "open", opened)


def no_room_for_a_student(*args: Any, **options: Any) -> None:
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize("name", ["spec.json", "latest.safetensors", "student", "result.json"])
def test_a_full_disk_is_one_line_and_nothing_is_lost(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    run = tmp_path / "run"
    (tmp_path / "asked.json").write_text(json.dumps(to_json(SPEC)))
    if name != "spec.json":
        train_until(SPEC, run, 9)
    before = tensors(run) if name != "spec.json" else {}
    if name == "student":
        monkeypatch.setattr(student_io, "save_student", no_room_for_a_student)
    else:
        full(name, monkeypatch)
    start = ["train", "--spec", str(tmp_path / "asked.json"), "--out", str(run)]
    with pytest.raises(SystemExit, match="2"):
        main(start if name == "spec.json" else ["train", "--resume", str(run)])
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert f"{name} cannot be written: the disk is full" in said
    assert not [*run.rglob("*.unfinished")]
    if name == "latest.safetensors":
        assert_same_bits(tensors(run), before)
    monkeypatch.undo()
    main(start if name == "spec.json" else ["train", "--resume", str(run)])
    assert_same_run(run, whole)


def test_a_journal_on_a_full_disk_is_named(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    with Path("/dev/full").open("wb") as full:
        os.dup2(full.fileno(), journal._file.fileno())
    for act in (lambda: journal.write({"event": "loss"}), lambda: journal.__exit__()):
        with pytest.raises(CannotWrite, match="journal.jsonl cannot be written: the disk is full"):
            act()


def test_a_save_that_fails_ends_the_run_at_the_next_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []
    failed = threading.Event()

    def fail(path: Path, *args: Any, **named: Any) -> None:
        failed.set()
        raise CannotWrite("no more")

    def callback(moment: Event) -> None:
        turns.append(moment.turn)
        if moment.turn == 4:
            assert failed.wait(60)
            for thread in threading.enumerate():
                if thread is not threading.current_thread() and not thread.daemon:
                    thread.join()

    monkeypatch.setattr(tensor_file, "write", fail)
    with pytest.raises(CannotWrite, match="no more"):
        train(SPEC, tmp_path / "run", callback=callback)
    assert turns == [1, 2, 3, 4]


@pytest.fixture
def race(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks first finds the folder free, whatever happens in it before it is held."""
    check, looked = RunFolder.check_free, [0]

    def check_free(folder: RunFolder) -> None:
        looked[0] += 1
        if looked[0] != 2:
            check(folder)

    monkeypatch.setattr(RunFolder, "check_free", check_free)


@pytest.mark.usefixtures("race")
def test_who_comes_second_publishes_nothing_and_removes_nothing(tmp_path: Path, whole: Path) -> None:
    def second_one(moment: Event) -> None:
        if moment.turn == 1:
            before = (tmp_path / "run" / "spec.json").read_bytes()
            with pytest.raises(UserError, match="Another process is training in"):
                train(replace(SPEC, seed=5), tmp_path / "run")
            assert (tmp_path / "run" / "spec.json").read_bytes() == before

    train(SPEC, tmp_path / "run", callback=second_one)
    assert_same_run(tmp_path / "run", whole)


def test_who_comes_when_the_first_has_ended_is_refused_too(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    check, looked = RunFolder.check_free, [0]

    def check_free(folder: RunFolder) -> None:
        looked[0] += 1
        if looked[0] > 1:
            check(folder)

    monkeypatch.setattr(RunFolder, "check_free", check_free)
    with pytest.raises(UserError, match="already holds a run"):
        train(replace(SPEC, seed=5), run)
    assert_same_run(run, whole)


def test_what_killed_saves_leave_behind_is_removed(tmp_path: Path, whole: Path) -> None:
    train_until(SPEC, tmp_path / "run", 9)
    left = [
        tmp_path / "run" / name
        for name in (f"checkpoint/latest.safetensors.{HOST}_999999999_0a.unfinished", "checkpoint/.tmpAbC123")
    ]
    for file in left:
        file.write_text("half")
    (tmp_path / "run" / ".tmpAbC12").write_text("somebody's own")
    train(SPEC, tmp_path / "run", if_exists="resume")
    assert not any(file.exists() for file in left)
    assert (tmp_path / "run" / ".tmpAbC12").exists()
    assert_same_run(tmp_path / "run", whole)


@pytest.mark.parametrize("keeps", [False, True])
def test_the_teacher_a_kill_has_left_in_a_finished_pipeline_is_removed(
    tmp_path: Path, whole: Path, keeps: bool
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    piped = replace(read_spec(run), engine=replace(SPEC.engine, pipeline=True, keep_path=keeps))
    (run / "spec.json").write_text(json.dumps(to_json(piped)))
    (run / "teacher" / "path").mkdir(parents=True)
    train(piped, run, if_exists="resume")
    assert (run / "teacher").exists() == keeps


def test_a_folder_that_cannot_be_written_to_is_said_before_anything_is_measured(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    really: Callable[..., int] = os.open

    def opened(path: Any, flags: int, *args: Any, **named: Any) -> int:
        folder = "" if named.get("dir_fd") is None else Path(f"/proc/self/fd/{named['dir_fd']}").readlink()
        if flags & os.O_CREAT and str(run) in f"{folder}/{path}":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return really(path, flags, *args, **named)

    monkeypatch.setattr(os, "open", opened)
    for words in (["evaluate", str(run)], ["report", str(run)], ["train", "--resume", str(run), "--restart"]):
        with pytest.raises(SystemExit, match="2"):
            main(words)
        found = capsys.readouterr()
        assert found.err.count("\n") == 1, found.err
        assert f"{run} is read-only for you. Give another folder, or make this one writable" in found.err
        assert not found.out
    assert_same_run(run, whole)
