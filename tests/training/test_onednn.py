"""The layout in which oneDNN writes behind its buffers is not used, and is used wherever it does not."""

from __future__ import annotations

import copy
import json
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

from spacedkd import DataSpec, NetworkSpec, train
from spacedkd.config.serialization import to_json
from spacedkd.training import trained_models
from spacedkd.training.device import patch_strided_convolutions, supports_channels_last
from tests import forked
from tests.conftest import TINY

CPU = torch.device("cpu")
needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="oneDNN has other kernels elsewhere")


def network(width: int) -> nn.Module:
    found: nn.Module = timm.create_model("resnet18_small", width=width, num_classes=2)
    return found


def shown(side: int) -> list[Tensor]:
    return [torch.zeros(2, 3, side, side)]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(kind: str, threads: int = 1) -> None:
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: kind)
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)

    return make


@needs_x86
@pytest.mark.parametrize(
    ("kind", "threads", "width", "side", "precision", "sound"),
    [
        ("AVX512", 1, 8, 8, "32-true", True),  # the demo
        ("AVX512", 1, 8, 32, "32-true", True),  # CIFAR: 16 x 16 behind the first stride
        ("AVX512", 1, 8, 48, "32-true", False),
        ("AVX512", 1, 15, 56, "32-true", False),
        ("AVX512", 1, 16, 224, "32-true", True),
        ("AVX512", 1, 8, 64, "bf16-mixed", True),
        ("AVX512", 1, 8, 64, "32-true", False),
        ("AVX512", 1, 8, 80, "bf16-mixed", False),
        ("AVX512", 2, 8, 8, "32-true", False),
        ("AVX512", 2, 16, 64, "32-true", True),
        ("AVX2", 1, 4, 8, "32-true", False),
        ("AVX2", 1, 8, 8, "32-true", False),  # oneDNN may have been told otherwise
        ("AVX2", 1, 16, 64, "32-true", True),
    ],
)
def test_where_it_is_sound(
    machine: Any, kind: str, threads: int, width: int, side: int, precision: str, sound: bool
) -> None:
    machine(kind, threads)
    assert supports_channels_last(network(width), CPU, shown(side), precision) is sound
    assert supports_channels_last(network(width), torch.device("cuda"), shown(side), precision)


@needs_x86
def test_only_what_layers_are_really_shown_counts(machine: Any) -> None:
    machine("AVX512")
    late = nn.Sequential(nn.AvgPool2d(8), nn.Conv2d(3, 8, 1, 2))
    assert supports_channels_last(late, CPU, shown(224))
    assert not supports_channels_last(late[1], CPU, shown(224))
    assert supports_channels_last(nn.Conv2d(3, 8, 3, 2), CPU, shown(224))
    assert not supports_channels_last(late, CPU, [torch.zeros(2, 3, 8, 8), torch.zeros(2, 3, 512, 512)])
    assert not supports_channels_last(late, CPU, [torch.zeros(2, 5, 8, 8)])  # which it cannot be shown


