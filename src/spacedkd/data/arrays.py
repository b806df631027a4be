"""Data sets that are arrays: those of an .npz file, and the digits that come with scikit-learn."""

import math
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile, ZipInfo

import numpy as np

from spacedkd.config.spec import DataSpec
from spacedkd.data.decoding import check_fits, open_ordinary
from spacedkd.data.raw_dataset import RawDataset, RawSplit
from spacedkd.runtime.errors import UserError

ARRAY_NAMES = ("x_train", "y_train", "x_test", "y_test")


def digits(spec: DataSpec) -> RawDataset:
    """1797 real handwritten digits that come with scikit-learn; every other image is for testing."""
    package = find_spec("sklearn")  # found and not imported, which takes longer than a small run
    assert package is not None, "a dependency"
    file = Path(str(package.origin)).with_name("datasets") / "data" / "digits.csv.gz"
    table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    images, labels = table[:, :-1], table[:, -1]
    pixels = np.rint(images.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    return RawDataset(
        "digits",
        RawSplit("training", pixels[::2], labels[::2]),
        RawSplit("test", pixels[1::2], labels[1::2]),
        "0123456789",
    )


def npz(spec: DataSpec) -> RawDataset:
    """Your own arrays in an .npz file; what they declare is looked at before they are read."""
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
    """What an array's header declares, which must be what the archive declares."""
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


def from_arrays(arrays: Mapping[str, np.ndarray], place: str = "the arrays") -> RawDataset:
    """Bytes [N, H, W] or [N, H, W, C] as x_..., labels as y_..., for train and test."""
    train, test = _array_part(arrays, "train", "training"), _array_part(arrays, "test", "test")
    one, other = arrays["x_train"].shape[1:], arrays["x_test"].shape[1:]
    if one != other:
        raise UserError(f"Training images have shape {one} and test images {other}; make them alike.")
    return RawDataset(place, train, test)


def _array_part(arrays: Mapping[str, np.ndarray], part: str, called: str) -> RawSplit:
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
    return RawSplit(called, pixels[..., None] if pixels.ndim == 3 else pixels, labels)
