"""Commands that are asked to stop: they save, say how to go on, and end with a code that schedulers understand."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spacedkd.cli import main
from spacedkd.cli.console import console, write_ascii_where_needed
from spacedkd.training.guard import Guard
from tests.cli.test_cli import TINY
from tests.training.stopping import assert_same_run

KD = ["train", *TINY, "--interval", "1ep", "--save-every", "50%"]


def send_after(
    monkeypatch: pytest.MonkeyPatch, turn: int, *signals: int, before: Callable[[], None] = lambda: None
) -> None:
    """Let this process get signals in the middle of a turn."""
    check = Guard.check_losses
    monkeypatch.setattr("spacedkd.config.resolve.ResolvedRun.logs", lambda self, turn: True)

    def struck(watch: Guard, at: Any, values: Any) -> None:
        check(watch, at, values)
        struck.turns += 1  # type: ignore[attr-defined]
        if struck.turns == turn:  # type: ignore[attr-defined]
            before()
            for number in signals:
                os.kill(os.getpid(), number)

    struck.turns = 0  # type: ignore[attr-defined]
    monkeypatch.setattr(Guard, "check_losses", struck)


def test_signals_save_after_the_turn_and_the_run_goes_on_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each of them once, at a turn at which nothing would be saved."""
    monkeypatch.setattr("spacedkd.config.resolve.ResolvedRun.logs", lambda self, turn: True)
    main([*KD, "--out", str(tmp_path / "whole")])
    run = tmp_path / "a run"
    words = [*KD, "--out", str(run)]
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 138), (signal.SIGHUP, 129)):
        before = signal.getsignal(number)
        with monkeypatch.context() as patched:
            send_after(patched, 3, number)
            with pytest.raises(SystemExit) as stop:
                main(words)
        assert stop.value.code == code
        assert f"everything is saved. Resume with: spacedkd train --resume '{run}'\n" in capfd.readouterr().err
        assert signal.getsignal(number) == before, "the handlers are those of before"
        words = ["train", "--resume", str(run)]
    main(words)
    assert_same_run(tmp_path / "whole", run)


@pytest.mark.parametrize(
    ("opened", "number", "code"),
    [pytest.param(os.pipe, signal.SIGINT, 130, id="tee"), pytest.param(pty.openpty, signal.SIGHUP, 129, id="terminal")],
)
def test_a_run_that_nobody_can_look_at_any_more_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Callable[[], tuple[int, int]], number: int, code: int
) -> None:
    """Ctrl-C ends `| tee` as well, and a closed terminal can be written to no more."""
    reads, writes = opened()
    monkeypatch.setattr(console, "quiet", False)
    with monkeypatch.context() as patched, os.fdopen(writes, "w", encoding="utf-8") as stream:
        for name in ("stdout", "stderr"):
            patched.setattr(sys, name, stream)
        send_after(patched, 3, number, before=lambda: os.close(reads))
        with pytest.raises(SystemExit) as stop:
            main([*KD, "--evaluate-every", "1st", "--out", str(tmp_path)])
        stream.flush()  # as Python does at its end, where an error would be another exit code
    assert stop.value.code == code
    assert (tmp_path / "checkpoint").exists()


def test_a_second_signal_stops_at_once_and_an_ignored_one_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patched:
        send_after(patched, 3, signal.SIGTERM, signal.SIGTERM)
        with pytest.raises(SystemExit) as stop:
            main([*KD, "--out", str(run)])
    assert stop.value.code == 143
    assert "Stopped at once. Resume with: spacedkd train --resume" in capfd.readouterr().err
    assert not (run / "checkpoint").exists()
    usual = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        send_after(monkeypatch, 3, signal.SIGHUP)
        main(["train", "--resume", str(run)])
    finally:
        signal.signal(signal.SIGHUP, usual)
    assert (run / "result.json").exists()


def test_a_stop_before_anything_is_trained_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def strike(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    for place, words in (("spacedkd.cli._dispatch", []), ("spacedkd.training.train.resolve", KD)):
        with monkeypatch.context() as patched:
            patched.setattr(place, strike)
            with pytest.raises(SystemExit) as stop:
                main([*words, "--out", str(tmp_path / "run")] if words else [])
        assert stop.value.code == 130
        (line,) = capfd.readouterr().err.splitlines()
        assert line.endswith("Resume with: the same command")
    assert not [*tmp_path.iterdir()]


def test_ctrl_c_while_the_command_is_imported_is_one_line() -> None:
    code = "import os, signal, sys; sys.modules['tyro'] = None\n"
    code += "import builtins; load = builtins.__import__\n"
    code += "def strike(name, *rest):\n"
    code += "    if name == 'spacedkd.cli': os.kill(os.getpid(), signal.SIGINT)\n"
    code += "    return load(name, *rest)\n"
    code += "builtins.__import__ = strike\n"
    code += "from spacedkd.__main__ import main; main()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "\nspacedkd: Stopped before anything began.\n")


def test_a_stream_of_few_letters_gets_others(monkeypatch: pytest.MonkeyPatch) -> None:
    few = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", few)
    write_ascii_where_needed()
    print("81.0 ± 2.5 …", "─ ☃", flush=True)
    assert few.buffer.getvalue() == b"81.0 +- 2.5 ... - ?\n"  # type: ignore[attr-defined]
    main(["list", "schedules"])
