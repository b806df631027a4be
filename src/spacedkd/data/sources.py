"""The list of dataset readers, and loading: from the `DataSpec` a user gives to the images of a run.

`READERS` is the only list of readers; a new one is a file that makes a `Reader`, and an entry here. `Library` reads
each dataset of a process once, however many runs use it.
"""

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np

from spacedkd.config.spec import AugmentSpec, DataSpec
from spacedkd.data import arrays, benchmarks, csv, folders, hub, mnist1d, parquet, transforms
from spacedkd.data.images import first_size, stats_kept
from spacedkd.data.launch_cache import compute_once, shared_by
from spacedkd.data.pixel_cache import MEMORY_LIMIT
from spacedkd.data.reader import RawDataset, Reader, read_once
from spacedkd.data.run_data import RunData, load_splits
from spacedkd.runtime.errors import UserError, same_name, unknown
from spacedkd.runtime.processes import check_pixels, print_notice

READERS: tuple[Reader, ...] = (
    arrays.DIGITS,
    mnist1d.MNIST1D,
    benchmarks.CIFAR10,
    benchmarks.CIFAR100,
    benchmarks.TINY_IMAGENET,
    benchmarks.IMAGENET_100,
    benchmarks.IMAGENET_1K,
    hub.SAVED_TO_DISK,
    benchmarks.TINY_IMAGENET_FOLDER,
    parquet.PARQUET,
    csv.CSV,
    folders.CLASS_FOLDERS,  # any other folder, so after the readers of certain folders
    arrays.NPZ,
    hub.HUB,  # what is not on this machine, so last
)


def choose_reader(source: str) -> Reader:
    """Return the first reader that accepts a source; refuse a source that none accepts."""
    if not source.strip():  # which a path would take for the current folder
        raise UserError("--data is empty: give a name of `spacedkd list data`, a folder (. is this one), or a file.")
    path = Path(source)
    if path.is_dir() and source not in dataset_names():
        folders.refuse_system_folder(path)
    for reader in READERS:
        if reader.accepts(source):
            return reader
    if path.is_file():
        suffixes = [reader.suffix for reader in READERS if reader.suffix is not None]
        raise UserError(f"{path} is not a file that holds a dataset: those end with {' or '.join(suffixes)}.")
    raise unknown("dataset", source, [reader.name for reader in READERS])


def _choose_reader_once(source: str) -> Reader:
    """Return `choose_reader(source)`; one process of a run looks at the folder for all others on its machine."""
    number = compute_once(f"reader of {source}", lambda: {"number": np.array(READERS.index(choose_reader(source)))})
    return READERS[int(number["number"])]


def dataset_names() -> list[str]:
    """Return the names of the datasets that are known by name."""
    return [reader.name for reader in READERS if reader.is_named]


def reader_options() -> tuple[str, ...]:
    """Return the fields of a DataSpec that any reader reads besides `source`."""
    return tuple(dict.fromkeys(option for reader in READERS for option in reader.options))


def refuse_unread_options(spec: DataSpec, reader: Reader) -> None:
    """Refuse an option that the reader does not read; an option at its default counts as not given."""
    defaults = DataSpec()
    for option in reader_options():
        if option not in reader.options and getattr(spec, option) != getattr(defaults, option):
            names = ", ".join(other.name for other in READERS if option in other.options)
            raise UserError(f"{option} does not matter for {spec.source}, it is for {names}: leave it out.")


