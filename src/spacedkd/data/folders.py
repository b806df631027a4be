"""Data sets in folders: torchvision's CIFAR, and a folder of images for each class."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from torchvision import datasets as torchvision_sets

from spacedkd.config.spec import DataSpec
from spacedkd.data.decoding import ImageColumn, open_ordinary, read_text
from spacedkd.data.raw_dataset import TEST, TRAIN, RawDataset, RawSplit, choose_splits, refuse_unread
from spacedkd.runtime.errors import UserError, first_line, pluralize

# Which files lie below a folder, without ever walking in circles or through a folder that holds no images.

LITTER = {"thumbs.db", "desktop.ini"}
OTHERS = 256
"""so many files that are no images, and nothing else, are taken for a folder of something else"""
_ENDINGS = tuple(".jpg .jpeg .jpe .jfif .jp2 .png .bmp .gif .webp .avif .tif .tiff .ppm .pgm .pbm .pnm .tga".split())
"""what is called so claims to be an image, and is refused where it is none"""

_SYSTEM = {*"/ /bin /boot /dev /etc /lib /lib32 /lib64 /proc /run /sbin /sys /usr /var".split()}
_UNREAL = ("/dev", "/proc", "/sys")
"""nothing below them is a file on a disk, except in /dev/shm"""


def refuse_system(folder: Path) -> None:
    """Refuse folders of the operating system, some of which have no end."""
    real = folder.resolve()
    unreal = any(real.is_relative_to(place) for place in _UNREAL) and not real.is_relative_to("/dev/shm")
    if str(real) in _SYSTEM or unreal:
        raise UserError(f"{folder} is a folder of the operating system: give the folder that holds your images.")


def files_below(folder: Path) -> Iterator[str]:
    """All files below a folder that are not hidden, always in the same order.

    Links are followed, to files and to folders, unless a folder would come to lie within itself.
    """
    parents = (parent for place in (folder.absolute(), folder.resolve()) for parent in place.parents)
    waiting, others = [(str(folder), frozenset(map(_identity, parents)))], 0
    while waiting:
        path, above = waiting.pop()
        files, folders = _entries(path)
        itself = _identity(path)
        if itself in above:
            raise UserError(
                f"{path} is a link to a folder that it lies in, so its images would count again and again: remove it."
            )
        for name in files:
            if others < OTHERS:
                others = OTHERS + 1 if is_image(f"{path}/{name}") else others + 1
            if others == OTHERS:
                raise UserError(
                    f"None of the first {OTHERS} files in {folder} is an image: give a folder that holds images, in "
                    "one folder for each class."
                )
            yield f"{path}/{name}"
        waiting += [(f"{path}/{name}", above | {itself}) for name in reversed(folders)]


def _identity(path: str | Path) -> tuple[int, int]:
    found = os.stat(path)  # noqa: PTH116
    return found.st_dev, found.st_ino


def _entries(path: str) -> tuple[list[str], list[str]]:
    """The names of files and of folders in a folder, sorted."""
    files, folders = [], []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if _is_folder(entry):
                    folders.append(entry.name)
                elif not entry.name.startswith("."):
                    files.append(entry.name)
    except OSError as error:
        raise UserError(f"The folder {path} cannot be listed: {error.strerror}.") from None
    return sorted(files), sorted(folders)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):  # a link in a circle is a file that cannot be read
        return entry.is_dir()
    return False


def is_litter(path: str) -> bool:
    """Whether a file is one that systems leave behind."""
    return path.rpartition("/")[2].lower() in LITTER


def is_image(path: str) -> bool:
    """Whether a file claims to be an image by its name, or is one all the same."""
    if path.lower().endswith(_ENDINGS):  # enough, and nothing has to be read
        return True
    with suppress(Exception), open_ordinary(path) as file, Image.open(file):
        return True
    return False


# Data sets in folders: torchvision's CIFAR, and a folder of images for each class.


def cifar(spec: DataSpec) -> RawDataset:
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
    return RawDataset(
        folder, RawSplit("training", train.data, trained), RawSplit("test", test.data, tested), train.classes
    )


def class_folders(spec: DataSpec) -> RawDataset:
    """PLACE/train/CLASS/... and PLACE/val/CLASS/..., or PLACE/CLASS/... without parts."""
    place, read = _place(spec), _Files(spec.skip_bad)
    parts = [name for name in _folders(place) if name.lower() in TRAIN + TEST]
    asked = [name for name in (spec.train_split, spec.test_split) if name is not None]
    parts += [name for name in asked if name not in parts and (place / name).is_dir()]
    if not parts and not asked:
        names = _class_names(place, spec)
        whole = _part(place, place.name, names, read)
        return RawDataset(str(place), whole, None, names, read.notes())
    train, test = choose_splits(str(place), parts, spec)
    names = _class_names(place / train, spec)
    if test is not None and spec.class_list is None:
        _check_same_classes(place, (train, names), (test, _class_names(place / test, spec)))
    trained = _part(place / train, train, names, read)
    tested = None if test is None else _part(place / test, test, names, read)
    return RawDataset(str(place), trained, tested, names, read.notes())


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
        count = pluralize(len(self._skipped), "file")
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


def _part(folder: Path, name: str, classes: Sequence[str], read: _Files) -> RawSplit:
    pairs: list[tuple[str, str]] = []
    for one in classes:
        if not (folder / one).is_dir():
            raise UserError(f"{folder} has no folder {one}: every class needs one in every part.")
        mine = [(path, one) for path in read.below(folder / one)]
        if not mine:
            raise UserError(f"Class {one} has no images: {folder / one} holds none. Add some or remove it.")
        pairs += mine
    return _listed(name, pairs, classes)


def tiny_imagenet(spec: DataSpec) -> RawDataset:
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
    return RawDataset(str(place), _listed("train", train, wnids), _listed("val", val, wnids), wnids, read.notes())


def _files_of_wnid(place: Path, wnid: str, read: _Files) -> Sequence[str]:
    folder = place / "train" / wnid / "images"
    files = read.below(folder) if folder.is_dir() else []
    if not files:
        raise UserError(f"Class {wnid} has no images: {folder} is missing or empty.")
    return files


def _listed(name: str, pairs: Sequence[tuple[str, str]], classes: Sequence[str]) -> RawSplit:
    number = {class_name: place for place, class_name in enumerate(classes)}
    labels = np.array([number[class_name] for _, class_name in pairs], dtype=np.int64)
    try:
        paths = pa.array([path for path, _ in pairs], pa.string())
    except UnicodeEncodeError as error:
        raise UserError(f"The file name {error.object!a} is not UTF-8: rename it.") from None
    return RawSplit(name, ImageColumn(paths, torch.arange(len(pairs))), labels)


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
