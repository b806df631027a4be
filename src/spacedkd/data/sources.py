"""Where images come from: data sets by name and by place, and what suits them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from spacedkd.data import arrays, folders, recipes, tables
from spacedkd.data.found import Found
from spacedkd.data.keep import MEMORY_LIMIT
from spacedkd.data.news import tell
from spacedkd.data.splits import Splits as Splits
from spacedkd.data.splits import split
from spacedkd.data.stored import BadImage, decode
from spacedkd.errors import UserError, unknown
from spacedkd.spec import AugmentSpec, DataSpec

SMALL = 96
"""photographs are larger than this, and want another augmentation than small pictures"""


class Suits(NamedTuple):
    """What a data set gets where a spec leaves it open."""

    recipe: str
    augment: AugmentSpec | None = None
    image_size: int | None = None


class Source(NamedTuple):
    """A data set by name, or a kind of place."""

    about: str
    find: Callable[[DataSpec], Found]
    suits: Suits | None = None
    """None looks at an image first"""


def _tiny_imagenet(spec: DataSpec) -> Found:
    layout = "the wnids.txt, train/WNID/images and val/val_annotations.txt of tiny-imagenet-200.zip"
    place = folders.under_root(spec, ("tiny-imagenet-200", "tiny-imagenet"), "wnids.txt", layout)
    return folders.tiny_imagenet(spec, place)


def _imagenet(spec: DataSpec) -> Found:
    place = folders.under_root(spec, ("imagenet", "imagenet-1k"), "train", "train/WNID and val/WNID folders")
    return folders.class_folders(spec, place)


def _imagenet_100(spec: DataSpec) -> Found:
    if spec.class_list is None:
        raise UserError(
            "imagenet-100 needs the list of its classes: --class-list FILE, a text file with 100 lines and one wnid on "
            "each, for instance n02869837."
        )
    return _imagenet(spec)


SOURCES = {
    "digits": Source(
        "8x8 gray handwritten digits, 10 classes, 899 + 898 images; comes with scikit-learn",
        arrays.digits,
        Suits("plain", AugmentSpec(crop=1, rotate=10)),
    ),
    "cifar10": Source("32x32 photographs, 10 classes, 50 000 + 10 000 images", arrays.cifar10, Suits("cifar")),
    "cifar100": Source("32x32 photographs, 100 classes, 50 000 + 10 000 images", arrays.cifar100, Suits("cifar")),
    "tiny-imagenet": Source(
        "64x64 photographs, 200 classes, 100 000 + 10 000 images", _tiny_imagenet, Suits("tiny-imagenet")
    ),
    "imagenet-100": Source("ImageNet with the classes of --class-list", _imagenet_100, Suits("imagenet")),
    "imagenet-1k": Source("ImageNet, 1000 classes, 1 281 167 + 50 000 images", _imagenet, Suits("imagenet")),
}
"""all but digits lie in --root; the cifars are downloaded there where they are missing"""

_FOLDER = Source("train and val (or test) folders with a folder for each class", folders.class_folders)
_TINY_IMAGENET = Source("Tiny-ImageNet in its official layout", folders.tiny_imagenet, Suits("tiny-imagenet"))
_PARQUET = Source("an image and a label column; also a folder of such files", tables.parquet)
_SAVED = Source("what Hugging Face datasets saved to disk", tables.saved_to_disk)
_HUB = Source("a data set on the Hugging Face hub; OWNER/NAME:CONFIGURATION picks one", tables.hub)
_NPZ = Source("arrays: x_train, x_test as uint8 [N, H, W] or [N, H, W, C]; y_train, y_test", arrays.npz, Suits("plain"))
PLACES = {"FOLDER": _FOLDER, "FILE.parquet": _PARQUET, "FILE.npz": _NPZ, "OWNER/NAME": _HUB}


def source_of(spec: DataSpec) -> Source:
    """The data set, or the kind of place, that a spec names."""
    path = Path(spec.source)
    if spec.source in SOURCES:
        return SOURCES[spec.source]
    if path.suffix in (".npz", ".parquet") and not path.is_dir():
        return _NPZ if path.suffix == ".npz" else _PARQUET
    if path.is_dir():
        return _kind_of_folder(path)
    if path.is_file():
        raise UserError(f"{path} is not a kind of file that holds data sets: those are .parquet and .npz.")
    if re.fullmatch(r"\w[\w.-]*/[\w.-]+(:[\w.-]+)?", spec.source):
        return _HUB
    raise unknown("data set", spec.source, [*SOURCES, "a folder", "a .parquet or .npz file", "OWNER/NAME on the hub"])


def _kind_of_folder(path: Path) -> Source:
    if any((path / name).is_file() for name in ("dataset_dict.json", "state.json")):
        return _SAVED
    if (path / "wnids.txt").is_file():
        return _TINY_IMAGENET
    # Not any deeper: looking through all folders of a large data set takes long.
    holds_tables = any(next(path.glob(pattern), None) for pattern in ("*.parquet", "*/*.parquet", "*/*/*.parquet"))
    return _PARQUET if holds_tables else _FOLDER


def fill_in(spec: DataSpec) -> DataSpec:
    """The spec with the recipe, its changes and the image size that suit its data, where it names none."""
    source = source_of(spec)
    if source.suits is None and _complete(spec):
        return spec
    return _filled(spec, source.suits or what_suits(source.find(spec)))


def load(spec: DataSpec, memory_limit: int = MEMORY_LIMIT) -> Splits:
    """The data set a spec asks for, with every image checked; what a user should know is told."""
    source = source_of(spec)
    found = source.find(spec)
    complete = source.suits is None and _complete(spec)
    spec = spec if complete else _filled(spec, source.suits or what_suits(found))
    parts = split(found, spec, memory_limit)
    for line in parts.notes:
        tell(line)
    return parts


def _complete(spec: DataSpec) -> bool:
    if spec.recipe is None or spec.image_size is None:
        return False
    return (spec.augment is not None) == (recipes.named(spec.recipe).augment is not None)


def _filled(spec: DataSpec, suits: Suits) -> DataSpec:
    name = spec.recipe or (suits.recipe if spec.augment is None or recipes.named(suits.recipe).varies else "plain")
    recipe = recipes.named(name)
    if spec.augment not in (None, recipe.augment) and not recipe.varies:
        raise UserError(f"Augmentation {name} is fixed: leave out --crop, --flip and --rotate, or use --augment plain.")
    if spec.image_size is not None and spec.image_size < 1:
        raise UserError(f"image_size must be at least 1, got {spec.image_size}.")
    changes = suits.augment if name == suits.recipe and suits.augment is not None else recipe.augment
    size = recipe.size or suits.image_size or recipes.named(suits.recipe).size
    return replace(spec, recipe=name, augment=spec.augment or changes, image_size=spec.image_size or size)


def what_suits(found: Found) -> Suits:
    """Small pictures are shifted and mirrored; photographs get what is usual for ImageNet."""
    images = found.train.images
    assert not isinstance(images, np.ndarray)  # arrays say what suits them
    for row in range(len(images)):
        try:
            size = decode(images.read(row)).size
        except BadImage:
            continue
        small = Suits("plain", AugmentSpec(crop=min(size) // 8, flip=True), min(size))
        return small if max(size) <= SMALL else Suits("imagenet")
    raise UserError(f"{found.place} has no training image that can be read.")
