"""Whole tiny runs of one method, on a ResNet and on a ViT."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import timm
import torch

from spacedkd import MethodSpec, NetworkSpec, RunSpec, Spaced, train
from spacedkd.training.state import TrainingState
from tests.conftest import TINY
from tests.training.stepping import moved, state, turn_by_turn
from tests.training.stopping import assert_same_run, train_in_parts

NETWORKS = {
    "resnet": TINY.network,
    "vit": NetworkSpec(
        "vit_tiny_patch16_224", {"img_size": 8, "patch_size": 2, "embed_dim": 24, "depth": 4, "num_heads": 2}
    ),
}


def tiny(method: str, options: dict[str, Any], network: str = "resnet", **changes: Any) -> RunSpec:
    return replace(TINY, method=MethodSpec(method, options), network=NETWORKS[network], **changes)


def check_whole_run(folder: Path, spec: RunSpec) -> None:
    """It trains, a stop in the middle of a replay and a resume give the same bits, and timm opens the student."""
    whole, parts = folder / "whole", folder / "parts"
    train(spec, whole)
    train_in_parts(spec, parts, 10)
    assert_same_run(whole, parts)
    student = timm.create_model(f"local-dir:{whole / 'student'}", pretrained=True)
    assert student(torch.zeros(2, *student.pretrained_cfg["input_size"])).shape == (2, 10)


SPACED = Spaced("1.5ep")


def turns(setup: TrainingState) -> Iterator[tuple[str, int, set[str]]]:
    """Role and step of every turn of a run, and what it moved: model/key of weights and buffers."""
    before = state(setup)
    for moment in turn_by_turn(setup):
        after = state(setup)
        step = round(moment.epoch * setup.run.steps_per_epoch) - 1
        yield moment.role, step, {name for name in moved(before, after) if "/optimizer/" not in name}
        before = after
