"""The data of a run: what it trains on, what it is evaluated on, and how both are cut from a dataset.

The splits do not depend on the seed of a run, so that runs stay comparable. A digest shows whether the data of a name
has changed. It is made of the names, sizes and labels of all images and of the
contents of some of them, so that a million files take seconds.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor
from torch.utils.data import Subset

from spacedkd.config.spec import DataSpec
from spacedkd.data import launch_cache, transforms
from spacedkd.data.dataset import Collate, Items, check_map_style, describe_form
from spacedkd.data.images import BadImage, Encoded, ImageColumn, Images, ImageSet, Signals, file_stats
from spacedkd.data.inputs import DataInfo, Inputs, Normalisation, tensors
from spacedkd.data.pixel_cache import MEMORY_LIMIT, add_digests, load_images
from spacedkd.data.reader import Classes, RawDataset, RawSplit, check_test_split
from spacedkd.data.stream import DatasetStream, Stream, TrainingStream
from spacedkd.data.transforms import Augmentation, BatchWise, Mix
from spacedkd.runtime.documents import parse_json
from spacedkd.runtime.errors import UserError, pluralize
from spacedkd.runtime.processes import print_notice
from spacedkd.runtime.seeds import seed_for
from spacedkd.task import CLASSIFICATION, Task


@dataclass(frozen=True)
class RunData:
    """The data of a run: its splits, as images or as items of a user's datasets, and the training augmentation."""

    train: Images | Encoded | Items
    test: Images | Encoded | Items
    holdout: Images | Encoded | Items | None = None
    """cut from the training split where the user asks for one"""
    class_names: tuple[str, ...] = ()
    """empty where the dataset has none"""
    class_labels: tuple[int | str, ...] = ()
    """the labels of the classes as the dataset has them; empty if they are the numbers of the classes"""
    notes: tuple[str, ...] = ()
    """sentences for the user"""
    augmentation: Augmentation = BatchWise()
    """augmentation of training images; users' datasets augment their items themselves"""
    mix: Mix | None = None
    """mixup and cutmix of training images"""
    digest: Digest = field(default_factory=dict)
    """tells this data from other data of the same name"""
    repeated: Mapping[str, int | None] = field(default_factory=dict)
    """number of images of each evaluated split that are training images as well; None where that is not known"""
    task: Task = CLASSIFICATION
    """what the labels are"""
    label_noise: float = 0.0
    """this part of the labels in `train` is wrong on purpose"""

    @cached_property
    def info(self) -> DataInfo:
        """Facts of the data that a network is built from."""
        if isinstance(self.train, Items):
            sample, _ = self.test.inputs_and_labels(torch.arange(2) % len(self.test))
            return DataInfo(sample, self.class_names, task=self.task)
        normalisation = None if isinstance(self.train, Signals) else (self.train.mean, self.train.std)
        return DataInfo(self.train.inputs(torch.arange(2)), self.class_names, normalisation)

    def samples(self) -> list[Inputs]:
        """Return two training inputs and two test inputs, without augmentation."""
        return [split.inputs_and_labels(torch.arange(2) % len(split))[0] for split in (self.train, self.test)]

    @property
    def instant(self) -> bool:
        """Whether a training batch is a look-up in memory, so that workers would only cost time."""
        return self.train.instant and isinstance(self.augmentation, BatchWise)

    @property
    def mixed(self) -> bool:
        """Whether the stream mixes inputs and labels."""
        return self.mix is not None

    @property
    def count(self) -> int:
        """The number of items in the training split."""
        return len(self.train)

    def stream(
        self,
        batch_size: int,
        seed: int,
        *,
        drop_last: bool = False,
        label_smoothing: float = 0.0,
        rank: int = 0,
        ranks: int = 1,
    ) -> Stream:
        """Return the stream of training batches; of several ranks, one rank's slice of each."""
        options: Any = {"drop_last": drop_last, "label_smoothing": label_smoothing, "rank": rank, "ranks": ranks}
        if isinstance(self.train, Items):
            return DatasetStream(self.train, batch_size, seed, **options)
        return TrainingStream(self.train, batch_size, seed, self.augmentation, mix=self.mix, **options)

    def to(self, device: torch.device) -> RunData:
        """Return the data on a device as far as that helps: images in memory, unless they are varied one by one."""

        def move(split: Images | Encoded | Items | None) -> Any:
            return split.to(device) if isinstance(split, Images) and split.instant else split

        train = move(self.train) if isinstance(self.augmentation, BatchWise) else self.train
        return replace(self, train=train, test=move(self.test), holdout=move(self.holdout))

    def with_spec(self, spec: DataSpec) -> RunData:
        """Return the images with the augmentation, mixup, cutmix and holdout of a resolved spec."""
        assert isinstance(self.train, ImageSet)
        augmentation: Augmentation = BatchWise()
        if not isinstance(self.train, Signals):
            augmentation = transforms.build_augmentation(spec.augmentation or "", spec.augment, self.train.shape[1])
        mix = Mix(spec.mixup, spec.cutmix) if spec.mixup or spec.cutmix else None
        varied = replace(self, augmentation=augmentation, mix=mix)
        return varied.with_holdout(spec.holdout).with_label_noise(spec.label_noise)

    def with_holdout(self, part: float) -> RunData:
        """Return the data with this part of the training images held out, the same images for every seed."""
        if not part:
            return self
        count, order = len(self.train), _permutation(len(self.train), "holdout")
        held_out = round(count * part)
        if not 0 < held_out < count:
            raise UserError(f"A holdout of {part:g} of {count} images leaves one side empty; choose another part.")
        train, holdout = (self.train.subset(rows.sort().values) for rows in (order[held_out:], order[:held_out]))
        return replace(self, train=train, holdout=holdout).with_repeated()

    def with_label_noise(self, part: float) -> RunData:
        """Return the data with this part of the training labels replaced by other classes; see `label_shifts`.

        Test labels and held-out ones are not changed. The digest covers the changed labels.
        """
        if not part:
            return self
        train: Images | Encoded | Items
        if isinstance(self.train, Items):  # whose labels are known only when an item is loaded: one class for all
            rows = self.train.rows
            shifts = label_shifts(torch.zeros_like(rows), rows, len(self.class_names), part)
            every_row = torch.zeros(len(self.train.dataset), dtype=torch.int64)
            train = replace(self.train, shift=every_row.index_put((rows,), shifts))
            train.inputs_and_labels(torch.arange(1))  # refuses labels that are shares before anything is trained
            noise = _digest_values(shifts.tolist())
        else:
            labels, classes = self.train.labels, len(self.train.classes)
            rows = torch.arange(len(labels)) if self.train.rows is None else self.train.rows
            shifts = label_shifts(labels, rows, classes, part)
            train = replace(self.train, labels=(labels + shifts) % classes)
            noise = _digest_values(train.labels.tolist())
        wrong = int(shifts.count_nonzero())
        note = f"{wrong} of {len(train)} training labels are wrong on purpose (label_noise {part:g})."
        digest = {**self.digest, "training": {**self.digest.get("training", {}), "label noise": noise}}
        return replace(self, train=train, label_noise=part, notes=(*self.notes, note), digest=digest)

    def with_repeated(self) -> RunData:
        """Return the data with `repeated` counted."""
        splits = self.evaluated_splits()
        return replace(self, repeated={name: count_repeated(self.train, split) for name, split in splits.items()})

    @property
    def repeated_notes(self) -> tuple[str, ...]:
        """A sentence for each evaluated split with training images in it."""
        return tuple(
            f"{count} of {len(self.evaluated_splits()[name])} {name} images are training images as well: accuracy on "
            "them says little about new images. Remove them from one of the two splits."
            for name, count in self.repeated.items()
            if count
        )

    def with_classes(self, count: int) -> RunData:
        """Return the items for a network with `count` classes, to which labels are then checked to belong."""
        if self.class_names and len(self.class_names) != count:
            raise UserError(f"The network has {count} classes, and the dataset has {len(self.class_names)} of them.")
        splits: dict[str, Any] = {"train": self.train} | self.evaluated_splits()
        checked = {name: replace(split, classes=count) for name, split in splits.items()}
        return replace(self, class_names=self.class_names or tuple(str(number) for number in range(count)), **checked)

    def evaluated_splits(self) -> dict[str, Images | Encoded | Items]:
        """Return the splits that accuracy is measured on, by name: test, and holdout if there is one."""
        return {"test": self.test} | ({} if self.holdout is None else {"holdout": self.holdout})

    def describe(self) -> dict[str, Any]:
        """Return the content of classes.json: classes with their numbers and labels, counts, notes, and the digest."""
        names = self.info.classes
        pairs = zip(names, self.class_labels or range(len(names)), strict=True)
        return {
            "classes": [{"number": n, "name": name, "label": label} for n, (name, label) in enumerate(pairs)],
            "items": {name: len(split) for name, split in ({"train": self.train} | self.evaluated_splits()).items()},
            "notes": [*self.notes, *self.repeated_notes],
            "digest": self.digest,
            "repeated": {name: count for name, count in self.repeated.items() if count is not None},
        }


