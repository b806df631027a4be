"""Images in folders, one folder for each class: FOLDER/train/CLASS/..., FOLDER/val/CLASS/..., or FOLDER/CLASS/...

First the reader, then how files are found below a folder, without ever walking in circles or through a folder that
holds no images.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from PIL import Image

from spacedkd.config.spec import DataSpec
from spacedkd.data.images import ImageColumn, open_ordinary, read_text
from spacedkd.data.reader import TEST_NAMES, TRAIN_NAMES, RawDataset, RawSplit, Reader, choose_splits
from spacedkd.runtime.errors import UserError, pluralize

OPTIONS = ("class_list", "train_split", "test_split", "test_part", "skip_bad")


def read_class_folders(spec: DataSpec, folder: Path | None = None) -> RawDataset:
    """Find the images in the class folders of a folder, which is the spec's source unless it is given."""
    folder = Path(spec.source) if folder is None else folder
    finder = ImageFinder(spec.skip_bad)
    wanted = [name for name in (spec.train_split, spec.test_split) if name is not None]
    splits = [name for name in _subfolders(folder) if name.lower() in TRAIN_NAMES + TEST_NAMES]
    splits += [name for name in wanted if name not in splits and (folder / name).is_dir()]
    if not splits and not wanted:
        classes = _class_names(folder, spec)
        train = _read_split(folder, folder.name, classes, finder)
        return RawDataset(str(folder), train, None, classes, finder.notes())
    train_name, test_name = choose_splits(str(folder), splits, spec)
    classes = _class_names(folder / train_name, spec)
    if test_name is not None and spec.class_list is None:
        _check_same_classes(folder, {train_name: classes, test_name: _class_names(folder / test_name, spec)})
    train = _read_split(folder / train_name, train_name, classes, finder)
    test = None if test_name is None else _read_split(folder / test_name, test_name, classes, finder)
    return RawDataset(str(folder), train, test, classes, finder.notes())


def _subfolders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def _class_names(folder: Path, spec: DataSpec) -> Sequence[str]:
    if spec.class_list is not None:
        return read_class_list(spec.class_list)
    names = _subfolders(folder)
    if not names:
        raise UserError(
            f"{folder} has no class folders: put its images into one folder for each class, or give a folder that has "
            "train and val folders with those."
        )
    return names


def read_class_list(path: str) -> Sequence[str]:
    """Return the names in a file with one class folder a line; refuse an empty list and a name that occurs twice."""
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


def _check_same_classes(folder: Path, classes: dict[str, Sequence[str]]) -> None:
    """Refuse two splits, by name, whose class folders differ."""
    train, test = classes
    for name, other in ((train, test), (test, train)):
        missing = sorted({*classes[name]} - {*classes[other]})
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise UserError(
                f"{folder} has different classes in its splits: {', '.join(missing[:3])}{more} in {name} but not in "
                f"{other}. Give both the same class folders, or name those to use with --class-list."
            )


def _read_split(folder: Path, name: str, classes: Sequence[str], finder: "ImageFinder") -> RawSplit:
    pairs: list[tuple[str, str]] = []
    for class_name in classes:
        if not (folder / class_name).is_dir():
            raise UserError(f"{folder} has no folder {class_name}: every class needs one in every split.")
        paths = finder.images_below(folder / class_name)
        if not paths:
            raise UserError(
                f"Class {class_name} has no images: {folder / class_name} holds none. Add some or remove it."
            )
        pairs += [(path, class_name) for path in paths]
    return split_of_files(name, pairs, classes)


def split_of_files(name: str, pairs: Sequence[tuple[str, str]], classes: Sequence[str]) -> RawSplit:
    """Return a split of image files, from pairs (path, name of its class)."""
    numbers = {class_name: number for number, class_name in enumerate(classes)}
    labels = np.array([numbers[class_name] for _, class_name in pairs], dtype=np.int64)
    try:
        paths = pa.array([path for path, _ in pairs], pa.string())
    except UnicodeEncodeError as error:
        raise UserError(f"The file name {error.object!a} is not UTF-8: rename it.") from None
    return RawSplit(name, ImageColumn(paths, torch.arange(len(pairs))), labels)


