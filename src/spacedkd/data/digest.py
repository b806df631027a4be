"""What a data set is made of, in a few words: enough to notice that other data lies behind the same name.

Names, sizes and labels of all images count, and the contents of some of them, so that a million files are a matter of
seconds.
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

SAMPLE = 256
"""images whose contents are looked at"""
FEW = 8
"""items of somebody's own dataset whose labels are looked at"""
SAMPLED_PIXELS = 64
"""by which images are told apart before all of their pixels are looked at"""

Digest = Mapping[str, Mapping[str, int | str]]
"""part -> number of images, and a digest each of their names, labels and contents"""
_SAID = {"names": "names, or another order", "labels": "labels", "contents": "contents"}


def digest_dataset(found: RawDataset) -> Digest:
    """Of everything that was found, whichever part of it is used."""
    parts = {"training": found.train} | ({} if found.test is None else {"test": found.test})
    return {name: _of_part(part, found.place) for name, part in parts.items()}


def digest_items(train: Items, test: Items) -> Digest:
    """Of what can be known of somebody's own datasets: how many items, and the labels of a few."""
    return {name: _of_items(items) for name, items in (("training", train), ("test", test))}


def describe_difference(before: Digest, now: Digest) -> str | None:
    """What has changed first, in words."""
    for part in {**before, **now}:
        then, here = before.get(part), now.get(part)
        if then is None or here is None:
            return f"its {part} images are {'new' if then is None else 'gone'}"
        if then.get("images") != here.get("images"):
            return f"it had {then.get('images')} {part} images, and has {here.get('images')}"
        for what, words in _SAID.items():
            if then.get(what) != here.get(what):
                return f"its {part} images have other {words}"
    return None


def count_repeated(train: Images | Encoded | Items, part: Images | Encoded | Items) -> int | None:
    """Count the images of a part that are training images as well; None where that is not known.

    Images in memory are the same if all pixels are; where a part stays encoded, if all bytes are. Nothing is decoded
    for it. Of a user's datasets it is known where both are `Subset`s of one dataset.
    """
    if isinstance(train, Items) and isinstance(part, Items):
        return _repeated_items(train, part)
    if isinstance(train, Images) and isinstance(part, Images):
        return _repeated_pixels(train.pixels, part.pixels)
    if isinstance(train, Items) or isinstance(part, Items) or train.digests is None or part.digests is None:
        return None
    return int(np.isin(part.digests, train.digests).sum())


def _repeated_pixels(train: Tensor, part: Tensor) -> int:
    """Of images [N, C, H, W]; those that differ in a few pixels, as nearly all do, are not looked at any further."""
    if train.shape[1:] != part.shape[1:]:
        return 0
    rows = [one.cpu().reshape(len(one), -1).numpy() for one in (train, part)]
    columns = np.unique(np.linspace(0, rows[0].shape[1] - 1, SAMPLED_PIXELS).astype(np.int64))
    sampled = [[row.tobytes() for row in one[:, columns]] for one in rows]
    shared = {*sampled[0]} & {*sampled[1]}
    alike, tested = (
        [sha256(one[place]).digest() for place, key in enumerate(keys) if key in shared]
        for one, keys in zip(rows, sampled, strict=True)
    )
    trained = {*alike}
    return sum(digest in trained for digest in tested)


def _repeated_items(train: Items, part: Items) -> int | None:
    (one, rows), (other, others) = _underlying(train), _underlying(part)
    return len({*rows} & {*others}) if one is other else None


def _underlying(items: Items) -> tuple[object, Sequence[int]]:
    """The dataset that items are taken from, and their rows in it."""
    dataset, rows = items.dataset, items.rows.tolist()
    while isinstance(dataset, Subset):
        rows = [int(dataset.indices[row]) for row in rows]
        dataset = dataset.dataset  # type: ignore[assignment]
    return dataset, rows


def _of_part(part: RawSplit, place: str) -> dict[str, int | str]:
    labels = part.labels.tolist()
    found: dict[str, int | str] = {"images": len(labels), "labels": _digest_of(labels)}
    rows = random.Random(seed_for(0, "contents")).sample(range(len(labels)), min(SAMPLE, len(labels)))
    if isinstance(part.images, np.ndarray):
        some = part.images[sorted(rows)]
        return {**found, "contents": _digest(str(part.images.shape).encode(), some.tobytes())}
    names, sizes = _names_and_sizes(part.images, place)
    contents = _digest(sizes.tobytes(), *(_contents(part.images, row) for row in sorted(rows)))
    return {**found, "names": _digest_of(names), "contents": contents}


def _names_and_sizes(stored: ImageColumn, place: str) -> tuple[list[str], np.ndarray]:
    """Of all images; files by their names within the data set, so that it may be moved."""
    column = stored.column
    if stored.table is None:
        paths = column.to_pylist()
        sizes = np.fromiter((_size(path) for path in paths), np.int64, len(paths))
        return [path.removeprefix(f"{place}/") for path in paths], sizes
    named: list[str | None] = []
    if pa.types.is_struct(column.type):
        if "path" in (field.name for field in column.type):
            named = pc.struct_field(column, "path").to_pylist()
        column = pc.struct_field(column, "bytes")
    sizes = pc.fill_null(pc.binary_length(column), -1).to_numpy().astype(np.int64)
    for row, path in enumerate(named):
        if sizes[row] < 0 and path is not None:  # the cell only names the file
            sizes[row] = _size(path)
    return [(path or "").rpartition("/")[2] for path in named], sizes


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116, a Path for each of a million files takes longer than looking
    except OSError:
        return -1


def _contents(stored: ImageColumn, row: int) -> bytes:
    try:
        return sha256(stored.read(row)).digest()
    except BadImage:
        return b"cannot be read"


def _of_items(items: Items) -> dict[str, int | str]:
    _, labels = items.inputs_and_labels(torch.linspace(0, len(items) - 1, min(FEW, len(items))).long())
    whole = labels if labels.ndim == 1 else labels.argmax(1)
    return {"images": len(items), "labels": _digest_of(whole.tolist())}


def _digest_of(values: Sequence[object]) -> str:
    return _digest("\0".join(map(str, values)).encode(errors="surrogateescape"))


def _digest(*parts: bytes) -> str:
    return sha256(b"\0".join(parts)).hexdigest()[:16]
