"""What --plan prints, and that it leaves everything as it was."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from spacedkd import RunSpec
from spacedkd.cli import main
from spacedkd.cli.compare import say_comparison
from spacedkd.cli.train import say_planned
from spacedkd.comparison import ComparisonForecast
from spacedkd.config.resolve import ResolvedRun
from spacedkd.reporting.formatting import THIN_SPACE
from spacedkd.training import Forecast
from tests.cli.test_cli import TINY
from tests.training.test_forecast import contents


def test_a_run_before_it_and_on_its_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["train", *TINY, "--interval", "1ep", "--out", "run", "--plan"])
    said = capsys.readouterr().out
    assert [*tmp_path.iterdir()] == []
    assert "(spaced 1ep): teacher 0-4, student 0-4, teacher 5-9, student 5-9\n" in said
    assert re.search(r"turns finished\s+0 of 10\s+0 of 10", said)
    assert re.search(r"updates\s+20", said)
    assert "30 forward, 20 backward" in said
    assert re.search(r"parameters\s+teacher 19.8 k, student 21.9 k", said)
    assert re.search(r"teacher 1F 1B\s+teacher 1F, student 1F 1B", said)
    assert "time left" in said
    assert "three of them while one is written" in " ".join(said.split())

    main(["train", *TINY, "--interval", "1ep", "--out", "run"])
    before = contents(tmp_path)
    capsys.readouterr()
    main(["train", "--resume", "run", "--plan"])
    assert re.search(r"time left\s+none, it is finished", capsys.readouterr().out)
    assert contents(tmp_path) == before
    with pytest.raises(SystemExit):
        main(["train", *TINY, "--interval", "1ep", "--out", "run", "--plan"])
    assert "already holds a run" in capsys.readouterr().err


def test_three_checkpoints_lie_there_while_one_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last two stay until the new one is whole."""
    most, rename = list[int](), os.rename

    def counted(source: str, target: str, **handles: int) -> None:
        most.append(len([*(tmp_path / "run/checkpoint").glob("*")]))
        rename(source, target, **handles)

    monkeypatch.setattr(os, "rename", counted)
    main(["train", *TINY, "--save-every", "1st", "--out", str(tmp_path / "run")])
    assert max(most) == 3


def test_numbers_of_one_line_are_written_alike(capsys: pytest.CaptureFixture[str]) -> None:
    data = SimpleNamespace(count=16_000)
    plan = SimpleNamespace(
        spec=RunSpec(epochs=1),
        timeline=range(4000),
        steps_per_epoch=2000,
        data=data,
        updates=lambda turns: {"student": turns},
    )
    for done in (0, 1234):
        say_planned(cast(ResolvedRun, plan), done)
    said = capsys.readouterr().out.replace(THIN_SPACE, "_").splitlines()
    first = "4_000 turns (student 4_000): 1 epoch of 16_000 images, 2_000 steps each."
    assert said == [first, f"{first} Continuing after turn 1_234."]


def test_epochs_of_a_comparison_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    say_comparison({"a": RunSpec(epochs=1)}, seeds=2)
    say_comparison({"a": RunSpec(epochs=1), "b": RunSpec(epochs=2.5)}, seeds=1)
    assert capsys.readouterr().out.splitlines() == [
        "2 runs: 1 arm of 2 seeds each, 1 epoch; --plan prints what they take.",
        "2 runs: 2 arms of 1 seed each, 1 and 2.5 epochs; --plan prints what they take.",
    ]


def test_a_comparison_that_is_half_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One of two seeds is there for the first arm; the other arm's are not."""
    main(["train", *TINY, "--method", "none", "--out", str(tmp_path / "alone" / "seed0")])
    before = contents(tmp_path)
    capsys.readouterr()
    arms = ["--arm", "alone: --method none", "--arm", "kd: --interval 1ep"]
    main(["compare", *TINY, *arms, "--seeds", "2", "--out", str(tmp_path), "--dry-run"])
    said = capsys.readouterr().out
    assert contents(tmp_path) == before
    assert re.search(r"alone\s+[\d.]+ k\s+20 of 20\s+20\s+20\s+20 ", said), "the other seed is the teacher of kd"
    assert re.search(r"kd\s+[\d.]+ k\s+0 of 40\s+40\s+60\s+40 ", said)
    assert re.search(r"alone\s+1 of 2 ", said)
    assert "1 of 4 runs" in said


def test_whoever_is_free_takes_the_next_run() -> None:
    """Seed by seed. Two at a time: 4 and 1 at once, the other 4 after the 1, the other 1 after the 4."""
    four, one = (cast(Forecast, SimpleNamespace(seconds_left=seconds)) for seconds in (4.0, 1.0))
    assert ComparisonForecast({"long": [four, four], "short": [one, one]}, 1).seconds_left == 10
    assert ComparisonForecast({"long": [four, four], "short": [one, one]}, 2).seconds_left == 5
    assert ComparisonForecast({"long": [four, four], "short": [one, one]}, 3).seconds_left == 4
