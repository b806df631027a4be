"""Digests of a dataset, which tell whether other data lies behind the same name, and images that occur twice.

A digest is made of the names, sizes and labels of all images and of the contents of some of them, so that a million
files take seconds.
"""

import os
import random
from collections.abc import Mapping, Sequence
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor
from torch.utils.data import Subset

from spacedkd.data.dataset import Items
from spacedkd.data.decoding import BadImage, ImageColumn
from spacedkd.data.images import Encoded, Images
from spacedkd.data.raw_dataset import RawDataset, RawSplit
from spacedkd.runtime.seeds import seed_for

SAMPLED_IMAGES = 256
"""images whose contents are read"""
SAMPLED_ITEMS = 8
"""items of a user's dataset whose labels are read"""
SAMPLED_PIXELS = 64
"""pixels that are compared before all pixels of an image are"""

Digest = Mapping[str, Mapping[str, int | str]]
"""split -> number of images, and a digest each of their names, labels and contents"""
_DIFFERENCES = {"names": "names, or another order", "labels": "labels", "contents": "contents"}


def digest_dataset(raw: RawDataset) -> Digest:
    """Return the digest of all images of a dataset, whichever of them a run uses."""
    splits = {"training": raw.train} | ({} if raw.test is None else {"test": raw.test})
    return {name: _digest_split(split, raw.location) for name, split in splits.items()}


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
        sizes = np.fromiter((_file_size(path) for path in paths), np.int64, len(paths))
        return [path.removeprefix(f"{location}/") for path in paths], sizes
    linked: list[str | None] = []
    if pa.types.is_struct(column.type):
        if "path" in (field.name for field in column.type):
            linked = pc.struct_field(column, "path").to_pylist()
        column = pc.struct_field(column, "bytes")
    sizes = pc.fill_null(pc.binary_length(column), -1).to_numpy().astype(np.int64)
    for row, path in enumerate(linked):
        if sizes[row] < 0 and path is not None:  # the cell only names the file
            sizes[row] = _file_size(path)
    return [(path or "").rpartition("/")[2] for path in linked], sizes


def _file_size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116, a Path for each of a million files takes longer than looking
    except OSError:
        return -1


def _digest_contents(images: ImageColumn, row: int) -> bytes:
    try:
        return sha256(images.read(row)).digest()
    except BadImage:
        return b"cannot be read"


def _digest_some_items(items: Items) -> dict[str, int | str]:
    _, labels = items.inputs_and_labels(torch.linspace(0, len(items) - 1, min(SAMPLED_ITEMS, len(items))).long())
    numbers = labels if labels.ndim == 1 else labels.argmax(1)
    return {"images": len(items), "labels": _digest_values(numbers.tolist())}


def _digest_values(values: Sequence[object]) -> str:
    return _digest_bytes("\0".join(map(str, values)).encode(errors="surrogateescape"))


def _digest_bytes(*parts: bytes) -> str:
    return sha256(b"\0".join(parts)).hexdigest()[:16]
