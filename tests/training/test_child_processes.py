"""Processes that a command starts end with it, and leave signals to it, also while they import torch for seconds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.comparison.processes import children, gone, wait_until

SECONDS = 2.0
"""within which everything that a process has started has ended"""
SLOW_IMPORT = """
import os, sys, time

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["SLOW_IMPORT"]:
            with open(os.environ["SLOW_LOG"], "a") as log:
                log.write(f"{os.getpid()}\\n")
            time.sleep(60)

if "--multiprocessing-fork" in sys.orig_argv or os.environ.get("LOCAL_RANK", "0") != "0":
    sys.meta_path.insert(0, Slow())
"""
"""Python imports it first, as sitecustomize.py: in processes that a command starts, one import takes a minute"""
SCRIPT = """
import colorsys  # which is imported slowly here, as torch would be
import contextlib, sys, time
from spacedkd.runtime.signals import child_context, signals_wait

def work(number):
    time.sleep(60)

if __name__ == "__main__":
    hears = sys.argv[1] == "hears"
    for number in range(2):
        with contextlib.nullcontext() if hears else signals_wait():
            child_context(hears).Process(target=work, args=(number,)).start()
    time.sleep(60)
"""
TRAIN = (
    "--data digits --train-limit 40 --width 4 --epochs 400 --batch-size 8 --precision 32-true --threads 1 "
    "--accelerator cpu --interval 1ep"
).split()


def importing(words: list[str], slow: str, count: int, place: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """Start Python with these words; return it when `count` of its children import a module, with all it started."""
    (place / "sitecustomize.py").write_text(SLOW_IMPORT)
    log = place / "log"
    log.touch()
    paths = os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = {**os.environ, "PYTHONPATH": paths, "SLOW_IMPORT": slow, "SLOW_LOG": str(log)}
    pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, *words], env=environment, start_new_session=True, **pipes)
    wait_until(lambda: len(log.read_text().split()) >= count, process)
    started = [one for child in children(process.pid) for one in (child, *children(child))]
    assert {*map(int, log.read_text().split())} <= {*started}
    return process, started


@pytest.mark.parametrize("signals", ["hears", "leaves"])
def test_a_child_that_imports_the_main_module_ends_with_its_parent(signals: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process, started = importing([str(script), signals], "colorsys", 2, tmp_path)
    first, _ = map(int, (tmp_path / "log").read_text().split())
    os.kill(first, signal.SIGHUP)
    assert gone([first], 1.0 if signals == "hears" else 0.1) == (signals == "hears")
    process.kill()
    assert gone(started, SECONDS)
    process.communicate()


COMMANDS = {
    "compare": (["compare", "--seeds", "2", "--jobs", "2", "--arm", "a: --method kd"], "torch", 2),
    "pipeline": (["train", "--pipeline"], "torch", 1),
    "ranks": (["train", "--devices", "2"], "spacedkd.cli", 1),
}
"""what is started, what its children import, and how many of them there are"""


@pytest.mark.parametrize("name", COMMANDS)
def test_children_that_import_end_with_a_command_that_is_killed(name: str, tmp_path: Path) -> None:
    (verb, *words), slow, count = COMMANDS[name]
    words = ["-m", "spacedkd", verb, *TRAIN, *words, "--out", str(tmp_path / "run")]
    process, started = importing(words, slow, count, tmp_path)
    process.kill()
    assert gone(started, SECONDS)
    process.communicate()


def test_sighup_while_the_teacher_of_a_pipeline_is_imported(tmp_path: Path) -> None:
    """Of a terminal that is closed, to all processes at once."""
    words = ["-m", "spacedkd", "train", *TRAIN, "--pipeline", "--out", str(tmp_path / "run")]
    process, started = importing(words, "torch", 1, tmp_path)
    os.killpg(process.pid, signal.SIGHUP)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGHUP, errors
    assert "Traceback" not in errors
    assert gone(started, SECONDS)
    assert not (tmp_path / "run").exists(), "nothing has begun"
