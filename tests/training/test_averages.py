"""The average of a student's weights: against a dense sum, torch's own BatchNorm update, and equal bits."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.optim.swa_utils import update_bn

from spacedkd import EngineSpec, MethodSpec, Spaced, load_student, train
from spacedkd.cli import main
from spacedkd.training.state import BATCH_NORM_BATCHES
from tests.conftest import TINY, assert_same_bits, of_model, tensors
from tests.training.stepping import ready, turn_by_turn
from tests.training.stopping import train_in_parts

SPEC = replace(TINY, schedule=Spaced("1.5ep"), average="poly:2")


@pytest.mark.parametrize(("average", "power"), [("poly:2", 2), ("poly:1", 1)])
def test_the_average_is_the_weighted_sum_of_the_students_weights(average: str, power: int) -> None:
    state = ready(replace(SPEC, average=average, epochs=2))
    student, weights = state.modules()["student"], []
    for event in turn_by_turn(state):
        if event.role == "student":
            weights.append([value.detach().double().clone() for value in student.parameters()])
    factors = [float(np.prod([k + i for i in range(power)])) for k in range(1, len(weights) + 1)]
    for number, value in enumerate(state.average.parameters()):
        expected = sum(f * own[number] for f, own in zip(factors, weights, strict=True)) / sum(factors)
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6)


def test_statistics_are_those_of_the_averaged_weights_on_the_first_batches() -> None:
    state = ready(SPEC)
    for _ in turn_by_turn(state):
        pass
    expected = deepcopy(state.average.network)
    steps = range(min(BATCH_NORM_BATCHES, state.run.steps_per_epoch))
    update_bn([state.stream.batch(step).inputs for step in steps], expected)
    found, wanted = state.average.network.state_dict(), expected.state_dict()
    norms = [name for name in wanted if name.endswith(("running_mean", "running_var"))]
    assert norms
    for name in norms:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-4, atol=1e-6)


def test_averaged_statistics_differ_from_recomputed_ones_and_weights_do_not() -> None:
    models = []
    for average_bn in ("recompute", "average"):
        state = ready(replace(SPEC, average_bn=average_bn))
        for _ in turn_by_turn(state):
            pass
        models.append(state.average)
    recomputed, averaged = (dict(model.named_parameters()) for model in models)
    assert all(torch.equal(recomputed[name], averaged[name]) for name in recomputed)
    first, second = (dict(model.named_buffers()) for model in models)
    assert any(not torch.equal(first[name], second[name]) for name in first if name.endswith("running_mean"))


def test_ema_is_one_thing_under_two_names(tmp_path: Path) -> None:
    train(replace(TINY, schedule=Spaced("1.5ep"), ema=0.9), tmp_path / "ema")
    train(replace(SPEC, average="ema:0.9"), tmp_path / "average")
    assert_same_bits(tensors(tmp_path / "ema"), tensors(tmp_path / "average"))


@pytest.mark.parametrize("average", ["poly:2", "swa:50%"])
def test_it_is_journaled_saved_opened_and_resumed_to_the_bit(tmp_path: Path, average: str) -> None:
    spec = replace(SPEC, average=average)
    result = train(spec, tmp_path / "whole")
    train_in_parts(spec, tmp_path / "parts", 10)
    assert_same_bits(tensors(tmp_path / "whole"), tensors(tmp_path / "parts"))
    assert (tmp_path / "whole/journal.jsonl").read_bytes() == (tmp_path / "parts/journal.jsonl").read_bytes()
    assert result.keeps_average
    assert 0 < result.average_score() == result.accuracies["average"]["test"]["final"]["last"]
    opened, own = load_student(tmp_path / "whole", which="average"), of_model(tmp_path / "whole", "average")
    for name, value in opened.state_dict().items():
        assert torch.equal(value, own[f"model/average/network.{name}"]), name


def test_neither_the_average_nor_workers_change_the_student(tmp_path: Path) -> None:
    train(SPEC, tmp_path / "averaged")
    train(replace(SPEC, average=None), tmp_path / "plain")
    train(replace(SPEC, engine=EngineSpec(threads=1, workers=2)), tmp_path / "workers")
    for name in ("student", "teacher"):
        assert_same_bits(of_model(tmp_path / "averaged", name), of_model(tmp_path / "plain", name))
    assert_same_bits(tensors(tmp_path / "averaged"), tensors(tmp_path / "workers"))


def test_no_kd_is_averaged_too(tmp_path: Path) -> None:
    run = train(replace(SPEC, method=MethodSpec("none"), schedule=None), tmp_path / "run")
    assert run.accuracies.keys() == {"student", "average"}


def test_a_longer_run_with_the_same_shares_is_exact_and_swa_is_not(tmp_path: Path) -> None:
    for average, how in (("poly:2", "exact"), ("swa:50%", "warm")):
        short, long = replace(SPEC, average=average, schedule=Spaced("5st")), tmp_path / f"{average} long"
        train(short, tmp_path / average)
        train(replace(short, epochs=5), long, extend=tmp_path / average)
        assert json.loads((long / "spec.json").read_text())["extends"][0]["how"] == how
    train(replace(SPEC, schedule=Spaced("5st"), epochs=5), tmp_path / "at once")
    assert_same_bits(tensors(tmp_path / "at once"), tensors(tmp_path / "poly:2 long"))


def test_the_command_line_trains_compares_and_exports_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--data digits --train-limit 40 --width 4 --epochs 2 --batch-size 8 --precision 32-true --threads 1".split()
    out = str(tmp_path / "runs")
    arms = ["--arm", "no KD: --method none", "--arm", "spaced: --interval 1ep"]
    main(["compare", *words, "--average", "poly", "--seeds", "2", *arms, "--out", out])
    assert "average of the student's weights" in capsys.readouterr().out
    arms_of = {arm["label"]: arm for arm in json.loads((tmp_path / "runs/comparison.json").read_text())["arms"]}
    for label in ("no KD", "spaced"):
        folders = [tmp_path / "runs" / label.lower().replace(" ", "-") / f"seed{seed}" for seed in (0, 1)]
        reached = [json.loads((folder / "result.json").read_text())["accuracy"] for folder in folders]
        means = [np.mean([of[who]["test"]["final"]["last"] for of in reached]) for who in ("average", "student")]
        assert arms_of[label]["average"]["last"]["mean"] == pytest.approx(means[0])
        assert arms_of[label]["average"]["gain"]["mean"] == pytest.approx(means[0] - means[1])
    assert arms_of["no KD"]["average"]["difference"] is None
    assert arms_of["spaced"]["average"]["difference"]["n"] == 2
    assert "Averages of weights" in (tmp_path / "runs/report.html").read_text()
    main(["export", str(tmp_path / "runs/spaced/seed0"), "--average", "--to", str(tmp_path / "export")])
    with pytest.raises(SystemExit) as ended:
        main(["train", *words, "--average", "poly:much", "--out", str(tmp_path / "bad")])
    assert ended.value.code == 2
    assert not (tmp_path / "bad").exists()
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
