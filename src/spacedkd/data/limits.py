"""How large what is read may be: declared sizes are looked at before any memory is taken for them."""

import os
from pathlib import Path
from typing import BinaryIO

from spacedkd import files
from spacedkd.errors import UserError

PIXELS = 1 << 27
"""of one image, as its header declares them: 134 million, 0.4 GB as RGB"""
ENCODED = 1 << 28
"""bytes of one encoded image"""
TEXT = 1 << 26
"""bytes of a list of classes or of annotations"""
ARRAYS = 32 << 30
"""bytes of the arrays of an .npz, or of a table, in memory; and never more than the machine has"""


def open_ordinary(path: str | Path) -> BinaryIO:
    """Open an ordinary file unbuffered; raise an OSError for pipes and devices, which might never end or begin."""
    return os.fdopen(files.open_ordinary(Path(path)), "rb", buffering=0)


def read_text(path: str | Path) -> str:
    """Return a text file of no more than `TEXT` bytes; raise an OSError for any other file."""
    return files.read_ordinary(Path(path), TEXT).decode()


def check_fits(place: str, needed: int, what: str) -> None:
    """Refuse what declares more bytes than may, or can, be held in memory."""
    most = min(ARRAYS, _machine())
    if needed > most:
        raise UserError(
            f"{place} declares {needed / 1e9:.1f} GB of {what}, and {most / 1e9:.1f} GB are the most that is read into "
            "memory. Store the images as files in a folder for each class."
        )


def _machine() -> int:
    """Bytes of memory of this machine."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # a system that does not say
        return ARRAYS
