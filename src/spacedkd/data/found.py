"""A data set as it was found: nothing decoded yet, labels as they are written; and which part of it is which."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from spacedkd.data.stored import Stored
from spacedkd.errors import UserError, unknown
from spacedkd.spec import DataSpec

TRAIN = ("train", "training")
TEST = ("test", "testing", "val", "valid", "validation", "eval", "dev")


class Part(NamedTuple):
    """N images with their labels."""

    name: str
    images: np.ndarray | Stored  # an array is uint8 [N, H, W, C]
    labels: np.ndarray  # [N] whole numbers or text


class Found(NamedTuple):
    """All of a data set."""

    place: str
    train: Part
    test: Part | None
    names: Sequence[str] | None = None
    """what the labels 0, 1, ... are called, where the data says so"""


def choose(place: str, parts: Collection[str], spec: DataSpec) -> tuple[str, str | None]:
    """The names of the part to train on and of the part to test on, if there is one."""
    train = _asked(place, parts, spec.train_split) or _the_one_to_train_on(place, parts)
    return train, _asked(place, parts, spec.test_split) or _the_one_to_test_on(place, parts, train, spec)


def _asked(place: str, parts: Collection[str], name: str | None) -> str | None:
    if name is not None and name not in parts:
        raise unknown(f"part of {place}", name, parts)
    return name


def _the_one_to_train_on(place: str, parts: Collection[str]) -> str:
    likely = [part for part in parts if part.lower() in TRAIN]
    if not likely and len(parts) == 1:
        likely = [part for part in parts if part.lower() not in TEST]
    if len(likely) == 1:
        return likely[0]
    raise UserError(
        f"{place} has no part called train (it has {', '.join(sorted(parts))}): say which one to train on with "
        "--train-split NAME."
    )


def _the_one_to_test_on(place: str, parts: Collection[str], train: str, spec: DataSpec) -> str | None:
    likely = sorted(part for part in parts if part.lower() in TEST and part != train)
    if len(likely) > 1 and spec.test_part is None:
        raise UserError(
            f"{place} has more than one part to test on ({', '.join(likely)}): say which with --test-split NAME."
        )
    return likely[0] if likely else None


def check_test_part(found: Found, spec: DataSpec) -> None:
    """A part to test on must be there, or asked for, but not both."""
    if found.test is None and spec.test_part is None:
        raise UserError(
            f"{found.place} has no part to test on: add one called val or test beside {found.train.name}, name it with "
            "--test-split, or keep a fifth of the images for testing with --test-part 0.2."
        )
    if found.test is not None and spec.test_part is not None:
        raise UserError(f"{found.place} has a part to test on, {found.test.name}: leave out --test-part.")
    if spec.test_part is not None and not 0 < spec.test_part < 1:
        raise UserError(f"test_part must be between 0 and 1, got {spec.test_part:g}.")
