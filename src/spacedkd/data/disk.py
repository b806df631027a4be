"""Data sets on this machine that are no tables: arrays, and folders with a folder for each class."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
import torch
from torchvision import datasets as torchvision_sets

from spacedkd.data.found import TEST, TRAIN, Found, Part, choose, refuse_unread
from spacedkd.data.stored import Stored, first_line
from spacedkd.errors import UserError
from spacedkd.spec import DataSpec

ARRAY_NAMES = ("x_train", "y_train", "x_test", "y_test")
LITTER = {"thumbs.db", "desktop.ini"}


def digits(spec: DataSpec) -> Found:
    """1797 real handwritten digits that come with scikit-learn; every other image is for testing."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pixels = np.rint(images.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    return Found(
        "digits", Part("training", pixels[::2], labels[::2]), Part("test", pixels[1::2], labels[1::2]), "0123456789"
    )


def npz(spec: DataSpec) -> Found:
    """Your own arrays in an .npz file."""
    path = Path(spec.source)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in ARRAY_NAMES if name in file.files}
            names = file.files
    except FileNotFoundError:
        raise UserError(f"There is no file {path}. Give the path of an .npz with {', '.join(ARRAY_NAMES)}.") from None
    except (ValueError, OSError, EOFError, TypeError, AttributeError, BadZipFile, RuntimeError):
        raise UserError(f"{path} is not an .npz of plain arrays, or is cut off. Write one with numpy.savez.") from None
    missing = [name for name in ARRAY_NAMES if name not in arrays]
    if missing:
        raise UserError(
            f"{path} has no array {missing[0]}; it needs {', '.join(ARRAY_NAMES)} and has {', '.join(names)}."
        )
    return from_arrays(arrays, str(path))


def from_arrays(arrays: Mapping[str, np.ndarray], place: str = "the arrays") -> Found:
    """Bytes [N, H, W] or [N, H, W, C] as x_..., labels as y_..., for train and test."""
    train, test = _array_part(arrays, "train", "training"), _array_part(arrays, "test", "test")
    one, other = arrays["x_train"].shape[1:], arrays["x_test"].shape[1:]
    if one != other:
        raise UserError(f"Training images have shape {one} and test images {other}; make them alike.")
    return Found(place, train, test)


def _array_part(arrays: Mapping[str, np.ndarray], part: str, called: str) -> Part:
    pixels, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
    if pixels.ndim not in (3, 4) or pixels.dtype != np.uint8:
        raise UserError(
            f"x_{part} must be uint8 of shape [N, H, W] or [N, H, W, C], got {pixels.dtype} {pixels.shape}."
        )
    if pixels.ndim == 4 and not 1 <= pixels.shape[3] <= 4:
        raise UserError(f"x_{part} has {pixels.shape[3]} channels; they come last: [N, H, W, C], got {pixels.shape}.")
    if len(pixels) == 0:
        raise UserError(f"The data set has no {called} images: x_{part} is empty.")
    if labels.ndim != 1:
        raise UserError(f"y_{part} must be one label for each image, got shape {labels.shape}.")
    if len(pixels) != len(labels):
        raise UserError(f"x_{part} has {len(pixels)} images but y_{part} has {len(labels)} labels; they must pair up.")
    return Part(called, pixels[..., None] if pixels.ndim == 3 else pixels, labels)


def cifar(spec: DataSpec) -> Found:
    """What torchvision has under the root, or gets from the network; it checks digests before it unpickles."""
    kind: Any = {"cifar10": torchvision_sets.CIFAR10, "cifar100": torchvision_sets.CIFAR100}[spec.source]
    folder = f"{spec.root}/{kind.base_folder}"
    try:
        there = Path(folder).is_dir()
        train, test = kind(spec.root, train=True, download=not there), kind(spec.root, train=False)
    except (OSError, RuntimeError) as error:
        reason = "its files are not the official ones" if there else f"it cannot be downloaded ({first_line(error)})"
        raise UserError(
            f"{spec.source} is not usable from {folder}: {reason}. Put the official {kind.base_folder} folder there, "
            f"name the folder that holds it with --root, or give a parquet copy as --data PATH."
        ) from None
    trained, tested = (np.array(part.targets, dtype=np.int64) for part in (train, test))
    return Found(folder, Part("training", train.data, trained), Part("test", test.data, tested), train.classes)


def class_folders(spec: DataSpec) -> Found:
    """PLACE/train/CLASS/... and PLACE/val/CLASS/..., or PLACE/CLASS/... without parts."""
    place = _place(spec)
    parts = [name for name in _folders(place) if name.lower() in TRAIN + TEST]
    asked = [name for name in (spec.train_split, spec.test_split) if name is not None]
    parts += [name for name in asked if name not in parts and (place / name).is_dir()]
    if not parts and not asked:
        names = _class_names(place, spec)
        return Found(str(place), _part(place, place.name, names), None, names)
    train, test = choose(str(place), parts, spec)
    names = _class_names(place / train, spec)
    if test is not None and spec.class_list is None:
        _check_same_classes(place, (train, names), (test, _class_names(place / test, spec)))
    trained = _part(place / train, train, names)
    return Found(str(place), trained, None if test is None else _part(place / test, test, names), names)


