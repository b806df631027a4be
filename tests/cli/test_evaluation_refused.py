"""What spacedkd evaluate refuses, each in one clear line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from spacedkd.cli import main
from tests.cli.test_bad_input import refused
from tests.cli.test_cli import NETWORK
from tests.cli.test_evaluation import found

BAD_FLAGS = {
    "--corruptions --severities 6": "severity must be from 1 to 5, got 6",
    "--corruptions --severities 0": "severity must be from 1 to 5, got 0",
    "--corruptions --only frog": "Did you mean 'fog'",
    "--severities 1": "--severities belongs to --corruptions",
    "--epsilon 4": "--epsilon belongs to --adversarial",
    "--adversarial --epsilon -1": "epsilon must be above 0 and at most 255",
    "--adversarial --epsilon nan": "epsilon must be above 0 and at most 255",
    "--adversarial --epsilon 300": "epsilon must be above 0 and at most 255",
    "--adversarial --attacks bmi": "Did you mean 'bim'",
    "--adversarial --steps 0": "at least one step",
    "--adversarial --limit 3": "limit must be at least 10, one image of each class",
    "--corruptions --limit 0": "limit must be at least 1",
    "--limit 20": "--limit belongs to --corruptions or --adversarial",
    "--draws 3": "--draws belongs to --flatness",
    "--error 0.1": "--error belongs to --hessian",
    "--flatness --products 20": "--products belongs to --hessian",
    "--train-images 20": "--train-images belongs to --flatness or --hessian",
    "--adversarial --epsilon": "--epsilon needs at least one value",
    "--corruptions --only": "--only needs at least one value",
    "--adversarial --attacks fgsm --steps 5": "fgsm takes one step of epsilon",
    "--set network.width=4": "--set goes with --network",
    "--flatness --draws 0": "at least one draw of each level, got 0",
    "--flatness --noise -1": "absolute weight noise must be a number above 0",
    "--flatness --relative-noise nan": "relative weight noise must be a number above 0",
    "--flatness --relative-noise": "--relative-noise needs at least one value",
    "--noise 0.1": "--noise belongs to --flatness",
    "--hessian --products 7": "products must be at least 8",
    "--hessian --error 0": "error must be a part between 0 and 1",
    "--flatness --train-images 0": "train_images must be at least 1",
    "--hessian --train-images 9": "train_images must be at least 10, one image of each class",
    "--batch-size 0": "batch_size must be at least 1",
    "--threads 0": "--threads must be at least 1",
    "--accelerator tpu": "tpu",
    "--network resnet18_small": "Give run folders or a --network, not both",
    "--weights file": "--weights goes with --network",
    "--data digits": "--data goes with --network",
    "--out folder": "--out goes with --network",
}


@pytest.mark.parametrize("typed", BAD_FLAGS)
def test_bad_flags(typed: str, trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert BAD_FLAGS[typed] in refused(["evaluate", str(trained / "kd" / "0"), *typed.split()], capsys)
    assert not list(trained.rglob("evaluation.json"))


def test_a_run_without_a_finished_student(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs / "kd" / "0"
    (run / "result.json").unlink()
    assert "is not finished" in refused(["evaluate", str(run)], capsys)
    assert not (run / "evaluation.json").exists()
    main(["evaluate", str(run), "--unfinished"])
    assert (run / "evaluation.json").exists()
    capsys.readouterr()
    shutil.rmtree(run / "checkpoint")
    assert "has no checkpoint yet" in refused(["evaluate", str(run), "--unfinished"], capsys)


def test_a_checkpoint_that_is_none(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs / "kd" / "0"
    (run / "checkpoint" / "latest.safetensors").write_bytes(b"no tensors here")
    assert "latest.safetensors is damaged" in refused(["evaluate", str(run)], capsys)
    (tmp_path / "junk.safetensors").write_bytes(b"no tensors here")
    network = f"evaluate {NETWORK} --data digits --train-limit 40 --weights".split()
    assert "holds no weights that can be read" in refused([*network, str(tmp_path / "junk.safetensors")], capsys)
    assert "There are no weights at" in refused([*network, str(tmp_path / "nothing")], capsys)
    weights = load_file(runs / "kd" / "1" / "student" / "model.safetensors")
    weights["fc.bias"][3] = float("nan")
    save_file(weights, tmp_path / "nan.safetensors")
    assert "'fc.bias' holds NaN" in refused([*network, str(tmp_path / "nan.safetensors")], capsys)
    assert "is a file. Name a run folder" in refused(["evaluate", str(tmp_path / "junk.safetensors")], capsys)


def test_classes_that_do_not_match(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = load_file(runs / "kd" / "0" / "student" / "model.safetensors")
    weights["fc.weight"], weights["fc.bias"] = torch.zeros(7, weights["fc.weight"].shape[1]), torch.zeros(7)
    save_file(weights, tmp_path / "seven.safetensors")
    network = f"evaluate {NETWORK} --data digits --train-limit 40 --weights".split()
    said = refused([*network, str(tmp_path / "seven.safetensors")], capsys)
    assert "7 classes, and the data has 10" in said


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--network resnet18_small", "There are no published weights of resnet18_small: use --weights FILE"),
        ("--network resnet18", "1000 classes, and the data has 10"),
        ("--network resnt18", "Did you mean 'resnet18'"),
        ("--network resnet18_small --data digit", "Did you mean 'digits'"),
    ],
)
def test_networks_that_cannot_be_measured(typed: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(["evaluate", *typed.split(), "--train-limit", "40"], capsys)


def test_data_that_has_changed_its_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    train, test = rng.integers(0, 256, (2, 40, 8, 8)).astype(np.uint8)

    def save(classes: int) -> None:
        labels = np.arange(40) % classes
        np.savez(tmp_path / "data.npz", x_train=train, y_train=labels, x_test=test, y_test=labels)

    save(4)
    run = tmp_path / "run"
    small = "--width 4 --epochs 1 --batch-size 8 --precision 32-true --threads 1 --method none".split()
    main(["train", "--data", str(tmp_path / "data.npz"), *small, "--out", str(run)])
    capsys.readouterr()
    save(5)
    assert "has other classes than it was trained on: 4 classes then, 5 classes now" in refused(
        ["evaluate", str(run)], capsys
    )


def test_an_evaluation_that_cannot_be_read(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs / "kd" / "0"
    main(["evaluate", str(run)])
    whole = found(run)
    capsys.readouterr()
    damages: list[Any] = [
        {},
        [],
        {**whole, "instruments": {}},
        {**whole, "instruments": {"accuracy": {}}},
        {**whole, "instruments": {**whole["instruments"], "curvature": {}}},
    ]
    for damaged in damages:
        (run / "evaluation.json").write_text(json.dumps(damaged))
        for verb in ("evaluate", "report"):
            assert "evaluation.json cannot be read" in refused([verb, str(run)], capsys)
    (run / "evaluation.json").unlink()
    (run / "classes.json").write_text("{")
    assert "classes.json" in refused(["evaluate", str(run)], capsys)


def test_a_bad_place_is_noticed_before_the_work(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    network = f"evaluate {NETWORK} --data digits --train-limit 40 --threads 1 --weights".split()
    command = [*network, str(runs / "kd" / "0")]
    for flags, message in (
        (["--out", str(tmp_path / "file")], "(File exists): give --out another name"),
        (["--out", str(runs / "kd" / "0")], "is a run, which has its own evaluation"),
        (["--grid", str(tmp_path / "file" / "grid.png")], "give --grid another name"),
        (["--set", "input_size=224"], "--set is about the network and its data here"),
        (["--unfinished"], "--unfinished is about runs"),
    ):
        assert message in refused([*command, *flags], capsys)
    out = ["--out", str(tmp_path / "new")]
    assert "limit must be at least 10" in refused([*command, *out, "--adversarial", "--limit", "3"], capsys)
    assert not (tmp_path / "new").exists()
