"""Batches of any torch dataset: the same bits however they are asked for, and one line for what cannot work."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from spacedkd import DataSpec, UserError
from spacedkd.data import TrainingStream
from spacedkd.data.inputs import tensors
from spacedkd.data.sources import load
from spacedkd.data.stream import DatasetStream, View, batches
from spacedkd.runtime.errors import UserCodeError
from spacedkd.runtime.seeds import seed_for
from tests.data.own_datasets import CLASSES, COUNT, KINDS, Named, Pictures, Sentences, bits, jitter, padded, rows_of


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[Dataset[Any], Any]:
    return KINDS[request.param]


def stream(kind: tuple[Any, Any], **options: Any) -> DatasetStream:
    return DatasetStream(kind[0], 8, 3, kind[1], **options)


def test_any_order_of_asking(kind: tuple[Dataset[Any], Any]) -> None:
    one, other = stream(kind), stream(kind)
    first = {step: bits(one.batch(step)) for step in range(9)}
    steps = list(range(9)) * 2
    random.Random(0).shuffle(steps)
    assert all(bits(other.batch(step)) == first[step] for step in steps)
    assert len({*first.values()}) == 9


def test_any_number_of_workers(kind: tuple[Dataset[Any], Any]) -> None:
    views = [[View(0)], [View(5), View(5, 1)], [View(0)]]
    alone, shared = (list(batches(stream(kind), views, workers)) for workers in (0, 2))
    assert [bits(batch) for batch in alone] == [bits(batch) for batch in shared]
    assert [type(batch.inputs) for batch in alone] == [type(batch.inputs) for batch in shared]
    assert bits(alone[1].others[0]) == bits(shared[1].others[0])


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_slices_of_all_ranks_join(kind: tuple[Dataset[Any], Any], ranks: int) -> None:
    for step in (0, 3, 5):  # the fourth has six items
        whole = stream(kind).batch(step)
        parts = [stream(kind, rank=rank, ranks=ranks).batch(step) for rank in range(ranks)]
        assert [row for part in parts for row in rows_of(part)] == rows_of(whole)
        if kind[1] is None:  # where nothing is padded, to the bit
            joined = [torch.cat(some) for some in zip(*(tensors(part.inputs) for part in parts), strict=True)]
            assert all(torch.equal(one, other) for one, other in zip(joined, tensors(whole.inputs), strict=True))


def test_nobody_elses_random_numbers_matter_or_are_touched(kind: tuple[Dataset[Any], Any]) -> None:
    def drawn() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    def seed(number: int) -> None:
        random.seed(number)
        np.random.seed(number)
        torch.manual_seed(number)

    seed(1)
    undisturbed = drawn()
    seed(1)
    first = bits(stream(kind).batch(2))
    assert drawn() == undisturbed
    seed(2)
    assert bits(stream(kind).batch(2)) == first


def test_another_view_shows_the_same_items_drawn_anew(kind: tuple[Dataset[Any], Any]) -> None:
    one, other = stream(kind).batch(1), stream(kind).batch(1, view=1)
    assert torch.equal(one.indices, other.indices)
    assert torch.equal(one.labels, other.labels)
    assert bits(one) != bits(other)


@pytest.mark.parametrize("view", [0, 2])
def test_order_and_draws_written_out(view: int) -> None:
    """Epoch by epoch a permutation, and for each place of a batch its own seed for all three generators."""
    transform, count, size = jitter(), COUNT, 8
    for step in (0, 2, 3, 6):
        epoch, place = divmod(step, 4)
        generator = torch.Generator().manual_seed(seed_for(3, "order", epoch))
        rows = torch.randperm(count, generator=generator).tolist()[place * size : place * size + size]
        expected = []
        for where, row in enumerate(rows):
            seed = seed_for(seed_for(3, "augment", step, view) if view else seed_for(3, "augment", step), where)
            random.seed(seed)
            np.random.seed([seed >> 32, seed & 0xFFFFFFFF])
            torch.manual_seed(seed)
            expected.append(transform(Pictures(None)[row][0]))
        batch = stream((Pictures(transform), None)).batch(step, view)
        assert batch.indices.tolist() == rows
        assert batch.labels.tolist() == [row % CLASSES for row in rows]
        assert torch.equal(batch.inputs, torch.stack(expected))


def test_a_dataset_has_the_order_of_images() -> None:
    images = load(DataSpec("digits", train_limit=COUNT)).train
    one, other = TrainingStream(images, 8, 3, drop_last=True), stream(KINDS["named"], drop_last=True)
    assert one.steps_per_epoch == other.steps_per_epoch == 3
    assert all(torch.equal(one.batch(step).indices, other.batch(step).indices) for step in range(7))
    assert [stream(KINDS["named"]).size(step) for step in range(5)] == [8, 8, 8, 6, 8]


def test_what_a_batch_is_made_of() -> None:
    tokens, lengths = stream((Sentences(), padded)).batch(0).inputs
    assert tokens.shape == (8, int(lengths.max()))
    named = stream((Named(), None)).batch(0)
    assert [*named.inputs] == ["tokens", "mask"]
    assert named.labels.dtype == torch.int64
    pair = stream((TensorDataset(torch.rand(20, 3), torch.rand(20, 2), torch.arange(20) % 4), None)).batch(0)
    assert [part.shape for part in pair.inputs] == [(8, 3), (8, 2)]
    grouped = stream((Sentences(), lambda items: (list(padded(items)[:2]), padded(items)[2]))).batch(0)
    assert isinstance(grouped.inputs, tuple)


@pytest.mark.parametrize("smoothing", [0.1, 0.5])
def test_smoothed_labels_mean_what_torch_means(smoothing: float) -> None:
    hard = stream((Named(), None)).batch(0).labels
    soft = stream((Named(), None), label_smoothing=smoothing, classes=CLASSES).batch(0).labels
    images = load(DataSpec("digits")).train
    other = TrainingStream(images, 8, 3, label_smoothing=smoothing).batch(0).labels
    assert soft.shape == (8, CLASSES)
    assert other.shape == (8, 10)
    for labels, smooth in ((hard, soft), (TrainingStream(images, 8, 3).batch(0).labels, other)):
        logits = torch.randn(8, smooth.shape[1], generator=torch.Generator().manual_seed(0))
        expected = F.cross_entropy(logits, labels, label_smoothing=smoothing)
        assert torch.allclose(F.cross_entropy(logits, smooth), expected)
    with pytest.raises(UserError, match="Label smoothing .* classes=COUNT"):
        stream((Named(), None), label_smoothing=smoothing).batch(0)


class Odd(Dataset[Any]):
    """One item is unlike the others."""

    def __init__(self, usual: Any, odd: Any, row: int = 5) -> None:
        self.usual, self.odd, self.row = usual, odd, row

    def __len__(self) -> int:
        return 20

    def __getitem__(self, row: int) -> Any:
        return self.odd if row == self.row else self.usual


IMAGE = torch.zeros(3, 4, 4)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("usual", "odd", "said"),
    [
        ((IMAGE, 1), (torch.zeros(3, 5, 4), 1), r"Items \d+ and \d+ do not fit into one batch at step \d.*collate"),
        ((IMAGE, 1), (IMAGE.byte(), 1), r"at step \d: .*(uint8\[3, 4, 4\].*float32\[3|float32.*uint8)"),
        ((IMAGE, 1), (IMAGE.numpy().tolist(), 1), r"Items \d+ and \d+ do not fit"),
        ({"x": IMAGE, "label": 0}, {"y": IMAGE, "label": 0}, r"\{x: float32\[3, 4, 4\], label: int\}"),
        ((IMAGE, 1), (IMAGE, 3), "Item 5 has label 3, and there are 3 classes, 0 to 2"),
        ((IMAGE, 1), (IMAGE, -1), "Item 5 has label -1, and there are 3 classes"),
    ],
)
def test_an_odd_item_is_named_in_one_line(usual: Any, odd: Any, said: str, workers: int) -> None:
    views = [[View(step)] for step in range(5)]
    with pytest.raises(UserError, match=said) as error:
        list(batches(DatasetStream(Odd(usual, odd), 4, 0, classes=3), views, workers))
    assert "\n" not in str(error.value)
    assert "Traceback" not in str(error.value)
    assert error.type is UserError


@pytest.mark.parametrize(
    ("item", "collate", "said"),
    [
        ((IMAGE, 0.5), None, r"Labels of 4 items must be as many whole numbers.*float64\[4\]"),
        ((IMAGE, "cat"), None, "must be as many whole numbers"),
        ((IMAGE, True), None, "must be as many whole numbers"),
        ((IMAGE, torch.tensor([1, 2])), None, r"whole numbers, or \[4, classes\] shares; got int64\[4, 2\]"),
        ((IMAGE, torch.tensor([0.5, 0.4, 0.2])), None, "no shares of classes that sum to one"),
        ((IMAGE, torch.tensor([0.5, 0.5])), None, r"must be \[4, 3\], got float32\[4, 2\]"),
        (IMAGE, None, r"A batch must be \(inputs, labels\).*got float32\[4, 3, 4, 4\]"),
        ({"x": IMAGE}, None, "A batch must be"),
        (("words", 1), None, "Inputs must be tensors, got .*leave the rest out in collate"),
        ((object(), 1), None, r"Items like \(object, int\) do not fit into a batch .*give collate"),
        ((IMAGE, 1), lambda items: (torch.zeros(3, 2), torch.ones(4).long()), "it must keep all of them"),
        ((IMAGE, 1), lambda items: (torch.zeros(4, 2), torch.ones(3).long()), "Labels of 4 items"),
    ],
)
def test_batches_nothing_can_learn_from_are_refused(item: Any, collate: Any, said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        DatasetStream(Odd(item, item), 4, 0, collate, classes=3).batch(0)
    assert "\n" not in str(error.value)


class Endless(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        yield IMAGE

    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize(
    ("dataset", "size", "said"),
    [
        (Pictures(None, count=0), 4, "The dataset has no items: its length is 0"),
        (Endless(), 4, "must be map-style, with __len__ and __getitem__.*got Endless"),
        (iter([1]), 4, "must be map-style"),
        (DataLoader(Pictures(None)), 4, "must be map-style.*got DataLoader"),
        (Pictures(None), 0, "batch_size must be at least 1, got 0"),
    ],
)
def test_datasets_without_batches_are_refused(dataset: Any, size: int, said: str) -> None:
    with pytest.raises(UserError, match=said):
        DatasetStream(dataset, size, 0)
    with pytest.raises(UserError, match="30 training items do not fill one batch of 31"):
        DatasetStream(Pictures(None), 31, 0, drop_last=True)
    with pytest.raises(
        UserError, match=r"The last batch of an epoch has 1 item\(s\) for 2 device.*data.drop_last=True"
    ):
        DatasetStream(Pictures(None), 29, 0, ranks=2)
    assert len(DatasetStream(Pictures(None), 29, 0).batch(1).labels) == 1


RAISES = "    raise Mistake"


class Mistake(Exception):
    """One of the user's own."""


def broken(_: Any) -> Any:
    raise Mistake


def test_the_users_own_exceptions_pass() -> None:
    for made in (DatasetStream(Pictures(broken), 4, 0), DatasetStream(Pictures(None), 4, 0, broken)):
        with pytest.raises(Mistake):
            made.batch(0)


@pytest.mark.parametrize("workers", [0, 1])
def test_in_a_run_they_are_one_line_with_the_item_the_place_and_the_step(workers: int) -> None:
    line = max(number for number, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text == RAISES)
    with pytest.raises(
        UserCodeError, match=rf"Item \d+ of .*:Pictures fails at step 3: Mistake .*py:{line}\)"
    ) as error:
        list(batches(DatasetStream(Pictures(broken), 4, 0), [[View(3)]], workers))
    cause = error.value.__cause__
    assert "raise Mistake" in str(cause) if workers else isinstance(cause, Mistake)
    with pytest.raises(UserCodeError, match="Collate .*:broken fails at step 0: Mistake"):
        list(batches(DatasetStream(Pictures(None), 4, 0, broken), [[View(0)]], workers))