CLASS_FOLDERS = Reader(
    name="FOLDER",
    about="train and val (or test) folders with a folder for each class",
    docs="`train/CLASS/...` and `val/CLASS/...` (also `valid`, `validation`, `test`), images at any depth below CLASS; "
    "or `CLASS/...` without splits, and `--test-part 0.2` uses a fifth of every class for testing, the same images "
    "for every seed",
    read=read_class_folders,
    recognises=lambda source: Path(source).is_dir(),
    options=OPTIONS,
)


# Files below a folder

IGNORED_FILES = {"thumbs.db", "desktop.ini"}
"""files that operating systems put into folders"""
MOST_OTHER_FILES = 256
"""number of files other than images, before the first image, from which a folder is refused"""
_IMAGE_SUFFIXES = tuple(
    ".jpg .jpeg .jpe .jfif .jp2 .png .bmp .gif .webp .avif .tif .tiff .heic .heif .ppm .pgm .pbm .pnm .tga".split()
)
"""a file with one of them claims to be an image, and is refused where it cannot be decoded"""

_SYSTEM_FOLDERS = {*"/ /bin /boot /dev /etc /lib /lib32 /lib64 /proc /run /sbin /sys /usr /var".split()}
_VIRTUAL_FOLDERS = ("/dev", "/proc", "/sys")
"""nothing below them is a file on a disk, except in /dev/shm"""


class ImageFinder:
    """Finds the images below folders; skips and counts other files, such as notes.txt, as torchvision skips them."""

    def __init__(self, all_files: bool) -> None:
        """`all_files` counts every file as an image; those that cannot be decoded are left out later."""
        self._all_files = all_files
        self._skipped: list[str] = []

    def images_below(self, folder: Path) -> list[str]:
        """Return the paths of the images below a folder, always in the same order."""
        images: list[str] = []
        for path in files_below(folder):
            skip = path.rpartition("/")[2].lower() in IGNORED_FILES or not (self._all_files or is_image(path))
            (self._skipped if skip else images).append(path)
        return images

    def notes(self) -> tuple[str, ...]:
        """Return a sentence on the files that were skipped, if any were."""
        count = pluralize(len(self._skipped), "file")
        return (f"Skipped {count} other than images, first: {self._skipped[0]}.",) if self._skipped else ()


def refuse_system_folder(folder: Path) -> None:
    """Refuse folders of the operating system, some of which have no end."""
    real = folder.resolve()
    is_virtual = any(real.is_relative_to(parent) for parent in _VIRTUAL_FOLDERS) and not real.is_relative_to("/dev/shm")
    if str(real) in _SYSTEM_FOLDERS or is_virtual:
        raise UserError(f"{folder} is a folder of the operating system: give the folder that holds your images.")


def files_below(folder: Path) -> Iterator[str]:
    """Yield all files below a folder that are not hidden, always in the same order.

    Links to files and to folders are followed; a link to a folder that contains it is refused.
    """
    parents = (parent for path in (folder.absolute(), folder.resolve()) for parent in path.parents)
    waiting, others = [(str(folder), frozenset(map(_identity, parents)))], 0
    while waiting:
        path, above = waiting.pop()
        files, folders = _entries(path)
        identity = _identity(path)
        if identity in above:
            raise UserError(
                f"{path} is a link to a folder that contains it, so its images would count again and again: remove it."
            )
        for name in files:
            if others < MOST_OTHER_FILES:  # until the first image, which ends the count
                others = MOST_OTHER_FILES + 1 if is_image(f"{path}/{name}") else others + 1
            if others == MOST_OTHER_FILES:
                raise UserError(
                    f"None of the first {MOST_OTHER_FILES} files in {folder} is an image: give a folder that holds "
                    "images, in one folder for each class."
                )
            yield f"{path}/{name}"
        waiting += [(f"{path}/{name}", above | {identity}) for name in reversed(folders)]


def _identity(path: str | Path) -> tuple[int, int]:
    stat = os.stat(path)  # noqa: PTH116
    return stat.st_dev, stat.st_ino


def _entries(path: str) -> tuple[list[str], list[str]]:
    """Return the names of the files and of the folders in a folder, sorted."""
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


def is_image(path: str) -> bool:
    """Return whether a file claims to be an image by its suffix, or is one all the same."""
    if path.lower().endswith(_IMAGE_SUFFIXES):  # enough, and nothing has to be read
        return True
    with suppress(Exception), open_ordinary(path) as file, Image.open(file):
        return True
    return False
