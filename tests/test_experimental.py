"""Rules of timing against written-out blocks, on trajectories whose predictions are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import ttest_rel
from torch import Tensor, nn

from spacedkd import Snapshots, Spaced, UserError, train
from spacedkd.experimental import (
    Probe,
    _jensen_shannon,
    drift,
    even,
    lengths_in_run,
    probe_of,
    proven_better,
    shuffled,
    yoked,
)
from spacedkd.schedule import Blocks
from tests.conftest import TINY

COIN = Probe(torch.zeros(4, 1), torch.tensor([0, 0, 0, 1]))


def coin() -> nn.Module:
    """A network that gives class 1 the same log-odds for every input: its bias."""
    return nn.Linear(1, 2)


def record(folder: Path, log_odds: Sequence[float], updates: Sequence[int]) -> Path:
    network = coin()
    snapshots = Snapshots(folder, 1)
    for update, odds in zip(updates, log_odds, strict=True):
        with torch.no_grad():
            network.bias.copy_(torch.tensor([0.0, odds]))  # type: ignore[operator, union-attr]
        snapshots.save(update, network)
    return folder


def steps(blocks: Blocks) -> list[int]:
    return [int(length.amount) for length in blocks.lengths]


def divergence(one: float, other: float) -> float:
    """Jensen-Shannon divergence of two coins with these log-odds, by its formula in plain Python."""
    p, q = (1 / (1 + math.exp(-odds)) for odds in (one, other))

    def kl(a: float, b: float) -> float:
        return a * math.log(a / b) + (1 - a) * math.log((1 - a) / (1 - b))

    m = (p + q) / 2
    return (kl(p, m) + kl(q, m)) / 2


def test_the_divergence_is_that_of_the_formula() -> None:
    for one, other in ((0.0, 0.0), (0.0, 1.0), (-2.0, 3.0)):
        pair = [torch.log_softmax(torch.tensor([[0.0, odds]], dtype=torch.float64), 1) for odds in (one, other)]
        assert float(_jensen_shannon(*pair)) == pytest.approx(divergence(one, other), abs=1e-12)


@pytest.mark.parametrize(
    ("amount", "lengths"),
    [
        (0, [2, 2, 2, 2, 2, 4]),
        (1e-9, [2, 2, 4, 2, 4]),
        (divergence(0, 1) - 1e-9, [2, 2, 4, 6]),
        (divergence(0, 1) + 1e-9, [2, 6, 6]),
        (math.log(2), [2, 12]),
    ],
)
def test_a_block_begins_where_predictions_have_moved(tmp_path: Path, amount: float, lengths: list[int]) -> None:
    """After 2, 4, ... 14 updates; the first is a hand-over, and the last block ends with the run."""
    folder = record(tmp_path, [0, 1, 1, 2.5, 2.0, 2.0, -9], range(2, 15, 2))
    assert steps(drift(folder, COIN, amount, network=coin)) == lengths


def test_drift_is_measured_since_the_last_hand_over(tmp_path: Path) -> None:
    """Steps too small by themselves add up; the way back counts as well."""
    folder = record(tmp_path, [0, 0.4, 0.8, 1.2, 0.8, 0.4, 0], [1, 2, 3, 4, 5, 6, 8])
    assert steps(drift(folder, COIN, divergence(0, 0.8) - 1e-9, network=coin)) == [1, 2, 5]
    assert steps(drift(folder, COIN, divergence(1.2, 0) - 1e-9, network=coin)) == [1, 3, 4]


class Levels(nn.Module):
    """A network whose weights are the logits of class 1 for each of a few inputs, which are their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.odds = nn.Parameter(torch.zeros(6))

    def forward(self, numbers: Tensor) -> Tensor:
        ones = self.odds[numbers[:, 0]]
        return torch.stack([torch.zeros_like(ones), ones], 1)


ITEMS = Probe(torch.arange(6)[:, None], torch.ones(6, dtype=torch.int64))


def record_levels(folder: Path, by_update: dict[int, list[float]]) -> Path:
    network, snapshots = Levels(), Snapshots(folder, 1)
    for update, odds in by_update.items():
        with torch.no_grad():
            network.odds.copy_(torch.tensor(odds))
        snapshots.save(update, network)
    return folder


def loss(odds: list[float]) -> list[float]:
    return [math.log1p(math.exp(-value)) for value in odds]