def from_datasets(
    pair: Sequence[Any], collate: Collate | None = None, holdout: float = 0.0, task: Task = CLASSIFICATION
) -> RunData:
    """Return the data of a pair (train, test) of map-style datasets, checked.

    A holdout is cut from the training dataset, and has its transforms.
    """
    train, test, names = check_pair(pair, collate, task)
    digest = digest_items(train, test)
    data = RunData(train, test, class_names=names, digest=digest, task=task).with_repeated().with_holdout(holdout)
    for line in data.repeated_notes:
        print_notice(line)
    return data


def load_splits(raw: RawDataset, spec: DataSpec, memory_limit: int = MEMORY_LIMIT) -> RunData:
    """Return the images of a dataset, cut into splits as a resolved spec says; without holdout and augmentation yet."""
    check_test_split(raw, spec)
    all_classes = Classes.of(raw)
    train_labels = test_labels = all_classes.numbers(raw.train)
    train_rows = torch.arange(len(train_labels))
    if spec.test_part is not None:
        train_rows, test_rows = split_off_test(train_labels, spec.test_part, all_classes.names)
    if raw.test is not None:
        test_labels = all_classes.numbers(raw.test)
        test_rows = torch.arange(len(test_labels))
    classes = all_classes.first(spec.class_limit)
    train_rows = train_rows[train_labels[train_rows] < len(classes.names)]
    test_rows = test_rows[test_labels[test_rows] < len(classes.names)]
    train_rows = train_rows[evenly_by_class(train_labels[train_rows], spec.train_limit, len(classes.names))]
    raw_test = raw.test or raw.train
    train, train_note = load_images(raw.train, train_rows, train_labels, spec, memory_limit)
    test, test_note = load_images(raw_test, test_rows, test_labels, spec, memory_limit)
    if type(train) is not type(test):  # pixels cannot be compared with encoded bytes, so bytes are with bytes
        train, test = add_digests(train, raw.train, train_rows), add_digests(test, raw_test, test_rows)
    mean, std = ((), ()) if isinstance(train, Signals) else _normalisation(train, spec)
    return RunData(
        train=replace(train, classes=classes.names, mean=mean, std=std),
        test=replace(test, classes=classes.names, mean=mean, std=std),
        class_names=classes.names,
        class_labels=classes.labels,
        notes=tuple(note for note in (*raw.notes, classes.note, train_note, test_note) if note),
        digest=digest_dataset(raw),
    ).with_repeated()


