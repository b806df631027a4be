"""Peers and memories in real runs: what is written when, what a stopped run remembers, and what two processes do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spacedkd import Online, RunSpec, Spaced, UserError, train
from tests.conftest import TINY, assert_same_bits, of_model
from tests.methods.whole_runs import turns
from tests.training.stepping import ready
from tests.training.stopping import assert_same_run, train_in_parts

Make = Callable[..., RunSpec]

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dml": ("dml", {"curriculum": 2.0}),
    "dml as before the round": ("dml", {"peers": 3, "refresh_peers": False}),
    "kdcl": ("kdcl", {"target": "linear"}),
    "kdcl as before the round": ("kdcl", {"target": "min-logit", "refresh_peers": False}),
    "tsb": ("tsb-like", {"peers": 3, "spatial": "confidence", "ramp": 0.0}),
    "dlb": ("dlb", {}),
    "dlb taught": ("dlb", {"variant": "taught", "standardise": True}),
    "ps-kd": ("ps-kd", {}),
    "ps-kd taught": ("ps-kd", {"variant": "taught"}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_stopped_run_remembers(tmp_path: Path, tiny_with: Make, case: str) -> None:
    """Stopped before the first save, in the middle of a block, and between two saves; the smoothed labels are soft."""
    method, options = CASES[case]
    leads = options.get("refresh_peers", True) and case not in ("dlb", "ps-kd")
    schedule = Spaced("1.5ep") if leads else Online()
    spec = tiny_with(method, options, schedule=schedule, label_smoothing=0.1)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(spec, whole)
    train_in_parts(spec, parts, 2, 10, 13)
    assert_same_run(whole, parts)


@pytest.mark.parametrize(
    ("case", "memories"),
    [
        ("tsb", ("memory of teacher", "memory of peer 2", "memory of student")),
        ("dlb taught", ("last batch",)),
        ("ps-kd taught", ("predictions",)),
    ],
)
def test_memory_moves_in_the_leaders_turns_alone(tiny_with: Make, case: str, memories: tuple[str, ...]) -> None:
    method, options = CASES[case]
    setup = ready(tiny_with(method, options, schedule=Spaced("3st")))
    for role, _, now in turns(setup):
        for memory in memories:
            assert any(name.startswith(f"{memory}/") for name in now) == (role == "teacher")
    for name in memories:
        if "memory" in name or name == "predictions":  # three epochs: every image has been visited three times
            assert setup.models[name].visits.tolist() == [3] * 40


def test_a_teacher_that_remembers_does_not_depend_on_the_interval(tmp_path: Path, tiny_with: Make) -> None:
    for method, memory in (("dlb", "last batch"), ("ps-kd", "predictions")):
        runs = [tmp_path / f"{method} {interval}" for interval in ("1st", "1.5ep")]
        for run, interval in zip(runs, ("1st", "1.5ep"), strict=True):
            train(tiny_with(method, {"variant": "taught"}, schedule=Spaced(interval)), run)
        for model in ("teacher", memory):
            assert_same_bits(*(of_model(run, model) for run in runs))
        alone = tmp_path / f"{method} alone"
        train(tiny_with(method, {}), alone)
        theirs = {name.replace("/teacher/", "/student/"): value for name, value in of_model(runs[0], "teacher").items()}
        assert_same_bits(of_model(alone, "student"), theirs)


def test_peers_start_apart(tiny_with: Make) -> None:
    for method in ("dml", "kdcl", "tsb-like"):
        setup = ready(tiny_with(method, {"peers": 3}))
        stems = [setup.modules()[role].state_dict()["network.conv1.weight"] for role in setup.run.method.roles]
        assert not any(torch.equal(stems[i], stems[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_mixed_images_are_refused_by_methods_with_a_bank_before_anything_is_written(
    tmp_path: Path, tiny_with: Make
) -> None:
    mixed = replace(TINY.data, mixup=0.2)
    for method in ("tsb-like", "ps-kd"):
        with pytest.raises(UserError, match="leave out data.mixup and data.cutmix"):
            train(tiny_with(method, data=mixed), tmp_path / method)
        assert not (tmp_path / method).exists()
    train(tiny_with("dlb", data=mixed, epochs=0.6), tmp_path / "dlb")  # both views mix the same pairs
    train(tiny_with("kdcl", data=mixed, epochs=0.6), tmp_path / "kdcl")
