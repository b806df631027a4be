"""Which data a run has, and how it is varied."""

from dataclasses import dataclass, field
from pathlib import Path

from spacedkd.errors import UserError, check_between, same_name
from spacedkd.json_form import check_fields

NAMED = ("digits", "cifar10", "cifar100", "tiny-imagenet", "imagenet-100", "imagenet-1k")
"""data sets that are known by name"""


def named_source(source: str) -> str:
    """Return the data set a source means, CIFAR-100 too; a folder or a file of exactly that name is what it says."""
    return source if source in NAMED or Path(source).exists() else same_name(source, NAMED)


@dataclass(frozen=True)
class AugmentSpec:
    """Random changes of the training images, in this order: shifted crop, mirror, rotation."""

    crop: int = 0
    """pad by this many pixels and cut out the original size at a random place"""
    flip: bool = False
    """mirror left-right half of the time"""
    rotate: float = 0.0
    """turn by a random angle up to this many degrees either way"""

    def __post_init__(self) -> None:
        check_fields(self)
        check_between("crop", self.crop, 0, 10_000)
        check_between("rotate", self.rotate, 0, 180)


@dataclass(frozen=True)
class DataSpec:
    source: str = "digits"
    """a data set by name (see `spacedkd list data`), a folder, a .parquet or .npz file, a hub name owner/name, or a
    function of yours as package.module:name that gives two torch datasets, to train and to test on"""
    augment: AugmentSpec | None = None
    """the random changes of a batch-wise augmentation; None takes what suits the data set"""
    train_limit: int | None = None
    """use only this many training images, evenly from all classes"""
    class_limit: int | None = field(default=None, metadata={"later": True})
    """use only the first so many classes"""
    holdout: float = 0.0
    """part of the training images kept aside, so that the best epoch can be chosen without the test set"""
    drop_last: bool = False
    """leave out the last, smaller batch of an epoch"""
    augmentation: str | None = None
    """how training images are varied, by name (see `spacedkd list augmentations`); None takes what suits the data"""
    mixup: float = 0.0
    """mix every image and label with those of a partner; the share is drawn from Beta(mixup, mixup)"""
    cutmix: float = 0.0
    """paste a box of a partner into every image, sized after Beta(cutmix, cutmix)"""
    image_size: int | None = None
    """the side of the square a network sees; None takes what suits the augmentation and the data"""
    root: str = "data"
    """the folder that holds data sets known by name"""
    class_list: str | None = None
    """a file with one class folder a line: only these classes, in this order"""
    image_column: str | None = None
    """the images of a table; None finds them where only one column can be meant"""
    label_column: str | None = None
    """the labels of a table; None finds them where only one column can be meant"""
    train_split: str | None = None
    """the part of the data to train on; None finds it where only one can be meant"""
    test_split: str | None = None
    """the part of the data to test on; None finds it where only one can be meant"""
    test_part: float | None = None
    """where the data has no part to test on, this part of its images, evenly from all classes"""
    skip_bad: bool = False
    """leave images out that cannot be read"""

    def __post_init__(self) -> None:
        check_fields(self)
        check_between("mixup", self.mixup, 0, 1000)
        check_between("cutmix", self.cutmix, 0, 1000)
        check_between("train_limit", self.train_limit, 1)
        check_between("class_limit", self.class_limit, 2)
        check_between("image_size", self.image_size, 1, 100_000)
        if self.image_column is not None and self.image_column == self.label_column:
            raise UserError(
                f"image_column and label_column are both {self.image_column!r}: a column holds images or labels."
            )
        if not 0 <= self.holdout < 1:
            raise UserError(f"holdout must be a part from 0 up to (not including) 1, got {self.holdout:g}.")
        if self.test_part is not None and not 0 < self.test_part < 1:
            raise UserError(f"test_part must be between 0 and 1, got {self.test_part:g}.")
