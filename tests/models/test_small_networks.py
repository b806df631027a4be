"""This package's networks: sizes, widths, first weights, options and refusals; whole runs of those for signals."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

from spacedkd import DataSpec, MethodSpec, NetworkSpec, UserError, load_student, train
from spacedkd.cli import main
from spacedkd.cli.flags import parse
from spacedkd.cli.overrides import to_spec
from spacedkd.data.sources import load
from spacedkd.models import EarlyExits
from spacedkd.models.factory import build_network
from spacedkd.models.small_networks import OUR_NAMES
from spacedkd.runs.result import read_run
from tests.conftest import TINY
from tests.methods.whole_runs import SPACED, check_whole_run


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("name", "plain", "with_exits"),
    [
        ("resnet18_small", 11_220_132, 12_283_344),
        ("resnet50_small", 23_705_252, 38_426_576),
        ("resnet101_small", 42_697_380, 57_418_704),
    ],
)
def test_sizes_are_those_of_the_papers_code(name: str, plain: int, with_exits: int) -> None:
    network = timm.create_model(name, num_classes=100)
    assert parameters(network) == plain
    assert parameters(EarlyExits(network, torch.zeros(2, 3, 32, 32), align="none")) == with_exits


@pytest.mark.parametrize(
    ("name", "count"), [("resnet18_small", 11_271_432), ("resnet50_small", 23_910_152), ("resnet101_small", 42_902_280)]
)
def test_sizes_at_200_classes(name: str, count: int) -> None:
    with torch.device("meta"):
        assert parameters(timm.create_model(name, num_classes=200)) == count


def resnet18_parameters(channels: tuple[int, ...], classes: int) -> int:
    """Counted by hand: stem, two blocks of two 3x3 convolutions a stage, 1x1 shortcuts, classifier."""
    count, above = 3 * 9 * channels[0] + 2 * channels[0], channels[0]
    for own in channels:
        count += 9 * (above * own + 3 * own * own) + 4 * 2 * own
        count += above * own + 2 * own if above != own else 0
        above = own
    return count + above * classes + classes


@pytest.mark.parametrize(
    ("name", "channels", "times"),
    [
        ("resnet18_small", (64, 128, 256, 512), 1.0),
        ("resnet18x2", (90, 181, 362, 724), 2.00),
        ("resnet18x4", (128, 256, 512, 1024), 3.99),
        ("resnet18x8", (181, 362, 724, 1448), 7.97),
        ("resnet18_small_w128", (128, 256, 512, 1024), 3.99),
        ("resnet18_small_w256", (256, 512, 1024, 2048), 15.93),
        ("resnet18_small_w512", (512, 1024, 2048, 4096), 63.69),
    ],
)
def test_x_multiplies_parameters_and_w_names_channels(name: str, channels: tuple[int, ...], times: float) -> None:
    with torch.device("meta"):
        network = timm.create_model(name, num_classes=100)
    assert tuple(info["num_chs"] for info in network.feature_info[1:]) == channels
    assert parameters(network) == resnet18_parameters(channels, 100)
    assert round(parameters(network) / 11_220_132, 2) == times


def test_the_width_option_wins_over_the_name() -> None:
    assert timm.create_model("resnet18x2", width=4).conv1.out_channels == 4
    assert timm.create_model("resnet18_small", width=5.5).num_features == 44


def test_small_images_keep_their_size_through_the_stem() -> None:
    network = timm.create_model("resnet18_small", width=8)
    maps = network.forward_intermediates(torch.zeros(1, 3, 16, 16), intermediates_only=True)
    assert [tuple(m.shape[1:]) for m in maps] == [(8, 16, 16), (8, 16, 16), (16, 8, 8), (32, 4, 4), (64, 2, 2)]
    assert [info["reduction"] for info in network.feature_info] == [1, 1, 2, 4, 8]


@pytest.mark.parametrize(
    ("init", "deviation"), [("kaiming", (2 / (9 * 256)) ** 0.5), ("torch", (1 / (9 * 128 * 3)) ** 0.5)]
)
def test_weights_begin_as_in_the_two_codes(init: str, deviation: float) -> None:
    """Kaiming: normal, variance 2 / fan_out. PyTorch: uniform within 1 / sqrt(fan_in), so variance 1 / (3 fan_in)."""
    torch.manual_seed(0)
    network = timm.create_model("resnet18_small", init=init)
    first = network.layer3[0].conv1.weight  # 128 -> 256 channels
    assert first.std().item() == pytest.approx(deviation, rel=0.01)
    is_uniform = bool(first.abs().max() <= (9 * 128) ** -0.5)
    assert is_uniform == (init == "torch")
    assert all((m.weight == 1).all() for m in network.modules() if isinstance(m, nn.BatchNorm2d))


def test_all_are_known_to_timm() -> None:
    assert all(timm.is_model(name) for name in OUR_NAMES)
    with pytest.raises(UserError, match="Unknown init 'kaming'. Did you mean 'kaiming'"):
        timm.create_model("resnet18_small", init="kaming")


# Networks for signals

DATA = DataSpec("mnist1d", train_items=40, test_items=50)
INFO = load(DATA).info
SMALL = {
    "cnn_1d": NetworkSpec("cnn_1d", {"width": 4}),
    "mlp_1d": NetworkSpec("mlp_1d", {"width": 8}),
}


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("mlp_1d", {}, 40 * 100 + 100 + 100 * 100 + 100 + 100 * 10 + 10),
        ("mlp_1d", {"width": 128, "depth": 1, "norm": True}, 40 * 128 + 2 * 128 + 128 * 10 + 10),
        ("cnn_1d", {}, 5 * 16 + 3 * 16 * 32 + 3 * 32 * 64 + 2 * (16 + 32 + 64) + 64 * 10 + 10),
        ("cnn_1d", {"width": 25, "norm": False}, 5 * 25 + 3 * 25 * 50 + 3 * 50 * 100 + 175 + 100 * 10 + 10),
    ],
)
def test_sizes(name: str, options: dict[str, Any], count: int) -> None:
    network = build_network(NetworkSpec(name, options), INFO, seed=0)
    assert parameters(network) == count
    norms = sum(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in network.modules())
    assert (norms > 0) == options.get("norm", name == "cnn_1d")


def test_a_cnn_is_what_one_dimensional_convolutions_compute() -> None:
    network = build_network(SMALL["cnn_1d"], INFO, seed=0).eval()
    signals = torch.randn(3, 1, 1, 40, generator=torch.Generator().manual_seed(0))
    maps = signals[:, :, 0]
    for block in network.blocks:  # type: ignore[union-attr]
        conv, norm, _ = block  # type: ignore[misc]
        maps = nn.functional.conv1d(maps, conv.weight[:, :, 0], None, stride=2, padding=conv.padding[1])
        maps = ((maps - norm.running_mean[:, None]) / (norm.running_var[:, None] + norm.eps).sqrt()).relu()
    logits = maps.mean(2) @ network.fc.weight.T + network.fc.bias  # type: ignore[union-attr, operator]
    assert torch.allclose(network(signals), logits, atol=1e-5)
    assert [info["reduction"] for info in network.feature_info] == [2, 4, 8]  # type: ignore[union-attr, index]


def test_an_mlp_takes_small_images_too_and_a_cnn_refuses_them() -> None:
    digits = load(DataSpec("digits", train_limit=20)).info
    assert build_network(NetworkSpec("mlp_1d"), digits, seed=0).blocks[0][1].in_features == 64  # type: ignore[index]
    with pytest.raises(
        UserError, match="^Network cnn_1d takes signals, one row of points, and the data has 8x8 images"
    ):
        build_network(NetworkSpec("cnn_1d"), digits, seed=0)
    with pytest.raises(UserError, match="depth must be at least 1"):
        build_network(NetworkSpec("mlp_1d", {"depth": 0}), INFO, seed=0)
    with pytest.raises(UserError, match="widht"):
        build_network(NetworkSpec("mlp_1d", {"widht": 9}), INFO, seed=0)


def test_early_exits_are_behind_every_stage_but_the_last() -> None:
    sample = INFO.sample
    heads = {name: EarlyExits(build_network(spec, INFO, seed=0), sample).head_names for name, spec in SMALL.items()}
    assert heads == {"cnn_1d": ("final", "stage2", "stage1"), "mlp_1d": ("final", "block1")}


@pytest.mark.parametrize("network", ["cnn_1d", "mlp_1d"])
@pytest.mark.parametrize(
    ("method", "options"),
    [("kd", {}), ("self-kd", {}), ("fitnet", {}), ("one", {}), ("dml", {}), ("dlb", {})],
)
def test_whole_runs(network: str, method: str, options: dict[str, Any], tmp_path: Path) -> None:
    spec = replace(TINY, data=DATA, network=SMALL[network], method=MethodSpec(method, options))
    spaced = method in ("kd", "self-kd", "fitnet", "dlb")
    check_whole_run(tmp_path, replace(spec, schedule=SPACED) if spaced else spec)


@pytest.mark.parametrize("network", ["cnn_1d", "mlp_1d"])
def test_a_shadow_reads_three_stages(network: str, tmp_path: Path) -> None:
    spec = replace(TINY, data=DATA, network=SMALL[network], method=MethodSpec("shake"), schedule=SPACED)
    if network == "cnn_1d":
        check_whole_run(tmp_path, spec)
    else:  # two layers
        with pytest.raises(UserError, match="does not show three stages"):
            train(spec, tmp_path / "run")


def command(words: str) -> None:
    main(shlex.split(words))


def test_from_training_to_the_exported_student(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The student that timm opens has the accuracy that the run wrote; instruments for pixels are refused."""
    run = tmp_path / "run"
    command(
        "train --data mnist1d --network cnn_1d --width 8 --interval 1.5ep --epochs 3 --train-items 500 "
        "--test-items 2000 --label-noise 0.2 --other-init --optimizer adamw --lr 0.01 --precision 32-true --threads 1 "
        f"--out {run}"
    )
    data, recorded = load(DataSpec("mnist1d", train_items=500, test_items=2000)), read_run(run)
    accuracy = recorded.accuracies["student"]["test"]["final"]["last"]
    assert accuracy > 0.2
    timm_student = timm.create_model(f"local-dir:{run / 'student'}", pretrained=True).eval()
    for student in (timm_student, load_student(run)):
        inputs, labels = data.test.inputs_and_labels(torch.arange(2000))
        with torch.no_grad():
            assert float((student(inputs).argmax(1) == labels).float().mean()) == pytest.approx(accuracy, abs=1e-6)
    config = json.loads((run / "student" / "config.json").read_text())
    assert config["pretrained_cfg"]["input_size"] == [1, 1, 40]
    command(f"evaluate {run} --flatness --draws 1")
    assert "with the labels trained on, 20 % of them wrong" in " ".join(capsys.readouterr().out.split())
    entry = json.loads((run / "evaluation.json").read_text())["instruments"]
    assert entry["accuracy"]["models"]["student"]["test"]["heads"]["final"]["top1"] == pytest.approx(accuracy)
    for instrument in ("--corruptions", "--adversarial"):
        with pytest.raises(SystemExit) as stopped:
            command(f"evaluate {run} {instrument}")
        assert stopped.value.code == 2
        assert "this run has signals" in capsys.readouterr().err.replace("\n", " ")
    command(f"export {run} --to {tmp_path / 'exported'}")
    assert "MNIST-1D" in (tmp_path / "exported" / "README.md").read_text()
    command(f"report {run}")
    assert "20 % of the training labels" in (run / "report.html").read_text()


def test_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    command("list networks --pattern '*_1d'")
    assert {"mlp_1d", "cnn_1d"} <= {*capsys.readouterr().out.split()}
    command("list data")
    assert "mnist1d" in capsys.readouterr().out


def test_a_width_is_the_teachers_too() -> None:
    spec = to_spec(parse(shlex.split("--network mlp_1d --width 32 --teacher cnn_1d")))
    assert (spec.network, spec.teacher) == (NetworkSpec("mlp_1d", {"width": 32}), NetworkSpec("cnn_1d", {"width": 32}))
