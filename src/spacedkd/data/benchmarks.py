"""Readers of the benchmarks that are known by name: CIFAR-10 and -100, ImageNet, ImageNet-100, Tiny-ImageNet.

Each is read in its official layout; CIFAR also from a parquet copy of the hub's. (`digits` is in `arrays`.)
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torchvision import datasets as torchvision_datasets

from spacedkd.config.spec import DataSpec
from spacedkd.data import folders
from spacedkd.data.folders import ImageFinder, read_class_folders, read_class_list, split_of_files
from spacedkd.data.images import read_text
from spacedkd.data.parquet import read_parquet
from spacedkd.data.reader import RawDataset, RawSplit, Reader
from spacedkd.runtime.errors import UserError, first_line

# CIFAR


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


# ImageNet


def read_imagenet(spec: DataSpec) -> RawDataset:
    """Read train/WNID and val/WNID below the root; imagenet-100 needs the list of its classes."""
    if spec.source == "imagenet-100" and spec.class_list is None:
        raise UserError(
            "imagenet-100 needs the list of its classes: --class-list FILE, a text file with 100 lines and one wnid on "
            "each, for instance n02869837."
        )
    folder = _folder_in_root(spec, ("imagenet", "imagenet-1k"), "train", "train/WNID and val/WNID folders")
    return read_class_folders(spec, folder)


def read_tiny_imagenet(spec: DataSpec) -> RawDataset:
    """Read the official archive; classes are numbered by their line in wnids.txt, and val is the test split."""
    folder = Path(spec.source)
    if spec.source == "tiny-imagenet":
        layout = "the wnids.txt, train/WNID/images and val/val_annotations.txt of tiny-imagenet-200.zip"
        folder = _folder_in_root(spec, ("tiny-imagenet-200", "tiny-imagenet"), "wnids.txt", layout)
    annotations = folder / "val" / "val_annotations.txt"
    if not annotations.is_file():  # val sorted into class folders, as many do
        return read_class_folders(replace(spec, class_list=str(folder / "wnids.txt")), folder)
    for option in ("train_split", "test_split"):
        if getattr(spec, option) is not None:
            raise UserError(
                f"{option} does not matter for {spec.source}: the official layout has one split to train on, train, "
                "and one to test on, val. Leave it out."
            )
    wnids = read_class_list(str(folder / "wnids.txt"))
    lines = [line.split() for line in read_text(annotations).splitlines() if line.strip()]
    short = next((line for line in lines if len(line) < 2), None)
    if short is not None:
        raise UserError(f"{annotations} has a line {short[0]!r}: each line needs an image and its class.")
    val = [(f"{folder}/val/images/{name}", wnid) for name, wnid, *_ in lines]
    unlisted = next((wnid for _, wnid in val if wnid not in wnids), None)
    if unlisted is not None:
        raise UserError(f"{annotations} has class {unlisted}, which is not in {folder}/wnids.txt.")
    finder = ImageFinder(spec.skip_bad)
    train = [(path, wnid) for wnid in wnids for path in _train_images(folder, wnid, finder)]
    return RawDataset(
        str(folder), split_of_files("train", train, wnids), split_of_files("val", val, wnids), wnids, finder.notes()
    )


def _train_images(folder: Path, wnid: str, finder: ImageFinder) -> Sequence[str]:
    class_folder = folder / "train" / wnid / "images"
    paths = finder.images_below(class_folder) if class_folder.is_dir() else []
    if not paths:
        raise UserError(f"Class {wnid} has no images: {class_folder} is missing or empty.")
    return paths


def _folder_in_root(spec: DataSpec, names: Sequence[str], needed: str, layout: str) -> Path:
    """Return the folder of the root, or the root itself, that holds what the dataset needs."""
    for folder in (*(Path(spec.root) / name for name in names), Path(spec.root)):
        if (folder / needed).exists():
            return folder
    raise UserError(
        f"{spec.source} is not in {Path(spec.root) / names[0]}: it needs {layout} there. "
        "Name the folder that holds it with --root FOLDER."
    )


TINY_IMAGENET = Reader(
    name="tiny-imagenet",
    about="64x64 photographs, 200 classes, 100 000 + 10 000 images",
    docs="`ROOT/tiny-imagenet-200`, `ROOT/tiny-imagenet` or `ROOT`: the official archive, unpacked; classes in the "
    "order of `wnids.txt`, tested on `val`",
    read=read_tiny_imagenet,
    options=("root", "train_split", "test_split", "skip_bad"),
    augmentation="tiny-imagenet",
)
TINY_IMAGENET_FOLDER = Reader(
    name="FOLDER with wnids.txt",
    about="Tiny-ImageNet in its official layout",
    docs="the official archive of Tiny-ImageNet, unpacked",
    read=read_tiny_imagenet,
    recognises=lambda source: (Path(source) / "wnids.txt").is_file(),
    options=("train_split", "test_split", "skip_bad"),
    augmentation="tiny-imagenet",
)
IMAGENET_100 = Reader(
    name="imagenet-100",
    about="ImageNet with the classes of --class-list",
    docs="the folders of `imagenet-1k`, with `--class-list FILE`: one wnid a line, classes in that order; no list "
    "comes with the project",
    read=read_imagenet,
    options=("root", *folders.OPTIONS),
    augmentation="imagenet",
)
IMAGENET_1K = Reader(
    name="imagenet-1k",
    about="ImageNet, 1000 classes, 1 281 167 + 50 000 images",
    docs="`ROOT/imagenet`, `ROOT/imagenet-1k` or `ROOT`: `train/WNID/*.JPEG` and `val/WNID/*.JPEG`",
    read=read_imagenet,
    options=("root", *folders.OPTIONS),
    augmentation="imagenet",
)
