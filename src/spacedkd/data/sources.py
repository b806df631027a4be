"""Where images come from: data sets by name and by place, and what suits them."""

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from spacedkd.config.spec import DataSpec, named_source
from spacedkd.data import arrays, folders, hub, parquet, transforms
from spacedkd.data.decoding import first_size
from spacedkd.data.folders import refuse_system
from spacedkd.data.pixel_cache import MEMORY_LIMIT
from spacedkd.data.raw_dataset import RawDataset, refuse_unread
from spacedkd.data.splits import RunData, load_splits
from spacedkd.runtime.errors import UserError, unknown
from spacedkd.runtime.machine import check_pixels
from spacedkd.runtime.processes import print_notice

SMALL = 96
"""photographs are larger than this, and want another augmentation than small pictures"""


class Source(NamedTuple):
    """A data set by name, or a kind of place."""

    about: str
    find: Callable[[DataSpec], RawDataset]
    suits: str | None = None
    """the augmentation it gets where a spec names none; None looks at an image first"""
    reads: tuple[str, ...] = ()
    """which of the fields of a DataSpec that say where images lie it looks at"""


def _imagenet_100(spec: DataSpec) -> RawDataset:
    if spec.class_list is None:
        raise UserError(
            "imagenet-100 needs the list of its classes: --class-list FILE, a text file with 100 lines and one wnid on "
            "each, for instance n02869837."
        )
    return folders.class_folders(spec)


def _cifar(spec: DataSpec) -> RawDataset:
    """As torchvision has it or, where that is not there, as the hub has it: ROOT/cifar100/*.parquet."""
    place = Path(spec.root) / spec.source
    if not any(place.glob("*.parquet")):
        return folders.cifar(spec)
    label = "fine_label" if spec.source == "cifar100" else "label"
    return parquet.parquet(replace(spec, source=str(place), label_column=label))


_SPLITS = ("train_split", "test_split")
_CLASSES = ("class_list", *_SPLITS, "test_part", "skip_bad")
_TABLE = ("image_column", "label_column", *_SPLITS, "test_part", "skip_bad")

SOURCES = {
    "digits": Source(
        "8x8 gray handwritten digits, 10 classes, 899 + 898 images; comes with scikit-learn", arrays.digits, "digits"
    ),
    "cifar10": Source("32x32 photographs, 10 classes, 50 000 + 10 000 images", _cifar, "cifar", ("root",)),
    "cifar100": Source("32x32 photographs, 100 classes, 50 000 + 10 000 images", _cifar, "cifar", ("root",)),
    "tiny-imagenet": Source(
        "64x64 photographs, 200 classes, 100 000 + 10 000 images",
        folders.tiny_imagenet,
        "tiny-imagenet",
        ("root", *_SPLITS, "skip_bad"),
    ),
    "imagenet-100": Source("ImageNet with the classes of --class-list", _imagenet_100, "imagenet", ("root", *_CLASSES)),
    "imagenet-1k": Source(
        "ImageNet, 1000 classes, 1 281 167 + 50 000 images", folders.class_folders, "imagenet", ("root", *_CLASSES)
    ),
}
"""all but digits lie in --root; the cifars are downloaded there where they are missing"""

_FOLDER = Source("train and val (or test) folders with a folder for each class", folders.class_folders, None, _CLASSES)
_TINY_IMAGENET = Source(
    "Tiny-ImageNet in its official layout", folders.tiny_imagenet, "tiny-imagenet", (*_SPLITS, "skip_bad")
)
_PARQUET = Source("an image and a label column; also a folder of such files", parquet.parquet, None, _TABLE)
_SAVED = Source("what Hugging Face datasets saved to disk", parquet.saved_to_disk, None, _TABLE)
_HUB = Source("a data set on the Hugging Face hub; OWNER/NAME:CONFIGURATION picks one", parquet.hub, None, _TABLE)
_NPZ = Source("arrays: x_train, x_test as uint8 [N, H, W] or [N, H, W, C]; y_train, y_test", arrays.npz)
PLACES = {"FOLDER": _FOLDER, "FILE.parquet": _PARQUET, "FILE.npz": _NPZ, "OWNER/NAME": _HUB}


def source_of(name: str) -> Source:
    """The data set of this name, or the kind of place."""
    if not name.strip():  # which a path would take for the current folder
        raise UserError("--data is empty: give a name of `spacedkd list data`, a folder (. is this one), or a file.")
    path = Path(name)
    if name in SOURCES:
        return SOURCES[name]
    if path.suffix in (".npz", ".parquet") and not path.is_dir():
        return _NPZ if path.suffix == ".npz" else _PARQUET
    if path.is_dir():
        return _kind_of_folder(path)
    if path.is_file():
        raise UserError(f"{path} is not a kind of file that holds data sets: those are .parquet and .npz.")
    if hub.is_name(name):
        return _HUB
    raise unknown("data set", name, [*SOURCES, "a folder", "a .parquet or .npz file", "OWNER/NAME on the hub"])


def _kind_of_folder(path: Path) -> Source:
    refuse_system(path)
    if any((path / name).is_file() for name in ("dataset_dict.json", "state.json")):
        return _SAVED
    if (path / "wnids.txt").is_file():
        return _TINY_IMAGENET
    # Not any deeper: looking through all folders of a large data set takes long.
    holds_tables = any(next(path.glob(pattern), None) for pattern in ("*.parquet", "*/*.parquet", "*/*/*.parquet"))
    return _PARQUET if holds_tables else _FOLDER


