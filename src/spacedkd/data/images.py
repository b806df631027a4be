"""Images: encoded in files or table cells, decoded to RGB, and labelled as the images of a split.

An `ImageColumn` holds encoded images, and `decode` makes a picture of one. Sizes that files declare are checked before
memory is taken for them: a few bytes can declare gigabytes.

The images of a split are bytes in memory (`Images`), or stay encoded and are decoded at each use (`Encoded`). Both give
the same tensors, so which one a split becomes is a matter of memory and speed alone.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from PIL import ExifTags, Image, UnidentifiedImageError
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

from spacedkd.data import launch_cache
from spacedkd.runtime import files
from spacedkd.runtime.errors import UserError, first_line
from spacedkd.runtime.processes import total_memory

# Encoded images


MOST_PIXELS = 1 << 27
"""largest number of pixels of an image, as its header declares them: 134 million, 0.4 GB as RGB"""
MOST_ENCODED_BYTES = 1 << 28
"""largest size of an encoded image"""
MOST_TEXT_BYTES = 1 << 26
"""largest size of a list of classes or of annotations"""
MOST_ARRAY_BYTES = 32 << 30
"""largest size of the arrays of an .npz, or of a table, in memory; never more than the machine has"""


def open_ordinary(path: str | Path) -> BinaryIO:
    """Open an ordinary file unbuffered; raise an OSError for pipes and devices, which might never end or begin."""
    return os.fdopen(files.open_ordinary(Path(path)), "rb", buffering=0)


def read_text(path: str | Path) -> str:
    """Return a text file of no more than `MOST_TEXT_BYTES` bytes; raise an OSError for any other file."""
    return files.read_ordinary(Path(path), MOST_TEXT_BYTES).decode()


def check_fits(location: str, needed: int, what: str) -> None:
    """Refuse arrays or tables that declare more bytes than fit into memory."""
    most = min(MOST_ARRAY_BYTES, total_memory() or MOST_ARRAY_BYTES)
    if needed > most:
        raise UserError(
            f"{location} declares {needed / 1e9:.1f} GB of {what}, and {most / 1e9:.1f} GB are the most that is read "
            "into memory. Store the images as files in a folder for each class."
        )


class BadImage(Exception):
    """The reason why an image cannot be read, as the end of a sentence that begins with the image's name."""


def read_encoded(path: str | Path) -> bytes:
    """Return the bytes of an image file; raise an OSError, or BadImage for a file that is too large."""
    with open_ordinary(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_ENCODED_BYTES:
            raise BadImage(f"has {size} bytes; {MOST_ENCODED_BYTES} are the most for an encoded image")
        return file.read(size)


@dataclass(frozen=True)
class ImageColumn:
    """Encoded images, none of them read yet: some rows of an Arrow column.

    A cell is the path of a file; in a table it holds bytes, or has the hub's form {bytes, path}. (An Arrow column
    because a million paths as Python strings would take a gigabyte in every worker.)
    """

    column: pa.Array | pa.ChunkedArray
    rows: Tensor  # [N] int64
    table: str | None = None
    """name of the table in messages; None for image files"""
    files: tuple[str, ...] = ()
    """the files that hold the table"""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, indices: Tensor) -> ImageColumn:
        return replace(self, rows=self.rows[indices])

    def read(self, index: int) -> bytes:
        """Return the encoded bytes of an image; raise BadImage where its file cannot be read."""
        cell = self.column[int(self.rows[index])].as_py()
        fields = cell if isinstance(cell, dict) else {"path" if self.table is None else "bytes": cell}
        data, path = fields.get("bytes"), fields.get("path")
        try:
            return read_encoded(path) if data is None and path is not None else data or b""
        except OSError as error:
            raise BadImage(f"cannot be read: {error.strerror}") from None

    def name(self, index: int) -> str:
        """Return the path of an image, or its row of the table."""
        row = int(self.rows[index])
        return str(self.column[row]) if self.table is None else f"row {row} of {self.table}"

    def stamp(self) -> str | None:
        """Return a digest that changes whenever a file of the column does; None if there is no file."""
        digest, here = hashlib.sha256(), Path.cwd()
        paths = self.column.to_pylist() if self.table is None else [*self.files, *self._elsewhere()]
        for path, (size, modified) in zip(paths, file_stats(paths).tolist(), strict=True):
            about = "missing" if size < 0 else f"{size}\0{modified}"
            digest.update(f"{path if path.startswith('/') else here / path}\0{about}\n".encode())
        return digest.hexdigest() if paths else None

    def _elsewhere(self) -> list[str]:
        """Return the files that cells of a table name instead of holding bytes."""
        if not pa.types.is_struct(self.column.type) or "path" not in (field.name for field in self.column.type):
            return []
        empty = self.column.filter(pc.is_null(pc.struct_field(self.column, "bytes")))
        return [path for path in pc.struct_field(empty, "path").to_pylist() if path is not None]


