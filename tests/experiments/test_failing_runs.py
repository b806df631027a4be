"""A run that diverges, or whose process dies, costs the others nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spacedkd import MethodSpec, OptimizerSpec, Spaced, UserError, compare, train
from spacedkd.cli import main
from spacedkd.experiments.runner import plan
from spacedkd.experiments.sharing import Job
from tests.conftest import TINY
from tests.experiments.processes import holder

pytestmark = pytest.mark.xdist_group("failing runs")
WILD = OptimizerSpec(lr=1e30)
ARMS = {
    "online": replace(TINY, method=MethodSpec("kd", {"feature_weight": 1e37})),
    "spaced": replace(TINY, schedule=Spaced("1ep")),
    "wild": replace(TINY, method=MethodSpec("none"), optimizer=WILD),
    "killed": replace(TINY, method=MethodSpec("self-kd"), epochs=6),
}
"""the first trains the teacher of the second, and is the one whose student diverges"""


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A comparison of which one run is killed, gone on with to its end; and what was said first."""
    out = tmp_path_factory.mktemp("failing") / "runs"

    def kill(job: Job, moment: Any) -> None:
        if job.label == "killed" and 4 < moment.turn < moment.turns:
            os.kill(holder(job.folder), signal.SIGSEGV)

    with pytest.raises(UserError) as said:
        compare(ARMS, out, seeds=1, jobs=2, callback=kill)
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
    assert [(one["label"], one["seed"], one["role"]) for one in found["diverged"]] == [
        ("online", 0, "student"),
        ("wild", 0, "student"),
    ]
    for one in found["diverged"]:
        journal = (failed[0] / one["folder"] / "journal.jsonl").read_text().splitlines()
        assert json.loads(journal[-1])["step"] == one["step"]


def test_who_follows_a_run_that_diverged_has_the_bits_it_has_alone(failed: tuple[Path, str], tmp_path: Path) -> None:
    (job,) = plan({"spaced": ARMS["spaced"]}, [0], tmp_path)
    train(job.spec, job.folder)
    for name in ("journal.jsonl", "student/model.safetensors"):
        assert (failed[0] / "spaced/seed0" / name).read_bytes() == (job.folder / name).read_bytes()


def test_what_diverged_is_not_trained_again_but_reported_on(
    failed: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """On the command line, and wherever all of it is moved to."""
    told: list[Job] = []
    again = failed[0].with_name("moved")
    shutil.copytree(failed[0], again)
    compare(ARMS, again, seeds=1, callback=lambda job, moment: told.append(job))
    assert not told
    main(["report", str(again)])
    page, said = (again / "report.html").read_text(), capsys.readouterr().out
    for text in (page, said):
        assert "diverged" in text.lower()
        assert "wild" in text


def test_a_teacher_that_diverges_takes_its_students_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody waits for it, and the command ends with 3; if nothing is left to compare, with 2."""
    tiny = "--data digits --train-limit 40 --width 4 --epochs 1 --batch-size 8 --precision 32-true --threads 1 --jobs 1"
    words = ["compare", *tiny.split(), "--log-every", "1st", "--seeds", "1", "--out", str(tmp_path)]
    arms = ["--arm", "a: --method kd --lr 1e30", "--arm", "b: --method kd --lr 1e30 --interval 2st"]
    with pytest.raises(SystemExit) as stop:
        main([*words, *arms, "--arm", "c: --method none --lr 0.01"])
    assert stop.value.code == 3
    assert "2 of 3 runs diverged" in capsys.readouterr().err
    found = json.loads((tmp_path / "comparison.json").read_text())
    assert [one["label"] for one in found["diverged"]] == ["a", "b"]
    assert found["diverged"][1]["role"] == "teacher"
    with pytest.raises(SystemExit) as stop:
        main([*words, *arms])
    assert stop.value.code == 2
    assert "a, seed 0: Training diverged: the " in capsys.readouterr().err