def _normalisation(train: Images | Encoded, spec: DataSpec) -> Normalisation:
    return transforms.get_augmentation(spec.augmentation or "").normalisation or measure_normalisation(train)


def measure_normalisation(images: Images | Encoded) -> Normalisation:
    """Return mean and standard deviation of each channel, of pixels in 0 .. 1; ImageNet's for encoded images."""
    if isinstance(images, Encoded):
        return transforms.IMAGENET  # all images would have to be decoded
    levels = torch.arange(256, dtype=torch.float64) / 255  # exact, from a histogram of the bytes
    channels = images.pixels.unbind(1)
    counts = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in channels]).double()
    share = counts / counts.sum(1, keepdim=True)
    mean = share @ levels
    std = (share @ levels.square() - mean.square()).clamp(min=0).sqrt()
    return tuple(mean.tolist()), tuple(std.clamp(min=1 / 255).tolist())


# Which rows are used for what


def evenly_by_class(labels: Tensor, limit: int | None, classes: int) -> Tensor:
    """Return `limit` rows with nearly equally many of each class, the first ones of each; all rows if None."""
    if limit is None:
        return torch.arange(len(labels))
    if not classes <= limit <= len(labels):
        raise UserError(f"train_limit must be from {classes} (one a class) to {len(labels)} (all images), got {limit}.")
    return torch.argsort(_rank_in_class(labels), stable=True)[:limit].sort().values


def _rank_in_class(labels: Tensor) -> Tensor:
    """Return for each image how many images of its own class come before it; sorting by that alternates classes."""
    order = torch.argsort(labels, stable=True)
    counts = torch.bincount(labels)
    starts = (counts.cumsum(0) - counts)[labels[order]]
    return torch.empty_like(labels).scatter_(0, order, torch.arange(len(labels)) - starts)


