"""A schedule of one's own by its name: typed it is vouched for, in a file it has to be trusted."""

from __future__ import annotations

import json
import sys
from dataclasses import make_dataclass, replace
from itertools import repeat
from pathlib import Path

import pytest

from spacedkd import RunSpec, UserError, train
from spacedkd.cli import main
from spacedkd.config.spec import read_spec
from spacedkd.runs.journal import read_journal
from spacedkd.runtime import user_code
from spacedkd.schedule import NamedSchedule, Turn
from spacedkd.timeline import timeline_turns
from tests.cli.test_bad_input import refused
from tests.conftest import TINY, assert_same_bits, tensors

MODULE = '''
from dataclasses import dataclass

@dataclass(frozen=True)
class Growing:
    """Blocks of `start` steps, each longer than the one before; a turn is a plain pair."""

    start: int
    grow: int = 1

    def turns(self, roles, steps):
        first, size = 0, self.start
        while first < len(steps):
            yield from ((role, step) for role in roles for step in steps[first : first + size])
            first, size = first + size, size + self.grow
'''
FLAGS = "--data digits --train-limit 40 --width 4 --epochs 1 --batch-size 8 --threads 1 --precision 32-true".split()
TYPED = ["--interval", "growing_of_mine:Growing", "--set", "schedule.start=2"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "growing_of_mine.py").write_text(MODULE)
    return tmp_path


def test_it_is_trained_by_its_name_and_its_options(here: Path) -> None:
    main(["train", *FLAGS, *TYPED, "--log-every", "1st", "--out", "run"])
    written = json.loads(Path("run/spec.json").read_text())["schedule"]
    assert written == {"kind": "growing_of_mine:Growing", "start": 2, "grow": 1}
    order = [(one["role"], one["step"]) for one in read_journal(Path("run/journal.jsonl")) if one["event"] == "loss"]
    blocks = ([0, 1], [2, 3, 4])
    assert order == [(role, step) for block in blocks for role in ("teacher", "student") for step in block]


def test_a_file_that_names_it_has_to_be_trusted(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["train", *FLAGS, *TYPED, "--out", "run"])
    bits = tensors(here / "run")
    capsys.readouterr()
    user_code.set_folder(None)  # as in another process
    del sys.modules["growing_of_mine"]
    assert isinstance(read_spec("run").schedule, NamedSchedule)
    again = ["train", "--resume", "run", "--restart"]
    assert "growing_of_mine:Growing" in (line := refused(again, capsys))
    assert "--trust-code" in line
    main([*again, "--trust-code"])
    assert_same_bits(tensors(here / "run"), bits)


def test_it_may_lie_in_a_window(here: Path) -> None:
    words = ["--interval", "growing_of_mine:Growing", "--window", "1st..4st", "--set", "schedule.inside.start=2"]
    main(["train", *FLAGS, *words, "--out", "run"])
    written = json.loads(Path("run/spec.json").read_text())["schedule"]
    assert (written["kind"], written["inside"]["kind"]) == ("window", "growing_of_mine:Growing")
    schedule = read_spec("run", trust_code=True).schedule
    assert schedule is not None
    steps = [turn.step for turn in timeline_turns(schedule, ("teacher", "student"), False, {}, 5)]
    assert steps == [0, 0, 1, 2, 1, 2, 3, 3, 4, 4]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--interval", "growing_of_mine:Growing"], "schedule.start"),
        ([*TYPED, "--set", "schedule.strat=3"], "strat"),
        ([*TYPED, "--set", "schedule.start=soon"], "start must be a whole number, got 'soon'"),
        ([*TYPED, "--tail", "drop"], "--tail"),
        (["--interval", "growing_of_mine:Shrinking"], "growing_of_mine:Shrinking"),
        (["--interval", "growing_of_mine:dataclass"], "no schedule"),
        (["--interval", "nowhere:Growing"], "nowhere"),
    ],
)
def test_what_is_wrong_with_it_is_one_line(
    words: list[str], said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(["train", *FLAGS, *words, "--out", "run"], capsys)
    assert not Path("run").exists()


def test_in_python_its_name_or_an_object_will_do(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(here)
    from growing_of_mine import Growing  # type: ignore[import-not-found]

    spec = RunSpec(schedule={"kind": "growing_of_mine:Growing", "start": 3})  # type: ignore[arg-type]
    assert spec.schedule == Growing(3)
    assert spec.fingerprint() == RunSpec(schedule=Growing(3)).fingerprint()
    with pytest.raises(UserError, match="needs its start.* schedule.start=VALUE"):
        RunSpec(schedule="growing_of_mine:Growing")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([3], "gives 3 as turn 0"),
        ([("teacher", 0), ("student", 0.5)], r"gives \('student', 0.5\) as turn 1"),
        ([Turn("student", -1)], "step=-1"),
        ([("teacher", 0, 0)], "as turn 0"),
        ([None], "gives None as turn 0"),
        ([("teacher", 10**6)], r"a whole number from 0 to \d+\.$"),
        ([("nobody", 0)], "nobody"),
        (repeat(("teacher", 0)), "more than .* turns"),
        (None, "'NoneType' object is not iterable"),
    ],
)
def test_turns_that_are_none_are_refused(given: object, said: str, tmp_path: Path) -> None:
    kind = make_dataclass("Given", [], frozen=True, namespace={"turns": lambda self, roles, steps: given})
    with pytest.raises(UserError, match=said) as error:
        train(replace(TINY, schedule=kind()), tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_pairs_give_the_bits_of_turns(tmp_path: Path) -> None:
    def turns(self: object, roles: tuple[str, ...], steps: range) -> list[object]:
        return [[role, step] for step in steps for role in roles]

    kind = make_dataclass("Pairs", [], frozen=True, namespace={"turns": turns})
    short = replace(TINY, epochs=1)
    train(replace(short, schedule=kind()), tmp_path / "pairs")
    train(short, tmp_path / "online")
    assert_same_bits(tensors(tmp_path / "pairs"), tensors(tmp_path / "online"))
