"""Folders of class folders: your own, ImageNet's, and Tiny-ImageNet in its official layout."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from spacedkd.data.found import TEST, TRAIN, Found, Part, choose, refuse_unread
from spacedkd.data.stored import Files
from spacedkd.data_spec import DataSpec
from spacedkd.errors import UserError

LITTER = {"thumbs.db", "desktop.ini"}


def class_folders(spec: DataSpec, place: Path | None = None) -> Found:
    """PLACE/train/CLASS/... and PLACE/val/CLASS/..., or PLACE/CLASS/... without parts."""
    place = place or Path(spec.source)
    parts = [name for name in _folders(place) if name.lower() in TRAIN + TEST]
    asked = [name for name in (spec.train_split, spec.test_split) if name is not None]
    parts += [name for name in asked if name not in parts and (place / name).is_dir()]
    if not parts and not asked:
        names = _class_names(place, spec)
        return Found(str(place), _part(place, place.name, names), None, names)
    train, test = choose(str(place), parts, spec)
    names = _class_names(place / train, spec)
    if test is None:
        return Found(str(place), _part(place / train, train, names), None, names)
    if spec.class_list is None:
        _check_same_classes(place, (train, names), (test, _class_names(place / test, spec)))
    return Found(str(place), _part(place / train, train, names), _part(place / test, test, names), names)


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
    paths: list[str] = []
    labels: list[int] = []
    for number, class_name in enumerate(classes):
        if not (folder / class_name).is_dir():
            raise UserError(f"{folder} has no folder {class_name}: every class needs one in every part.")
        mine = list(_files(folder / class_name))
        if not mine:
            raise UserError(f"Class {class_name} has no images: {folder / class_name} is empty. Add some or remove it.")
        paths += mine
        labels += [number] * len(mine)
    return Part(name, Files(pa.array(paths)), np.array(labels, dtype=np.int64))


def _files(folder: Path) -> Iterator[str]:
    """All files below a folder, always in the same order, without those that systems leave behind."""
    for path, folders, names in os.walk(folder, followlinks=True):
        folders.sort()
        for name in sorted(names):
            if not name.startswith(".") and name.lower() not in LITTER:
                yield f"{path}/{name}"


def tiny_imagenet(spec: DataSpec, place: Path | None = None) -> Found:
    """The official archive; classes are numbered by their line in wnids.txt, and val is the part to test on."""
    place = place or Path(spec.source)
    if not (place / "val" / "val_annotations.txt").is_file():  # val sorted into class folders, as many do
        return class_folders(replace(spec, class_list=str(place / "wnids.txt")), place)
    refuse_unread(spec, ("root", "skip_bad"))  # the official layout has parts with names of its own
    wnids = read_class_list(str(place / "wnids.txt"))
    train = [(path, wnid) for wnid in wnids for path in _files_of_wnid(place, wnid)]
    lines = (place / "val" / "val_annotations.txt").read_text().splitlines()
    val = [(f"{place}/val/images/{name}", wnid) for name, wnid, *_ in (line.split() for line in lines if line.strip())]
    number = {wnid: place for place, wnid in enumerate(wnids)}
    strange = next((wnid for _, wnid in val if wnid not in number), None)
    if strange is not None:
        raise UserError(f"{place}/val/val_annotations.txt has class {strange}, which is not in {place}/wnids.txt.")
    return Found(str(place), _listed("train", train, number), _listed("val", val, number), wnids)


def _files_of_wnid(place: Path, wnid: str) -> Iterable[str]:
    folder = place / "train" / wnid / "images"
    files = list(_files(folder))
    if not files:
        raise UserError(f"Class {wnid} has no images: {folder} is missing or empty.")
    return files


def _listed(name: str, pairs: Sequence[tuple[str, str]], number: dict[str, int]) -> Part:
    labels = np.array([number[wnid] for _, wnid in pairs], dtype=np.int64)
    return Part(name, Files(pa.array([path for path, _ in pairs], pa.string())), labels)


def under_root(spec: DataSpec, folders: Sequence[str], sign: str, layout: str) -> Path:
    """Where a data set known by name lies: in one of `folders` of the root, or in the root; `sign` must be there."""
    for place in (*(Path(spec.root) / folder for folder in folders), Path(spec.root)):
        if (place / sign).exists():
            return place
    raise UserError(
        f"{spec.source} is not in {Path(spec.root) / folders[0]}: it needs {layout} there. "
        "Name the folder that holds it with --root FOLDER."
    )
