"""Which batch belongs to which step.

`batch(step)` is a pure function: asked again, in another order, in another process or on another rank it gives the
same bits. That is why a replay needs no buffer, however long the interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from spacedkd.data.augment import apply, draw
from spacedkd.errors import UserError
from spacedkd.seeds import seed_for
from spacedkd.spec import AugmentSpec


class Batch(NamedTuple):
    """B images with their labels and their places in the data set."""

    images: Tensor  # [B, C, H, W] float32, normalised
    labels: Tensor  # [B] int64
    indices: Tensor  # [B] int64

    def to(self, device: torch.device, channels_last: bool = False) -> Batch:
        layout = torch.channels_last if channels_last else torch.contiguous_format
        images = self.images.to(device, memory_format=layout, non_blocking=True)
        return Batch(images, self.labels.to(device, non_blocking=True), self.indices.to(device, non_blocking=True))


class Stream(Protocol):
    """Anything that knows the batch of a step."""

    steps_per_epoch: int

    def batch(self, step: int) -> Batch:
        """This rank's slice of the global batch of `step`."""
        ...

    def size(self, step: int) -> int:
        """How many images the global batch of `step` has."""
        ...


class Images(NamedTuple):
    """A data set in memory: N images as bytes, with what normalises them."""

    pixels: Tensor  # [N, C, H, W] uint8
    labels: Tensor  # [N] int64
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, of pixels in 0..1
    std: tuple[float, ...]

    def normalised(self, pixels: Tensor) -> Tensor:
        """Bytes to floats with mean 0 and deviation 1 per channel."""
        scale = 255 * torch.tensor(self.std, device=pixels.device).view(-1, 1, 1)
        shift = 255 * torch.tensor(self.mean, device=pixels.device).view(-1, 1, 1)
        return (pixels - shift) / scale

    def to(self, device: torch.device) -> Images:
        return self._replace(pixels=self.pixels.to(device), labels=self.labels.to(device))

    def subset(self, rows: Tensor) -> Images:
        return self._replace(pixels=self.pixels[rows], labels=self.labels[rows])


class TrainingStream:
    """Shuffled, augmented batches of images in memory; one rank's slice of each global batch.

    Epoch e is a permutation seeded by (seed, e), a batch's augmentation is drawn for the whole global batch and
    seeded by (seed, step), and only then is this rank's part cut out of both.
    """

    def __init__(
        self,
        images: Images,
        batch_size: int,
        seed: int,
        augment: AugmentSpec | None = None,
        drop_last: bool = False,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.images, self.batch_size, self.seed = images, batch_size, seed
        self.augment = augment or AugmentSpec()
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
                f"each: use --drop-last or another --batch-size than {batch_size}."
            )
        # One epoch's order is kept at a time, two around a boundary: memory does not grow with the interval.
        self._order = lru_cache(maxsize=2)(self._shuffled)

    def _shuffled(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed_for(self.seed, "order", epoch))
        return torch.randperm(len(self.images.labels), generator=generator)

    def size(self, step: int) -> int:
        place = step % self.steps_per_epoch
        return min(self.batch_size, len(self.images.labels) - place * self.batch_size)

    def batch(self, step: int) -> Batch:
        epoch, place = divmod(step, self.steps_per_epoch)
        chosen = self._order(epoch)[place * self.batch_size : (place + 1) * self.batch_size]
        changes = draw(self.augment, len(chosen), seed_for(self.seed, "augment", step))
        mine = slice(len(chosen) * self.rank // self.ranks, len(chosen) * (self.rank + 1) // self.ranks)
        indices = chosen[mine]
        where = indices.to(self.images.pixels.device)
        pixels = apply(self.images.pixels[where], changes.rows(mine))
        return Batch(self.images.normalised(pixels), self.images.labels[where], indices)

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if key != "_order"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._order = lru_cache(maxsize=2)(self._shuffled)


class _Steps(Dataset[Batch]):
    """A stream in the shape a DataLoader asks for: item number = step."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def __getitem__(self, step: int) -> Batch:
        return self.stream.batch(step)


def batches(stream: Stream, steps: Iterable[int], workers: int = 0) -> Iterator[Batch]:
    """The batches of `steps` in that order, prepared ahead of time by `workers` processes if there are any."""
    if workers == 0:
        return (stream.batch(step) for step in steps)
    return iter(DataLoader(_Steps(stream), batch_size=None, sampler=steps, num_workers=workers))


def in_order(images: Images, batch_size: int) -> Iterator[Batch]:
    """Every image once, unchanged, for evaluation."""
    for rows in torch.arange(len(images.labels)).split(batch_size):
        yield Batch(images.normalised(images.pixels[rows]), images.labels[rows], rows)
