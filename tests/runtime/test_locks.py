"""One process at a time, also where the file system has no locks."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from spacedkd import RunSpec, UserError, train
from spacedkd.runtime import locks
from spacedkd.runtime.files import HOST
from spacedkd.runtime.locks import LockHeld, hold, is_held


@pytest.fixture(params=[errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def no_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(opened: int, operation: int) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(locks, "SETTLE_SECONDS", 0.01)
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.02)


def holds_and_releases(lock: Path) -> None:
    assert not is_held(lock)
    with hold(lock):
        assert is_held(lock)
        with pytest.raises(LockHeld), hold(lock, seconds=0.1):
            pass
    assert not is_held(lock)
    with hold(lock):
        pass


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    holds_and_releases(tmp_path / ".lock")
    with hold(tmp_path / ".lock"), pytest.raises(Timeout), FileLock(tmp_path / ".lock", blocking=False):
        pass  # which is how earlier versions take it
    with FileLock(tmp_path / ".lock"):
        assert is_held(tmp_path / ".lock")


@pytest.mark.usefixtures("no_locks")
def test_where_there_are_no_locks_a_heart_beats(tmp_path: Path) -> None:
    holds_and_releases(tmp_path / ".lock")
    who = rf"held by another process \({os.getpid()} on "
    with hold(tmp_path / ".lock"), pytest.raises(LockHeld, match=who), hold(tmp_path / ".lock"):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {".lock"}


STALE: dict[str, tuple[dict[str, object], float, bool]] = {
    "a process that is gone": ({"host": HOST}, 0.0, False),
    "a process elsewhere": ({"host": "elsewhere", "process": 1}, 0.0, True),
    "a process elsewhere that has not beaten for long": ({"host": "elsewhere", "process": 1}, 100.0, False),
    "a process number that was given away since": ({"host": HOST, "process": os.getpid()}, 100.0, False),
    "garbage": ({}, 100.0, False),
    "no number": ({"host": HOST, "process": float("inf")}, 0.0, False),
    "no number either": ({"host": HOST, "process": "x"}, 0.0, False),
}


@pytest.mark.parametrize("whose", STALE)
def test_a_stale_heartbeat_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, "none")))
    monkeypatch.setattr(locks, "SETTLE_SECONDS", 0.01)
    record, age, holds = STALE[whose]
    if "process" not in record:
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        record = {**record, "process": gone.pid}
    beat = tmp_path / ".lock.heartbeat"
    beat.write_text(json.dumps(record))
    then = beat.stat().st_mtime - age
    os.utime(beat, (then, then))
    assert is_held(tmp_path / ".lock") == holds
    if holds:
        with pytest.raises(LockHeld, match="1 on elsewhere"), hold(tmp_path / ".lock"):
            pass
    else:
        with hold(tmp_path / ".lock"):
            assert json.loads(beat.read_text())["process"] == os.getpid()
        assert not beat.exists()


def test_a_run_is_trained_where_there_are_no_locks(
    tmp_path: Path, tiny: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, "none")))

    def second_one(moment: object) -> None:
        with pytest.raises(UserError, match=rf"Another process is training in .*{os.getpid()} on .*Wait for it"):
            train(tiny, tmp_path / "run", if_exists="resume")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tiny, tmp_path / "run", callback=second_one)
    assert not (tmp_path / "run" / ".lock.heartbeat").exists()


def test_a_lock_that_can_only_be_read_says_who_holds_it(tmp_path: Path) -> None:
    """Opened for reading alone, as whoever cannot write there has to."""
    with hold(tmp_path / ".writing"):
        (tmp_path / ".writing").chmod(0o444)
        assert is_held(tmp_path / ".writing")
    assert not is_held(tmp_path / ".writing")
    assert not is_held(tmp_path / "never")
