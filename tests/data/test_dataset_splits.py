"""A pair of torch datasets as the data of a run."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset, random_split

from spacedkd import DataSpec, UserError
from spacedkd.data.inputs import row_count, tensors
from spacedkd.data.run_data import RunData, from_datasets
from spacedkd.data.sources import load
from spacedkd.data.stream import evaluation_batches
from tests.data.own_datasets import CLASSES, KINDS, Named, Pictures, Sentences, bits, jitter, padded


def points(rows: int, seed: int = 0, classes: int = 4) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.rand(rows, 3, generator=generator), torch.arange(rows) % classes)


class WithClasses(Pictures):
    def __init__(self, *classes: str) -> None:
        super().__init__(None)
        self.classes = list(classes)


def test_both_kinds_of_data_are_asked_in_one_way() -> None:
    both: list[RunData] = [
        load(DataSpec("digits", holdout=0.25)),
        from_datasets((points(40), points(12, 1)), holdout=0.25),
    ]
    sizes = {"test": 898, "holdout": 225}, {"test": 12, "holdout": 10}
    for data, classes, parts in zip(both, (10, 0), sizes, strict=True):
        assert {name: len(part) for name, part in data.evaluated_splits().items()} == parts
        assert len(data.evaluated_splits()["test"].subset(torch.arange(5))) == 5
        assert row_count(data.info.sample) == 2
        assert len(data.info.classes) == classes
        stream = data.stream(10, 0, drop_last=True, rank=1, ranks=2)
        assert stream.steps_per_epoch == data.count // 10
        assert len(stream.batch(0).labels) == 5
        assert not data.mixed
        assert data.to(torch.device("cpu")).count == data.count
        described = json.loads(json.dumps(data.describe()))
        assert described["items"] == {"train": data.count, **parts}
        assert len(described["classes"]) == classes
    assert load(DataSpec("digits", mixup=0.2)).mixed
    assert both[0].info.normalisation is not None


def test_evaluation_shows_every_item_once_and_the_same_each_time() -> None:
    for name, (dataset, collate) in KINDS.items():
        data = from_datasets((dataset, Subset(dataset, range(3, 24))), collate)
        runs = [list(evaluation_batches(data.test, 6, workers)) for workers in (0, 0, 2)]
        assert torch.cat([batch.indices for batch in runs[0]]).tolist() == list(range(21)), name
        assert torch.cat([batch.labels for batch in runs[0]]).tolist() == [row % CLASSES for row in range(3, 24)]
        assert [[bits(batch) for batch in run] for run in runs[1:]] == [[bits(batch) for batch in runs[0]]] * 2
    whole = next(evaluation_batches(data.test, 21))
    some = next(evaluation_batches(data.test.subset(torch.tensor([4, 11])), 2))  # as a rank sees them
    for one, other in zip(tensors(some.inputs), tensors(whole.inputs), strict=True):
        assert torch.equal(one, other[[4, 11]])


def test_a_holdout_is_cut_from_the_training_items() -> None:
    train = points(40)
    data = from_datasets((train, points(8, 1)), holdout=0.25)
    kept = torch.cat([x for step in range(3) for x in tensors(data.stream(10, 0).batch(step).inputs)])
    aside = torch.cat(
        [x for batch in evaluation_batches(data.evaluated_splits()["holdout"], 4) for x in tensors(batch.inputs)]
    )
    assert len(aside) == 10
    assert torch.equal(torch.cat([kept, aside]).sort(0).values, train.tensors[0].sort(0).values)
    indices = torch.cat([data.stream(10, 0).batch(step).indices for step in range(3)])
    assert indices.sort().values.tolist() == list(range(30))  # places in what is trained on, as banks need them


def test_an_odd_label_is_named_by_its_place_in_the_dataset() -> None:
    x, y = points(40).tensors
    y[17] = 9
    data = from_datasets((TensorDataset(x, y), points(8, 1)), holdout=0.25).with_classes(4)
    with pytest.raises(UserError, match="Item 17 has label 9, and there are 4 classes"):
        [
            *(data.stream(10, 0).batch(step) for step in range(3)),
            *evaluation_batches(data.evaluated_splits()["holdout"], 10),
        ]


def test_classes_have_names_where_a_dataset_says_so() -> None:
    names = ("ant", "bee", "cat", "dog", "emu")
    train, test = WithClasses(*names), WithClasses(*names)
    for pair in ((train, test), random_split(train, [20, 10]), (Pictures(None), test)):
        data = from_datasets(pair)
        assert data.info.classes == names
        assert data.describe()["classes"][1] == {"number": 1, "name": "bee", "label": 1}
        assert data.with_classes(5).info.classes == names
        with pytest.raises(UserError, match="7 classes, and the dataset has 5"):
            data.with_classes(7)
    with pytest.raises(UserError, match="number 4 is emu to train on and fox to test on"):
        from_datasets((train, WithClasses("ant", "bee", "cat", "dog", "fox")))
    with pytest.raises(UserError, match="5 to train on and 1 to test on"):
        from_datasets((train, WithClasses("ant")))
    with pytest.raises(UserError, match=r"Item \d+ has label 4, and there are 4 classes"):
        from_datasets((WithClasses(*names[:4]), Pictures(None)))


def test_without_names_the_network_says_how_many_classes_there_are() -> None:
    data = from_datasets((Named(), Sentences()), lambda items: padded(items) if len(items[0]) == 2 else named(items))
    assert data.info.classes == ()
    told = data.with_classes(6)
    assert told.info.classes == ("0", "1", "2", "3", "4", "5")
    assert told.stream(8, 0, label_smoothing=0.1).batch(0).labels.shape == (8, 6)
    with pytest.raises(UserError, match=r"Item \d+ has label 4, and there are 4 classes"):
        [data.with_classes(4).stream(8, 0).batch(step) for step in range(4)]


def named(items: list[dict[str, Any]]) -> dict[str, Tensor]:
    tokens = torch.stack([item["tokens"] for item in items])
    return {"tokens": tokens, "labels": torch.tensor([item["labels"] for item in items])}


def test_the_sample_is_what_is_shown_in_evaluation() -> None:
    data = from_datasets((Pictures(jitter()), Subset(Pictures(None), [7])))
    assert torch.equal(data.info.sample, torch.stack([Pictures(None)[7][0]] * 2))


class OwnGenerator(Pictures):
    """Draws from a generator nobody can seed."""

    def __init__(self) -> None:
        super().__init__(None)
        self.random = np.random.default_rng(0)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        image, label = super().__getitem__(row)
        return image + float(self.random.random()), label


class WithNaN(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return torch.full((2,), float("nan")), row % 2


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        (points(8), r"data must be a pair of torch datasets, \(train, test\); got TensorDataset"),
        ((points(8),), "must be a pair"),
        ((points(8), points(8), points(8)), "must be a pair"),
        ("ab", "must be a pair of torch datasets.*got str"),
        ((points(8), None), "The test dataset must be map-style.*got NoneType"),
        ((iter([]), points(8)), "The training dataset must be map-style"),
        ((points(8), points(0)), "The test dataset has no items"),
        ((OwnGenerator(), points(8)), "The training dataset gives other items when it is read again.*none of their"),
        ((Sentences(), points(8)), "Items 0 and 4 do not fit into one batch in evaluation"),
    ],
)
def test_pairs_that_cannot_be_used_are_refused(pair: Any, said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        from_datasets(pair)
    assert "\n" not in str(error.value)


def test_one_dataset_is_not_trained_on_and_tested_on() -> None:
    same = points(8)
    with pytest.raises(UserError, match="The same dataset cannot be trained on and tested on"):
        from_datasets((same, same))
    with pytest.raises(UserError, match="holdout of 0.01 of 8 images leaves one side empty"):
        from_datasets((same, points(8)), holdout=0.01)


def test_missing_values_are_no_chance() -> None:
    assert isinstance(from_datasets((WithNaN(), points(8))), RunData)