@needs_x86
@pytest.mark.parametrize("name", ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"])
def test_who_is_told_to_use_less_of_the_machine_is_not_trusted(
    machine: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    machine("AVX512")
    monkeypatch.setenv(name, "AVX2")
    assert not supports_channels_last(network(8), CPU, shown(8))
    assert supports_channels_last(network(16), CPU, shown(8))


@pytest.mark.parametrize(("kernel", "stride", "side"), [(3, 2, (1, 1)), (3, 2, (4, 1)), (5, 3, (2, 2)), (7, 4, (3, 3))])
@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("groups", [1, 16])
def test_gradients_of_narrow_maps_are_computed(
    kernel: int, stride: int, side: tuple[int, int], precision: str, groups: int
) -> None:
    """They were memory as it was found; the truth is float32's."""
    torch.manual_seed(0)
    exact = nn.Conv2d(16, 32 if groups == 1 else 16, kernel, stride, kernel // 2, bias=False, groups=groups)
    images = torch.randn(4, 16, *side)
    gradient = torch.autograd.grad(exact(images).square().sum(), exact.weight)[0]
    mended = copy.deepcopy(exact)
    patch_strided_convolutions(mended, CPU, precision)
    mended = copy.deepcopy(mended)  # as a moving average is made
    if precision == "bf16-true":
        mended, images = mended.bfloat16(), images.bfloat16()
    for layout in (torch.channels_last, torch.contiguous_format):
        junk = [torch.full((size,), torch.nan) for size in (1000, 10_000, 100_000)]
        del junk
        mended = mended.to(memory_format=layout)  # type: ignore[call-overload]
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
            loss = mended(images.to(memory_format=layout)).float().square().sum()
        found = torch.autograd.grad(loss, mended.weight)[0].float()
        assert torch.allclose(found, gradient, rtol=0, atol=0.03 * float(gradient.abs().max()))


def test_maps_that_are_wide_enough_are_padded_as_ever() -> None:
    for precision, kind in (("bf16-mixed", "cuda"), ("32-true", "cpu")):
        untouched = nn.Conv2d(3, 4, 3, 2, 1)
        patch_strided_convolutions(untouched, torch.device(kind), precision)
        assert not untouched._forward_pre_hooks
    part = nn.Conv2d(3, 4, 3, 2, 1)
    images, narrow = torch.randn(2, 3, 8, 8), torch.randn(2, 3, 1, 1)
    before = part(images), part(narrow)
    patch_strided_convolutions(part, CPU, "bf16-mixed")
    assert torch.allclose(part(narrow), before[1], atol=1e-6)
    assert torch.equal(part(images), before[0])
    assert part.padding == (1, 1)


@pytest.mark.parametrize(("channels", "kernel", "stride", "side"), [(16, 3, 2, 16), (64, 3, 2, 2), (24, 5, (2, 3), 7)])
@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_depthwise_strides_are_taken_afterwards(
    channels: int, kernel: int, stride: Any, side: int, precision: str, layout: torch.memory_format
) -> None:
    torch.manual_seed(0)
    exact = nn.Conv2d(channels, channels, kernel, stride, kernel // 2, groups=channels).bfloat16().float()
    maps = torch.randn(8, channels, side, side).bfloat16().float().to(memory_format=layout)
    mended = copy.deepcopy(exact)
    patch_strided_convolutions(mended, CPU, precision)
    mended = copy.deepcopy(mended)  # as a moving average is made

    def answers(part: nn.Conv2d, shown: Tensor, mixed: bool) -> list[Tensor]:
        shown = shown.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            found = part(shown)
        assert found.is_contiguous(memory_format=layout)
        weights = torch.linspace(-1, 1, found.numel()).reshape(found.shape).bfloat16()
        return [found.detach(), *torch.autograd.grad((found * weights).float().sum(), [shown, *part.parameters()])]

    mixed, kind = precision == "bf16-mixed", torch.float32 if precision == "bf16-mixed" else torch.bfloat16
    truths = answers(exact, maps, False)
    found = answers(mended.to(kind), maps.to(kind), mixed)
    for one, truth in zip(found, truths, strict=True):
        assert torch.allclose(one.float(), truth, rtol=0, atol=0.01 * float(truth.abs().max()))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=mixed):  # as a frozen model is asked
        assert torch.equal(found[0], mended(maps.to(kind)))
    assert mended.stride == exact.stride


def test_depthwise_strides_stay_where_nothing_is_gained() -> None:
    part = nn.Conv2d(4, 4, 3, 2, 1, groups=4)
    patch_strided_convolutions(part, CPU, "bf16-mixed")
    strides: list[Any] = []
    part._conv_forward = lambda maps, *rest: strides.append(part.stride) or maps  # type: ignore[assignment, method-assign, func-returns-value]
    maps = torch.randn(2, 4, 6, 6)
    part(maps)  # in float32, as curvature is measured
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        part(maps)
    with torch.autocast("cpu", torch.bfloat16):
        part(maps)
    assert strides == [(2, 2), (2, 2), (1, 1)]


def test_looking_changes_nothing() -> None:
    model = network(8).train()
    before, state = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    supports_channels_last(model, CPU, shown(48))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_narrow_network_on_photographs_trains_to_its_end(tmp_path: Path) -> None:
    """Which destroyed the heap of its process, with one thread; then it is measured, curvature and all."""
    images = np.random.default_rng(0).integers(0, 256, (8, 160, 160, 3), dtype=np.uint8)
    labels = np.arange(8) % 2
    np.savez(tmp_path / "x.npz", x_train=images, y_train=labels, x_test=images[:2], y_test=labels[:2])
    data = DataSpec(str(tmp_path / "x.npz"), augmentation="none")
    spec = replace(TINY, data=data, network=NetworkSpec("resnet18_small", {"width": 8}), epochs=1, batch_size=4)
    (tmp_path / "spec.json").write_text(json.dumps(to_json(spec)))
    code = "import pathlib, sys; from spacedkd import *; train(read_spec(pathlib.Path(sys.argv[1])), sys.argv[2])"
    assert forked.run("-c", code, tmp_path / "spec.json", tmp_path / "run").returncode == 0
    assert not trained_models.load_run(tmp_path / "run").channels_last


def test_small_images_keep_the_layout(tmp_path: Path) -> None:
    train(replace(TINY, epochs=0.2), tmp_path / "run")
    wide = "AVX512" in torch.backends.cpu.get_cpu_capability()
    assert trained_models.load_run(tmp_path / "run").channels_last == (wide or platform.machine() != "x86_64")
