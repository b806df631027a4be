"""Networks by name, their seeds, the weights they start from, and how they are saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import timm
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import save_file
from torch import Tensor

from spacedkd import DataSpec, NetworkSpec, UserError
from spacedkd.data.inputs import DataInfo
from spacedkd.data.sources import load
from spacedkd.models import Classifier
from spacedkd.models.factory import build_network, network_names
from spacedkd.models.student_io import save_student


def blank(size: int, classes: int = 100) -> DataInfo:
    return DataInfo(torch.full((2, 3, size, size), -2.5), ("?",) * classes, ((0.5,) * 3, (0.2,) * 3))


COLOUR = blank(32)


@pytest.mark.parametrize(("name", "count"), [("deit_tiny_patch16_224", 5_543_716), ("pit_ti_224", 4_615_972)])
def test_transformers_have_the_papers_sizes(name: str, count: int) -> None:
    network = build_network(NetworkSpec(name), blank(224), seed=0)
    assert sum(parameter.numel() for parameter in network.parameters()) == count


def weights(seed: int, name: str = "resnet18_small") -> dict[str, Tensor]:
    state: dict[str, Tensor] = build_network(NetworkSpec(name, {"width": 4}), COLOUR, seed).state_dict()
    return state


def test_weights_are_a_function_of_the_seed_alone() -> None:
    torch.manual_seed(1)
    first, before = weights(7), torch.get_rng_state()
    second, after = weights(7), torch.get_rng_state()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(before, after)
    assert not torch.equal(first["conv1.weight"], weights(8)["conv1.weight"])


VIT = {"embed_dim": 24, "depth": 2}


@pytest.mark.parametrize(
    "spec",
    [
        NetworkSpec("resnet18_small", {"width": 3}),
        NetworkSpec("resnet18x2", {"width": 3.5, "init": "torch"}),
        NetworkSpec("mobilenetv3_small_050"),
        NetworkSpec("vit_tiny_patch16_224", {**VIT, "patch_size": 4}),
        NetworkSpec("deit_tiny_distilled_patch16_224", {**VIT, "input_size": 32}),
        NetworkSpec("efficientvit_b0", {"input_size": [32, 64], "pretrained": False}),
    ],
    ids=lambda spec: spec.name,
)
def test_a_saved_network_opens_in_timm(tmp_path: Path, spec: NetworkSpec) -> None:
    images = load(DataSpec("digits")).train
    info = DataInfo(images.inputs(torch.arange(2)), images.classes, (images.mean, images.std))
    network = build_network(spec, info, seed=0).to(memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    save_student(network, spec, info, tmp_path / "student")
    opened = timm.create_model(f"local-dir:{tmp_path}/student", pretrained=True).eval()
    sample = images.inputs(torch.arange(4))
    config = timm.data.resolve_model_data_config(opened)
    size = tuple(config["input_size"][1:])
    asked = spec.options.get("input_size", 8)
    assert size == (tuple(asked) if isinstance(asked, list) else (asked, asked))
    assert config["mean"] == pytest.approx(images.mean)
    with torch.no_grad():
        ((logits, *_),) = Classifier(network)(sample)
        scaled = torch.nn.functional.interpolate(sample, size, mode="bicubic", antialias=True)
        torch.testing.assert_close(opened(scaled), logits, rtol=0, atol=1e-5)


def test_pretrained_weights_are_used(tmp_path: Path) -> None:
    """All but the classifier, which has other classes."""
    source = timm.create_model("mobilenetv3_small_050").state_dict()
    save_file(source, tmp_path / "weights.safetensors")
    where = {"pretrained_cfg_overlay": {"file": str(tmp_path / "weights.safetensors")}}
    spec = NetworkSpec("mobilenetv3_small_050", {"pretrained": True, **where})
    loaded = build_network(spec, COLOUR, seed=0).state_dict()
    differ = {
        name for name in source if source[name].shape != loaded[name].shape or not source[name].equal(loaded[name])
    }
    assert differ == {"classifier.weight", "classifier.bias"}
    save_student(build_network(spec, COLOUR, seed=0), spec, COLOUR, tmp_path / "student")
    assert timm.create_model(f"local-dir:{tmp_path}/student", pretrained=True).num_classes == 100


def test_a_run_can_start_from_another_runs_student(tmp_path: Path) -> None:
    spec = NetworkSpec("resnet18_small", {"width": 4})
    earlier = build_network(spec, COLOUR, seed=5)
    save_student(earlier, spec, COLOUR, tmp_path / "student")
    weights = str(tmp_path / "student" / "model.safetensors")
    later = build_network(NetworkSpec("resnet18_small", {"width": 4, "checkpoint_path": weights}), COLOUR, seed=6)
    assert all(
        torch.equal(a, b) for a, b in zip(earlier.state_dict().values(), later.state_dict().values(), strict=True)
    )


def test_weights_that_cannot_be_fetched_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: object, **kwargs: object) -> None:
        raise LocalEntryNotFoundError("The hub cannot be reached.\nCheck your connection.")

    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", offline)
    with pytest.raises(UserError) as error:
        build_network(NetworkSpec("resnet18", {"pretrained": True}), COLOUR, seed=0)
    assert str(error.value).startswith(
        "The weights of resnet18 cannot be loaded: they are not on this machine, and the hub cannot be reached. Leave"
    )


def test_ours_come_first_in_the_list() -> None:
    assert network_names()[0] == "resnet18_small"
    assert "vit_tiny_patch16_224" in network_names()
    assert network_names("resnet*_small") == ["resnet18_small", "resnet34_small", "resnet50_small", "resnet101_small"]


SCALE = "Let it scale them: network.input_size="


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet18_smal", {}, "Did you mean 'resnet18_small'"),
        ("resnet18_small", {"widht": 3}, "widht"),
        ("resnet18_small", {"width": 0}, "width must be at least 1"),
        ("resnet18_small", {"pretrained": True}, "The weights of resnet18_small cannot be loaded: No pretrained"),
        ("resnet18_small", {"checkpoint_path": "none.pth"}, "There are no weights at none.pth"),
        ("vit_tiny_patch16_224", {"img_size": 224}, "3x32x32 images: Input height (32) doesn't match model (224)."),
        ("vit_tiny_patch16_224", {"img_size": 224}, f"{SCALE}224"),
        ("efficientformer_l1", {}, f"{SCALE}224"),
        ("inception_v4", {}, f"{SCALE}299"),
        ("swinv2_tiny_window8_256", {}, "not finite"),
        ("resnet18", {"input_size": "big"}, "input_size must be a number of pixels, or [height, width], got 'big'"),
    ],
)
def test_networks_that_cannot_be_built_are_explained(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        build_network(NetworkSpec(name, options), COLOUR, seed=0)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_weights_without_a_network_are_refused_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The hub is asked once, and not five times with pauses between."""
    asked: list[object] = []

    def refuse(address: object, timeout: float) -> None:
        asked.append(address)
        raise OSError("no network")

    monkeypatch.setattr("socket.create_connection", refuse)
    monkeypatch.setattr("spacedkd.models.pretrained.getproxies", dict)
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waits"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    info = DataInfo(torch.zeros(2, 3, 32, 32), ("a", "b"), ((0.5,) * 3, (0.2,) * 3))
    with pytest.raises(UserError, match="resnet10t cannot be loaded: they are not on this machine") as refused:
        build_network(NetworkSpec("resnet10t", {"pretrained": True}), info, seed=0)
    assert len(asked) == 1
    assert len(str(refused.value)) < 240
    assert not huggingface_hub.constants.HF_HUB_OFFLINE