@pytest.mark.parametrize("level", [0.2, 0.05, 0.01, 1e-4])
def test_a_teacher_hands_over_when_it_is_better_by_the_paired_test(tmp_path: Path, level: float) -> None:
    levels = {
        3: [0.0, 0.1, -0.2, 0.3, 0.0, 0.1],
        5: [0.3, 0.1, -0.1, 0.2, 0.4, 0.0],  # a little better
        7: [-1.0, -1.1, -0.9, -1.2, -1.0, -0.8],  # worse
        9: [1.0, 1.2, 0.7, 1.1, 0.8, 1.1],
        12: [3.0, 3.1, 2.9, 3.3, 3.0, 3.2],
        13: [3.1, 3.1, 2.9, 3.3, 3.0, 3.2],
        20: [9.0] * 6,
    }
    hand_overs = [3]
    for update in (5, 7, 9, 12, 13):
        test = ttest_rel(loss(levels[hand_overs[-1]]), loss(levels[update]), alternative="greater")
        if test.pvalue < level:
            hand_overs.append(update)
    expected = [stop - start for start, stop in zip([0, *hand_overs], [*hand_overs, 20], strict=True)]
    folder = record_levels(tmp_path, levels)
    assert steps(proven_better(folder, ITEMS, level, network=Levels)) == expected
    assert 7 not in hand_overs
    assert 12 in hand_overs


def test_equal_gains_prove_nothing_and_neither_do_losses(tmp_path: Path) -> None:
    levels = {1: [2.0] * 6, 2: [1.0] * 6, 3: [0.0] * 6, 4: [5.0] * 6}
    assert steps(proven_better(record_levels(tmp_path, levels), ITEMS, 0.5, network=Levels)) == [1, 3]


def test_a_recorded_run_gives_blocks_that_it_can_be_replayed_with(tmp_path: Path) -> None:
    teacher = tmp_path / "teacher"
    train(replace(TINY, data=replace(TINY.data, holdout=0.2), record=(Spaced(1),)), teacher)
    probe = probe_of(teacher, "holdout", 6)
    assert len(probe.labels) == 6
    assert [*probe_of(teacher, count=5).inputs.shape] == [5, 1, 8, 8]
    blocks = drift(teacher, probe, 1e-5)
    assert sum(steps(blocks)) == 12
    assert len(steps(blocks)) > 2
    spec = replace(TINY, data=replace(TINY.data, holdout=0.2), schedule=blocks)
    train(replace(spec, teacher_path=teacher), tmp_path / "replays")
    train(spec, tmp_path / "alone")
    names = ("journal.jsonl", "student/model.safetensors")
    assert all((tmp_path / "replays" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes() for name in names)
    assert sum(steps(proven_better(teacher, probe))) == 12


@pytest.mark.parametrize(
    ("blocks", "total", "lengths"),
    [
        (Blocks([2, 3]), 10, [2, 3, 3, 2]),
        (Blocks([2, 3]), 4, [2, 2]),
        (Blocks([2, 3]), 5, [2, 3]),
        (Blocks([7]), 5, [5]),
        (Blocks([1, 1, 8]), 2, [1, 1]),
    ],
)
def test_the_blocks_of_another_run_fitted_to_this_one(blocks: Blocks, total: int, lengths: list[int]) -> None:
    assert lengths_in_run(blocks, total) == steps(yoked(blocks, total)) == lengths
    assert len(steps(even(blocks, total))) == len(lengths)
    assert sum(steps(even(blocks, total))) == total
    assert max(steps(even(blocks, total))) - min(steps(even(blocks, total))) <= 1
    for seed in range(5):
        assert sorted(steps(shuffled(blocks, total, seed))) == sorted(lengths)


def test_controls_are_as_written() -> None:
    blocks = Blocks([1, 2, 3, 4])
    assert steps(even(blocks, 10)) == [2, 3, 2, 3]
    assert steps(even(Blocks([9, 1]), 10)) == [5, 5]
    orders = {tuple(steps(shuffled(blocks, 10, seed))) for seed in range(30)}
    assert len(orders) > 5
    assert steps(shuffled(blocks, 10, 3)) == steps(shuffled(blocks, 10, 3))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda folder: drift(folder, COIN, -1, network=coin), "amount must be from 0"),
        (lambda folder: drift(folder, COIN, 0.7, network=coin), "amount must be from 0"),
        (lambda folder: drift(folder, COIN, 0.1), "need a network"),
        (lambda folder: drift(folder / "nothing", COIN, 0.1, network=coin), "has no snapshots"),
        (lambda folder: drift(folder, COIN, 0.1, network=coin, total=9), "up to the last one"),
        (lambda folder: drift(folder, COIN, 0.1, network=coin, total=2), "needs several"),
        (lambda folder: proven_better(folder, COIN, 0.6, network=coin), "level must be from 0"),
        (lambda folder: Probe(torch.zeros(3, 1), torch.zeros(2)), "a label for each"),
        (lambda folder: Probe([1, 2], torch.zeros(2)), "inputs of a Probe must be a tensor"),  # type: ignore[arg-type]
        (lambda folder: yoked(Blocks(["1ep"]), 5), "needs the length of an epoch"),
        (lambda folder: even(Blocks([1]), 0), "total must be a whole number from 1"),
    ],
)
def test_what_cannot_be_timed_is_refused(tmp_path: Path, call: Any, said: str) -> None:
    record(tmp_path, [0, 1, 2], [2, 4, 6])
    with pytest.raises(UserError, match=said) as error:
        call(tmp_path)
    assert "\n" not in str(error.value)
