"""Images as they are stored: files, or the cells of a table; and how one is decoded."""

from __future__ import annotations

import hashlib
import io
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image, UnidentifiedImageError


def first_line(error: Exception) -> str:
    """What an error says, or what it is called if it says nothing."""
    return (str(error).splitlines() or [""])[0].strip() or type(error).__name__


class BadImage(Exception):
    """Why an image cannot be read; a part of a sentence that begins with its name."""


@dataclass(frozen=True)
class Files:
    """Images as files; their paths are one Arrow column, which a million of them need."""

    paths: pa.Array

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, row: int) -> bytes:
        try:
            return Path(self.name(row)).read_bytes()
        except OSError as error:
            raise BadImage(f"cannot be read: {error.strerror}") from None

    def name(self, row: int) -> str:
        """What a user finds the image by."""
        return str(self.paths[row].as_py())

    def stamp(self) -> str:
        """Changes whenever an image does."""
        return stamp_of(self.paths.to_pylist())


@dataclass(frozen=True)
class Cells:
    """Images in a column of a table, in the hub's form {bytes, path} or as plain bytes."""

    column: pa.ChunkedArray
    table: str
    """what the table is called"""
    files: tuple[str, ...]
    """where it lies"""

    def __len__(self) -> int:
        return len(self.column)

    def read(self, row: int) -> bytes:
        cell = self.column[row].as_py()
        data, path = (cell.get("bytes"), cell.get("path")) if isinstance(cell, dict) else (cell, None)
        if data is None and path is not None:
            return Files(pa.array([path])).read(0)
        return data or b""

    def name(self, row: int) -> str:
        return f"row {row} of {self.table}"

    def stamp(self) -> str | None:
        """None if the table lies in no file."""
        return stamp_of(self.files) if self.files else None


Stored = Files | Cells
"""encoded images, none of them read yet"""


def stamp_of(paths: Iterable[str]) -> str:
    """A digest of the paths, sizes and times of files."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            stat = Path(path).stat()
            about = f"{stat.st_size}\0{stat.st_mtime_ns}"
        except OSError:
            about = "missing"
        digest.update(f"{Path(path).absolute()}\0{about}\n".encode())
    return digest.hexdigest()


# A broken PNG is a SyntaxError.
_PIL_FAILS_WITH = (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, Image.DecompressionBombError)


def decode(data: bytes, smaller: bool = False) -> Image.Image:
    """The RGB image in some bytes; gray, palette, transparent and CMYK images are converted.

    `smaller` lets a JPEG be decoded at a fraction of its size, which is enough to see whether it is whole.
    """
    if not data:
        raise BadImage("is empty")
    try:
        image = Image.open(io.BytesIO(data))
        if smaller:
            image.draft("RGB", (1, 1))
        image.load()
        return _rgb(image)
    except UnidentifiedImageError:
        raise BadImage("is not an image") from None
    except _PIL_FAILS_WITH as error:
        raise BadImage(f"cannot be read: {first_line(error)}") from None


def first_size(stored: Stored, rows: Iterable[int]) -> tuple[int, int] | None:
    """Width and height of the first image that can be read; None if none can."""
    for row in rows:
        with suppress(BadImage):
            return decode(stored.read(row)).size
    return None


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I"):  # 16 bits a pixel, which convert() would cut off at 255
        return Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")
