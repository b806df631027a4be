"""Several processes that share each batch learn what one learns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spacedkd import MethodSpec, NetworkSpec, RunSpec, Spaced, train
from tests.conftest import TINY, tensors
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
}
# In double precision, because a ReLU at 0 makes much of little.
WITH_BATCHNORM: dict[str, RunSpec] = {
    "kd": replace(splittable("kd", APART), network=TINY.network, precision="64-true"),
    "timm's, with its activation": replace(
        splittable("none", {}, None), network=NetworkSpec("lcnet_035"), epochs=0.4, precision="64-true"
    ),
    "one": splittable("one", {}, None, precision="64-true"),
    "one snapshot": splittable("one", {"variant": "snapshot"}, precision="64-true"),
}
"""the gate of ONE has a BatchNorm of its own"""


class OnTwo:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        synchronised = {f"sync {name}": replace(spec, sync_batchnorm=True) for name, spec in WITH_BATCHNORM.items()}
        specs = METHODS | {"batchnorm": WITH_BATCHNORM["kd"]} | synchronised
        self.counts = train_on_two({name: on_two(spec) for name, spec in specs.items()}, folder)

    def run(self, name: str) -> Path:
        return self.folder / name / "run"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> OnTwo:
    return OnTwo(tmp_path_factory.mktemp("two"))


def assert_close(one: Path, other: Path, atol: float = 1e-6, rtol: float = 1e-4) -> None:
    """Weights, buffers, memories and optimizers of two runs are the same up to rounding."""
    found, expected = tensors(one), tensors(other)
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], atol=atol, rtol=rtol, msg=f"{name} differs")


@pytest.mark.parametrize("name", METHODS)
def test_two_processes_learn_what_one_learns(tmp_path: Path, two: OnTwo, name: str) -> None:
    train(METHODS[name], tmp_path / "one")
    assert_close(two.run(name), tmp_path / "one")


@pytest.mark.parametrize("name", WITH_BATCHNORM)
def test_batch_norm_over_all_processes_is_that_of_one(tmp_path: Path, two: OnTwo, name: str) -> None:
    train(WITH_BATCHNORM[name], tmp_path / "one")
    assert_close(two.run(f"sync {name}"), tmp_path / "one", atol=1e-5, rtol=1e-3)
    if name == "kd":
        with pytest.raises(AssertionError):  # each process has the statistics of its part, unless told
            assert_close(two.run("batchnorm"), tmp_path / "one", atol=1e-3, rtol=1e-3)


def test_frozen_models_are_called_without_ddp(two: OnTwo) -> None:
    """Through it, each of the student's six turns, and each evaluation, would broadcast the teacher's buffers."""
    counts = two.counts["batchnorm"]
    assert counts["forward"] == counts["broadcast by DDP"] == 12, "one for each update"
    assert counts["forward without gradients"] == 0
    stretches, evaluations, types = 4, 2 * 2, 2
    assert counts["broadcast"] == (stretches - 1 + evaluations) * types
