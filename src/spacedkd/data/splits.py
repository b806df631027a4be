"""The parts of a data set, ready to be trained on; which images are used for what is the same for every seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset

from spacedkd.config.spec import DataSpec
from spacedkd.data import transforms
from spacedkd.data.dataset import Collate, Items, check_map_style, form_of
from spacedkd.data.digest import Digest, count_repeated, digest_dataset, digest_items
from spacedkd.data.images import Encoded, Images, ImageSet
from spacedkd.data.inputs import DataInfo, Inputs, Normalisation, tensors
from spacedkd.data.pixel_cache import MEMORY_LIMIT, add_digests, load_images
from spacedkd.data.raw_dataset import RawDataset, check_test_split, classes_of
from spacedkd.data.stream import DatasetStream, Stream, TrainingStream
from spacedkd.data.transforms import Augmentation, BatchWise, Mix
from spacedkd.runtime.errors import UserError, pluralize
from spacedkd.runtime.processes import print_notice
from spacedkd.runtime.seeds import seed_for


@dataclass(frozen=True)
class RunData:
    """What a run learns from and is measured on: images, or the items of a pair of datasets."""

    train: Images | Encoded | Items
    test: Images | Encoded | Items
    holdout: Images | Encoded | Items | None = None
    """cut from the part to train on where one is asked for"""
    names: tuple[str, ...] = ()
    """of the classes, where the data says so"""
    labels: tuple[int | str, ...] = ()
    """as the data writes them, in the order of the classes; numbers if there are none"""
    notes: tuple[str, ...] = ()
    """what a user should know"""
    augmentation: Augmentation = BatchWise()
    """how images to train on are varied; datasets vary their items themselves"""
    mix: Mix | None = None
    digest: Digest = field(default_factory=dict)
    """tells it from other data of the same name"""
    repeated: Mapping[str, int | None] = field(default_factory=dict)
    """how many images of each part that is evaluated are training images as well; None where that is not known"""

    @cached_property
    def info(self) -> DataInfo:
        """What a network is built for."""
        if isinstance(self.train, Items):
            return DataInfo(self.test.inputs_and_labels(torch.arange(2) % len(self.test))[0], self.names)
        return DataInfo(self.train.inputs(torch.arange(2)), self.names, (self.train.mean, self.train.std))

    def samples(self) -> list[Inputs]:
        """Two inputs of those to train on and two of those to test on, nothing varied."""
        return [part.inputs_and_labels(torch.arange(2) % len(part))[0] for part in (self.train, self.test)]

    @property
    def mixed(self) -> bool:
        """Whether the stream mixes inputs and labels."""
        return self.mix is not None

    @property
    def count(self) -> int:
        """How many items there are to train on."""
        return len(self.train)

    def stream(
        self,
        batch_size: int,
        seed: int,
        drop_last: bool = False,
        label_smoothing: float = 0.0,
        rank: int = 0,
        ranks: int = 1,
    ) -> Stream:
        """The batches to train on; one rank's slice of each."""
        cut: Any = {"drop_last": drop_last, "label_smoothing": label_smoothing, "rank": rank, "ranks": ranks}
        if isinstance(self.train, Items):
            return DatasetStream(self.train, batch_size, seed, **cut)
        return TrainingStream(self.train, batch_size, seed, self.augmentation, mix=self.mix, **cut)

    def to(self, device: torch.device) -> RunData:
        """On a device as far as that helps: images in memory, unless they are varied one by one."""

        def moved(part: Images | Encoded | Items | None) -> Any:
            return part.to(device) if isinstance(part, Images) and part.instant else part

        train = moved(self.train) if isinstance(self.augmentation, BatchWise) else self.train
        return replace(self, train=train, test=moved(self.test), holdout=moved(self.holdout))

    def as_asked(self, spec: DataSpec) -> RunData:
        """Images with the holdout, the augmentation and the mixing of a filled-in spec."""
        assert isinstance(self.train, ImageSet)
        augmentation = transforms.build_augmentation(spec.augmentation or "", spec.augment, self.train.shape[1])
        mix = Mix(spec.mixup, spec.cutmix) if spec.mixup or spec.cutmix else None
        return replace(self, augmentation=augmentation, mix=mix).with_holdout(spec.holdout)

    def with_holdout(self, part: float) -> RunData:
        """With this part of the training images kept aside: the same for every seed, so that runs stay comparable."""
        if not part:
            return self
        count, order = len(self.train), _shuffled(len(self.train), "holdout")
        aside = round(count * part)
        if not 0 < aside < count:
            raise UserError(f"A holdout of {part:g} of {count} images leaves one side empty; choose another part.")
        kept, held = (self.train.subset(rows.sort().values) for rows in (order[aside:], order[:aside]))
        return replace(self, train=kept, holdout=held).with_repeated()

    def with_repeated(self) -> RunData:
        """With the number of images of each evaluated part that are training images as well."""
        return replace(
            self, repeated={name: count_repeated(self.train, part) for name, part in self.evaluated_splits().items()}
        )

    @property
    def repetitions(self) -> tuple[str, ...]:
        """A line for each evaluated part with training images in it."""
        return tuple(
            f"{count} of {len(self.evaluated_splits()[name])} {name} images are training images as well: accuracy on "
            "them says little about new images. Remove them from one of the two splits."
            for name, count in self.repeated.items()
            if count
        )

    def with_classes(self, count: int) -> RunData:
        """Items for a network that tells so many classes apart, which have numbers for names; labels are checked."""
        if self.names and len(self.names) != count:
            raise UserError(f"The network tells {count} classes apart, and the dataset has {len(self.names)} of them.")
        parts: dict[str, Any] = {"train": self.train} | self.evaluated_splits()
        checked = {name: replace(part, classes=count) for name, part in parts.items()}
        return replace(self, names=self.names or tuple(str(number) for number in range(count)), **checked)

    def evaluated_splits(self) -> dict[str, Images | Encoded | Items]:
        """The parts accuracy is measured on: test, and holdout if one was asked for."""
        return {"test": self.test} | ({} if self.holdout is None else {"holdout": self.holdout})

    def describe(self) -> dict[str, Any]:
        """As JSON: classes with their numbers and labels, how many items there are, what was noted, a digest."""
        names = self.info.classes
        pairs = zip(names, self.labels or range(len(names)), strict=True)
        return {
            "classes": [{"number": n, "name": name, "label": label} for n, (name, label) in enumerate(pairs)],
            "items": {name: len(part) for name, part in ({"train": self.train} | self.evaluated_splits()).items()},
            "notes": [*self.notes, *self.repetitions],
            "digest": self.digest,
            "repeated": {name: count for name, count in self.repeated.items() if count is not None},
        }