_kept_stats: dict[bytes, np.ndarray] | None = None


@contextmanager
def stats_kept() -> Iterator[None]:
    """Look at every file once in the block, however often `file_stats` is called for it."""
    global _kept_stats
    before, _kept_stats = _kept_stats, {}
    try:
        yield
    finally:
        _kept_stats = before


def file_stats(paths: Sequence[str]) -> np.ndarray:
    """Return size and time of the last change in ns of files, [N, 2] int64; -1 and -1 for those that are missing.

    One process of a run looks at them for all others on its machine.
    """
    key = hashlib.sha256("\0".join(paths).encode(errors="surrogateescape")).digest()
    if _kept_stats is not None and key in _kept_stats:
        return _kept_stats[key]

    def look() -> dict[str, np.ndarray]:
        stats = np.full((len(paths), 2), -1, np.int64)
        for row, path in enumerate(paths):
            with suppress(OSError):
                stat = os.stat(path)  # noqa: PTH116, a Path for each of a million files takes longer than looking
                stats[row] = stat.st_size, stat.st_mtime_ns
        return {"stats": stats}

    stats = launch_cache.compute_once(f"stats {key.hex()}", look)["stats"]
    if _kept_stats is not None:
        _kept_stats[key] = stats
    return stats


DIGEST_BYTES = 16


def digest_of_bytes(data: bytes) -> bytes:
    """Return a digest that tells encoded images apart."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


_PILLOW_ERRORS = (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error)
"""errors of Pillow for images that it cannot decode; a broken PNG is a SyntaxError"""


def decode(data: bytes, smaller: bool = False) -> Image.Image:
    """Return the RGB image in some bytes, upright; gray, palette, transparent and CMYK images are converted.

    `smaller` decodes a JPEG at a fraction of its size, which is enough to see whether it is whole. Raises BadImage.
    """
    if not data:
        raise BadImage("is empty")
    _register_heif()
    try:
        image = Image.open(io.BytesIO(data))
        if image.width * image.height > MOST_PIXELS:
            raise Image.DecompressionBombError
        if image.format == "EPS":  # a program, which Pillow would have run
            raise BadImage("is a PostScript program, not pixels: save it as PNG")
        if smaller:
            image.draft("RGB", (1, 1))
        image.load()
        transpose = _TRANSPOSE.get(_orientation(image))
        return to_rgb(image) if transpose is None else to_rgb(image).transpose(transpose)
    except Image.DecompressionBombError:  # which Pillow raises too, before it looks any further
        raise BadImage(f"declares more pixels than the {MOST_PIXELS} that are read at most") from None
    except UnidentifiedImageError:
        if data[4:8] == b"ftyp" and data[8:12] in _HEIC_BRANDS:
            raise BadImage("is a HEIC image, which needs pillow-heif: pip install pillow-heif") from None
        raise BadImage("is not an image") from None
    except _PILLOW_ERRORS as error:
        raise BadImage(f"cannot be read: {first_line(error)}") from None


_HEIC_BRANDS = {*(b"heic heix hevc heim heis hevm hevs mif1 msf1".split())}


@cache
def _register_heif() -> None:
    """Let Pillow open HEIC images, where pillow-heif is installed."""
    with suppress(ImportError):
        from pillow_heif import register_heif_opener

        register_heif_opener()


_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation -> transposition that makes the image upright; 1 is upright"""
_METADATA = {"exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif"}


def _orientation(image: Image.Image) -> int:
    if not _METADATA & image.info.keys():  # most have none, and parsing takes as long as decoding a small image
        return 1
    with suppress(Exception):  # odd metadata does not make an image unreadable
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    return 1


def first_size(images: ImageColumn) -> tuple[int, int] | None:
    """Return width and height of the first image that can be read; None if none can."""
    for index in range(len(images)):
        with suppress(BadImage):
            return decode(images.read(index)).size
    return None


def to_rgb(image: Image.Image) -> Image.Image:
    """Return an image of any mode in RGB; raise BadImage where the meaning of its numbers is not known."""
    if image.mode == "RGB":
        return image
    has_16_bits = image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))
    if has_16_bits:  # convert() would cut them off at 255
        return Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        kind = "32-bit whole" if image.mode == "I" else "floating-point"
        raise BadImage(f"has {kind} numbers for pixels, and its white is not known: save it with 8 or 16 bits")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


# Images of a split


@dataclass(frozen=True)
class Fit:
    """Resizing of an image: scale its shorter side to `shorter` and cut out the middle, or squeeze both sides."""

    size: int
    shorter: int | None = None

    def __call__(self, image: Image.Image) -> Image.Image:
        both = [self.size, self.size]
        if image.size == (self.size, self.size) and self.shorter in (None, self.size):
            return image
        if self.shorter is None:
            return F.resize(image, both, InterpolationMode.BILINEAR)  # type: ignore[no-any-return]
        resized = F.resize(image, [self.shorter], InterpolationMode.BILINEAR)
        return F.center_crop(resized, both)  # type: ignore[no-any-return]


