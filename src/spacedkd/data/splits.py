"""The parts of a data set, ready to be trained on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spacedkd.data import recipes
from spacedkd.data.classes import classes_of
from spacedkd.data.found import Found, check_test_part
from spacedkd.data.images import Constants, Encoded, Images
from spacedkd.data.keep import MEMORY_LIMIT, Form, keep
from spacedkd.data.mix import Mix
from spacedkd.data.recipes import BatchWise, Recipe
from spacedkd.data.rows import evenly, held_out, tested
from spacedkd.spec import DataSpec


class Splits(NamedTuple):
    """The parts of a data set, and how the first of them is varied; `holdout` is cut from it on request."""

    train: Images | Encoded
    test: Images | Encoded
    holdout: Images | Encoded | None = None
    recipe: Recipe = BatchWise()
    mix: Mix | None = None
    labels: tuple[int | str, ...] = ()
    """as the data writes them, in the order of the classes"""
    notes: tuple[str, ...] = ()
    """what a user should know"""

    def to(self, device: torch.device) -> Splits:
        """On a device as far as that helps: images in memory, unless they are varied one by one."""

        def moved(images: Images | Encoded) -> Images | Encoded:
            return images.to(device) if isinstance(images, Images) and images.instant else images

        return self._replace(
            train=moved(self.train) if self.recipe.batchwise else self.train,
            test=moved(self.test),
            holdout=None if self.holdout is None else moved(self.holdout),
        )

    def evaluated(self) -> dict[str, Images | Encoded]:
        """The parts accuracy is measured on."""
        return {"test": self.test} | ({"holdout": self.holdout} if self.holdout is not None else {})

    def describe(self) -> dict[str, Any]:
        """As JSON: the classes with their numbers and labels, how many images there are, and what was noted."""
        pairs = zip(self.train.classes, self.labels, strict=True)
        return {
            "classes": [{"number": n, "name": name, "label": label} for n, (name, label) in enumerate(pairs)],
            "images": {name: len(part.labels) for name, part in {"train": self.train, **self.evaluated()}.items()},
            "notes": list(self.notes),
        }


def split(found: Found, spec: DataSpec, memory_limit: int = MEMORY_LIMIT) -> Splits:
    """What was found, cut into parts and kept as a filled-in spec asks for."""
    check_test_part(found, spec)
    classes = classes_of(found)
    labels = classes.number(found.train)
    rows, test_rows = torch.arange(len(labels)), None
    if spec.test_part is not None:
        rows, test_rows = tested(labels, spec.test_part)
    rows = rows[evenly(labels[rows], spec.train_limit, len(classes.names))]
    form = _form(spec, classes.names, memory_limit)
    train, note = keep(found.train, rows, labels, form)
    if found.test is None:
        assert test_rows is not None
        test, test_note = keep(found.train, test_rows, labels, form)
    else:
        test_labels = classes.number(found.test)
        test, test_note = keep(found.test, torch.arange(len(test_labels)), test_labels, form)
    assert spec.recipe is not None
    constants = recipes.named(spec.recipe).constants or _measured(train)
    train, test = _normalised(train, constants), _normalised(test, constants)
    holdout = None
    if spec.holdout:
        kept, aside = held_out(len(train.labels), spec.holdout)
        train, holdout = train.subset(kept), train.subset(aside)
    return Splits(
        train,
        test,
        holdout,
        recipe=recipes.build(spec.recipe, spec.augment, train.shape[1]),
        mix=Mix(spec.mixup, spec.cutmix) if spec.mixup or spec.cutmix else None,
        labels=classes.labels,
        notes=tuple(line for line in (classes.note, note, test_note) if line),
    )


def _form(spec: DataSpec, classes: tuple[str, ...], memory_limit: int) -> Form:
    assert spec.recipe is not None
    recipe = recipes.named(spec.recipe)
    return Form(
        classes,
        fit=None if spec.image_size is None else recipe.fit(spec.image_size),
        fits_first=recipe.fits_first,
        colour=recipe.transform is not None or recipe.constants is not None,
        skip_bad=spec.skip_bad,
        memory_limit=memory_limit,
    )


def _normalised(images: Images | Encoded, constants: Constants) -> Images | Encoded:
    return replace(images, mean=constants[0], std=constants[1])


def _measured(images: Images | Encoded) -> Constants:
    """Those of the training images, where they are in memory; ImageNet's, where all would have to be decoded."""
    return statistics(images.pixels) if isinstance(images, Images) else recipes.IMAGENET


def statistics(pixels: Tensor) -> Constants:
    """Mean and deviation of each channel, of pixels in 0 .. 1, exact from a histogram of the bytes."""
    levels = torch.arange(256, dtype=torch.float64) / 255
    counts = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in pixels.unbind(1)]).double()
    share = counts / counts.sum(1, keepdim=True)
    mean = share @ levels
    std = (share @ levels.square() - mean.square()).clamp(min=0).sqrt()
    return tuple(mean.tolist()), tuple(std.clamp(min=1 / 255).tolist())
