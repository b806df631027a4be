"""Runs that were given objects in Python are measured when the same objects are named again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

import spacedkd
from spacedkd import RunSpec, UserError, evaluate, train
from spacedkd.cli import main
from tests.cli.test_bad_input import refused

OWN = """
import torch
from torch import nn
from torch.utils.data import TensorDataset


def make(num_classes=3, **_):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))


def other(**_):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3))


def images():
    torch.manual_seed(0)
    return tuple(TensorDataset(torch.randn(n, 1, 4, 4), torch.arange(n) % 3) for n in (24, 12))


def lr(step):
    return 0.1 / (1 + step)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "own_parts.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_parts", raising=False)
    import own_parts  # type: ignore[import-not-found]

    found: ModuleType = own_parts
    return found


def test_a_network_and_data_and_a_rate(own: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = RunSpec(epochs=2, batch_size=8, precision="32-true", engine={"threads": 1})
    run = train(spec, tmp_path / "run", network=own.make, data=own.images(), lr=own.lr)
    flags = "--network own_parts:make --data own_parts:images --threads 1".split()
    main(["evaluate", "run", *flags])
    found = json.loads((tmp_path / "run" / "evaluation.json").read_text())["instruments"]["accuracy"]
    assert found["models"]["student"]["test"]["heads"]["final"]["top1"] == run.score()
    assert found["class_names"] == ["0", "1", "2"]
    main(["evaluate", "run", *flags, "--flatness", "--draws", "2", "--train-images", "6"])
    again = json.loads((tmp_path / "run" / "evaluation.json").read_text())["instruments"]
    assert again["accuracy"] == found
    assert again["weight_noise"]["images"] == 6
    capsys.readouterr()
    assert "has a network of your own" in refused(["evaluate", "run", *flags[2:]], capsys)
    another = [word.replace("make", "other") for word in flags]
    assert "is another one" in refused(["evaluate", "run", *another], capsys)
    assert "--method together with runs is what they were given in Python" in refused(
        ["evaluate", "run", "--method", "kd"], capsys
    )
    assert "Corruptions change the pixels" in refused(["evaluate", "run", *flags, "--corruptions"], capsys)
    assert "--teacher goes with runs" in refused(
        ["evaluate", "--network", "resnet18_small", "--teacher", "own_parts:make"], capsys
    )


def test_the_same_from_python(own: ModuleType, tmp_path: Path) -> None:
    spec = RunSpec(method="none", epochs=1, batch_size=8, precision="32-true", engine={"threads": 1})
    run = train(spec, tmp_path / "run", network=own.make, data=own.images())
    with pytest.raises(UserError, match="has a network of your own"):
        evaluate(run)
    found = evaluate(run, network=own.make, data=own.images())
    assert found["instruments"]["accuracy"]["models"]["student"]["test"]["heads"]["final"]["top1"] == run.score()
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text()) == found
    noise = spacedkd.evaluation.EvaluationSpec([spacedkd.evaluation.WeightNoise(draws=2)])
    noisy = evaluate(tmp_path / "run", noise, network=own.make, data=own.images())
    assert [*noisy["instruments"]] == ["accuracy", "weight_noise"]


def test_functions_that_a_spec_names_need_not_be_named_again(
    own: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = "--epochs 1 --batch-size 8 --precision 32-true --threads 1 --method none --out run".split()
    main(["train", "--network", "own_parts:make", "--data", "own_parts:images", *small])
    assert "spec.json names code, 'own_parts:" in refused(["evaluate", "run"], capsys)
    main(["evaluate", "run", "--trust-code"])
    assert (tmp_path / "run" / "evaluation.json").exists()
