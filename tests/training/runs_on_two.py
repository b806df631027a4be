"""The runs that are trained on two processes, all in one start, and what their tests compare them with."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file

from spacedkd import Duration, MethodSpec, NetworkSpec, OptimizerSpec, RunSpec, Spaced
from tests.conftest import TINY, tensors
from tests.training.stopping import train_until
from tests.training.two_processes import on_two, train_on_two

# Without BatchNorm, and without the feature norm over the whole batch, a batch may be split without a difference.
VIT = NetworkSpec("vit_tiny_patch16_224", {"img_size": 8, "patch_size": 2, "embed_dim": 24, "depth": 2, "num_heads": 2})
# Batches of 15 and then 10 images: they do not split evenly, and not all alike.
SPLITTABLE = replace(TINY, network=VIT, batch_size=15, epochs=2, schedule=Spaced("1.5ep"))
APART: dict[str, Any] = {"feature_weight": 0.0}


def splittable(method: str, options: dict[str, Any], schedule: Any = SPLITTABLE.schedule, **changes: Any) -> RunSpec:
    return replace(SPLITTABLE, method=MethodSpec(method, options), schedule=schedule, **changes)


METHODS: dict[str, RunSpec] = {
    "kd": splittable("kd", APART),
    "kd with clipped gradients": splittable("kd", APART, optimizer=replace(TINY.optimizer, clip=0.5)),
    "self-kd": splittable("self-kd", {"variant": "plain", **APART}, None),
    "self-kd live": splittable("self-kd", {"variant": "live", **APART}),
    "self-kd snapshot": splittable("self-kd", {"variant": "snapshot", **APART}),
    # A mean over two batches of different sizes is split exactly where all parts are halves.
    "dlb": splittable("dlb", {}, None, batch_size=16),
    "dlb taught": splittable("dlb", {"variant": "taught", **APART}, batch_size=16),
    "ps-kd": splittable("ps-kd", {}, None),
    "ctkd": splittable("ctkd", APART),
    "ban": splittable("ban", APART),
    "tsb-like": splittable("tsb-like", {"ramp": 0.0}),
    "kd in parts": splittable("kd", APART, accumulate=3, data=replace(TINY.data, holdout=0.25)),
}
# In double precision, because a ReLU at 0 makes much of little.
WITH_BATCHNORM: dict[str, RunSpec] = {
    "kd": replace(splittable("kd", APART), network=TINY.network, precision="64-true", average="poly:2"),
    "timm's, with its activation": replace(
        splittable("none", {}, None), network=NetworkSpec("lcnet_035"), epochs=0.4, precision="64-true"
    ),
    "one": splittable("one", {}, None, precision="64-true"),
    "one snapshot": splittable("one", {"variant": "snapshot"}, precision="64-true"),
}
"""the gate of ONE has a BatchNorm of its own"""


LONG = splittable("kd", APART, epochs=20, evaluate_every=Duration(10, "ep"), save_every=Duration(1, "ep"))


SPREAD: dict[str, RunSpec] = {
    **{name: METHODS[name] for name in ("kd in parts", "self-kd snapshot", "ctkd", "ps-kd", "ban")},
    "kd with clipped gradients": METHODS["kd with clipped gradients"],
    "adamw and an average": splittable("kd", APART, ema=0.9, optimizer=OptimizerSpec("adamw", 1e-3)),
    "bf16-true": splittable("kd", APART, ema=0.9, precision="bf16-true", epochs=0.4, schedule=None),
}
"""with FSDP2"""


class OnTwo:
    """The folders of these runs, and how often DDP and FSDP2 were asked for something in each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.counts: dict[str, dict[str, int]] = {}

    def train(self) -> None:
        synchronised = {f"sync {name}": replace(spec, sync_batchnorm=True) for name, spec in WITH_BATCHNORM.items()}
        specs = METHODS | {"batchnorm": WITH_BATCHNORM["kd"]} | synchronised
        specs |= {"uninterrupted": LONG, "taken up": METHODS["kd"]}
        asked = {name: on_two(spec) for name, spec in specs.items()} | {"compiled": on_two(METHODS["kd"], compile=True)}
        spread = {**SPREAD, "taken up": METHODS["kd"]}
        asked |= {f"spread {name}": on_two(spec, strategy="fsdp") for name, spec in spread.items()}
        asked["caches"] = on_two(replace(METHODS["kd"], cache_targets=True))
        asked["reads"] = on_two(replace(METHODS["kd"], targets_path=str(self.run("caches"))))
        for name in ("taken up", "spread taken up"):
            train_until(METHODS["kd"], self.run(name), 5)
        train_on_two(asked, self.folder)

    def run(self, name: str) -> Path:
        return self.folder / name / "run"


def shared(tmp_path_factory: pytest.TempPathFactory) -> OnTwo:
    """Trained by the first worker of pytest that asks; all others wait for it."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    two, counts = OnTwo(root / "two"), root / "two" / "counts.json"
    with FileLock(root / "two.lock"):
        if not counts.exists():
            two.train()
    two.counts = json.loads(counts.read_text())
    return two


def assert_close(one: Path, other: Path, atol: float = 1e-6, rtol: float = 1e-4) -> None:
    """Weights, buffers, memories, optimizers and the best student of two runs are the same up to rounding."""
    found, expected = tensors(one), tensors(other)
    for file in other.glob("best/*.safetensors"):
        found |= load_file(one / "best" / file.name)
        expected |= load_file(file)
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], atol=atol, rtol=rtol, msg=f"{name} differs")