KEPT = 2
"""data sets that stay in memory"""
T = TypeVar("T")

_WHERE = "source root class_list image_column label_column train_split test_split test_part".split()
_found_by = attrgetter(*_WHERE, "skip_bad")
_kept_by = attrgetter(*_WHERE, "augmentation", "image_size", "train_limit", "class_limit", "skip_bad")
"""what decides which images are read, and in what form; the rest says how they are varied and cut"""


class Library:
    """The data sets of one process: each is found and read once, however many runs ask for it."""

    def __init__(self, memory_limit: int = MEMORY_LIMIT) -> None:
        self.memory_limit = memory_limit
        self._source = cache(source_of)
        self._found: dict[Hashable, RawDataset] = {}
        self._read: dict[Hashable, RunData] = {}
        self._told: set[str] = set()

    def resolve(self, spec: DataSpec) -> DataSpec:
        """The spec with the augmentation, its changes and the image size that suit its data, where it names none."""
        spec = replace(spec, source=named_source(spec.source))
        source = self._source(spec.source)
        refuse_unread(spec, source.reads)
        full = self._resolve(spec, source)
        chosen = transforms.get_augmentation(full.augmentation or "")
        if full.augment != chosen.augment and not chosen.varies:
            raise UserError(
                f"Augmentation {full.augmentation} is fixed: leave out --crop, --flip and --rotate, or use "
                "--augment plain."
            )
        return full

    def load(self, spec: DataSpec) -> RunData:
        """The data set a spec asks for, with every image checked; what a user should know is told."""
        spec = self.resolve(spec)
        data = _recent(self._read, _kept_by(spec), lambda: self._kept(spec)).as_asked(spec)
        for line in data.repetitions:
            if line not in self._told:
                print_notice(line)
                self._told.add(line)
        return data

    def find(self, spec: DataSpec) -> RawDataset:
        """What there is of a data set, before its images are read as a run asks for them."""
        return _recent(self._found, _found_by(spec), lambda: self._source(spec.source).find(spec))

    def _kept(self, spec: DataSpec) -> RunData:
        kept = load_splits(self.find(spec), spec, self.memory_limit)
        for line in kept.notes:
            print_notice(line)
        return kept

    def _resolve(self, spec: DataSpec, source: Source) -> DataSpec:
        if spec.image_size is not None:
            check_pixels("image_size", spec.image_size, spec.image_size)
        by_data = spec.augmentation is None or spec.augmentation in transforms.DATA_DEPENDENT
        complete = not by_data and spec.image_size is not None
        if complete and (
            spec.augment is not None or transforms.get_augmentation(spec.augmentation or "").augment is None
        ):
            return spec  # without a look at the images
        suits, side, arrays = source.suits, None, False
        if suits is None:  # small pictures are varied at their own size; photographs get what is usual for ImageNet
            found = self.find(spec)
            size, arrays = _size(found), isinstance(found.train.images, np.ndarray)
            small = max(size) <= SMALL or not _could_be_photographs(found)
            suits, side = ("small", min(size)) if small else ("imagenet", None)
            if by_data and spec.augmentation is not None and _could_be_photographs(found):
                suits = transforms.PAPER_SIZES.get(size, suits)
        usual = transforms.get_augmentation(suits)
        own = None if arrays else side or usual.size  # arrays have one shape already, which they keep
        suited = suits if spec.augment is None or usual.varies else "plain"
        name = transforms.resolve_paper_name(spec.augmentation, suited) or suited
        chosen = transforms.get_augmentation(name)
        changes = spec.augment or chosen.augment
        if spec.augment is None and chosen.augment is not None and chosen.crops_an_eighth:
            changes = replace(chosen.augment, crop=(own or min(_size(self.find(spec)))) // 8)
        seen = spec.image_size or chosen.size or own
        return replace(spec, augmentation=name, augment=changes, image_size=seen)


def resolve_data(spec: DataSpec) -> DataSpec:
    """`Library.filled` for one spec."""
    return Library().resolve(spec)


def load(spec: DataSpec, memory_limit: int = MEMORY_LIMIT) -> RunData:
    """`Library.load` for one spec."""
    return Library(memory_limit).load(spec)


def _recent(kept: dict[Hashable, T], key: Hashable, make: Callable[[], T]) -> T:
    """What is kept under a key, or made and kept; those not asked for the longest make room before that."""
    value = kept.pop(key) if key in kept else None
    while len(kept) >= KEPT:
        del kept[next(iter(kept))]
    kept[key] = make() if value is None else value
    return kept[key]


def _could_be_photographs(found: RawDataset) -> bool:
    """Arrays of two or four channels show something else, which can neither be resized nor varied like those."""
    images = found.train.images
    return not isinstance(images, np.ndarray) or images.shape[3] in (1, 3)


def _size(found: RawDataset) -> tuple[int, int]:
    """Width and height of the first training image that can be read."""
    images = found.train.images
    if isinstance(images, np.ndarray):
        return images.shape[2], images.shape[1]
    size = first_size(images)
    if size is None:
        raise UserError(f"{found.place} has no training image that can be read.")
    return size
