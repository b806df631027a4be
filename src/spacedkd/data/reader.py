"""A dataset reader: all that is known about one way in which a dataset can lie on disk.

A new reader is one file that makes a `Reader`, and one entry in `sources.READERS`. Loading, `spacedkd list data`, the
messages for unknown data and unread options, and the tables of docs/data.md (a test compares them) follow from it:

    def read_csv(spec: DataSpec) -> RawDataset: ...

    CSV = Reader(
        name="FILE.csv",
        about="one image a line: its path, then its label",
        docs="lines of `path,label`; file names say `train` and `test`",
        read=read_csv,
        suffix=".csv",
        options=("train_split", "test_split"),
    )
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spacedkd.config.spec import DataSpec
from spacedkd.data.raw_dataset import RawDataset


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One way to read a dataset, and the words that describe it.

    A reader reads the dataset called `name` (`digits`), files with a `suffix` (`.npz`), or whatever source its
    `recognises` accepts (a folder of a certain layout). Of several readers that accept a source, the first one in
    `sources.READERS` reads it.
    """

    name: str
    """what a user gives to --data: a name such as `digits`, or the form of a path such as `FILE.npz`"""
    about: str
    """what the dataset is, in the words of `spacedkd list data`"""
    docs: str
    """where the images are looked for, or what they must look like, in the words of docs/data.md"""
    read: Callable[[DataSpec], RawDataset]
    """finds the images of a spec and their labels; decodes nothing"""
    recognises: Callable[[str], bool] | None = None
    """whether a source that is neither the name nor a file with the suffix is for this reader"""
    suffix: str | None = None
    """the suffix of the files that it reads"""
    options: tuple[str, ...] = ()
    """the fields of a DataSpec that it reads besides `source`; one that no reader of a source reads is refused"""
    augmentation: str | None = None
    """the augmentation of training images where the user names none; None decides by the size of an image"""

    @property
    def is_named(self) -> bool:
        """Whether this is one dataset, known by its name, and not a form of files."""
        return self.suffix is None and self.recognises is None

    def accepts(self, source: str) -> bool:
        """Return whether this reader reads the source that a user named."""
        if self.is_named:
            return source == self.name
        path = Path(source)
        if self.suffix is not None and path.suffix == self.suffix and not path.is_dir():
            return True  # also where there is no such file: the reader says so
        return self.recognises is not None and self.recognises(source)
