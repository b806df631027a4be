"""Several processes that share each batch learn what one learns."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tyro

from spacedkd import UserError, read_spec, train
from spacedkd.cli import train as train_command
from spacedkd.cli.flags import RunFlags
from tests.comparison.processes import children, gone, wait_until
from tests.conftest import assert_same_bits, tensors
from tests.training.runs_on_two import METHODS, WITH_BATCHNORM, OnTwo, assert_close, shared
from tests.training.stopping import train_until
from tests.training.two_processes import Process, finished, on_two, slurm_variables, started, torchrun_variables

GO_ON = "spacedkd train --resume"
SECONDS = 20
"""a rank that waits has stopped by then, on a busy machine too; torch itself would wait for half an hour"""


SO = "so all stop. Resume with:"


def said(errors: str) -> str:
    """Its last line; on a busy machine there is one before it, that processes are waited for."""
    return errors.splitlines()[-1]


def parsed(words: str) -> Any:
    return tyro.cli(RunFlags, args=words.split())


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> OnTwo:
    return shared(tmp_path_factory)


@pytest.mark.parametrize("name", METHODS)
def test_two_processes_learn_what_one_learns(tmp_path: Path, two: OnTwo, name: str) -> None:
    train(METHODS[name], tmp_path / "one")
    assert_close(two.run(name), tmp_path / "one")
    if name == "kd":
        assert_close(two.run("compiled"), tmp_path / "one")


def test_each_process_caches_and_reads_its_part_of_the_batches(two: OnTwo) -> None:
    assert sorted(folder.name for folder in (two.run("caches") / "targets").iterdir() if folder.is_dir()) == [
        "rank0",
        "rank1",
    ]
    student = (two.run("kd") / "student/model.safetensors").read_bytes()
    for name in ("caches", "reads"):
        assert (two.run(name) / "student/model.safetensors").read_bytes() == student
        assert (two.run(name) / "journal.jsonl").read_bytes() == (two.run("kd") / "journal.jsonl").read_bytes()


@pytest.mark.parametrize("name", WITH_BATCHNORM)
def test_batch_norm_over_all_processes_is_that_of_one(tmp_path: Path, two: OnTwo, name: str) -> None:
    train(WITH_BATCHNORM[name], tmp_path / "one")
    assert_close(two.run(f"sync {name}"), tmp_path / "one", atol=1e-5, rtol=1e-3)
    if name == "kd":
        with pytest.raises(AssertionError):  # each process has the statistics of its part, unless told
            assert_close(two.run("batchnorm"), tmp_path / "one", atol=1e-3, rtol=1e-3)


def test_frozen_models_are_called_without_ddp(two: OnTwo) -> None:
    """Through it, each of the student's six turns, and each evaluation, would broadcast the teacher's buffers."""
    counts = two.counts["batchnorm"]
    assert counts["forward"] == counts["broadcast by DDP"] == 12, "one for each update"
    assert counts["forward without gradients"] == 0
    stretches, evaluations, types = 4, 2 * 2, 2
    of_average = stretches + 2  # which no process learns, and which is evaluated where the student is
    assert counts["broadcast"] == (stretches - 1 + evaluations + of_average) * types


def environment(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "result.json").read_text())["environment"]
    return found


def test_a_run_of_one_process_is_taken_up_on_two(tmp_path: Path, two: OnTwo) -> None:
    train(METHODS["kd"], tmp_path / "one")
    taken_up = two.run("taken up")
    assert_close(taken_up, tmp_path / "one")
    spec = read_spec(taken_up)
    assert (spec.engine.devices, spec.processes_before) == (2, ("1 until turn 4",)), "the last save was at turn 4"
    assert environment(taken_up)["processes_before"] == ["1 until turn 4"]
    assert environment(taken_up)["bit_equal"] is False
    assert "bit_equal" not in environment(two.run("kd"))
    assert len({spec.fingerprint(), *(read_spec(run).fingerprint() for run in (two.run("kd"), tmp_path / "one"))}) == 3


def test_another_number_of_processes_must_be_asked_for(tmp_path: Path) -> None:
    train_until(METHODS["kd"], tmp_path / "run", 5)
    with pytest.raises(UserError, match="holds another run"):
        train(on_two(METHODS["kd"]), tmp_path / "run", if_exists="resume")
    with pytest.raises(UserError, match="leave out the other flags.*engine.devices"):
        train_command.train(parsed("--devices 2 --epochs 3"), resume=tmp_path / "run")


def kill_when_saved(processes: list[Process], victim: int, run: Path) -> float:
    """Kill a process, by its id, as soon as something is saved that was not there before; gives the moment."""

    def saved_at() -> int:
        try:
            return (run / "checkpoint" / "latest.safetensors").stat().st_mtime_ns
        except FileNotFoundError:  # for a moment, the latest one is the previous one already
            return 0

    before = saved_at()
    while saved_at() in (0, before):
        assert all(process.poll() is None for process in processes), finished(processes)
        time.sleep(0.02)
    os.kill(victim, signal.SIGKILL)
    return time.monotonic()


def test_a_rank_that_dies_ends_the_others_and_the_run_goes_on(tmp_path: Path, two: OnTwo) -> None:
    """Four starts of one run, by Fabric, srun and torchrun; one is to stop, and twice a process is killed."""
    run, spec = tmp_path / "run", two.folder / "uninterrupted" / "asked.json"
    train_words = ["-m", "spacedkd", "train"]

    (first,) = started([*train_words, "--spec", str(spec), "--out", str(run)], {0: {}}, fork=False)
    wait_until(lambda: (run / "checkpoint/latest.safetensors").exists(), first)
    second = children(first.pid)
    os.kill(second[0], signal.SIGUSR1)  # one of them is asked, and all stop after the same turn
    ((code, _, errors),) = finished([first])
    assert code == 143
    assert errors.splitlines()[-1] == f"spacedkd: Stopped, and everything is saved. Resume with: {GO_ON} {run}"
    assert gone(second)

    (first,) = started([*train_words, "--resume", str(run)], {0: {}})
    wait_until(lambda: children(first.pid), first)
    killed = kill_when_saved([first], children(first.pid)[0], run)
    ((code, _, errors),) = finished([first])
    assert time.monotonic() - killed < SECONDS
    assert (code, said(errors)) == (
        2,
        f"spacedkd: Process 1 of 0 to 1 has died, so all stop. Resume with: {GO_ON} {run}",
    )

    one = shutil.copytree(run, tmp_path / "one")
    both = started([*train_words, "--resume", str(run)], slurm_variables())
    killed = kill_when_saved(both, both[0].pid, run)
    (_, (code, _, errors)) = finished(both)
    assert time.monotonic() - killed < SECONDS
    assert (code, said(errors)) == (
        2,
        f"spacedkd: Process 0 of 0 to 1 has died, so all stop. Resume with: {GO_ON} {run}",
    )

    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    ((code, out, errors),) = finished(started([*torchrun, *train_words, "--resume", str(run)], {0: {}}, fork=False))
    assert code == 0, errors
    assert out.count("Student: ") == 1, "one of the processes speaks for all"
    assert_same_bits(tensors(run), tensors(two.run("uninterrupted")))

    train_command.train(parsed("--devices 1"), resume=one)
    assert_close(one, run)
    assert read_spec(one).processes_before[0].startswith("2 until turn ")


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({**torchrun_variables()[0]}, "torchrun has started 2 processes, and the run is for 1"),
        ({**slurm_variables()[0]}, "srun has started 2 processes, and the run is for 1"),
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "0"}, "write srun before the command"),
        ({**slurm_variables(1)[0], "SLURM_NNODES": "2"}, "SLURM_NNODES=2, and the run has engine.nodes=1"),
        ({**slurm_variables(1)[0], "SLURM_NTASKS_PER_NODE": "4"}, "PER_NODE=4, and the run has engine.devices=1"),
    ],
)
def test_another_number_of_processes_than_were_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=said):
        train(METHODS["kd"], tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_two_machines_need_a_command_on_each(tmp_path: Path) -> None:
    spec = METHODS["kd"]
    with pytest.raises(UserError, match="engine.nodes=2 needs this command on each machine"):
        train(replace(spec, engine=replace(spec.engine, nodes=2, accelerator="cpu")), tmp_path / "run")
