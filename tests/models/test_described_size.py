"""A student's config.json that describes a larger network than its weights: refused before memory is taken for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import spacedkd.models  # noqa: F401, before timm

# isort: split
import timm
from safetensors.torch import save_file

from spacedkd import UserError, load_student

CONFIG = {
    "architecture": "resnet18_small",
    "num_classes": 3,
    "model_args": {"width": 4},
    "pretrained_cfg": {"num_classes": 3, "input_size": [3, 8, 8]},
}


@pytest.fixture
def student(tmp_path: Path) -> Path:
    network = timm.create_model("resnet18_small", num_classes=3, width=4)
    save_file(network.state_dict(), tmp_path / "model.safetensors")
    return tmp_path


@pytest.mark.parametrize(
    "change", [{"num_classes": 10**9}, {"model_args": {"width": 3000}}, {"model_args": {"width": 10**5}}]
)
def test_nothing_of_its_size_is_made(student: Path, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    (student / "config.json").write_text(json.dumps({**CONFIG, **change}))
    devices, create = [], timm.create_model

    def created(*arguments: Any, **options: Any) -> Any:
        devices.append(torch.empty(0).device.type)
        return create(*arguments, **options)

    monkeypatch.setattr(timm, "create_model", created)
    with pytest.raises(UserError, match="numbers"):
        load_student(student)
    assert devices == ["meta"]


def test_the_network_of_its_weights_opens(student: Path) -> None:
    (student / "config.json").write_text(json.dumps(CONFIG))
    assert load_student(student)(torch.zeros(1, 3, 8, 8)).shape == (1, 3)
