"""Compiled networks learn what others learn, and are compiled once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from spacedkd import RunSpec, UserError, train
from spacedkd.training import Event, device
from tests.training.runs_on_two import METHODS, assert_close

# torch looks at the gradients of what enters a block, and warns itself of it.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """What was compiled, by a compiler that leaves everything as it is: whether it was for learning."""
    found: list[bool] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        found.append(torch.is_grad_enabled())
        return graph.forward

    monkeypatch.setattr(device, "BACKEND", backend)
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


def compiled(spec: RunSpec) -> RunSpec:
    return replace(spec, engine=replace(spec.engine, compile=True))


def test_a_change_of_roles_compiles_nothing(tmp_path: Path, graphs: list[bool]) -> None:
    """Four steps of the teacher, four of the student, and so on: after one round all there is has been compiled."""
    spec, counts = replace(METHODS["kd"], epochs=5), []

    def count(moment: Event) -> None:
        counts.append(len(graphs))

    train(compiled(spec), tmp_path / "compiled", callback=count)
    # Both blocks of both roles are one thing: for learning with 15 images and with any number, and for standing still.
    assert graphs == [True, True, False]
    assert counts == [1, 1, *[3] * 28]
    train(spec, tmp_path / "plain")
    assert_close(tmp_path / "compiled", tmp_path / "plain")


def test_blocks_whose_outputs_are_watched(tmp_path: Path, graphs: list[bool]) -> None:
    """The early exits of self KD hang on the blocks of a transformer."""
    spec, counts = replace(METHODS["self-kd snapshot"], epochs=4), []
    train(compiled(spec), tmp_path / "compiled", callback=lambda moment: counts.append(len(graphs)))
    assert counts[7] > 0
    assert {*counts[7:]} == {counts[7]}, "all there is, after a round of four and four turns"
    train(spec, tmp_path / "plain")
    assert_close(tmp_path / "compiled", tmp_path / "plain")


def test_without_a_compiler_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", ("no-such-compiler",))
    with pytest.raises(UserError, match="compiler.*no-such-compiler"):
        train(compiled(METHODS["kd"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: False)
    with pytest.raises(UserError, match="triton on cuda"):
        device.compile_blocks([], torch.device("cuda"))


def test_a_network_without_blocks_is_refused(graphs: list[bool]) -> None:
    with pytest.raises(UserError, match="finds no blocks"):
        device.compile_blocks([nn.Linear(2, 2)], torch.device("cpu"))
