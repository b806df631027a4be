"""Data sets that come as arrays: digits, .npz files, and CIFAR as torchvision keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from torchvision import datasets as torchvision_sets

from spacedkd.data.found import Found, Part
from spacedkd.data_spec import DataSpec
from spacedkd.errors import UserError

Arrays = Mapping[str, np.ndarray]
ARRAY_NAMES = ("x_train", "y_train", "x_test", "y_test")


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
            missing = [name for name in ARRAY_NAMES if name not in file.files]
            arrays = {name: file[name] for name in ARRAY_NAMES if name not in missing}
            names = file.files
    except FileNotFoundError:
        raise UserError(f"There is no file {path}. Give the path of an .npz with {', '.join(ARRAY_NAMES)}.") from None
    except (ValueError, OSError, EOFError, TypeError, AttributeError, BadZipFile):
        raise UserError(f"{path} is not an .npz of plain arrays, or is cut off. Write one with numpy.savez.") from None
    if missing:
        needs, has = ", ".join(ARRAY_NAMES), ", ".join(names)
        raise UserError(f"{path} has no array {missing[0]}; it needs {needs} and has {has}.")
    return from_arrays(arrays, str(path))


def from_arrays(arrays: Arrays, place: str = "the arrays") -> Found:
    """Bytes [N, H, W] or [N, H, W, C] as x_..., labels as y_..., for train and test."""
    one, other = arrays["x_train"].shape[1:], arrays["x_test"].shape[1:]
    train, test = _part(arrays, "train", "training"), _part(arrays, "test", "test")
    if one != other:
        raise UserError(f"Training images have shape {one} and test images {other}; make them alike.")
    return Found(place, train, test)


def _part(arrays: Arrays, part: str, called: str) -> Part:
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


def cifar10(spec: DataSpec) -> Found:
    return _cifar(torchvision_sets.CIFAR10, spec)


def cifar100(spec: DataSpec) -> Found:
    return _cifar(torchvision_sets.CIFAR100, spec)


def _cifar(kind: Any, spec: DataSpec) -> Found:
    """What torchvision has under the root, or gets from the network; it checks digests before it unpickles."""
    folder = f"{spec.root}/{kind.base_folder}"
    try:
        there = Path(folder).is_dir()
        train, test = kind(spec.root, train=True, download=not there), kind(spec.root, train=False)
    except (OSError, RuntimeError) as error:
        reason = "its files are not the official ones" if there else f"it cannot be downloaded ({_first_line(error)})"
        raise UserError(
            f"{spec.source} is not usable from {folder}: {reason}. Put the official {kind.base_folder} folder there, "
            f"name the folder that holds it with --root, or give a parquet copy as --data PATH."
        ) from None
    return Found(folder, _of_torchvision("training", train), _of_torchvision("test", test), train.classes)


def _of_torchvision(name: str, part: Any) -> Part:
    return Part(name, part.data, np.array(part.targets, dtype=np.int64))


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
