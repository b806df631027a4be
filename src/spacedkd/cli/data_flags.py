"""The flags that say what a run sees."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from spacedkd.cli.flag import flag
from spacedkd.data.sources import fill_in
from spacedkd.json_form import from_json, to_json
from spacedkd.spec import AugmentSpec, DataSpec

_SUITS = "what suits the data"
_FOUND = "found where only one can be meant"


@dataclass(frozen=True)
class ImageFlags:
    """Which images there are."""

    data: Annotated[
        str | None,
        flag(
            "a data set (see: spacedkd list data), a folder of class folders, a .parquet or .npz file, or OWNER/NAME "
            "on the Hugging Face hub",
            DataSpec().source,
            "DATA",
        ),
    ] = None
    root: Annotated[str | None, flag("the folder that holds data sets known by name", DataSpec().root, "FOLDER")] = None
    image_size: Annotated[int | None, flag("side of the square the network sees", _SUITS, "PIXELS")] = None
    train_limit: Annotated[
        int | None, flag("use only so many training images, evenly from all classes", "all", "COUNT")
    ] = None
    holdout: Annotated[
        float | None, flag("part of the training images kept aside to choose the best epoch", 0, "PART")
    ] = None
    test_part: Annotated[
        float | None, flag("part of the images to test on, for data that has none for that", "none", "PART")
    ] = None
    train_split: Annotated[str | None, flag("the part of the data to train on", _FOUND, "NAME")] = None
    test_split: Annotated[str | None, flag("the part of the data to test on", _FOUND, "NAME")] = None
    image_column: Annotated[str | None, flag("of a table", _FOUND, "NAME")] = None
    label_column: Annotated[str | None, flag("of a table", _FOUND, "NAME")] = None
    class_list: Annotated[
        str | None, flag("use only these class folders, one a line, in this order", "all", "FILE")
    ] = None
    skip_bad: Annotated[bool | None, flag("leave out images that cannot be read", False, "True|False")] = None


@dataclass(frozen=True)
class DataFlags(ImageFlags):
    """Which images there are, and how they are varied in training."""

    augment: Annotated[
        str | None, flag("how training images are varied (see: spacedkd list augmentations)", _SUITS, "NAME")
    ] = None
    crop: Annotated[int | None, flag("random crop: pad by so many pixels", _SUITS, "PIXELS")] = None
    flip: Annotated[bool | None, flag("random mirroring", _SUITS, "True|False")] = None
    rotate: Annotated[float | None, flag("random rotation up to so many degrees", _SUITS, "DEGREES")] = None
    mixup: Annotated[float | None, flag("mix images and labels, the share from Beta(A, A)", 0, "A")] = None
    cutmix: Annotated[float | None, flag("paste boxes of other images, sized after Beta(A, A)", 0, "A")] = None
    drop_last: Annotated[bool | None, flag("leave out the last, smaller batch of an epoch", False, "True|False")] = None


DATA_PLACES = {
    "data": "data.source",
    "augment": "data.augmentation",
    **{
        name: f"data.{name}"
        for name in (
            "root image_size mixup cutmix train_limit holdout test_part train_split test_split image_column "
            "label_column class_list skip_bad drop_last"
        ).split()
    },
}
"""where each flag goes in a spec's JSON"""


def put_changes(plain: dict[str, Any], flags: DataFlags) -> None:
    """Let --crop, --flip and --rotate change what the data or the named augmentation would have."""
    if flags.augment is not None:
        plain["augment"] = None  # the changes of another augmentation
    given = {name: getattr(flags, name) for name in ("crop", "flip", "rotate") if getattr(flags, name) is not None}
    if given:
        suits = fill_in(from_json(DataSpec, plain, "data")).augment or AugmentSpec()
        plain["augment"] = to_json(replace(suits, **given))
