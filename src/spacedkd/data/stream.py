"""Which batch belongs to which step.

`batch(step)` is a pure function: asked again, in another order, in another process or on another rank it gives the
same bits. That is why a replay needs no buffer, however long the interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from spacedkd.data.images import Images as Images
from spacedkd.data.images import ImageSet
from spacedkd.data.mix import Mix
from spacedkd.data.recipes import BatchWise, Recipe
from spacedkd.errors import UserError
from spacedkd.seeds import seed_for
from spacedkd.spec import AugmentSpec


class Batch(NamedTuple):
    """B images with their labels and their places in the data set."""

    inputs: Tensor  # [B, C, H, W] float32, normalised
    labels: Tensor  # [B] int64; with mixup or cutmix [B, C] float32, rows sum to one
    indices: Tensor  # [B] int64
    others: tuple[Batch, ...] = ()
    """what else a turn looks at, for a method that asked for more than one view"""

    def to(self, device: torch.device, channels_last: bool = False) -> Batch:
        layout = torch.channels_last if channels_last else torch.contiguous_format
        inputs = self.inputs.to(device, memory_format=layout, non_blocking=True)
        labels, indices = (part.to(device, non_blocking=True) for part in (self.labels, self.indices))
        return Batch(inputs, labels, indices, tuple(other.to(device, channels_last) for other in self.others))


class View(NamedTuple):
    """The batch of a step; another view of it holds the same images under another augmentation."""

    step: int
    view: int = 0


class Stream(Protocol):
    """Anything that knows the batch of a step."""

    steps_per_epoch: int

    def batch(self, step: int, view: int = 0) -> Batch:
        """This rank's slice of the global batch of `step`; another view augments the same images anew."""
        ...

    def size(self, step: int) -> int:
        """How many images the global batch of `step` has."""
        ...


ORDERS_KEPT = 8
"""epochs whose order is remembered: enough for several roles at different places, whatever the interval"""


class TrainingStream:
    """Shuffled, varied batches of images; one rank's slice of each global batch.

    Epoch e is a permutation seeded by (seed, e), a batch's augmentation is drawn for the whole global batch and
    seeded by (seed, step, view), and only then is this rank's part cut out of both. `augment` is a recipe, or the
    changes of a batch-wise one; None leaves the images as they are.
    """

    def __init__(
        self,
        images: ImageSet,
        batch_size: int,
        seed: int,
        augment: AugmentSpec | Recipe | None = None,
        drop_last: bool = False,
        rank: int = 0,
        ranks: int = 1,
        mix: Mix | None = None,
    ) -> None:
        self.images, self.batch_size, self.seed, self.mix = images, batch_size, seed, mix
        self.recipe = BatchWise(augment or AugmentSpec()) if isinstance(augment, AugmentSpec | None) else augment
        self.rank, self.ranks = rank, ranks
        count = len(images.labels)
        whole, rest = divmod(count, batch_size)
        self.steps_per_epoch = whole if drop_last or not rest else whole + 1
        smallest = batch_size if drop_last or not rest else rest
        if self.steps_per_epoch == 0:
            raise UserError(f"{count} training images do not fill one batch of {batch_size}: use --batch-size {count}.")
        if smallest < 2 * ranks:
            raise UserError(
                f"The last batch of an epoch has {smallest} image(s) for {ranks} device(s), and BatchNorm needs two on "
                f"each: use {'a larger' if batch_size < 2 * ranks else '--drop-last True or another'} --batch-size."
            )
        self._order = lru_cache(maxsize=ORDERS_KEPT)(self._shuffled)

    def _shuffled(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed_for(self.seed, "order", epoch))
        return torch.randperm(len(self.images.labels), generator=generator)

    def size(self, step: int) -> int:
        place = step % self.steps_per_epoch
        return min(self.batch_size, len(self.images.labels) - place * self.batch_size)

    def batch(self, step: int, view: int = 0) -> Batch:
        epoch, place = divmod(step, self.steps_per_epoch)
        rows = self._order(epoch)[place * self.batch_size : (place + 1) * self.batch_size]
        mine = torch.arange(len(rows) * self.rank // self.ranks, len(rows) * (self.rank + 1) // self.ranks)
        seed = seed_for(self.seed, "augment", *((step, view) if view else (step,)))
        if self.mix is not None:
            return self._mixed(self.mix, rows, mine, seed, seed_for(self.seed, "mix", step))
        return Batch(self.recipe.train(self.images, rows, mine, seed), self._labels(rows[mine]), rows[mine])

    def _mixed(self, mix: Mix, rows: Tensor, mine: Tensor, seed: int, mix_seed: int) -> Batch:
        mixing = mix.draw(len(rows), *self.images.shape[1:], seed=mix_seed)
        # Partners may belong to other ranks; an image that is needed twice is still made once.
        pairs = torch.stack([mine, mixing.partner[mine]])
        needed, where = pairs.unique(return_inverse=True)
        varied = self.recipe.train(self.images, rows, needed, seed)
        images = mixing.images(*(varied[part.to(varied.device)] for part in where))
        own, other = (self._labels(rows[part]) for part in pairs)
        return Batch(images, mixing.labels(own, other, len(self.images.classes)), rows[mine])

    def _labels(self, rows: Tensor) -> Tensor:
        return self.images.labels[rows.to(self.images.labels.device)]

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if key != "_order"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._order = lru_cache(maxsize=ORDERS_KEPT)(self._shuffled)


class _Turns(Dataset[Batch]):
    """A stream in the shape a DataLoader asks for: an item is what one turn looks at."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def __getitem__(self, views: Sequence[View]) -> Batch:
        first, *others = (self.stream.batch(*view) for view in views)
        return first._replace(others=tuple(others))


def batches(stream: Stream, turns: Iterable[Sequence[View]], workers: int = 0) -> Iterator[Batch]:
    """What each turn looks at, in that order, prepared ahead of time by `workers` processes if there are any."""
    seen = _Turns(stream)
    if workers == 0:
        return (seen[views] for views in turns)
    pinned = torch.cuda.is_available()
    return iter(DataLoader(seen, batch_size=None, sampler=turns, num_workers=workers, pin_memory=pinned))


class InOrder:
    """Every image once, nothing left to chance, for evaluation."""

    def __init__(self, images: ImageSet, batch_size: int) -> None:
        self.images, self.parts = images, torch.arange(len(images.labels)).split(batch_size)
        self.steps_per_epoch = len(self.parts)

    def size(self, step: int) -> int:
        return len(self.parts[step])

    def batch(self, step: int, view: int = 0) -> Batch:
        rows = self.parts[step]
        return Batch(self.images.shown(rows), self.images.labels[rows.to(self.images.labels.device)], rows)


def in_order(images: ImageSet, batch_size: int, workers: int = 0) -> Iterator[Batch]:
    """Every image once, nothing left to chance; `workers` are asked only where images have to be decoded."""
    stream = InOrder(images, batch_size)
    every = ((View(step),) for step in range(stream.steps_per_epoch))
    return batches(stream, every, 0 if images.instant else workers)
