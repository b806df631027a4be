"""Runs of several processes that are asked to stop, all at once as a terminal asks: they save, and end together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from spacedkd import RunSpec, Spaced, train
from spacedkd.runs import checkpoint
from spacedkd.runtime.signals import Stopped, killed_by
from spacedkd.training import Event
from tests import forked
from tests.comparison.processes import children, gone, wait_until
from tests.training.stopping import assert_same_run
from tests.training.two_processes import Process

TINY = (
    "--data digits --train-limit 40 --width 4 --epochs 400 --batch-size 8 --lr 0.002 --precision 32-true --threads 1 "
    "--log-every 1st --save-every 100% --evaluate-every 100%"
).split()


def began(folder: Path) -> bool:
    journal = folder / "journal.jsonl"
    return journal.exists() and journal.stat().st_size > 0


def assert_saved(folder: Path) -> None:
    """Nothing that was learned is lost, and nobody holds the folder."""
    *_, last = (folder / "journal.jsonl").read_text().splitlines()
    position = checkpoint.newest(folder / "checkpoint/latest.safetensors").position
    assert position.turns == json.loads(last)["turn"] > 0
    with FileLock(folder / ".lock", blocking=False):
        pass


def stopped(words: list[str], runs: list[Path], number: int, fork: bool = False) -> tuple[int, str]:
    """A command that gets a signal, with all of its processes, when these runs have begun: its code and last line.

    The processes that it starts are spawned; it itself is, too, unless it is to be forked.
    """
    process: Process
    if fork:
        process = forked.Command("-m", "spacedkd", *words)
    else:
        pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen([sys.executable, "-m", "spacedkd", *words], start_new_session=True, **pipes)
    wait_until(lambda: all(map(began, runs)), process)
    workers = [worker for child in children(process.pid) for worker in (child, *children(child))]
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=60)
    assert gone(workers)
    assert "Traceback" not in errors
    return process.wait(), errors.splitlines()[-1]


def test_a_pipeline_with_workers_saves_both_of_its_processes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ["train", *TINY, "--interval", "1ep", "--pipeline", "--workers", "1", "--out", str(run)]
    code, said = stopped(words, [run, run / "teacher"], signal.SIGTERM)
    assert (code, said) == (
        143,
        f"spacedkd: Stopped, and everything is saved. Resume with: spacedkd train --resume {run}",
    )
    assert_saved(run)
    assert_saved(run / "teacher")


def test_all_runs_of_a_comparison_are_saved(tmp_path: Path) -> None:
    arms = ["--arm", "a: --method kd", "--arm", "b: --method self-kd"]
    words = ["compare", *TINY, *arms, "--seeds", "1", "--jobs", "2", "--out", str(tmp_path)]
    runs = [tmp_path / "a/seed0", tmp_path / "b/seed0"]
    code, said = stopped(words, runs, signal.SIGINT, fork=True)
    assert (code, said) == (130, "spacedkd: Stopped, and everything is saved. Resume with: the same command")
    for run in runs:
        assert_saved(run)


PARENT = """
import multiprocessing, os, sys, time
from spacedkd.runtime.signals import as_child, end_with
def child(number, parent):
    (as_child if number else end_with)(parent)
    os.write(1, f"{number} {os.getpid()}\\n".encode())
    time.sleep(60)
if __name__ == "__main__":
    if sys.argv[1] == "elsewhere":
        sys.platform = "elsewhere"
    for number in range(2):
        multiprocessing.get_context("fork").Process(target=child, args=(number, os.getpid())).start()
    time.sleep(60)
"""


@pytest.mark.parametrize("system", ["linux", "elsewhere"])
def test_children_end_with_their_parent(system: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, system], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    lines = sorted(parent.stdout.readline().split() for _ in range(2))
    processes = [int(process) for _, process in lines]
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM):
        os.kill(processes[1], number)  # the parent's business
    assert not gone([processes[1]], 0.1)
    parent.kill()
    assert gone(processes)
    parent.communicate()


def test_a_follower_that_waits_is_stopped_where_nothing_is_lost(tmp_path: Path, tiny: RunSpec) -> None:
    """It has passed by turns of its teacher that it has not caught up with."""
    spaced, steps = replace(tiny, schedule=Spaced("1ep")), [0]

    def stop_teacher() -> bool:
        steps[0] += 1
        return steps[0] == 8

    teacher = replace(spaced, only="teacher", record=(Spaced("1ep"),))
    with pytest.raises(Stopped):
        train(teacher, tmp_path / "teacher", stop=stop_teacher)
    waited: list[str] = []

    def look(moment: Event) -> None:
        waited.extend([moment.waiting] if moment.waiting else [])

    follower = replace(spaced, teacher_path=str(tmp_path / "teacher"))
    with pytest.raises(Stopped, match="after 10 of 30 turns"):  # the fifth of the student's
        train(follower, tmp_path / "student", callback=look, stop=lambda: bool(waited))
    assert "not being trained" in waited[0]
    train(teacher, tmp_path / "teacher", if_exists="resume")
    train(follower, tmp_path / "student", if_exists="resume")
    train(follower, tmp_path / "whole")
    assert_same_run(tmp_path / "whole", tmp_path / "student")


@pytest.mark.parametrize(
    ("code", "said"), [(-9, "SIGKILL (out of memory?)"), (-11, "SIGSEGV (a crash"), (-64, "SIGRTMAX"), (1, "code 1")]
)
def test_what_ended_a_process(code: int, said: str) -> None:
    assert said in killed_by(code)