def from_datasets(pair: Sequence[Any], collate: Collate | None = None, holdout: float = 0.0) -> RunData:
    """A pair (train, test) of map-style datasets, checked; a holdout is shown as the first one's transforms make it."""
    train, test, names = check_pair(pair, collate)
    data = RunData(train, test, names=names, digest=digest_items(train, test)).with_repeated().with_holdout(holdout)
    for line in data.repetitions:
        print_notice(line)
    return data


def load_splits(found: RawDataset, spec: DataSpec, memory_limit: int = MEMORY_LIMIT) -> RunData:
    """What was found, cut into parts and kept as a filled-in spec asks for; nothing is varied yet."""
    check_test_split(found, spec)
    every = classes_of(found)
    labels = test_labels = every.number(found.train)
    rows = torch.arange(len(labels))
    if spec.test_part is not None:
        rows, test_rows = split_off_test(labels, spec.test_part, every.names)
    if found.test is not None:
        test_labels = every.number(found.test)
        test_rows = torch.arange(len(test_labels))
    classes = every.first(spec.class_limit)
    rows, test_rows = rows[labels[rows] < len(classes.names)], test_rows[test_labels[test_rows] < len(classes.names)]
    rows = rows[evenly_by_class(labels[rows], spec.train_limit, len(classes.names))]
    train, note = load_images(found.train, rows, labels, spec, memory_limit)
    test, test_note = load_images(found.test or found.train, test_rows, test_labels, spec, memory_limit)
    if type(train) is not type(test):  # pixels cannot be compared with bytes: bytes with bytes
        train, test = add_digests(train, found.train, rows), add_digests(test, found.test or found.train, test_rows)
    mean, std = transforms.get_augmentation(spec.augmentation or "").constants or measure_normalisation(train)
    known: Any = {"classes": classes.names, "mean": mean, "std": std}
    notes = tuple(line for line in (*found.notes, classes.note, note, test_note) if line)
    ready = replace(train, **known), replace(test, **known)
    return RunData(*ready, None, classes.names, classes.labels, notes, digest=digest_dataset(found)).with_repeated()


