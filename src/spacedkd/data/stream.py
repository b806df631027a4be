"""Which batch belongs to which step.

`batch(step)` is a pure function: asked again, in another order, in another process or on another rank it gives the
same bits. That is why a replay needs no buffer, however long the interval.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from multiprocessing.connection import wait
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from spacedkd.config.spec import AugmentSpec
from spacedkd.data.dataset import Collate, Items, MapStyle, check_map_style
from spacedkd.data.images import Images as Images
from spacedkd.data.images import ImageSet
from spacedkd.data.inputs import Inputs, map_tensors, to_device
from spacedkd.data.transforms import Augmentation, BatchWise, Mix
from spacedkd.runtime.errors import UserError, first_line
from spacedkd.runtime.seeds import seed_for
from spacedkd.runtime.signals import as_child
from spacedkd.runtime.user_code import Inherited, user_code

# Which items belong to which step, and which of those to which process.

ORDERS_KEPT = 8
"""epochs whose order is remembered: enough for several roles at different places, whatever the interval"""


def last_batch_error(smallest: int, items: str, batch_size: int, ranks: int, least: int = 2) -> UserError:
    """What is wrong with a last batch of so few items."""
    return UserError(
        f"The last batch of an epoch has {smallest} {items.removesuffix('s')}(s) for {ranks} device(s), and "
        f"{'BatchNorm needs two on each' if least > 1 else 'each needs one'}: use "
        f"{'a larger' if batch_size < least * ranks else '--drop-last True or another'} --batch-size."
    )


class Order:
    """Which of `count` items belong to which step, and which of those to this rank.

    Epoch e is a permutation seeded by (seed, e). What is drawn for a step is seeded by (seed, step, view) and drawn for
    the whole global batch, or for each place in it; only then is this rank's part cut out.
    """

    def __init__(
        self, count: int, batch_size: int, seed: int, drop_last: bool, rank: int, ranks: int, items: str, least: int = 2
    ) -> None:
        if batch_size < 1:
            raise UserError(f"batch_size must be at least 1, got {batch_size}.")
        self.count, self.batch_size, self.seed = count, batch_size, seed
        self.rank, self.ranks = rank, ranks
        self.steps_per_epoch = count // batch_size if drop_last else -(-count // batch_size)
        if self.steps_per_epoch == 0:
            raise UserError(
                f"{count} training {items} do not fill one batch of {batch_size}: use --batch-size {count}."
            )
        smallest = self.size(self.steps_per_epoch - 1)
        if smallest < least * ranks:
            raise last_batch_error(smallest, items, batch_size, ranks, least)

    @staticmethod
    @lru_cache(maxsize=ORDERS_KEPT)
    def _order(count: int, seed: int, epoch: int) -> Tensor:
        return torch.randperm(count, generator=torch.Generator().manual_seed(seed_for(seed, "order", epoch)))

    def size(self, step: int) -> int:
        return min(self.batch_size, self.count - step % self.steps_per_epoch * self.batch_size)

    def places(self, step: int, view: int = 0) -> tuple[Tensor, Tensor, int]:
        """The rows of the global batch of `step`, which places in it are this rank's, and the seed of what is drawn."""
        epoch, place = divmod(step, self.steps_per_epoch)
        rows = self._order(self.count, self.seed, epoch)[place * self.batch_size : (place + 1) * self.batch_size]
        mine = torch.arange(len(rows) * self.rank // self.ranks, len(rows) * (self.rank + 1) // self.ranks)
        return rows, mine, seed_for(self.seed, "augment", *((step, view) if view else (step,)))


# Which batch belongs to which step.


class Batch(NamedTuple):
    """B inputs with their labels and their places in the data set."""

    inputs: Inputs  # images are [B, C, H, W] float32, normalised
    labels: Tensor  # [B] int64; with label smoothing, mixup or cutmix [B, C] float32, rows sum to one
    indices: Tensor  # [B] int64
    others: tuple[Batch, ...] = ()
    """what else a turn looks at, for a method that asked for more than one view"""

    def to(self, device: torch.device, channels_last: bool = False) -> Batch:
        inputs = to_device(self.inputs, device, channels_last)
        labels, indices = (part.to(device, non_blocking=True) for part in (self.labels, self.indices))
        return Batch(inputs, labels, indices, tuple(other.to(device, channels_last) for other in self.others))

    def parts(self, count: int) -> list[Batch]:
        """The batch cut into so many, one behind the other, as equal as can be; all views of it are cut alike.

        >>> [part.indices.tolist() for part in Batch(torch.zeros(5, 1), torch.zeros(5), torch.arange(5)).parts(2)]
        [[0, 1], [2, 3, 4]]
        """
        return [self._cut(number, count) for number in range(count)] if count > 1 else [self]

    def _cut(self, number: int, count: int) -> Batch:
        rows = slice(len(self.labels) * number // count, len(self.labels) * (number + 1) // count)
        inputs, others = (
            map_tensors(self.inputs, lambda one: one[rows]),
            (other._cut(number, count) for other in self.others),
        )
        return Batch(inputs, self.labels[rows], self.indices[rows], tuple(others))


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


class Shuffled(Order, ABC):
    """Batches in that order."""

    def batch(self, step: int, view: int = 0) -> Batch:
        rows, mine, seed = self.places(step, view)
        return Batch(*self._drawn(step, rows, mine, seed), rows[mine])

    @abstractmethod
    def _drawn(self, step: int, rows: Tensor, mine: Tensor, seed: int) -> tuple[Inputs, Tensor]:
        """Inputs and labels of this rank: of the global batch, which consists of `rows`, the places that are `mine`."""


def smooth_labels(labels: Tensor, classes: int, smoothing: float) -> Tensor:
    """Labels [B] or [B, C] moved towards the uniform distribution; as they are without smoothing."""
    if smoothing == 0:
        return labels
    hard = F.one_hot(labels, classes).float() if labels.ndim == 1 else labels
    return hard.lerp(torch.full_like(hard, 1 / classes), smoothing)


class TrainingStream(Shuffled):
    """Shuffled, varied batches of images; one rank's slice of each global batch.

    `augment` is an augmentation, or the changes of a batch-wise one; None leaves the images as they are.
    """

    def __init__(
        self,
        images: ImageSet,
        batch_size: int,
        seed: int,
        augment: AugmentSpec | Augmentation | None = None,
        drop_last: bool = False,
        rank: int = 0,
        ranks: int = 1,
        mix: Mix | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(len(images), batch_size, seed, drop_last, rank, ranks, "images")
        self.images, self.mix, self.label_smoothing = images, mix, label_smoothing
        self.augmentation = BatchWise(augment or AugmentSpec()) if isinstance(augment, AugmentSpec | None) else augment

    def _drawn(self, step: int, rows: Tensor, mine: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        if self.mix is None:
            inputs, labels = self.augmentation.train(self.images, rows, mine, seed), self._labels(rows[mine])
        else:
            inputs, labels = self._mixed(self.mix, rows, mine, seed, seed_for(self.seed, "mix", step))
        return inputs, smooth_labels(labels, len(self.images.classes), self.label_smoothing)

    def _mixed(self, mix: Mix, rows: Tensor, mine: Tensor, seed: int, mix_seed: int) -> tuple[Tensor, Tensor]:
        mixing = mix.draw(len(rows), *self.images.shape[1:], seed=mix_seed)
        # Partners may belong to other ranks; an image that is needed twice is still made once.
        pairs = torch.stack([mine, mixing.partner[mine]])
        needed, where = pairs.unique(return_inverse=True)
        varied = self.augmentation.train(self.images, rows, needed, seed)
        images = mixing.images(*(varied[part.to(varied.device)] for part in where))
        own, other = (self._labels(rows[part]) for part in pairs)
        return images, mixing.labels(own, other, len(self.images.classes))

    def _labels(self, rows: Tensor) -> Tensor:
        return self.images.labels[rows.to(self.images.labels.device)]


class _Turns(Dataset[Batch | UserError]):
    """What a DataLoader asks for: an item is what one turn looks at, or the user's mistake found on the way."""

    def __init__(self, batch: Callable[..., Batch]) -> None:
        self.inherited = Inherited()  # the first attribute: a worker that is not forked needs it to read the others
        self.batch = batch

    def __getitem__(self, views: Iterable[Sequence[int]]) -> Batch | UserError:
        try:
            with user_code():
                first, *others = (self.batch(*view) for view in views)
        except UserError as error:
            return error
        return first._replace(others=tuple(others))


def batches(stream: Stream, turns: Iterable[Sequence[View]], workers: int = 0) -> Generator[Batch, None, None]:
    """What each turn looks at, in that order, prepared ahead of time by `workers` processes if there are any."""
    return _prepared(stream.batch, turns, workers)


def evaluation_batches(part: ImageSet | Items, batch_size: int, workers: int = 0) -> Iterator[Batch]:
    """Every item once, nothing left to chance, for evaluation; `workers` are asked only where showing takes time."""
    places = torch.arange(len(part)).split(batch_size)
    every = ([(number,)] for number in range(len(places)))
    return _prepared(partial(_unvaried, part, places), every, 0 if part.instant else workers)


def _unvaried(part: ImageSet | Items, places: Sequence[Tensor], number: int) -> Batch:
    return Batch(*part.inputs_and_labels(places[number]), places[number])


def _prepared(
    batch: Callable[..., Batch], turns: Iterable[Sequence[Any]], workers: int
) -> Generator[Batch, None, None]:
    seen = _Turns(batch)
    if workers == 0:
        return _raised(map(seen.__getitem__, turns))
    settings: dict[str, Any] = {"worker_init_fn": partial(_begin, os.getpid()), "pin_memory": torch.cuda.is_available()}
    loader = DataLoader(seen, None, sampler=turns, collate_fn=_as_it_is, num_workers=workers, **settings)
    return _raised(iter(loader))


def _begin(parent: int, worker: int) -> None:
    """What a worker does first; it must live until the turn is over that its process was stopped in."""
    as_child(parent)


def _as_it_is(batch: Any) -> Any:
    """torch's own way would make lists of tuples."""
    return batch


def lost_worker_error(error: Exception) -> UserError | None:
    """Return what to raise in place of torch's words for a worker that was killed; None for any other error."""
    ended = re.match(r"DataLoader worker \(pid.*?\) (?:is|was|exited) .*?(?=\. |$)", first_line(error))
    return None if ended is None else _lost(f": {ended[0].removesuffix('.')}")


def _lost(why: str = "") -> UserError:
    return UserError(
        f"A process that prepares batches has ended{why}. The system ends one where memory is short: use fewer "
        "--workers. With --workers 0 an error in your data is shown."
    )


def _raised(made: Iterator[Batch | UserError]) -> Generator[Batch, None, None]:
    """A mistake found in a worker is raised where the user is."""
    workers = getattr(made, "_workers", ())
    try:
        for batch in made:
            if isinstance(batch, UserError):
                try:
                    raise batch
                finally:
                    del batch  # the error would hold itself
            yield batch
    except (OSError, EOFError) as error:  # what is read of a worker that ended while it wrote
        if isinstance(error, UserError) or not wait([worker.sentinel for worker in workers], timeout=1):
            raise
        raise _lost() from error
    finally:
        # An error that came from the loader holds it, and with it workers for whom a process that ends would wait.
        getattr(made, "_shutdown_workers", lambda: None)()
        del made


class DatasetStream(Shuffled):
    """Shuffled batches of any map-style dataset; one rank's slice of each global batch.

    What the dataset's transforms draw is seeded by (seed, step, view, place in the global batch). `collate` makes a
    batch of a list of items; torch's default if None. With `classes`, a count, labels are checked to be below it.
    """

    def __init__(
        self,
        dataset: MapStyle | Items,
        batch_size: int,
        seed: int,
        collate: Collate | None = None,
        *,
        drop_last: bool = False,
        rank: int = 0,
        ranks: int = 1,
        label_smoothing: float = 0.0,
        classes: int | None = None,
    ) -> None:
        if not isinstance(dataset, Items):
            check_map_style(dataset, "The dataset")
            dataset = Items(dataset, torch.arange(len(dataset)), collate, classes)
        super().__init__(len(dataset), batch_size, seed, drop_last, rank, ranks, "items", least=1)
        self.items = dataset
        self.label_smoothing = label_smoothing

    def _drawn(self, step: int, rows: Tensor, mine: Tensor, seed: int) -> tuple[Inputs, Tensor]:
        seeds = [seed_for(seed, place) for place in mine.tolist()]
        inputs, labels = self.items.batch(self.items.rows[rows[mine]].tolist(), seeds, f"at step {step}")
        classes = labels.shape[1] if labels.ndim == 2 else self.items.classes
        if classes is None and self.label_smoothing:
            raise UserError("Label smoothing needs to know how many classes there are: give classes=COUNT.")
        return inputs, smooth_labels(labels, classes or 0, self.label_smoothing)