def _folders(place: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(place) if entry.is_dir() and not entry.name.startswith("."))


def _class_names(folder: Path, spec: DataSpec) -> Sequence[str]:
    if spec.class_list is not None:
        return read_class_list(spec.class_list)
    names = _folders(folder)
    if not names:
        raise UserError(
            f"{folder} has no class folders: put its images into one folder for each class, or give a folder that has "
            "train and val folders with those."
        )
    return names


def read_class_list(path: str) -> Sequence[str]:
    """One class folder a line; empty lines do not count."""
    try:
        names = [line.strip() for line in Path(path).read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError):
        raise UserError(f"There is no class list {path}. It is a text file with one class folder a line.") from None
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"The class list {path} names {twice} twice: one class a line, each of them once.")
    if not names:
        raise UserError(f"The class list {path} is empty: write one class folder a line.")
    return names


def _check_same_classes(place: Path, one: tuple[str, Sequence[str]], other: tuple[str, Sequence[str]]) -> None:
    for (name, classes), (other_name, others) in ((one, other), (other, one)):
        missing = sorted({*classes} - {*others})
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise UserError(
                f"{place} has different classes in its parts: {', '.join(missing[:3])}{more} in {name} but not in "
                f"{other_name}. Give both the same class folders, or name those to use with --class-list."
            )


def _part(folder: Path, name: str, classes: Sequence[str]) -> Part:
    pairs: list[tuple[str, str]] = []
    for one in classes:
        if not (folder / one).is_dir():
            raise UserError(f"{folder} has no folder {one}: every class needs one in every part.")
        mine = [(path, one) for path in _files(folder / one)]
        if not mine:
            raise UserError(f"Class {one} has no images: {folder / one} is empty. Add some or remove it.")
        pairs += mine
    return _listed(name, pairs, classes)


def _files(folder: Path) -> Iterator[str]:
    """All files below a folder, always in the same order, without those that systems leave behind."""
    for path, folders, names in os.walk(folder, followlinks=True):
        folders.sort()
        for name in sorted(names):
            if not name.startswith(".") and name.lower() not in LITTER:
                yield f"{path}/{name}"


def tiny_imagenet(spec: DataSpec) -> Found:
    """The official archive; classes are numbered by their line in wnids.txt, and val is the part to test on."""
    place = _place(spec)
    if not (place / "val" / "val_annotations.txt").is_file():  # val sorted into class folders, as many do
        return class_folders(replace(spec, class_list=str(place / "wnids.txt")))
    refuse_unread(spec, ("root", "skip_bad"))  # the official layout has parts with names of its own
    wnids = read_class_list(str(place / "wnids.txt"))
    lines = (place / "val" / "val_annotations.txt").read_text().splitlines()
    val = [(f"{place}/val/images/{name}", wnid) for name, wnid, *_ in (line.split() for line in lines if line.strip())]
    strange = next((wnid for _, wnid in val if wnid not in wnids), None)
    if strange is not None:
        raise UserError(f"{place}/val/val_annotations.txt has class {strange}, which is not in {place}/wnids.txt.")
    train = [(path, wnid) for wnid in wnids for path in _files_of_wnid(place, wnid)]
    return Found(str(place), _listed("train", train, wnids), _listed("val", val, wnids), wnids)


def _files_of_wnid(place: Path, wnid: str) -> Iterable[str]:
    folder = place / "train" / wnid / "images"
    files = list(_files(folder))
    if not files:
        raise UserError(f"Class {wnid} has no images: {folder} is missing or empty.")
    return files


def _listed(name: str, pairs: Sequence[tuple[str, str]], classes: Sequence[str]) -> Part:
    number = {class_name: place for place, class_name in enumerate(classes)}
    labels = np.array([number[class_name] for _, class_name in pairs], dtype=np.int64)
    return Part(name, Stored(pa.array([path for path, _ in pairs], pa.string()), torch.arange(len(pairs))), labels)


_IMAGENET = (("imagenet", "imagenet-1k"), "train", "train/WNID and val/WNID folders")
_TINY_LAYOUT = "the wnids.txt, train/WNID/images and val/val_annotations.txt of tiny-imagenet-200.zip"
_UNDER_ROOT = {
    "tiny-imagenet": (("tiny-imagenet-200", "tiny-imagenet"), "wnids.txt", _TINY_LAYOUT),
    "imagenet-100": _IMAGENET,
    "imagenet-1k": _IMAGENET,
}
"""the folders of the root a data set known by name may lie in, what must be there, and all that it needs"""


def _place(spec: DataSpec) -> Path:
    """The folder a spec names, or where a data set known by name lies: in a folder of the root, or in the root."""
    if spec.source not in _UNDER_ROOT:
        return Path(spec.source)
    folders, sign, layout = _UNDER_ROOT[spec.source]
    for place in (*(Path(spec.root) / folder for folder in folders), Path(spec.root)):
        if (place / sign).exists():
            return place
    raise UserError(
        f"{spec.source} is not in {Path(spec.root) / folders[0]}: it needs {layout} there. "
        "Name the folder that holds it with --root FOLDER."
    )
