"""Tiny datasets in the formats that are found on disks."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from torchvision import datasets as torchvision_sets

SHARED = Path(__file__).parents[3] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the data beside the project is absent")


def picture(number: int, width: int = 12, height: int | None = None) -> Image.Image:
    """A picture unlike any other number's, smooth enough for JPEG."""
    rng = np.random.default_rng(number)
    corners = Image.fromarray(rng.integers(0, 256, (3, 3, 3), dtype=np.uint8))
    return corners.resize((width, height or width), Image.Resampling.BILINEAR)


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def write(path: Path, image: Image.Image) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)
    return path


def class_folders(
    place: Path,
    parts: Sequence[str] = ("train", "val"),
    classes: Sequence[str] = ("cat", "dog"),
    count: int = 4,
    sizes: Sequence[int] = (12,),
    ending: str = "png",
) -> Path:
    """PART/CLASS/NUMBER.png; picture numbers count up through everything."""
    number = 0
    for part in parts:
        for name in classes:
            for _ in range(count):
                write(place / part / name / f"{number:03}.{ending}", picture(number, sizes[number % len(sizes)]))
                number += 1
    return place


def tiny_imagenet(place: Path, wnids: Sequence[str] = ("n02", "n01", "n03"), count: int = 4) -> Path:
    """The official layout; wnids.txt is not in the order of the alphabet."""
    place.mkdir(parents=True)
    (place / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in wnids))
    lines = []
    for number, wnid in enumerate(wnids):
        for image in range(count):
            write(place / "train" / wnid / "images" / f"{wnid}_{image}.JPEG", picture(10 * number + image, 64))
        (place / "train" / wnid / f"{wnid}_boxes.txt").write_text("not an image")
        write(place / "val" / "images" / f"val_{number}.JPEG", picture(100 + number, 64))
        lines.append(f"val_{number}.JPEG\t{wnid}\t0\t0\t63\t63\n")
    (place / "val" / "val_annotations.txt").write_text("".join(reversed(lines)))
    return place


def cifar(root: Path, monkeypatch: pytest.MonkeyPatch, kind: Any = torchvision_sets.CIFAR100) -> dict[str, np.ndarray]:
    """torchvision's folder of pickles, with the digests it expects; returns the pixels [N, H, W, C] of each file."""
    ten = kind is torchvision_sets.CIFAR10
    folder, key = root / kind.base_folder, "labels" if ten else "fine_labels"
    pixels: dict[str, np.ndarray] = {}
    folder.mkdir(parents=True)
    for name, _ in (*kind.train_list, *kind.test_list):
        rng = np.random.default_rng(len(pixels))
        data = rng.integers(0, 256, (20, 3072), dtype=np.uint8)
        (folder / name).write_bytes(
            pickle.dumps({"data": data, key: list(range(10 if ten else 20)) * (2 if ten else 1)})
        )
        pixels[name] = data.reshape(20, 3, 32, 32).transpose(0, 2, 3, 1)
    names = {kind.meta["key"]: [f"class {number}" for number in range(10 if ten else 20)]}
    (folder / kind.meta["filename"]).write_bytes(pickle.dumps(names))

    def digest(name: str) -> str:
        return hashlib.md5((folder / name).read_bytes()).hexdigest()

    for listed in ("train_list", "test_list"):
        monkeypatch.setattr(kind, listed, [[name, digest(name)] for name, _ in getattr(kind, listed)])
    monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": digest(kind.meta["filename"])})
    return pixels


def hub_table(numbers: Sequence[int], columns: Mapping[str, Any], size: int = 12) -> pa.Table:
    """Pictures in the hub's form {bytes, path} in a column `image`, and other columns."""
    cells = [{"bytes": png(picture(number, size)), "path": None} for number in numbers]
    form = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return pa.table({"image": pa.array(cells, form), **columns})


def parquet(place: Path, columns: Mapping[str, Any] | None = None, count: int = 8) -> Path:
    """train and test parquet files as the hub names them."""
    place.mkdir(parents=True, exist_ok=True)
    for part, first in (("train", 0), ("test", 100)):
        table = hub_table(range(first, first + count), columns or {"label": [n % 2 for n in range(count)]})
        pq.write_table(table, place / f"{part}-00000-of-00001.parquet")
    return place