def measure_normalisation(images: Images | Encoded) -> Normalisation:
    """Mean and deviation of each channel, of pixels in 0 .. 1; ImageNet's, where all would have to be decoded."""
    if isinstance(images, Encoded):
        return transforms.IMAGENET
    levels = torch.arange(256, dtype=torch.float64) / 255  # exact, from a histogram of the bytes
    channels = images.pixels.unbind(1)
    counts = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in channels]).double()
    share = counts / counts.sum(1, keepdim=True)
    mean = share @ levels
    std = (share @ levels.square() - mean.square()).clamp(min=0).sqrt()
    return tuple(mean.tolist()), tuple(std.clamp(min=1 / 255).tolist())


def evenly_by_class(labels: Tensor, limit: int | None, classes: int) -> Tensor:
    """The rows of the first `limit` images, counted round the classes; all rows without a limit."""
    if limit is None:
        return torch.arange(len(labels))
    if not classes <= limit <= len(labels):
        raise UserError(f"train_limit must be from {classes} (one a class) to {len(labels)} (all images), got {limit}.")
    return torch.argsort(_earlier_of_same_class(labels), stable=True)[:limit].sort().values


def _earlier_of_same_class(labels: Tensor) -> Tensor:
    """How many images of its own class come before each image: sorting by that deals the classes out in rounds."""
    order = torch.argsort(labels, stable=True)
    counts = torch.bincount(labels)
    starts = (counts.cumsum(0) - counts)[labels[order]]
    return torch.empty_like(labels).scatter_(0, order, torch.arange(len(labels)) - starts)


def split_off_test(labels: Tensor, part: float, names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Rows to train on and rows to test on, with this part of every class; a class that has too few is named."""
    order = _shuffled(len(labels), "test part")
    earlier = torch.empty_like(labels).scatter_(0, order, _earlier_of_same_class(labels[order]))
    counts = torch.bincount(labels)
    quota = (counts * part).round().long()
    testing = earlier < quota[labels]
    short = ((quota < 1) | (quota >= counts)).nonzero().flatten().tolist()
    if short:
        fewest = min(short, key=lambda number: int(counts[number]))
        more = f" So it is with {len(short) - 1} more." if len(short) > 1 else ""
        raise UserError(
            f"Class {names[fewest]} has {pluralize(int(counts[fewest]), 'image')}, and a test_part "
            f"of {part:g} would leave none of them in one part: add images to it, or choose another part.{more}"
        )
    return (~testing).nonzero().flatten(), testing.nonzero().flatten()


def _shuffled(count: int, what: str) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed_for(0, what)))


TRIED = 8


"""items that are asked for twice before a run begins"""


def check_pair(pair: Sequence[Any], collate: Collate | None) -> tuple[Items, Items, tuple[str, ...]]:
    """The items to train on and to test on, and the names of their classes where the datasets say so."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise UserError(f"data must be a pair of torch datasets, (train, test); got {form_of(pair)}.")
    for what, dataset in zip(("training", "test"), pair, strict=True):
        check_map_style(dataset, f"The {what} dataset")
    if pair[0] is pair[1]:
        raise UserError("The same dataset cannot be trained on and tested on: give a pair (train, test) of two.")
    names, others = (_class_names(dataset) for dataset in pair)
    if names and others and names != others:
        raise UserError(f"The two datasets have different classes: {_first_that_differs(names, others)}.")
    train, test = (Items(d, torch.arange(len(d)), collate, len(names or others) or None) for d in pair)
    _check_repeats("training", train)
    _check_repeats("test", test)
    return train, test, names or others


def _class_names(dataset: object) -> tuple[str, ...]:
    """torchvision's convention: `classes` lists the names."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    found = getattr(dataset, "classes", None)
    return tuple(str(name) for name in found) if isinstance(found, list | tuple) else ()


def _first_that_differs(names: Sequence[str], others: Sequence[str]) -> str:
    if len(names) != len(others):
        return f"{len(names)} to train on and {len(others)} to test on"
    number = next(n for n, (one, other) in enumerate(zip(names, others, strict=True)) if one != other)
    return f"number {number} is {names[number]} to train on and {others[number]} to test on"


def _check_repeats(what: str, part: Items) -> None:
    """A dataset with a generator of its own cannot be seeded, so its replays would differ."""
    rows = torch.linspace(0, len(part) - 1, min(TRIED, len(part))).long()
    (once, labels), (again, others) = (part.inputs_and_labels(rows) for _ in range(2))
    for one, other in zip((*tensors(once), labels), (*tensors(again), others), strict=True):
        if one.shape != other.shape or not ((one == other) | ((one != one) & (other != other))).all():
            raise UserError(
                f"The {what} dataset gives other items when it is asked again with the same seeds: let its transforms "
                "draw from the global generators of torch, numpy or random, and from none of their own."
            )
