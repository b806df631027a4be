"""Self KD as the released code does it: the same weights and statistics as its loop, written out here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spacedkd import RunSpec, Spaced, forecast, train
from spacedkd.config.recipes import recipe
from spacedkd.data import Batch
from spacedkd.schedule import ReleasedSelfKD
from tests.training.stepping import moved, ready, state, turn_by_turn
from tests.training.stopping import assert_same_run, train_in_parts

Make = Callable[..., RunSpec]


def official(tiny: RunSpec, **changes: Any) -> RunSpec:
    """Five steps an epoch: of fifteen batches number 5 and number 12 trigger a replay, steps 4 and 11."""

    def change(spec: RunSpec) -> RunSpec:
        return replace(tiny, method=spec.method, optimizer=spec.optimizer, schedule=Spaced("7st"), **changes)

    return recipe("official-self", ["self_augmentation"], change)


def joint(heads: tuple[Any, ...], labels: Tensor) -> Tensor:
    """All losses of a replay."""
    deepest, *exits = heads
    loss = F.cross_entropy(deepest.logits, labels)
    targets = (deepest.logits.detach() / 3).softmax(1)
    for place, one in enumerate(exits):
        soft = -(targets * (one.logits / 3).log_softmax(1)).sum(1).mean()
        loss = loss + 0.7 * F.cross_entropy(one.logits, labels) + 0.3 * soft
        if place > 0:
            loss = loss + 0.03 * (one.features - deepest.features.detach()).square().sum().sqrt()
    return loss


def released_loop(network: nn.Module, batches: Iterable[Batch], per_epoch: int, interval: int) -> None:
    """Every batch goes through all heads; one in an interval then replays what was kept, any other trains the last."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    network.train()
    kept: list[Batch] = []
    for number, batch in enumerate(batches, start=1 - per_epoch):
        kept.append(batch)
        deepest, *_ = network(batch.inputs.double())
        replay = number % interval == 0
        for seen in kept if replay else [batch]:
            loss = (
                joint(network(seen.inputs.double()), seen.labels)
                if replay
                else F.cross_entropy(deepest.logits, seen.labels)
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        kept = [] if replay else kept


def test_weights_and_statistics_are_those_of_the_released_loop(tiny: RunSpec) -> None:
    setup = ready(official(tiny, precision="64-true"))
    network = deepcopy(setup.modules()["network"])
    with torch.random.fork_rng():
        released_loop(network, [setup.stream.batch(step) for step in range(15)], per_epoch=5, interval=7)
    for _ in turn_by_turn(setup):
        pass
    torch.testing.assert_close(setup.modules()["network"].state_dict(), network.state_dict(), atol=1e-9, rtol=1e-9)


def test_which_statistics_move_when(tiny: RunSpec) -> None:
    """Teacher's turns move the exits' statistics alone; a trigger's look moves all of them once more."""
    setup = ready(official(tiny))
    before, counted = state(setup), []
    for moment in turn_by_turn(setup):
        after = state(setup)
        exits = {name.rpartition(".")[2] for name in moved(before, after) if name.startswith("network/exits.")}
        if moment.role == "teacher":
            assert exits == {"running_mean", "running_var", "num_batches_tracked"}
        trunk, exit = (f"network/{place}.num_batches_tracked" for place in ("network.bn1", "exits.stage1.attention.1"))
        step = round(moment.epoch * 5) - 1
        counted.append(f"{moment.role[0]}{step} {int(after[trunk] - before[trunk])}{int(after[exit] - before[exit])}")
        before = after
    teacher = [[f"t{step} 11" for step in steps] for steps in (range(4), range(5, 11), range(12, 15))]
    student = [["s0 22", *(f"s{step} 11" for step in rest)] for rest in [range(1, 5)]]
    student += [["s5 22", *(f"s{step} 11" for step in range(6, 12))], []]
    assert counted == [one for pair in zip(teacher, student, strict=True) for block in pair for one in block]


def test_what_a_look_costs_and_that_it_can_be_resumed(tmp_path: Path, tiny: RunSpec) -> None:
    """It is saved after turn 4, and what comes right before turn 5 lies between two parts."""
    spec = official(tiny)
    run = train(spec, tmp_path / "whole")
    train_in_parts(spec, tmp_path / "parts", 4, 18)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert (run.cost["updates"], run.cost["forward_passes"], run.cost["backward_passes"]) == (25, 27, 25)
    assert forecast(spec, seconds=0.0).cost == run.cost


@pytest.mark.parametrize("options", [{"variant": "live"}, {"variant": "snapshot"}])
def test_nobody_else_looks_or_lets_exits_run(tiny_with: Make, options: dict[str, Any]) -> None:
    setup = ready(tiny_with("self-kd", options, schedule=ReleasedSelfKD("7st")))
    before = state(setup)
    for moment in turn_by_turn(setup):
        after = state(setup)
        if moment.role == "teacher":
            assert not any(name.startswith("network/exits.") for name in moved(before, after))
        trunk = "network/network.bn1.num_batches_tracked"
        assert after[trunk] - before[trunk] == 1
        before = after
