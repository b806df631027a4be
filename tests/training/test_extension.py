"""A run that goes on where another ended: equal to the longer run wherever turns and learning rates are."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spacedkd import (
    Ahead,
    MethodSpec,
    Offline,
    Online,
    OptimizerSpec,
    RunSpec,
    Spaced,
    UserError,
    forecast,
    read_run,
    read_spec,
    train,
)
from spacedkd.cli import main
from spacedkd.config.optimizer import RateSpec
from spacedkd.config.serialization import to_json
from spacedkd.config.spec import ShorterRun
from spacedkd.learning_rate import cosine
from spacedkd.schedule import Blocks, Growing, Window
from tests.conftest import TINY, assert_same_bits, tensors
from tests.training.stopping import train_until

SHORT = replace(TINY, epochs=2, schedule=Spaced("1ep"), log_every="1st")
"""Ten steps, five an epoch."""
HELD = replace(TINY.data, holdout=0.2)
"""Four steps an epoch."""
EXACT: dict[str, RunSpec] = {
    # A block that was dropped at the end is no longer the last.
    "averaged, with adamw": replace(
        SHORT, schedule=Spaced("4st", tail="drop"), ema=0.9, optimizer=OptimizerSpec("adamw", 1e-3)
    ),
    "one role, milestones": replace(
        SHORT, method="none", schedule=None, rate=RateSpec("multistep", milestones=("1ep",))
    ),
    "window that is over": replace(SHORT, schedule=Window(Spaced("1ep"), Online(), "5st", stop="10st")),
    "self-kd": replace(SHORT, method=MethodSpec("self-kd", {"variant": "snapshot"}), schedule=Spaced("2st")),
}


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]


def turns(run: Path) -> list[tuple[str, int]]:
    """Who learned which step; losses are written down at every one."""
    return [(line["role"], line["step"]) for line in lines(run) if line["event"] == "loss"]


def in_one_go(spec: RunSpec, run: Path, extended: Path) -> None:
    """Whether a run that was extended is the one of as many epochs."""
    longer, whole = read_run(extended), train(spec, run)
    assert_same_bits(tensors(run), tensors(extended))
    assert (run / "student/model.safetensors").read_bytes() == (extended / "student/model.safetensors").read_bytes()
    assert longer.cost == whole.cost
    assert turns(extended) == turns(run)
    assert [line for line in lines(extended) if line in lines(run)] == lines(run)


@pytest.mark.parametrize("case", EXACT)
def test_it_is_the_longer_run(tmp_path: Path, case: str) -> None:
    spec = EXACT[case]
    train(spec, tmp_path / "short")
    ended = (tmp_path / "short/journal.jsonl").read_bytes()
    run = train(replace(spec, epochs=4), tmp_path / "longer", extend=tmp_path / "short")
    assert [one.how for one in run.spec.extends] == ["exact"]
    assert (tmp_path / "longer/journal.jsonl").read_bytes().startswith(ended)
    assert (tmp_path / "short/journal.jsonl").read_bytes() == ended
    in_one_go(replace(spec, epochs=4), tmp_path / "whole", tmp_path / "longer")


def test_a_stopped_run_extended_twice_and_begun_again(tmp_path: Path) -> None:
    """Stopped at turn 9, saved at 8; then three epochs, whose best student may be an earlier one, then four."""
    spec = replace(SHORT, data=HELD, save_every="2st", schedule=Spaced("2st"))
    train_until(spec, tmp_path / "short", 9)
    train(replace(spec, epochs=3), tmp_path / "longer", extend=tmp_path / "short")
    last = replace(read_spec(tmp_path / "longer"), epochs=4)
    run = train(last, tmp_path / "longest", extend=tmp_path / "longer")
    shutil.rmtree(tmp_path / "short")
    shutil.rmtree(tmp_path / "longer")
    assert to_json(run.spec)["extends"] == [
        {"epochs": 2.0, "turn": 8, "how": "exact"},
        {"epochs": 3.0, "turn": 24, "how": "exact"},
    ]
    in_one_go(replace(spec, epochs=4), tmp_path / "whole", tmp_path / "longest")
    files = [(tmp_path / name / "best/model.safetensors").read_bytes() for name in ("whole", "longest")]
    assert files[0] == files[1]
    names = ("journal.jsonl", "student/model.safetensors", "best/model.safetensors", "best/measured.json")
    before = [(tmp_path / "longest" / name).read_bytes() for name in names]
    train(run.spec, tmp_path / "longest", if_exists="restart")
    assert [(tmp_path / "longest" / name).read_bytes() for name in names] == before


def test_a_cosine_goes_on_at_the_rate_of_the_longer_run(tmp_path: Path) -> None:
    spec = replace(SHORT, method="none", schedule=None, rate=RateSpec("cosine"))
    train(spec, tmp_path / "short")
    run = train(replace(spec, epochs=3), tmp_path / "longer", extend=tmp_path / "short")
    assert run.spec.extends == (ShorterRun(2, 10, "warm"),)
    rates = [line["lr"] for line in lines(tmp_path / "longer") if line["event"] == "loss"]
    before, after = cosine(0.02, 10), cosine(0.02, 15)
    assert rates == [*(before(step) for step in range(10)), *(after(step) for step in range(10, 15))]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Spaced("3st"), "t10 t11 t12 s10 s11 s12 t13 t14 s13 s14"),
        (Offline(), "t10 t11 t12 t13 t14 s10 s11 s12 s13 s14"),
        (Ahead("2st"), "t10 t11 t12 s10 t13 s11 t14 s12 s13 s14"),
        (Spaced("2st", speed=2), "t10 t11 t12 t13 s10 s11 t14 s12 s13 s14"),
        (Spaced("2st", speed="inf"), "t10 t11 t12 t13 t14 s10 s11 s12 s13 s14"),
    ],
)
def test_blocks_that_a_longer_run_does_not_have_begin_anew(tmp_path: Path, schedule: Any, expected: str) -> None:
    spec = replace(SHORT, schedule=schedule)
    train(spec, tmp_path / "short")
    run = train(replace(spec, epochs=3), tmp_path / "longer", extend=tmp_path / "short")
    assert [one.how for one in run.spec.extends] == ["anew"]
    before, every = turns(tmp_path / "short"), turns(tmp_path / "longer")
    assert every[: len(before)] == before
    assert " ".join(f"{role[0]}{step}" for role, step in every[len(before) :]) == expected
    assert run.cost["updates"] == len(every)
    assert run.interval == (3 if schedule == Spaced("3st") else None)


def test_blocks_that_end_with_the_run_go_on_in_a_longer_one(tmp_path: Path) -> None:
    spec = replace(SHORT, schedule=Blocks([2, 3, 5]))
    train(spec, tmp_path / "short")
    longer = replace(spec, epochs=3)
    run = train(longer, tmp_path / "longer", extend=tmp_path / "short")
    assert [one.how for one in run.spec.extends] == ["exact"]
    train(longer, tmp_path / "whole")
    assert_same_bits(tensors(tmp_path / "longer"), tensors(tmp_path / "whole"))


def test_a_damaged_best_student_is_not_copied_whatever_its_size(tmp_path: Path) -> None:
    spec = replace(SHORT, data=HELD)
    train(spec, tmp_path / "short")
    with (tmp_path / "short/best/config.json").open("r+b") as file:
        file.truncate(1 << 40)  # sparse: it takes no room, but a copy of it would
    with pytest.raises(UserError, match=r"best/config\.json"):
        train(replace(spec, epochs=4), tmp_path / "longer", extend=tmp_path / "short")
    assert not (tmp_path / "longer/begin/best").exists()


def test_what_no_longer_run_contains_is_refused(tmp_path: Path) -> None:
    def refused(line: str, folder: Path, **changes: Any) -> None:
        with pytest.raises(UserError) as error:
            train(replace(read_spec(folder), **{"epochs": 3, **changes}), tmp_path / "longer", extend=folder)
        assert line in str(error.value)
        assert not (tmp_path / "longer").exists()

    train(SHORT, tmp_path / "run")
    refused("has 2 epochs already: give more with epochs", tmp_path / "run", epochs=2)
    refused("2.1 epochs are not a step longer", tmp_path / "run", epochs=2.1)
    refused("in more than its epochs", tmp_path / "run", seed=1)
    refused("leave out record", tmp_path / "run", record=("1ep",))
    with pytest.raises(UserError, match="give one of them"):
        train(replace(SHORT, epochs=3), tmp_path / "longer", extend=tmp_path / "run", if_exists="resume")
    train(replace(SHORT, epochs=1), tmp_path / "one")
    refused("has 1 epoch already: give more with epochs", tmp_path / "one", epochs=1)
    with pytest.raises(UserError, match="name that run with extend=RUN"):
        train(replace(SHORT, epochs=3, extends=(ShorterRun(2, 20, "exact"),)), tmp_path / "longer")
    with pytest.raises(UserError, match="epochs must be more with each extension, got 2, 2"):
        replace(SHORT, extends=(ShorterRun(2, 20, "exact"),))

    percent = Window(Spaced("2st"), Online(), "20%", stop="60%")
    train(replace(SHORT, schedule=percent), tmp_path / "window")
    refused("other turns than", tmp_path / "window")
    for name, schedule in {"blocks": Blocks([3, 4]), "growing": Growing(1, 3)}.items():
        train(replace(SHORT, schedule=schedule), tmp_path / name)
        refused("a last block that was cut", tmp_path / name)
    stops = MethodSpec("eskd", {"teacher_for": "50%"})
    train(replace(SHORT, method=stops, schedule=Spaced("2st")), tmp_path / "stops")
    refused("other turns than", tmp_path / "stops")
    train_until(replace(SHORT, schedule=Spaced("4st"), save_every="1st"), tmp_path / "tail", 19)
    refused("was stopped within turns that a run of 3 epochs does not have. Finish it first", tmp_path / "tail")
    shutil.rmtree(tmp_path / "run/checkpoint")
    refused("has no checkpoint", tmp_path / "run")
    train(replace(SHORT, record=("1ep",)), tmp_path / "recorder")
    train(replace(SHORT, teacher_path=tmp_path / "recorder"), tmp_path / "follower")
    refused(f"{tmp_path}/recorder", tmp_path / "follower")


def test_losses_that_depend_on_the_length_are_no_longer_runs(tmp_path: Path) -> None:
    spec = replace(SHORT, method="ps-kd", schedule=None)
    train(spec, tmp_path / "short")
    run = train(replace(spec, epochs=3), tmp_path / "longer", extend=tmp_path / "short")
    assert [one.how for one in run.spec.extends] == ["warm"]


def test_one_epoch_is_said_as_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train(replace(SHORT, epochs=0.4, schedule=Spaced("1st")), "runs/exact")
    train(replace(SHORT, epochs=1, rate=RateSpec("cosine")), "runs/warm")
    main("train --extend runs/exact --epochs 1".split())
    main("train --extend runs/warm --epochs 2".split())
    told = capsys.readouterr().out
    assert "the bits are those of one run of 1 epoch." in told
    assert "learning rates of a run of 1 epoch, the others have those of a run of 2 epochs." in " ".join(told.split())


def test_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train(SHORT, "runs/mine")
    main("train --extend runs/mine/spec.json --epochs 3".split())
    told = capsys.readouterr().out
    assert "Continues runs/mine from turn 20: the bits are those of one run of 3 epochs." in told
    assert "30 turns (teacher 15, student 15): 3 epochs of 40 images, 5 steps each." in told
    spec = read_run("runs/mine-3ep").spec
    assert (spec.epochs, spec.extends) == (3, (ShorterRun(2, 20, "exact"),))
    assert forecast(spec, seconds=0.01).turns_left == 10
    for plan in ([], ["--dry-run"]):
        with pytest.raises(SystemExit):
            main(["train", "--spec", "runs/mine-3ep/spec.json", "--out", "runs/new", *plan])
        assert "name that run with --extend RUN" in capsys.readouterr().err
    main("train --resume runs/mine-3ep --dry-run".split())
    main("train --extend runs/mine-3ep --epochs 4 --dry-run".split())
    for words in ("--epochs 4 --lr 1", "", "--epochs 4 --resume runs/mine"):
        with pytest.raises(SystemExit):
            main(["train", "--extend", "runs/mine", *words.split()])
    assert len(capsys.readouterr().err.splitlines()) == 3
