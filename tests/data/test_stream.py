"""batch(step) gives the same bits however it is asked."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys

import pytest
import torch

from spacedkd import AugmentSpec, DataSpec, UserError
from spacedkd.data import Batch, TrainingStream
from spacedkd.data import stream as stream_module
from spacedkd.data.sources import load
from spacedkd.data.stream import View, batches, evaluation_batches

AUGMENT = AugmentSpec(crop=1, flip=True, rotate=15)


def stream(
    rank: int = 0, ranks: int = 1, seed: int = 3, batch_size: int = 16, drop_last: bool = False
) -> TrainingStream:
    images = load(DataSpec("digits", train_limit=100)).train
    return TrainingStream(images, batch_size, seed, AUGMENT, drop_last=drop_last, rank=rank, ranks=ranks)


def bits(batch: Batch) -> tuple[bytes, bytes, bytes]:
    images, labels, indices = (part.numpy().tobytes() for part in batch[:3])
    return images, labels, indices


def test_any_order_of_asking_gives_the_same_bits() -> None:
    one, other = stream(), stream()
    first = {step: bits(one.batch(step)) for step in range(30)}
    steps = list(range(30)) * 2
    random.Random(0).shuffle(steps)
    assert all(bits(other.batch(step)) == first[step] for step in steps)


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_any_number_of_workers_gives_the_same_bits(workers: int) -> None:
    steps = [0, 1, 2, 0, 1, 2, 9, 8]
    seen = list(batches(stream(), [[View(step)] for step in steps], workers))
    assert [bits(batch) for batch in seen] == [bits(stream().batch(step)) for step in steps]


def digest() -> str:
    return hashlib.sha256(b"".join(b"".join(bits(stream().batch(step))) for step in (0, 7, 20))).hexdigest()


def test_another_process_gives_the_same_bits() -> None:
    """With nothing of this one's environment, another seed of hashes and two threads."""
    environment = {"PATH": "", "PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "2", "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", "from tests.data.test_stream import digest; print(digest())"]
    other = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    assert other.strip() == digest()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_slices_of_all_ranks_join_to_the_global_batch(ranks: int) -> None:
    for step in (0, 3, 13):
        slices = [stream(rank, ranks, batch_size=30).batch(step) for rank in range(ranks)]
        joined = Batch(*(torch.cat(parts) for parts in zip(*(part[:3] for part in slices), strict=True)))
        assert bits(joined) == bits(stream(batch_size=30).batch(step))


def test_an_epoch_has_every_image_once_and_the_last_batch_is_kept() -> None:
    kept = stream()
    assert kept.steps_per_epoch == 7
    for epoch in range(2):
        steps = range(epoch * 7, epoch * 7 + 7)
        seen = torch.cat([kept.batch(step).indices for step in steps])
        assert seen.sort().values.tolist() == list(range(100))
        assert [kept.size(step) for step in steps] == [16] * 6 + [4]
        assert [len(kept.batch(step).labels) for step in steps] == [16] * 6 + [4]
    assert stream(drop_last=True).steps_per_epoch == 6


def test_epochs_and_seeds_are_shuffled_differently() -> None:
    orders = [stream(seed=seed).batch(step).indices.tolist() for seed in (0, 1) for step in (0, 7)]
    assert len({tuple(order) for order in orders}) == 4


def test_labels_and_indices_belong_to_the_images() -> None:
    plain = TrainingStream(load(DataSpec("digits", train_limit=100)).train, 16, seed=0)
    batch = plain.batch(2)
    assert torch.equal(batch.labels, plain.images.labels[batch.indices])
    assert torch.equal(batch.inputs, plain.images.inputs(batch.indices))


def test_nothing_grows_with_the_number_of_steps_asked() -> None:
    asked = stream()
    for step in range(700):
        asked.batch(step)
    orders = stream_module._epoch_order.cache_info()
    assert orders.currsize == orders.maxsize == 8


def test_training_images_are_normalised() -> None:
    train = load(DataSpec("digits")).train
    values = train.normalise(train.pixels)
    assert values.mean().abs() < 1e-5
    assert (values.std() - 1).abs() < 1e-3


def test_evaluation_sees_every_image_once_in_order() -> None:
    test = load(DataSpec("digits")).test
    seen = list(evaluation_batches(test, 100))
    assert torch.cat([batch.indices for batch in seen]).tolist() == list(range(898))
    assert torch.equal(torch.cat([batch.labels for batch in seen]), test.labels)


def test_batches_that_cannot_work_are_refused() -> None:
    with pytest.raises(UserError, match="data.drop_last=True"):
        stream(batch_size=33)
    with pytest.raises(UserError, match="do not fill one batch"):
        stream(batch_size=101, drop_last=True)


def test_another_view_shows_the_same_images_otherwise() -> None:
    varied = stream()
    one, other = varied.batch(3), varied.batch(3, view=1)
    assert torch.equal(one.indices, other.indices)
    assert torch.equal(one.labels, other.labels)
    assert not torch.equal(one.inputs, other.inputs)
    assert bits(varied.batch(3, view=1)) == bits(other)
    assert bits(varied.batch(3, view=0)) == bits(one)


def test_a_turn_may_look_at_several_batches() -> None:
    (seen,) = batches(stream(), [[View(3), View(2, view=1)]])
    assert bits(seen) == bits(stream().batch(3))
    assert [bits(other) for other in seen.others] == [bits(stream().batch(2, view=1))]