class Library:
    """The datasets of one process: each is read once, however many runs use it."""

    def __init__(self, memory_limit: int = MEMORY_LIMIT) -> None:
        """Splits of more than `memory_limit` decoded bytes stay encoded."""
        self.memory_limit = memory_limit
        self._choose_reader = cache(_choose_reader_once)
        self._raw: dict[Hashable, RawDataset] = {}
        self._loaded: dict[Hashable, RunData] = {}
        self._printed: set[str] = set()

    def load(self, spec: DataSpec, processes: int = 1) -> RunData:
        """Return the dataset of a spec with every image checked; print what a user should know about it.

        Of several `processes` on this machine that load it for one run, one reads and checks for all.
        """
        with shared_by(processes):
            spec = self.resolve(spec, processes)
            key = (*_raw_key(spec), spec.augmentation, spec.image_size, spec.train_limit, spec.class_limit)
            data = _recent(self._loaded, key, lambda: self._load_splits(spec)).with_spec(spec)
        for line in data.repeated_notes:
            if line not in self._printed:
                print_notice(line)
                self._printed.add(line)
        return data

    def read(self, spec: DataSpec) -> RawDataset:
        """Return the dataset of a spec as it is on disk; nothing is decoded."""
        return _recent(self._raw, _raw_key(spec), lambda: self._read(spec))

    def _read(self, spec: DataSpec) -> RawDataset:
        return read_once(f"{Path.cwd()} {_raw_key(spec)}", lambda: self._choose_reader(spec.source).read(spec))

    def resolve(self, spec: DataSpec, processes: int = 1) -> DataSpec:
        """Return the spec with its augmentation, with the transforms and the image size that it leaves open.

        Refuses options that the reader of its source does not read, and changes of an augmentation that has none.
        """
        with shared_by(processes):
            return self._resolve(spec)

    def _resolve(self, spec: DataSpec) -> DataSpec:
        if not Path(spec.source).exists():  # a folder or a file of exactly that name is what the user means
            spec = replace(spec, source=same_name(spec.source, dataset_names()))
        reader = self._choose_reader(spec.source)
        refuse_unread_options(spec, reader)
        if reader.signals:
            return _unvaried(spec)
        resolved = self._resolve_augmentation(spec, reader)
        augmentation = transforms.get_augmentation(resolved.augmentation or "")
        if resolved.augment != augmentation.augment and not augmentation.adjustable:
            raise UserError(
                f"Augmentation {resolved.augmentation} is fixed: leave out --crop, --flip and --rotate, or use "
                "--augment plain."
            )
        return resolved

    def _load_splits(self, spec: DataSpec) -> RunData:
        with stats_kept():
            data = load_splits(self.read(spec), spec, self.memory_limit)
        for line in data.notes:
            print_notice(line)
        return data

    def _resolve_augmentation(self, spec: DataSpec, reader: Reader) -> DataSpec:
        if spec.image_size is not None:
            check_pixels("image_size", spec.image_size, spec.image_size)
        depends_on_data = spec.augmentation is None or spec.augmentation in transforms.DATA_DEPENDENT
        if not depends_on_data and spec.image_size is not None:
            has_changes = transforms.get_augmentation(spec.augmentation or "").augment is not None
            if spec.augment is not None or not has_changes:
                return spec  # nothing is left open, so no image has to be looked at
        suitable, size = self._suitable_augmentation(spec, reader)
        if spec.augment is not None and not transforms.get_augmentation(suitable).adjustable:
            suitable = "plain"
        name = transforms.resolve_paper_name(spec.augmentation, suitable) or suitable
        augmentation = transforms.get_augmentation(name)
        augment = spec.augment or augmentation.augment
        if spec.augment is None and augmentation.augment is not None and augmentation.crops_an_eighth:
            side = size or min(_first_image_size(self.read(spec)))
            augment = replace(augmentation.augment, crop=side // 8)
        return replace(
            spec, augmentation=name, augment=augment, image_size=spec.image_size or augmentation.size or size
        )

    def _suitable_augmentation(self, spec: DataSpec, reader: Reader) -> tuple[str, int | None]:
        """Return the augmentation that suits a dataset, and the image size; None keeps the size the images have.

        Small pictures are varied at their own size; photographs get what is usual for ImageNet. Where the user asks for
        the paper's augmentation, photographs of the size of CIFAR or Tiny-ImageNet get that of the paper.
        """
        if reader.augmentation is not None:
            return reader.augmentation, transforms.get_augmentation(reader.augmentation).size
        raw = self.read(spec)
        size = _first_image_size(raw)
        is_small = max(size) <= MOST_SMALL_PIXELS or not _could_be_photographs(raw)
        name = "small" if is_small else "imagenet"
        side = min(size) if is_small else transforms.get_augmentation(name).size
        if spec.augmentation in transforms.DATA_DEPENDENT and _could_be_photographs(raw):
            name = transforms.PAPER_SIZES.get(size, name)
        return name, None if isinstance(raw.train.images, np.ndarray) else side  # arrays keep the shape they have


def _unvaried(spec: DataSpec) -> DataSpec:
    """Return the spec of a dataset of signals; refuse what resizes images, or changes them at random."""
    spec = replace(
        spec,
        augmentation=None if spec.augmentation == "none" else spec.augmentation,
        augment=None if spec.augment == AugmentSpec() else spec.augment,
    )
    for name in ("augmentation", "augment", "cutmix", "image_size"):
        if getattr(spec, name) != getattr(DataSpec(), name):
            flags = {"augment": "crop, flip and rotate change"}.get(name, f"{name} changes")
            raise UserError(
                f"{flags} images, and {spec.source} has signals, which are taken as they are: leave it out."
            )
    return spec


def resolve_data(spec: DataSpec) -> DataSpec:
    """Return `Library().resolve(spec)`."""
    return Library().resolve(spec)


def load(spec: DataSpec, memory_limit: int = MEMORY_LIMIT) -> RunData:
    """Return `Library(memory_limit).load(spec)`."""
    return Library(memory_limit).load(spec)


MOST_SMALL_PIXELS = 96
"""photographs have a longer side, and want another augmentation than small pictures"""


def _could_be_photographs(raw: RawDataset) -> bool:
    """Return whether images can be resized and varied like photographs; arrays of 2 or 4 channels cannot."""
    images = raw.train.images
    return not isinstance(images, np.ndarray) or images.shape[3] in (1, 3)


def _first_image_size(raw: RawDataset) -> tuple[int, int]:
    """Return width and height of the first training image that can be read."""
    images = raw.train.images
    if isinstance(images, np.ndarray):
        return images.shape[2], images.shape[1]
    size = first_size(images)
    if size is None:
        raise UserError(f"{raw.location} has no training image that can be read.")
    return size


MOST_IN_MEMORY = 2
"""datasets that a library keeps"""
T = TypeVar("T")


def _raw_key(spec: DataSpec) -> tuple[Hashable, ...]:
    """Return the fields of a spec that decide which images are read."""
    return (spec.source, *(getattr(spec, option) for option in reader_options()))


def _recent(values: dict[Hashable, T], key: Hashable, make: Callable[[], T]) -> T:
    """Return the value of a key, or make it; before that, drop the values that were not used for the longest."""
    value = values.pop(key) if key in values else None
    while len(values) >= MOST_IN_MEMORY:
        del values[next(iter(values))]
    values[key] = make() if value is None else value
    return values[key]
