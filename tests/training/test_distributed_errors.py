"""What one of several processes says last reaches the others. Here they are threads; the real ones are in
`test_distributed`."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.strategies.launchers.subprocess_script import _ChildProcessObserver, _SubprocessScriptLauncher
from torch import Tensor, distributed, nn

from spacedkd import UserError
from spacedkd.timeline import Block
from spacedkd.training import distributed as module
from spacedkd.training.distributed import (
    CollectiveStop,
    check_shared_storage,
    disable_child_observer,
    rendezvous_timeout,
    watch_ranks,
)
from spacedkd.trajectory.replay import Replay


class Fake:
    """As much of a Fabric of three ranks as is asked for."""

    world_size = 3

    def __init__(self, rank: int, lines: list[queue.Queue[Any]]) -> None:
        self.global_rank, self.lines = rank, lines
        environment = SimpleNamespace(main_address="127.0.0.1")
        self.strategy = SimpleNamespace(cluster_environment=environment, num_nodes=1, launcher=None)

    def broadcast(self, value: Any) -> Any:
        if self.global_rank:
            return self.lines[self.global_rank].get(timeout=20)
        for line in self.lines:
            line.put(value)
        return value


@contextmanager
def processes(*programs: str) -> Iterator[list[subprocess.Popen[str]]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, text=True))
            for program in programs
        ]


def ends(*errors: Exception | None) -> list[str]:
    """What each rank ends with, where they end with these errors one after the other."""
    lines: list[queue.Queue[Any]] = [queue.Queue() for _ in errors]

    def rank(number: int) -> str:
        try:
            with watch_ranks(Fake(number, lines), "resume"):  # type: ignore[arg-type]
                error = errors[number]
                if error is not None:
                    raise error
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    with ThreadPoolExecutor(len(errors)) as pool:
        return [*pool.map(rank, range(len(errors)))]


def test_all_is_well() -> None:
    assert ends(None, None, None) == ["", "", ""]


def test_a_mistake_of_one_is_said_by_all() -> None:
    """The others notice it as an operation that fails."""
    broken = RuntimeError("Connection closed by peer")
    assert ends(broken, broken, UserError("bad image")) == ["UserError: bad image"] * 3


def test_what_went_wrong_here_stays_what_it_is() -> None:
    assert ends(KeyError("x"), KeyError("y"), None)[:2] == ["KeyError: 'x'", "KeyError: 'y'"]


@pytest.mark.parametrize("relieved", [False, True])
def test_fabrics_observer_kills_the_first_rank_unless_it_is_relieved(relieved: bool) -> None:
    """It is Fabric's own, which kills the one that is given as the first rank; a process has ended with an error."""
    with processes("raise SystemExit(2)", "input()") as (ended, first):
        ended.wait()
        launcher = _SubprocessScriptLauncher(LightningEnvironment(), num_processes=2, num_nodes=1)
        launcher.procs.append(ended)
        observer = _ChildProcessObserver(first.pid, launcher.procs, sleep_period=0)
        if relieved:
            disable_child_observer(SimpleNamespace(strategy=SimpleNamespace(launcher=launcher)))  # type: ignore[arg-type]
        observer.run()
        assert launcher.procs == [ended]
        first.communicate("\n")
        assert first.returncode == (0 if relieved else -signal.SIGKILL)


def test_processes_that_do_not_come_are_waited_for_with_a_word_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes: queue.Queue[int] = queue.Queue()
    monkeypatch.setattr(os, "_exit", codes.put)
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.01)
    monkeypatch.setattr(module, "RENDEZVOUS_SECONDS", 0.1)
    monkeypatch.setenv("MASTER_ADDR", "first")
    with rendezvous_timeout(2):
        assert codes.get(timeout=20) == 2
    waits, ends = capsys.readouterr().err.splitlines()
    for line in (waits, ends):
        assert line.startswith("spacedkd: ")
        assert "2 processes" in line
        assert "first" in line
    assert "SPACEDKD_JOIN_SECONDS" in ends
    # Long enough that a busy machine gets through the block before anything is due.
    monkeypatch.setattr(module, "QUIET_SECONDS", 1.0)
    monkeypatch.setattr(module, "RENDEZVOUS_SECONDS", 1.0)
    for processes in (1, 2):
        with rendezvous_timeout(processes):
            pass
    time.sleep(1.2)
    assert codes.empty()
    assert not capsys.readouterr().err


class Appears:
    """A path whose version one process sees after so many looks."""

    def __init__(self, looks: float) -> None:
        self.looks, self.left, self.loaded = 0, looks, False

    def waits_for(self, version: int) -> str | None:
        self.looks += 1
        return None if self.looks > self.left else "waiting"

    def load(self, version: int, model: nn.Module) -> None:
        self.loaded = True

    def entries(self, step: int) -> list[Any]:
        return []


@pytest.mark.parametrize(
    ("looks", "stops", "loaded"),
    [
        pytest.param((0, 3, 1), (9, 9, 9), True, id="one sees it late"),
        pytest.param((9, 9, 0), (9, 3, 9), False, id="one is asked to stop"),
        pytest.param((0, 3, 0), (9, 3, 9), True, id="it is there when one is asked"),
    ],
)
def test_ranks_that_wait_find_it_or_stop_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch, looks: tuple[int, ...], stops: tuple[int, ...], loaded: bool
) -> None:
    met, sent = threading.Barrier(3), [[0], [0], [0]]
    rank_of = threading.local()

    def all_reduce(flags: Tensor, group: object) -> None:
        sent[rank_of.number] = flags.tolist()
        met.wait(timeout=20)
        total = [sum(column) for column in zip(*sent, strict=True)]
        met.wait(timeout=20)
        flags.copy_(Tensor(total))

    monkeypatch.setattr(distributed, "all_reduce", all_reduce)
    monkeypatch.setattr(distributed, "new_group", lambda backend: backend)
    monkeypatch.setattr(distributed, "destroy_process_group", lambda group: None)

    def rank(number: int) -> tuple[int, bool]:
        rank_of.number, path = number, Appears(looks[number])
        method = SimpleNamespace(learners={"teacher": "teacher"})
        run = SimpleNamespace(method=method, average_seen=lambda role: None)
        replay = Replay(run, {"teacher": nn.Identity()}, {"teacher": path}, {}, lambda entry: None)  # type: ignore[arg-type, dict-item]
        replay.skip(Block("teacher", 0, [0]))
        with CollectiveStop(Fake(number, []), lambda: path.looks > stops[number]) as stop:  # type: ignore[arg-type]
            for _ in replay.load(stop.all_ready):
                if stop.poll_waiting():
                    break
        return path.looks, path.loaded

    with ThreadPoolExecutor(3) as pool:
        assert [*pool.map(rank, range(3))] == [(4, loaded)] * 3


def test_machines_that_do_not_share_the_folder_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gathered(found: list[Any], own: Any) -> None:
        found[:] = [own, "second.example", own]

    monkeypatch.setattr(distributed, "all_gather_object", gathered)
    (tmp_path / "spec.json").touch()
    with pytest.raises(UserError, match="second.example"):
        check_shared_storage(Fake(0, []), tmp_path / "spec.json")  # type: ignore[arg-type]
