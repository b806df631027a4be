"""batch(step) gives the same bits however it is asked, for every way of keeping and varying images."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from spacedkd import AugmentSpec, DataSpec
from spacedkd.data import Batch, TrainingStream
from spacedkd.data.images import Encoded, Images
from spacedkd.data.run_data import RunData
from spacedkd.data.sources import load
from spacedkd.data.stream import View, batches, evaluation_batches
from tests.data.on_disk import class_folders, parquet

KINDS = {
    "memory, batch-wise": DataSpec(augmentation="plain", augment=AugmentSpec(2, True, 15)),
    "encoded, batch-wise": DataSpec(augmentation="plain", augment=AugmentSpec(2, True, 15)),
    "memory, self-cifar": DataSpec(augmentation="self-cifar"),
    "encoded, self-cifar": DataSpec(augmentation="self-cifar"),
    "memory, vit": DataSpec(augmentation="vit"),
    "encoded, vit": DataSpec(augmentation="vit"),
    "encoded, imagenet": DataSpec(augmentation="imagenet"),
    "memory, mixup": DataSpec(augmentation="cifar", mixup=0.8),
    "encoded, cutmix": DataSpec(augmentation="imagenet", cutmix=1.0),
    "memory, both": DataSpec(augmentation="self-cifar", mixup=0.8, cutmix=1.0),
}


@pytest.fixture(scope="module", params=KINDS)
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunData:
    place = class_folders(tmp_path_factory.mktemp("data"), classes=("a", "b", "c"), count=8, sizes=(40,))
    kept, limit = (Images, 1 << 30) if request.param.startswith("memory") else (Encoded, 0)
    data = load(replace(KINDS[request.param], source=str(place), image_size=32), limit)
    assert isinstance(data.train, kept)
    return data


def stream(data: RunData, rank: int = 0, ranks: int = 1) -> TrainingStream:
    return TrainingStream(data.train, 10, 3, data.augmentation, drop_last=True, rank=rank, ranks=ranks, mix=data.mix)


def bits(batch: Batch) -> tuple[bytes, ...]:
    return tuple(part.contiguous().numpy().tobytes() for part in batch[:3])


def test_any_order_of_asking(data: RunData) -> None:
    one, other = stream(data), stream(data)
    first = {step: bits(one.batch(step)) for step in range(6)}
    steps = list(range(6)) * 2
    random.Random(0).shuffle(steps)
    assert all(bits(other.batch(step)) == first[step] for step in steps)
    assert len({*first.values()}) == 6


@pytest.mark.parametrize("ranks", [2, 4])
def test_slices_of_all_ranks_join(data: RunData, ranks: int) -> None:
    for step in (0, 3):
        slices = [stream(data, rank, ranks).batch(step) for rank in range(ranks)]
        joined = Batch(*(torch.cat(parts) for parts in zip(*(part[:3] for part in slices), strict=True)))
        assert bits(joined) == bits(stream(data).batch(step))


def test_any_number_of_workers(data: RunData) -> None:
    steps = [0, 1, 0, 5]
    expected = [bits(stream(data).batch(step)) for step in steps]
    assert [bits(batch) for batch in batches(stream(data), [[View(step)] for step in steps], workers=2)] == expected


def test_any_number_of_threads(data: RunData) -> None:
    one = bits(stream(data).batch(1))
    torch.set_num_threads(2)
    try:
        assert bits(stream(data).batch(1)) == one
    finally:
        torch.set_num_threads(1)


def test_nobody_elses_random_numbers_are_touched(data: RunData) -> None:
    def drawn() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    def seed() -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)

    seed()
    undisturbed = drawn()
    seed()
    batch = bits(stream(data).batch(0))
    assert drawn() == undisturbed
    assert bits(stream(data).batch(0)) == batch


def test_evaluation_is_the_same_with_workers(data: RunData) -> None:
    alone, shared = (list(evaluation_batches(data.test, 10, workers)) for workers in (0, 2))
    assert [bits(batch) for batch in alone] == [bits(batch) for batch in shared]
    assert torch.cat([batch.indices for batch in alone]).tolist() == list(range(24))


@pytest.mark.parametrize("augmentation", ["plain", "cifar", "self-cifar", "vit", "imagenet"])
def test_memory_and_disk_give_the_same_bits(tmp_path: Path, augmentation: str) -> None:
    places = [str(class_folders(tmp_path / "folders", sizes=(40,))), str(parquet(tmp_path / "table"))]
    for place in places:
        spec = DataSpec(place, augmentation=augmentation, image_size=32)
        memory, disk = load(spec), load(spec, 0)
        assert isinstance(memory.train, Images)
        assert isinstance(disk.train, Encoded)
        # What is not in memory cannot be measured cheaply, so `plain` takes ImageNet's mean and deviation there.
        kept = [replace(d.train, mean=(0.5,) * 3, std=(0.2,) * 3) for d in (memory, disk)]
        one, other = (TrainingStream(images, 8, 0, memory.augmentation).batch(3) for images in kept)
        assert bits(one) == bits(other)
        assert torch.equal(memory.test.resized(torch.arange(8)), disk.test.resized(torch.arange(8)))
