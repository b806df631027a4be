"""Data sets in folders: torchvision's CIFAR, and a folder of images for each class."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torchvision import datasets as torchvision_sets

from spacedkd.data.below import files_below, is_image, is_litter
from spacedkd.data.found import TEST, TRAIN, Found, Part, choose, refuse_unread
from spacedkd.data.limits import read_text
from spacedkd.data.stored import Stored
from spacedkd.errors import UserError, counted, first_line
from spacedkd.spec import DataSpec


def cifar(spec: DataSpec) -> Found:
    """What torchvision has under the root, or gets from the network; it checks digests before it unpickles."""
    kind: Any = {"cifar10": torchvision_sets.CIFAR10, "cifar100": torchvision_sets.CIFAR100}[spec.source]
    folder = f"{spec.root}/{kind.base_folder}"
    is_new = not Path(spec.root).exists()
    try:
        there = Path(folder).is_dir()
        train, test = kind(spec.root, train=True, download=not there), kind(spec.root, train=False)
    except (OSError, RuntimeError) as error:
        if is_new:
            with suppress(OSError):
                Path(spec.root).rmdir()  # torchvision makes it before it asks the network
        reason = "its files are not the official ones" if there else f"it cannot be downloaded ({first_line(error)})"
        raise UserError(
            f"{spec.source} is not usable from {folder}: {reason}. Put the official {kind.base_folder} folder there, "
            f"or a parquet copy as {spec.root}/{spec.source}/*.parquet, or name the folder that holds it with --root."
        ) from None
    trained, tested = (np.array(part.targets, dtype=np.int64) for part in (train, test))
    return Found(folder, Part("training", train.data, trained), Part("test", test.data, tested), train.classes)


def class_folders(spec: DataSpec) -> Found:
    """PLACE/train/CLASS/... and PLACE/val/CLASS/..., or PLACE/CLASS/... without parts."""
    place, read = _place(spec), _Files(spec.skip_bad)
    parts = [name for name in _folders(place) if name.lower() in TRAIN + TEST]
    asked = [name for name in (spec.train_split, spec.test_split) if name is not None]
    parts += [name for name in asked if name not in parts and (place / name).is_dir()]
    if not parts and not asked:
        names = _class_names(place, spec)
        whole = _part(place, place.name, names, read)
        return Found(str(place), whole, None, names, read.notes())
    train, test = choose(str(place), parts, spec)
    names = _class_names(place / train, spec)
    if test is not None and spec.class_list is None:
        _check_same_classes(place, (train, names), (test, _class_names(place / test, spec)))
    trained = _part(place / train, train, names, read)
    tested = None if test is None else _part(place / test, test, names, read)
    return Found(str(place), trained, tested, names, read.notes())


class _Files:
    """The images below folders; other files, such as notes.txt, are skipped and counted, as torchvision skips them."""

    def __init__(self, skip_bad: bool) -> None:
        """With `skip_bad` all files count as images, and those that cannot be read are left out when they are read."""
        self._all = skip_bad
        self._skipped: list[str] = []

    def below(self, folder: Path) -> list[str]:
        images: list[str] = []
        for path in files_below(folder):
            skip = is_litter(path) or not (self._all or is_image(path))
            (self._skipped if skip else images).append(path)
        return images

    def notes(self) -> tuple[str, ...]:
        """One line on what was skipped, if anything was."""
        count = counted(len(self._skipped), "file")
        return (f"Skipped {count} beside the images, first: {self._skipped[0]}.",) if self._skipped else ()


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
        names = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    except FileNotFoundError:
        raise UserError(f"There is no class list {path}. It is a text file with one class folder a line.") from None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise UserError(f"The class list {path} cannot be read: {why}. Write one class folder a line.") from None
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


def _part(folder: Path, name: str, classes: Sequence[str], read: _Files) -> Part:
    pairs: list[tuple[str, str]] = []
    for one in classes:
        if not (folder / one).is_dir():
            raise UserError(f"{folder} has no folder {one}: every class needs one in every part.")
        mine = [(path, one) for path in read.below(folder / one)]
        if not mine:
            raise UserError(f"Class {one} has no images: {folder / one} holds none. Add some or remove it.")
        pairs += mine
    return _listed(name, pairs, classes)


def tiny_imagenet(spec: DataSpec) -> Found:
    """The official archive; classes are numbered by their line in wnids.txt, and val is the part to test on."""
    place = _place(spec)
    if not (place / "val" / "val_annotations.txt").is_file():  # val sorted into class folders, as many do
        return class_folders(replace(spec, class_list=str(place / "wnids.txt")))
    refuse_unread(spec, ("root", "skip_bad"))  # the official layout has parts with names of its own
    wnids = read_class_list(str(place / "wnids.txt"))
    lines = [line.split() for line in read_text(place / "val" / "val_annotations.txt").splitlines() if line.strip()]
    short = next((line for line in lines if len(line) < 2), None)
    if short is not None:
        raise UserError(f"{place}/val/val_annotations.txt has a line {short[0]!r}: each needs an image and its class.")
    val = [(f"{place}/val/images/{name}", wnid) for name, wnid, *_ in lines]
    strange = next((wnid for _, wnid in val if wnid not in wnids), None)
    if strange is not None:
        raise UserError(f"{place}/val/val_annotations.txt has class {strange}, which is not in {place}/wnids.txt.")
    read = _Files(spec.skip_bad)
    train = [(path, wnid) for wnid in wnids for path in _files_of_wnid(place, wnid, read)]
    return Found(str(place), _listed("train", train, wnids), _listed("val", val, wnids), wnids, read.notes())


def _files_of_wnid(place: Path, wnid: str, read: _Files) -> Sequence[str]:
    folder = place / "train" / wnid / "images"
    files = read.below(folder) if folder.is_dir() else []
    if not files:
        raise UserError(f"Class {wnid} has no images: {folder} is missing or empty.")
    return files


def _listed(name: str, pairs: Sequence[tuple[str, str]], classes: Sequence[str]) -> Part:
    number = {class_name: place for place, class_name in enumerate(classes)}
    labels = np.array([number[class_name] for _, class_name in pairs], dtype=np.int64)
    try:
        paths = pa.array([path for path, _ in pairs], pa.string())
    except UnicodeEncodeError as error:
        raise UserError(f"The file name {error.object!a} is not UTF-8: rename it.") from None
    return Part(name, Stored(paths, torch.arange(len(pairs))), labels)


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