def to_bytes(image: Image.Image) -> Tensor:
    """Return a gray or RGB image as uint8 [C, H, W]."""
    # Pillow writes rows of single channels, so that later copies move whole rows and not single bytes.
    rows = image.tobytes("raw", "RGB;L" if image.mode == "RGB" else "L")
    return torch.frombuffer(bytearray(rows), dtype=torch.uint8).view(image.height, -1, image.width).transpose(0, 1)


to_image: Callable[[Tensor], Image.Image] = F.to_pil_image
"""the inverse of `to_bytes`, for one channel (gray) or three (RGB)"""


def normalise(pixels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Return bytes [..., C, H, W] as floats with mean 0 and standard deviation 1 per channel."""
    return (pixels - _per_channel(mean, pixels.device)) / _per_channel(std, pixels.device)


@lru_cache(maxsize=64)
def _per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return values for pixels 0 .. 255, [C, 1, 1]; cached, so that no batch waits for their copy to a GPU."""
    with torch.inference_mode(False):  # a cached inference tensor could not be used where gradients are computed
        return 255 * torch.tensor(values, dtype=torch.float32, device=device).view(-1, 1, 1)


@dataclass(frozen=True)
class ImageSet(ABC):
    """N labelled images, and how they become the inputs of a network without augmentation."""

    pixels: Any  # a tensor, or an ImageColumn
    labels: Tensor  # [N] int64
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    """mean of each channel, of pixels in 0 .. 1"""
    std: tuple[float, ...]
    fit: Fit | None = None
    """brings one image to the size of the network's input; None if all have it"""
    digests: np.ndarray | None = field(default=None, repr=False, compare=False)
    """a digest of the encoded bytes of each image, [N] of 16 bytes, where they were computed on the way"""
    rows: Tensor | None = field(default=None, repr=False, compare=False)
    """[N] int64, the rows of the dataset's split that the images are; None where they are all of it, in order"""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the network's input."""

    @abstractmethod
    def open(self, row: int) -> Image.Image:
        """Return one image in its stored size."""

    def subset(self, rows: Tensor) -> Self:
        """Return the images at `rows`."""
        digests = None if self.digests is None else self.digests[rows.numpy()]
        own_rows = rows if self.rows is None else self.rows[rows]
        return replace(self, pixels=self.pixels[rows], labels=self.labels[rows], digests=digests, rows=own_rows)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def instant(self) -> bool:
        """Whether a batch is one look-up in memory, so that workers would only cost time."""
        return self.fit is None

    def resized(self, rows: Tensor) -> Tensor:
        """Return images as uint8 [B, C, H, W] in the size of the network's input."""
        assert self.fit is not None
        return torch.stack([to_bytes(self.fit(self.open(row))) for row in rows.tolist()])

    def normalise(self, pixels: Tensor) -> Tensor:
        """Return uint8 [B, C, H, W] as float32 with the mean and standard deviation of this dataset taken out."""
        return normalise(pixels, self.mean, self.std)

    def inputs(self, rows: Tensor) -> Tensor:
        """Return the inputs on which a network is evaluated: float32 [B, C, H, W], normalised."""
        return self.normalise(self.resized(rows))

    def inputs_and_labels(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs on which a network is evaluated, and the labels."""
        return self.inputs(rows), self.labels[rows.to(self.labels.device)]


class Images(ImageSet):
    """Images in memory as bytes; `fit` is set only where evaluation wants another size than training."""

    pixels: Tensor  # [N, C, H, W] uint8

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.pixels.shape[1:]
        return (channels, height, width) if self.fit is None else (channels, self.fit.size, self.fit.size)

    def open(self, row: int) -> Image.Image:
        return to_image(self.pixels[row].cpu())

    def resized(self, rows: Tensor) -> Tensor:
        return self.pixels[rows.to(self.pixels.device)] if self.fit is None else super().resized(rows)

    def to(self, device: torch.device) -> Self:
        """Return the images on a device."""
        return replace(self, pixels=self.pixels.to(device), labels=self.labels.to(device))


class Signals(Images):
    """Signals in memory: floats, which are given to a network unchanged."""

    pixels: Tensor  # [N, C, H, W] float32

    def normalise(self, pixels: Tensor) -> Tensor:
        return pixels


class Encoded(ImageSet):
    """Images that stay encoded, in files or table cells: too many for memory, or of different sizes."""

    @property
    def shape(self) -> tuple[int, int, int]:
        assert self.fit is not None
        return 3, self.fit.size, self.fit.size

    def open(self, row: int) -> Image.Image:
        return decode(self.pixels.read(row))
