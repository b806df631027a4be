"""Which files lie below a folder, without ever walking in circles or through a folder that holds no images."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from PIL import Image

from spacedkd.data.limits import open_ordinary
from spacedkd.errors import UserError

LITTER = {"thumbs.db", "desktop.ini"}
OTHERS = 256
"""so many files that are no images, and nothing else, are taken for a folder of something else"""
_ENDINGS = tuple(".jpg .jpeg .jpe .jfif .jp2 .png .bmp .gif .webp .avif .tif .tiff .ppm .pgm .pbm .pnm .tga".split())
"""what is called so claims to be an image, and is refused where it is none"""

_SYSTEM = {*"/ /bin /boot /dev /etc /lib /lib32 /lib64 /proc /run /sbin /sys /usr /var".split()}
_UNREAL = ("/dev", "/proc", "/sys")
"""nothing below them is a file on a disk, except in /dev/shm"""


def refuse_system(folder: Path) -> None:
    """Refuse folders of the operating system, some of which have no end."""
    real = folder.resolve()
    unreal = any(real.is_relative_to(place) for place in _UNREAL) and not real.is_relative_to("/dev/shm")
    if str(real) in _SYSTEM or unreal:
        raise UserError(f"{folder} is a folder of the operating system: give the folder that holds your images.")


def files_below(folder: Path) -> Iterator[str]:
    """All files below a folder that are not hidden, always in the same order.

    Links are followed, to files and to folders, unless a folder would come to lie within itself.
    """
    parents = (parent for place in (folder.absolute(), folder.resolve()) for parent in place.parents)
    waiting, others = [(str(folder), frozenset(map(_identity, parents)))], 0
    while waiting:
        path, above = waiting.pop()
        files, folders = _listed(path)
        itself = _identity(path)
        if itself in above:
            raise UserError(
                f"{path} is a link to a folder that it lies in, so its images would count again and again: remove it."
            )
        for name in files:
            if others < OTHERS:
                others = OTHERS + 1 if is_image(f"{path}/{name}") else others + 1
            if others == OTHERS:
                raise UserError(
                    f"None of the first {OTHERS} files in {folder} is an image: give a folder that holds images, in "
                    "one folder for each class."
                )
            yield f"{path}/{name}"
        waiting += [(f"{path}/{name}", above | {itself}) for name in reversed(folders)]


def _identity(path: str | Path) -> tuple[int, int]:
    found = os.stat(path)  # noqa: PTH116
    return found.st_dev, found.st_ino


def _listed(path: str) -> tuple[list[str], list[str]]:
    """The names of files and of folders in a folder, sorted."""
    files, folders = [], []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if _is_folder(entry):
                    folders.append(entry.name)
                elif not entry.name.startswith("."):
                    files.append(entry.name)
    except OSError as error:
        raise UserError(f"The folder {path} cannot be listed: {error.strerror}.") from None
    return sorted(files), sorted(folders)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):  # a link in a circle is a file that cannot be read
        return entry.is_dir()
    return False


def is_litter(path: str) -> bool:
    """Whether a file is one that systems leave behind."""
    return path.rpartition("/")[2].lower() in LITTER


def is_image(path: str) -> bool:
    """Whether a file claims to be an image by its name, or is one all the same."""
    if path.lower().endswith(_ENDINGS):  # enough, and nothing has to be read
        return True
    with suppress(Exception), open_ordinary(path) as file, Image.open(file):
        return True
    return False
