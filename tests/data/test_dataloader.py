"""A plain DataLoader gives the batches of a DatasetStream, from any step, with any number of workers, in trainers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import skip_first_batches
from accelerate.data_loader import BatchSamplerShard, prepare_data_loader
from lightning_fabric.utilities.data import _set_sampler_epoch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from spacedkd import UserError, seeded_loader
from spacedkd.data import DatasetStream, SeededBatchSampler, SeededCollate, SeededDataset

STEPS_PER_EPOCH = 4  # 14 items by 4


class Noisy(Dataset[tuple[Tensor, int]]):
    """Draws from all three global generators."""

    def __len__(self) -> int:
        return 14

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return torch.tensor([row, random.random(), np.random.rand(), float(torch.rand(()))]), row % 3


def masked(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """A collate that draws, as one for masked tokens does."""
    inputs = torch.stack([one for one, _ in items])
    return inputs * (torch.rand(inputs.shape) > 0.3), torch.tensor([label for _, label in items])


def assert_batches(found: list[Any], steps: range, **options: Any) -> None:
    stream = DatasetStream(Noisy(), 4, 7, masked, **options)
    assert len(found) == len(steps)
    for step, (inputs, labels) in zip(steps, found, strict=True):
        expected = stream.batch(step)
        assert torch.equal(inputs, expected.inputs), f"step {step}"
        assert torch.equal(labels, expected.labels)


@pytest.mark.parametrize("workers", [0, 2])
def test_any_steps_are_those_of_the_stream(workers: int) -> None:
    steps = range(3, 11)
    before = torch.get_rng_state(), random.getstate()
    loader = seeded_loader(Noisy(), 4, 7, masked, steps=steps, num_workers=workers)
    found = [*loader]
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert_batches(found, steps)
    assert_batches([*loader], steps)
    assert len(loader) == len(steps)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_goes_on_from_the_state_of_another(workers: int) -> None:
    """As trainers do that keep it in their checkpoints: within an epoch, and at its end."""
    for taken in (3, STEPS_PER_EPOCH):
        first, second = (seeded_loader(Noisy(), 4, 7, masked, num_workers=workers) for _ in range(2))
        begun = iter(first)
        assert_batches([next(begun) for _ in range(taken)], range(taken))
        second.load_state_dict(first.state_dict())
        assert_batches([*second], range(taken, taken + STEPS_PER_EPOCH - taken % STEPS_PER_EPOCH))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_is_the_step_of_the_batch_that_comes_next(workers: int) -> None:
    """Whatever a loader was told before, one that takes over its state has the batches it would have had."""
    loader = seeded_loader(Noisy(), 4, 7, masked, num_workers=workers)

    def comes_next(expected: int) -> None:
        assert loader.state_dict() == {"step": expected}
        other = seeded_loader(Noisy(), 4, 7, masked)
        other.load_state_dict(loader.state_dict())
        assert other.state_dict() == {"step": expected}, "it was not asked for a batch yet"
        assert_batches([next(iter(other))], range(expected, expected + 1))

    comes_next(0)
    loader.load_state_dict({"step": 2})
    comes_next(2)
    loader.batch_sampler.set_epoch(0)  # as Lightning does, which leaves it there
    comes_next(2)
    begun = iter(loader)
    comes_next(2)
    assert_batches([next(begun)], range(2, 3))
    comes_next(3)
    loader.batch_sampler.set_step(6)
    comes_next(6)
    assert_batches([*loader], range(6, 8))
    comes_next(8)
    loader.batch_sampler.set_step(1)
    comes_next(1)
    loader.batch_sampler.set_epoch(2)
    comes_next(8)


def test_the_state_within_given_steps() -> None:
    loader = seeded_loader(Noisy(), 4, 7, masked, steps=range(3, 11))
    assert loader.state_dict() == {"step": 3}
    begun = iter(loader)
    assert_batches([next(begun) for _ in range(2)], range(3, 5))
    assert loader.state_dict() == {"step": 5}


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_have_slices(ranks: int) -> None:
    for rank in range(ranks):
        place = {"rank": rank, "ranks": ranks, "drop_last": True}
        assert_batches([*seeded_loader(Noisy(), 4, 7, masked, steps=range(6), **place)], range(6), **place)


def test_an_epoch_after_the_other_and_from_any_step() -> None:
    sampler = SeededBatchSampler(14, 4, 7)
    loader = DataLoader(SeededDataset(Noisy()), batch_sampler=sampler, collate_fn=SeededCollate(masked))
    assert_batches([*loader, *loader], range(8))
    sampler.set_step(6)
    assert len(loader) == STEPS_PER_EPOCH
    assert_batches([*loader, *loader], range(6, 12))
    sampler.set_epoch(1)
    assert_batches([*loader], range(4, 8))
    sampler.set_epoch(1)  # again, though it was walked
    assert_batches([*loader], range(4, 8))


def test_lightning_tells_the_epoch_and_leaves_a_step_of_it() -> None:
    loader = seeded_loader(Noisy(), 4, 7, masked)
    _set_sampler_epoch(loader, 2)
    assert_batches([*loader], range(8, 12))
    loader.batch_sampler.set_step(6)
    _set_sampler_epoch(loader, 1)
    assert_batches([*loader], range(6, 8))


def test_accelerate_tells_the_epoch_and_skips_and_slices() -> None:
    loader = prepare_data_loader(seeded_loader(Noisy(), 4, 7, masked), num_processes=1, process_index=0)
    assert_batches([*loader, *loader], range(8))
    loader.set_epoch(5)
    assert_batches([*skip_first_batches(loader, 3)], range(23, 24))
    for rank in range(2):
        shard = BatchSamplerShard(SeededBatchSampler(14, 4, 7, drop_last=True), 2, rank, split_batches=True)
        found = DataLoader(SeededDataset(Noisy()), batch_sampler=shard, collate_fn=SeededCollate(masked))
        assert_batches([*found], range(3), rank=rank, ranks=2, drop_last=True)


def test_what_does_not_fit_is_said() -> None:
    sampler = SeededBatchSampler(14, 4, 7, steps=range(3))
    for wrong, part in (
        (lambda: SeededDataset(Noisy())[3], r"\(row, seed\), got 3"),
        (lambda: SeededCollate()([1, 2]), "items of a SeededDataset"),
        (lambda: sampler.set_step(2), r"steps=range\(0, 3\)"),
        (lambda: SeededBatchSampler(14, 4, 7, rank=2, ranks=2), "rank must be from 0 to 1"),
        (lambda: SeededBatchSampler(14, 4, 7).set_step(-1), "step must be a whole number from 0 up, got -1"),
        (lambda: seeded_loader(Noisy(), 4, 7).load_state_dict({"step": "1"}), "step must be a whole number"),  # type: ignore[dict-item]
        (lambda: seeded_loader([], 4, 0), "^The dataset has no items: its length is 0.$"),
        (lambda: seeded_loader([], 4, 0, drop_last=True), "^The dataset has no items: its length is 0.$"),
        (
            lambda: seeded_loader(Noisy(), 15, 0, drop_last=True),
            "^14 items do not fill one batch of 15, and drop_last=True drops the rest: give a batch_size of 14 "
            "at most.$",
        ),
        (
            lambda: seeded_loader(Noisy(), 4, 0, ranks=3),
            "^The last batch of an epoch has 2 of 14 items, which 3 ranks cannot share: give drop_last=True, or "
            "another batch_size.$",
        ),
        (
            lambda: seeded_loader(Noisy(), 2, 0, ranks=3),
            "^A batch of 2 cannot be shared by 3 ranks: give a batch_size of",
        ),
        (lambda: seeded_loader(Noisy(), 4, 0, steps=5), r"^steps must be a range, such as range\(0, 300\) .*; got 5.$"),
        (lambda: seeded_loader(Noisy(), 4, None), "^seed must be a whole number from 0 up, got None.$"),
        (lambda: seeded_loader(Noisy(), 4.0, 0), "^batch_size must be a whole number from 1 up, got 4.0.$"),
        (lambda: seeded_loader(Noisy(), 4, 0, ranks=0), "^ranks must be a whole number from 1 up, got 0.$"),
        (lambda: seeded_loader(Noisy(), 4, 0, rank="0"), "^rank must be a whole number from 0 up, got '0'.$"),
        (lambda: SeededBatchSampler(0, 4, 0), "^count must be a whole number from 1 up, got 0.$"),
        (lambda: DatasetStream(Noisy(), 4, 0, ranks=3), "and each needs one: use data.drop_last=True"),
        (lambda: SeededDataset(iter([1])), "map-style"),
    ):
        with pytest.raises(UserError, match=part):
            wrong()  # type: ignore[no-untyped-call]


def test_processes_of_torch_distributed_share_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader that was made before there were several processes gives each its slice, unless it was told otherwise."""
    loader = seeded_loader(Noisy(), 4, 7, masked, steps=range(6))
    whole = seeded_loader(Noisy(), 4, 7, masked, steps=range(6), rank=0, ranks=1)
    sampler = SeededBatchSampler(len(Noisy()), 4, 7, steps=range(6))  # for accelerate, which shares its batches out
    assert_batches([*loader], range(6))
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    for rank in range(2):
        monkeypatch.setattr("torch.distributed.get_rank", lambda rank=rank: rank)
        assert_batches([*loader], range(6), rank=rank, ranks=2)
        assert_batches([*whole], range(6))
        assert [len(batch) for batch in sampler] == [4, 4, 4, 2, 4, 4]
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 3)
    with pytest.raises(UserError, match="^The last batch of an epoch has 2 of 14 items, which 3 ranks cannot share"):
        next(iter(loader))


@pytest.mark.parametrize("place", [{"rank": 1}, {"ranks": 2}])
def test_a_rank_without_the_number_of_ranks(place: dict[str, int]) -> None:
    with pytest.raises(UserError, match="^rank=.* and ranks=.* belong together: give both, or neither.$"):
        seeded_loader(Noisy(), 4, 7, drop_last=True, **place)
