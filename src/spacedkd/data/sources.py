"""Where images come from: data sets by name or by file, checked before training starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spacedkd.data.stream import Images
from spacedkd.errors import UserError, unknown
from spacedkd.seeds import seed_for
from spacedkd.spec import AugmentSpec, DataSpec

Arrays = Mapping[str, np.ndarray]
ARRAY_NAMES = ("x_train", "y_train", "x_test", "y_test")


class Splits(NamedTuple):
    """The parts of a data set; `holdout` is cut from the training images on request."""

    train: Images
    test: Images
    holdout: Images | None = None

    def to(self, device: torch.device) -> Splits:
        holdout = self.holdout.to(device) if self.holdout is not None else None
        return Splits(self.train.to(device), self.test.to(device), holdout)

    def evaluated(self) -> dict[str, Images]:
        """The parts accuracy is measured on."""
        return {"test": self.test} | ({"holdout": self.holdout} if self.holdout is not None else {})


class Source(NamedTuple):
    """A data set by name."""

    about: str
    load: Callable[[], Arrays]
    augment: AugmentSpec


def _digits() -> Arrays:
    """1797 real handwritten digits that come with scikit-learn; every other image is for testing."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pixels = np.rint(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return {"x_train": pixels[::2], "y_train": labels[::2], "x_test": pixels[1::2], "y_test": labels[1::2]}


SOURCES = {
    "digits": Source(
        "8x8 gray handwritten digits, 10 classes, 899 + 898 images; comes with scikit-learn",
        _digits,
        AugmentSpec(crop=1, rotate=10),
    ),
}


def fill_in(spec: DataSpec) -> DataSpec:
    """The spec with the augmentation that suits its data set, where it names none."""
    suits = SOURCES[spec.source].augment if spec.source in SOURCES else AugmentSpec()
    return spec if spec.augment is not None else replace(spec, augment=suits)


def load(spec: DataSpec) -> Splits:
    """The data set a spec asks for."""
    if spec.source in SOURCES:
        return from_arrays(SOURCES[spec.source].load(), spec)
    if spec.source.endswith(".npz"):
        return from_arrays(_read_npz(Path(spec.source)), spec)
    raise unknown("data set", spec.source, [*SOURCES, "a path to an .npz file"])


def _read_npz(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise UserError(f"There is no file {path}. Give the path of an .npz with {', '.join(ARRAY_NAMES)}.") from None
    except (ValueError, OSError) as error:
        raise UserError(f"{path} cannot be read as .npz: {error}. Write one with numpy.savez.") from None
    for name in ARRAY_NAMES:
        if name not in arrays:
            raise UserError(
                f"{path} has no array {name}; it needs {', '.join(ARRAY_NAMES)} and has {', '.join(arrays)}."
            )
    return arrays


def from_arrays(arrays: Arrays, spec: DataSpec) -> Splits:
    """Splits from arrays: bytes [N, H, W] or [N, H, W, C] as x_..., labels 0 .. C-1 as y_..., for train and test."""
    classes = tuple(str(label) for label in range(_class_count(arrays["y_train"])))
    train = _images(arrays, "train", classes)
    chosen = _evenly(train.labels, spec.train_limit, len(classes))
    train = train.subset(chosen)
    mean, std = _statistics(train.pixels)
    train = train._replace(mean=mean, std=std)
    test = _images(arrays, "test", classes)._replace(mean=mean, std=std)
    if spec.holdout == 0:
        return Splits(train, test)
    kept, aside = _held_out(len(train.labels), spec.holdout)
    return Splits(train.subset(kept), test, train.subset(aside))


def _class_count(labels: np.ndarray) -> int:
    if labels.size == 0:
        raise UserError("The data set has no training images.")
    if not np.issubdtype(labels.dtype, np.integer):
        raise UserError(f"Labels must be whole numbers from 0 up, got {labels.dtype}. Save y_train as int64.")
    found = np.unique(labels)
    if not np.array_equal(found, np.arange(len(found))):
        raise UserError(
            f"Training labels must be 0 to C-1 without gaps, got {len(found)} different ones from {found[0]} to "
            f"{found[-1]}. Number the classes from 0."
        )
    return len(found)


def _images(arrays: Arrays, part: str, classes: tuple[str, ...]) -> Images:
    pixels, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
    if len(pixels) == 0:
        raise UserError(f"The data set has no {part} images: x_{part} is empty.")
    if len(pixels) != len(labels):
        raise UserError(f"x_{part} has {len(pixels)} images but y_{part} has {len(labels)} labels; they must pair up.")
    if pixels.dtype != np.uint8 or pixels.ndim not in (3, 4):
        raise UserError(
            f"x_{part} must be uint8 of shape [N, H, W] or [N, H, W, C], got {pixels.dtype} {pixels.shape}."
        )
    if labels.min() < 0 or labels.max() >= len(classes):
        raise UserError(
            f"y_{part} has labels from {labels.min()} to {labels.max()}, but the training labels say 0 to "
            f"{len(classes) - 1}. Number the classes from 0 and use the same in both parts."
        )
    pixels = pixels[..., None] if pixels.ndim == 3 else pixels
    tensor = torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))
    return Images(tensor, torch.from_numpy(labels.astype(np.int64)), classes, (), ())


def _evenly(labels: Tensor, limit: int | None, classes: int) -> Tensor:
    """The rows of the first `limit` images, counted round the classes; all rows without a limit."""
    if limit is None:
        return torch.arange(len(labels))
    if not classes <= limit <= len(labels):
        raise UserError(f"train_limit must be from {classes} (one a class) to {len(labels)} (all images), got {limit}.")
    # How many images of its own class come before each image: sorting by that deals the classes out in rounds.
    earlier = torch.zeros_like(labels)
    for label in range(classes):
        mine = labels == label
        earlier[mine] = torch.arange(int(mine.sum()))
    return torch.argsort(earlier, stable=True)[:limit].sort().values


def _held_out(count: int, part: float) -> tuple[Tensor, Tensor]:
    """Rows to train on and rows to keep aside. The same for every seed, so that runs stay comparable."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed_for(0, "holdout")))
    aside = round(count * part)
    if not 0 < aside < count:
        raise UserError(f"A holdout of {part:g} of {count} images leaves one side empty; choose another part.")
    return order[aside:].sort().values, order[:aside].sort().values


def _statistics(pixels: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel, of pixels in 0 .. 1, exact from a histogram of the bytes."""
    levels = torch.arange(256, dtype=torch.float64) / 255
    counts = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in pixels.unbind(1)]).double()
    share = counts / counts.sum(1, keepdim=True)
    mean = share @ levels
    std = (share @ levels.square() - mean.square()).clamp(min=0).sqrt()
    return tuple(mean.tolist()), tuple(std.clamp(min=1 / 255).tolist())