def split_off_test(labels: Tensor, part: float, names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return training rows and test rows, with this part of every class for testing; refuse a class with too few."""
    order = _permutation(len(labels), "test part")
    ranks = torch.empty_like(labels).scatter_(0, order, _rank_in_class(labels[order]))
    counts = torch.bincount(labels)
    quota = (counts * part).round().long()
    is_test = ranks < quota[labels]
    too_small = ((quota < 1) | (quota >= counts)).nonzero().flatten().tolist()
    if too_small:
        fewest = min(too_small, key=lambda number: int(counts[number]))
        more = f" The same holds for {len(too_small) - 1} more." if len(too_small) > 1 else ""
        raise UserError(
            f"Class {names[fewest]} has {pluralize(int(counts[fewest]), 'image')}, and a test_part "
            f"of {part:g} would leave none of them in one split: add images to it, or choose another part.{more}"
        )
    return (~is_test).nonzero().flatten(), is_test.nonzero().flatten()


def _permutation(count: int, purpose: str) -> Tensor:
    """Return a permutation that depends on its purpose alone, and not on the seed of a run."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed_for(0, purpose)))


# Label noise


def label_shifts(labels: Tensor, rows: Tensor, classes: int, part: float) -> Tensor:
    """Return what is added to each label, modulo the number of classes: 0 for a label that stays, [N] int64.

    The noise is symmetric: the labels to replace and their new classes are drawn uniformly, and belong to the data. Two
    numbers are drawn for every row of the dataset, from a fixed seed: its place in a queue, and the class that would
    replace its own. Of n labels of a class, the first ones in the queue are replaced; in all round(part * n) are wrong,
    spread evenly over the classes. So

        every seed, schedule, process and worker    sees the same wrong labels
        a larger part                               keeps the wrong labels of a smaller one, but for rounding
        fewer training images                       have nearly the same wrong labels among them

    labels     [N] int64, the true classes
    rows       [N] int64, the rows of the dataset that these items are
    classes    the number of classes
    part       the part of the labels to replace, from 0 to less than 1

    >>> labels = torch.arange(3).repeat(20)
    >>> shifts = label_shifts(labels, torch.arange(60), classes=3, part=0.2)
    >>> int(shifts.count_nonzero()), labels[shifts > 0].bincount().tolist()
    (12, [4, 4, 4])
    """
    count = int(rows.max()) + 1
    # Legacy generators: numpy promises their streams for good, and a longer draw begins with the shorter one.
    queue, other = (_noise_generator(purpose).random_sample(count)[rows.numpy()] for purpose in ("queue", "class"))
    shifts = 1 + torch.from_numpy((other * (classes - 1)).astype(np.int64))
    order = torch.from_numpy(np.lexsort((queue, labels.numpy())))  # by class, then by place in the queue
    counts = torch.bincount(labels)
    starts = (counts.cumsum(0) - counts)[labels[order]]
    ranks = torch.empty_like(labels).scatter_(0, order, torch.arange(len(labels)) - starts)
    return torch.where(ranks < _noise_quotas(counts, part)[labels], shifts, 0)


def _noise_generator(purpose: str) -> np.random.RandomState:
    seed = seed_for(0, "label noise", purpose)
    return np.random.RandomState([seed >> 32, seed & 0xFFFFFFFF])


def _noise_quotas(counts: Tensor, part: float) -> Tensor:
    """Return how many labels of each class are replaced: its share rounded down, the rest by largest remainders."""
    shares = counts.double() * part
    quotas = shares.floor().long()
    rest = round(int(counts.sum()) * part) - int(quotas.sum())
    quotas[torch.argsort(shares - quotas, descending=True, stable=True)[:rest]] += 1
    return quotas


# A user's datasets

COMPARED_ITEMS = 8
"""items that are loaded twice before a run begins"""


def check_pair(
    pair: Sequence[Any], collate: Collate | None, task: Task = CLASSIFICATION
) -> tuple[Items, Items, tuple[str, ...]]:
    """Return the items of a pair (train, test) of datasets, and the names of the classes where they have some.

    Refuses what is no pair of map-style datasets, different classes, and items that differ when loaded again.
    """
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise UserError(f"data must be a pair of torch datasets, (train, test); got {describe_form(pair)}.")
    for name, dataset in zip(("training", "test"), pair, strict=True):
        check_map_style(dataset, f"The {name} dataset")
    if pair[0] is pair[1]:
        raise UserError("The same dataset cannot be trained on and tested on: give a pair (train, test) of two.")
    train_names, test_names = (_class_names(dataset) for dataset in pair)
    if train_names and test_names and train_names != test_names:
        difference = _first_difference(train_names, test_names)
        raise UserError(f"The two datasets have different classes: {difference}.")
    class_names = train_names or test_names
    classes = len(class_names) or None
    train, test = (Items(dataset, torch.arange(len(dataset)), collate, classes, task) for dataset in pair)
    _check_repeatable("training", train)
    _check_repeatable("test", test)
    return train, test, class_names


def _class_names(dataset: object) -> tuple[str, ...]:
    """Return the names in `classes`, torchvision's convention; empty where a dataset has none."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    names = getattr(dataset, "classes", None)
    return tuple(str(name) for name in names) if isinstance(names, list | tuple) else ()


def _first_difference(train: Sequence[str], test: Sequence[str]) -> str:
    if len(train) != len(test):
        return f"{len(train)} to train on and {len(test)} to test on"
    number = next(number for number in range(len(train)) if train[number] != test[number])
    return f"number {number} is {train[number]} to train on and {test[number]} to test on"


def _check_repeatable(name: str, items: Items) -> None:
    """Refuse a dataset with a generator of its own: it cannot be seeded, so its replays would differ."""
    rows = torch.linspace(0, len(items) - 1, min(COMPARED_ITEMS, len(items))).long()
    (first, first_labels), (second, second_labels) = (items.inputs_and_labels(rows) for _ in range(2))
    for a, b in zip((*tensors(first), first_labels), (*tensors(second), second_labels), strict=True):
        if a.shape != b.shape or not ((a == b) | ((a != a) & (b != b))).all():  # NaN is equal to NaN here
            raise UserError(
                f"The {name} dataset gives other items when it is read again with the same seeds: let its transforms "
                "draw from the global generators of torch, numpy or random, and from none of their own."
            )


# Digests, and images that occur twice


SAMPLED_IMAGES = 256
"""images whose contents are read"""
SAMPLED_ITEMS = 8
"""items of a user's dataset whose labels are read"""
SAMPLED_PIXELS = 64
"""pixels that are compared before all pixels of an image are"""

Digest = Mapping[str, Mapping[str, int | str]]
"""split -> number of images, and a digest each of their names, labels and contents"""
_DIFFERENCES = {
    "names": "names, or another order",
    "labels": "labels",
    "contents": "contents",
    "label noise": "wrong labels",
}


def digest_dataset(raw: RawDataset) -> Digest:
    """Return the digest of all images of a dataset, whichever of them a run uses.

    One process of a run computes it for all others on its machine.
    """
    splits = {"training": raw.train} | ({} if raw.test is None else {"test": raw.test})

    def compute() -> dict[str, np.ndarray]:
        digest = {name: _digest_split(split, raw.location) for name, split in splits.items()}
        return {"digest": np.array(json.dumps(digest))}

    digest: Digest = parse_json(
        str(launch_cache.compute_once(f"digest of {raw.location}", compute)["digest"]), "a digest"
    )
    return digest


def digest_items(train: Items, test: Items) -> Digest:
    """Return the digest of a user's datasets: how many items they have, and the labels of a few."""
    return {name: _digest_some_items(items) for name, items in (("training", train), ("test", test))}


def describe_difference(before: Digest, now: Digest) -> str | None:
    """Return the first difference of two digests as the end of a sentence; None if they are equal."""
    for split in {**before, **now}:
        old, new = before.get(split), now.get(split)
        if old is None or new is None:
            return f"its {split} images are {'new' if old is None else 'gone'}"
        if old.get("images") != new.get("images"):
            return f"it had {old.get('images')} {split} images, and has {new.get('images')}"
        for key, words in _DIFFERENCES.items():
            if old.get(key) != new.get(key):
                return f"its {split} images have other {words}"
    return None


def count_repeated(train: Images | Encoded | Items, other: Images | Encoded | Items) -> int | None:
    """Count the images of another split that are training images as well; None where that is not known.

    Images in memory are the same if all pixels are; where a split stays encoded, if all bytes are. Nothing is decoded
    for it. Of a user's datasets it is known where both are `Subset`s of one dataset.
    """
    if isinstance(train, Items) and isinstance(other, Items):
        return _count_repeated_items(train, other)
    if isinstance(train, Images) and isinstance(other, Images):
        return _count_repeated_pixels(train.pixels, other.pixels)
    if isinstance(train, Items) or isinstance(other, Items) or train.digests is None or other.digests is None:
        return None
    return int(np.isin(other.digests, train.digests).sum())


def _count_repeated_pixels(train: Tensor, other: Tensor) -> int:
    """Count the images [N, C, H, W] that both have; nearly all differ in a few pixels already, which come first."""
    if train.shape[1:] != other.shape[1:]:
        return 0
    both = [images.cpu().reshape(len(images), -1).numpy() for images in (train, other)]
    columns = np.unique(np.linspace(0, both[0].shape[1] - 1, SAMPLED_PIXELS).astype(np.int64))
    samples = [[row.tobytes() for row in images[:, columns]] for images in both]
    shared = {*samples[0]} & {*samples[1]}
    train_digests, other_digests = (
        [sha256(images[row]).digest() for row, sample in enumerate(image_samples) if sample in shared]
        for images, image_samples in zip(both, samples, strict=True)
    )
    in_train = {*train_digests}
    return sum(digest in in_train for digest in other_digests)


def _count_repeated_items(train: Items, other: Items) -> int | None:
    (dataset, rows), (other_dataset, other_rows) = _underlying(train), _underlying(other)
    return len({*rows} & {*other_rows}) if dataset is other_dataset else None


def _underlying(items: Items) -> tuple[object, Sequence[int]]:
    """Return the dataset that items are taken from, through all Subsets, and their rows in it."""
    dataset, rows = items.dataset, items.rows.tolist()
    while isinstance(dataset, Subset):
        rows = [int(dataset.indices[row]) for row in rows]
        dataset = dataset.dataset  # type: ignore[assignment]
    return dataset, rows


def _digest_split(split: RawSplit, location: str) -> dict[str, int | str]:
    labels = split.labels.tolist()
    digest: dict[str, int | str] = {"images": len(labels), "labels": _digest_values(labels)}
    rows = random.Random(seed_for(0, "contents")).sample(range(len(labels)), min(SAMPLED_IMAGES, len(labels)))
    if isinstance(split.images, np.ndarray):
        sample = split.images[sorted(rows)]
        return {**digest, "contents": _digest_bytes(str(split.images.shape).encode(), sample.tobytes())}
    names, sizes = _names_and_sizes(split.images, location)
    contents = _digest_bytes(sizes.tobytes(), *(_digest_contents(split.images, row) for row in sorted(rows)))
    return {**digest, "names": _digest_values(names), "contents": contents}


def _names_and_sizes(images: ImageColumn, location: str) -> tuple[list[str], np.ndarray]:
    """Return names and sizes of all images; files by their names within the dataset, so that it may be moved."""
    column = images.column
    if images.table is None:
        paths = column.to_pylist()
        sizes = file_stats(paths)[:, 0]
        return [path.removeprefix(f"{location}/") for path in paths], sizes
    linked: list[str | None] = []
    if pa.types.is_struct(column.type):
        if "path" in (field.name for field in column.type):
            linked = pc.struct_field(column, "path").to_pylist()
        column = pc.struct_field(column, "bytes")
    sizes = pc.fill_null(pc.binary_length(column), -1).to_numpy().astype(np.int64)
    named = [row for row, path in enumerate(linked) if sizes[row] < 0 and path is not None]  # cells that name files
    sizes[named] = file_stats([linked[row] or "" for row in named])[:, 0]
    return [(path or "").rpartition("/")[2] for path in linked], sizes


def _digest_contents(images: ImageColumn, row: int) -> bytes:
    try:
        return sha256(images.read(row)).digest()
    except BadImage:
        return b"cannot be read"


def _digest_some_items(items: Items) -> dict[str, int | str]:
    _, labels = items.inputs_and_labels(torch.linspace(0, len(items) - 1, min(SAMPLED_ITEMS, len(items))).long())
    if items.task.name != CLASSIFICATION.name:
        return {"images": len(items), "labels": _digest_bytes(labels.numpy().tobytes())}
    numbers = labels if labels.ndim == 1 else labels.argmax(1)
    return {"images": len(items), "labels": _digest_values(numbers.tolist())}


def _digest_values(values: Sequence[object]) -> str:
    return _digest_bytes("\0".join(map(str, values)).encode(errors="surrogateescape"))


def _digest_bytes(*parts: bytes) -> str:
    return sha256(b"\0".join(parts)).hexdigest()[:16]
