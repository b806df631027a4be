"""CIFAR-10 and CIFAR-100, from torchvision's folders or from a parquet copy of the hub's."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torchvision import datasets as torchvision_datasets

from spacedkd.config.spec import DataSpec
from spacedkd.data.parquet import read_parquet
from spacedkd.data.raw_dataset import RawDataset, RawSplit
from spacedkd.data.reader import Reader
from spacedkd.runtime.errors import UserError, first_line


def read_cifar(spec: DataSpec) -> RawDataset:
    """Read ROOT/cifar100/*.parquet where there are such files, otherwise torchvision's folder in ROOT."""
    folder = Path(spec.root) / spec.source
    if not any(folder.glob("*.parquet")):
        return _read_torchvision(spec)
    label_column = "fine_label" if spec.source == "cifar100" else "label"
    return read_parquet(replace(spec, source=str(folder), label_column=label_column))


def _read_torchvision(spec: DataSpec) -> RawDataset:
    """Read torchvision's folder, or download it; torchvision compares digests before it unpickles anything."""
    dataset: Any = {"cifar10": torchvision_datasets.CIFAR10, "cifar100": torchvision_datasets.CIFAR100}[spec.source]
    folder = f"{spec.root}/{dataset.base_folder}"
    root_is_new = not Path(spec.root).exists()
    try:
        exists = Path(folder).is_dir()
        train, test = dataset(spec.root, train=True, download=not exists), dataset(spec.root, train=False)
    except (OSError, RuntimeError) as error:
        if root_is_new:
            with suppress(OSError):
                Path(spec.root).rmdir()  # torchvision makes it before it asks the network
        reason = "its files are not the official ones" if exists else f"it cannot be downloaded ({first_line(error)})"
        raise UserError(
            f"{spec.source} is not usable from {folder}: {reason}. Put the official {dataset.base_folder} folder "
            f"there, or a parquet copy as {spec.root}/{spec.source}/*.parquet, or name the folder that holds it with "
            "--root."
        ) from None
    train_labels, test_labels = (np.array(split.targets, dtype=np.int64) for split in (train, test))
    return RawDataset(
        folder, RawSplit("training", train.data, train_labels), RawSplit("test", test.data, test_labels), train.classes
    )


def _cifar(name: str, classes: int, folder: str) -> Reader:
    return Reader(
        name=name,
        about=f"32x32 photographs, {classes} classes, 50 000 + 10 000 images",
        docs=f"`ROOT/{name}/*.parquet`, else torchvision's `ROOT/{folder}`, which is downloaded if it is missing and "
        "there is a network",
        read=read_cifar,
        options=("root",),
        augmentation="cifar",
    )


CIFAR10 = _cifar("cifar10", 10, "cifar-10-batches-py")
CIFAR100 = _cifar("cifar100", 100, "cifar-100-python")
