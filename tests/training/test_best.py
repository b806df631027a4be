"""The student of the best epoch, which held-out images choose, is kept beside the last."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file
from torch import Tensor

from spacedkd import RunSpec, Spaced, UserError, load_student, read_run, train
from spacedkd.cli import main
from spacedkd.training import Event
from spacedkd.training.loop import Scores
from spacedkd.training.roles import evaluate_role
from spacedkd.training.state import TrainingState
from tests.conftest import TINY, assert_same_bits
from tests.training.stopping import assert_same_run, train_in_parts

HELD = replace(TINY, data=replace(TINY.data, holdout=0.25, train_limit=40), epochs=4, schedule=Spaced("1ep"))
"""Four steps an epoch; the student's epochs end at turns 8, 16, 24 and 32."""
SCORES = [0.2, 0.5, 0.5, 0.4]
"""on the held-out images after each epoch, whatever the student says; those on test images only rise"""


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The student's scores are those written above, by the number of its updates."""
    real = evaluate_role

    def measured(ready: TrainingState, role: str, at_end: bool) -> list[tuple[str, Scores]]:
        updates = int(ready.learner(role).module.network.bn1.num_batches_tracked)  # type: ignore[union-attr, arg-type]
        epoch = updates // 4
        fixed = Scores({"test": {"final": epoch / 10}, "holdout": {"final": SCORES[epoch - 1]}})
        return [(name, fixed if name == "student" else found) for name, found in real(ready, role, at_end)]

    monkeypatch.setattr("spacedkd.training.roles.evaluate_role", measured)


def weights_at(spec: RunSpec, folder: Path, turn: int) -> dict[str, Tensor]:
    """The student's after a turn, taken from a run that ends there."""
    train(replace(spec, epochs=turn / 8), folder)
    return load_file(folder / "student/model.safetensors")


def test_the_first_best_epoch_is_kept(tmp_path: Path, scored: None) -> None:
    run = train(HELD, tmp_path / "run")
    kept = load_file(tmp_path / "run/best/model.safetensors")
    assert_same_bits(kept, weights_at(HELD, tmp_path / "shorter", turn=16))
    told = {"chosen_on": "holdout", "turn": 16, "epoch": 2.0, "accuracy": {"test": 0.2, "holdout": 0.5}}
    assert run.plan["best"] == json.loads((tmp_path / "run/best/measured.json").read_text()) == told
    assert run.accuracies["student"]["holdout"]["final"]["best_epoch"] == 2.0


def test_stopped_and_taken_up(tmp_path: Path, scored: None) -> None:
    """Before the best epoch, right after it was kept and before anything was saved, and long after."""
    spec = replace(HELD, save_every="3st")
    train(spec, tmp_path / "whole")
    train_in_parts(spec, tmp_path / "parts", 15, 16, 27)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    for name in ("model.safetensors", "config.json", "measured.json"):
        assert (tmp_path / "whole/best" / name).read_bytes() == (tmp_path / "parts/best" / name).read_bytes()


def test_it_opens_as_a_student_does(tmp_path: Path) -> None:
    train(replace(HELD, ema=0.9), tmp_path / "run")
    best = load_student(tmp_path / "run", which="best")
    assert_same_bits(best.state_dict(), load_file(tmp_path / "run/best/model.safetensors"))
    assert_same_bits(
        best.state_dict(), timm.create_model(f"local-dir:{tmp_path}/run/best", pretrained=True).state_dict()
    )
    average = load_student(tmp_path / "run", which="average").state_dict()
    assert_same_bits(average, load_file(tmp_path / "run/average/model.safetensors"))
    assert not torch.equal(average["conv1.weight"], load_student(tmp_path / "run").state_dict()["conv1.weight"])
    with pytest.raises(UserError, match="Unknown student 'first'"):
        load_student(tmp_path / "run", which="first")


def test_test_images_choose_nothing(tmp_path: Path, tiny: RunSpec) -> None:
    run = train(replace(tiny, epochs=1), tmp_path / "run")
    assert not (tmp_path / "run/best").exists()
    assert "best" not in run.plan
    with pytest.raises(
        UserError, match="has no best student; it is kept where held-out images choose it, with data.holdout"
    ):
        load_student(tmp_path / "run", which="best")


def test_a_run_that_begins_again_forgets_it(tmp_path: Path, scored: None) -> None:
    def at_the_beginning(moment: Event) -> None:
        if moment.turn == 1:
            assert not (tmp_path / "run/best").exists()

    train(HELD, tmp_path / "run")
    run = train(HELD, tmp_path / "run", if_exists="restart", callback=at_the_beginning)
    assert run.plan["best"]["epoch"] == 2.0


def test_the_command_line_says_where_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        f"train --data digits --train-limit 40 --width 4 --batch-size 8 --epochs 1 --holdout 0.25 --out {tmp_path}/run"
    )
    main(words.split())
    assert f"of its best epoch (1): {tmp_path}/run/best" in capsys.readouterr().out
    assert read_run(tmp_path / "run").plan["best"]["epoch"] == 1.0
