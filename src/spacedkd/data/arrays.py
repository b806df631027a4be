"""Datasets that are arrays: those of an .npz file, and the digits that come with scikit-learn."""

import math
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile, ZipInfo

import numpy as np

from spacedkd.config.spec import DataSpec
from spacedkd.data.images import check_fits, open_ordinary
from spacedkd.data.reader import RawDataset, RawSplit, Reader
from spacedkd.runtime.errors import UserError

ARRAY_NAMES = ("x_train", "y_train", "x_test", "y_test")


def read_digits(spec: DataSpec) -> RawDataset:
    """Read the 1797 handwritten digits of scikit-learn; every other image is for testing."""
    package = find_spec("sklearn")  # not imported, which takes longer than a small run
    assert package is not None, "a dependency"
    file = Path(str(package.origin)).with_name("datasets") / "data" / "digits.csv.gz"
    table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    images, labels = table[:, :-1], table[:, -1]
    pixels = np.rint(images.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    train, test = RawSplit("training", pixels[::2], labels[::2]), RawSplit("test", pixels[1::2], labels[1::2])
    return RawDataset("digits", train, test, "0123456789")


DIGITS = Reader(
    name="digits",
    about="8x8 gray handwritten digits, 10 classes, 899 + 898 images; comes with scikit-learn",
    docs="comes with scikit-learn",
    read=read_digits,
    augmentation="digits",
)


def read_npz(spec: DataSpec) -> RawDataset:
    """Read the arrays of an .npz file; the sizes they declare are checked before memory is taken for them."""
    path = Path(spec.source)
    try:
        with open_ordinary(path) as file, ZipFile(file) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            members = {name: archive.getinfo(f"{name}.npy") for name in ARRAY_NAMES if name in names}
            declared = sum(_declared_bytes(archive, member) for member in members.values())
            check_fits(str(path), declared, "arrays")
            arrays = {name: _array(archive, member) for name, member in members.items()}
    except FileNotFoundError:
        raise UserError(f"There is no file {path}. Give the path of an .npz with {', '.join(ARRAY_NAMES)}.") from None
    except UserError:
        raise
    except Exception as error:  # zipfile, its decompressors and numpy have many kinds for what is damaged
        why = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
        raise UserError(
            f"{path} is not an .npz of plain arrays, or is cut off{why}. Write one with numpy.savez."
        ) from None
    missing = [name for name in ARRAY_NAMES if name not in arrays]
    if missing:
        raise UserError(
            f"{path} has no array {missing[0]}; it needs {', '.join(ARRAY_NAMES)} and has {', '.join(names)}."
        )
    return from_arrays(arrays, str(path))


def _declared_bytes(archive: ZipFile, member: ZipInfo) -> int:
    """Return the bytes that an array's header declares; refuse a header that differs from the archive's entry."""
    with archive.open(member) as file:
        major, minor = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if (major, minor) == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = read(file)
        held = member.file_size - file.tell()
    if math.prod(shape) * kind.itemsize != held:
        raise ValueError("its header declares another size")
    return held


def _array(archive: ZipFile, member: ZipInfo) -> np.ndarray:
    with archive.open(member) as file:
        array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
    return array


NPZ = Reader(
    name="FILE.npz",
    about="arrays: x_train, x_test as uint8 [N, H, W] or [N, H, W, C]; y_train, y_test",
    docs="`x_train`, `x_test` as uint8 `[N, H, W]` or `[N, H, W, C]`; `y_train`, `y_test`",
    read=read_npz,
    suffix=".npz",
)


def from_arrays(arrays: Mapping[str, np.ndarray], location: str = "the arrays") -> RawDataset:
    """Return the dataset of uint8 images [N, H, W] or [N, H, W, C] as x_train, x_test and labels as y_train, y_test."""
    train, test = _split_of_arrays(arrays, "train", "training"), _split_of_arrays(arrays, "test", "test")
    train_shape, test_shape = arrays["x_train"].shape[1:], arrays["x_test"].shape[1:]
    if train_shape != test_shape:
        raise UserError(f"Training images have shape {train_shape} and test images {test_shape}; make them alike.")
    return RawDataset(location, train, test)


def _split_of_arrays(arrays: Mapping[str, np.ndarray], part: str, name: str) -> RawSplit:
    pixels, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
    if pixels.ndim not in (3, 4) or pixels.dtype != np.uint8:
        raise UserError(
            f"x_{part} must be uint8 of shape [N, H, W] or [N, H, W, C], got {pixels.dtype} {pixels.shape}."
        )
    if pixels.ndim == 4 and not 1 <= pixels.shape[3] <= 4:
        raise UserError(f"x_{part} has {pixels.shape[3]} channels; they come last: [N, H, W, C], got {pixels.shape}.")
    if len(pixels) == 0:
        raise UserError(f"The dataset has no {name} images: x_{part} is empty.")
    if labels.ndim != 1:
        raise UserError(f"y_{part} must be one label for each image, got shape {labels.shape}.")
    if len(pixels) != len(labels):
        raise UserError(f"x_{part} has {len(pixels)} images but y_{part} has {len(labels)} labels; they must pair up.")
    return RawSplit(name, pixels[..., None] if pixels.ndim == 3 else pixels, labels)
