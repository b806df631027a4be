"""Plain attention: the arithmetic of the fused kernel, as a setting that the plan offers where it is faster."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import spacedkd.models  # noqa: F401, before timm

# isort: split
import timm

from spacedkd import NetworkSpec, RunSpec, Spaced, UserError, forecast, train
from spacedkd.cli import main
from spacedkd.training.device import fused_attention, set_plain_attention, slow_attention
from tests.conftest import TINY, assert_same_bits

DEIT = NetworkSpec(
    "deit_tiny_patch16_224", {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
)
SPEC = replace(TINY, network=DEIT, schedule=Spaced("2st"), precision="64-true")


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "student/model.safetensors")


def transformer() -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(DEIT.name, num_classes=3, **DEIT.options)
    return model.double()


def test_both_compute_the_same_attention() -> None:
    fused, plain, images = transformer(), transformer(), torch.randn(5, 3, 8, 8, dtype=torch.float64)
    set_plain_attention([plain])
    assert len(fused_attention(fused)) == 2
    assert fused_attention(plain) == []
    for model in (fused, plain):
        model(images).square().sum().backward()
    torch.testing.assert_close(plain(images), fused(images), rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(plain.parameters(), fused.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)


def test_a_run_learns_the_same_by_either_and_its_spec_says_which(tmp_path: Path) -> None:
    train(SPEC, tmp_path / "fused")
    train(replace(SPEC, attention="plain"), tmp_path / "plain")
    assert "attention" not in json.loads((tmp_path / "fused/spec.json").read_text())
    assert json.loads((tmp_path / "plain/spec.json").read_text())["attention"] == "plain"
    fused, plain = weights(tmp_path / "fused"), weights(tmp_path / "plain")
    for name, tensor in fused.items():
        torch.testing.assert_close(plain[name], tensor, rtol=1e-7, atol=1e-9)
    assert any(not torch.equal(plain[name], tensor) for name, tensor in fused.items())


def test_it_is_a_part_of_what_a_run_and_a_teacher_compute(tmp_path: Path) -> None:
    assert SPEC.fingerprint() != replace(SPEC, attention="plain").fingerprint()
    recording = replace(SPEC, attention="plain", record=("2st",))
    train(recording, tmp_path / "recorded")
    replayed = replace(SPEC, attention="plain", teacher_path=str(tmp_path / "recorded"))
    train(replayed, tmp_path / "replayed")
    assert_same_bits(weights(tmp_path / "recorded"), weights(tmp_path / "replayed"))
    with pytest.raises(UserError, match="attention"):
        train(replace(replayed, attention="fused"), tmp_path / "other")


def test_a_network_without_attention_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "train --data digits --train-limit 20 --width 4 --epochs 1 --attention plain --out"
    with pytest.raises(SystemExit) as end:
        main([*words.split(), str(tmp_path / "run")])
    assert end.value.code == 2
    assert "--attention" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("network", "precision", "faster"),
    [(DEIT, "bf16-mixed", True), (DEIT, "32-true", False), (TINY.network, "bf16-mixed", False)],
)
def test_the_plan_says_where_it_is_faster(network: NetworkSpec, precision: str, faster: bool) -> None:
    spec: RunSpec = replace(TINY, network=network, precision=precision)
    assert ("--attention plain" in forecast(spec, seconds=0).advice) is faster


def test_on_other_devices_fused_attention_stays() -> None:
    assert slow_attention([transformer()], torch.device("cpu"), "bf16-mixed")
    assert not slow_attention([transformer()], torch.device("cuda"), "bf16-mixed")
