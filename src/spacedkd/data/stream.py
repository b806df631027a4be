"""The batch of every step.

The one idea: `stream.batch(step)` is a pure function of the step. Called again, in another order, in another process or
on another device, it gives the same bits, because everything random in it is seeded by (seed, step) and nothing else:

    order of an epoch       seed_for(seed, "order", epoch)          a permutation of all rows
    augmentation            seed_for(seed, "augment", step, view)   drawn for the whole global batch
    mixup and cutmix        seed_for(seed, "mix", step)

That is why a student that replays its teacher's steps needs no buffer of old batches, however long the interval, and
why a resumed run continues with the bits it would have had.

The global batch of a step is the batch of all devices together. It is drawn as a whole, and only then does each rank
cut out its slice, so that the slices of any number of ranks join to the same batch.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from spacedkd.config.spec import AugmentSpec
from spacedkd.data.dataset import Collate, Items, MapStyle, check_map_style
from spacedkd.data.inputs import Inputs, map_tensors, to_device
from spacedkd.runtime.errors import UserError, first_line
from spacedkd.runtime.seeds import seed_for
from spacedkd.runtime.signals import as_child
from spacedkd.runtime.user_code import Inherited, user_code
from spacedkd.task import CLASSIFICATION, Task

if TYPE_CHECKING:  # they need libraries that `Order`, `Batch` and `DatasetStream` do without
    from spacedkd.data.images import ImageSet
    from spacedkd.data.transforms import Augmentation, Mix


class Stream(Protocol):
    """Anything that knows the batch of a step."""

    steps_per_epoch: int

    def batch(self, step: int, view: int = 0) -> Batch:
        """Return this rank's slice of the global batch of `step`.

        Another `view` holds the same images in the same order, with another augmentation.
        """
        ...

    def size(self, step: int) -> int:
        """Return the number of images in the global batch of `step`."""
        ...


class Batch(NamedTuple):
    """One rank's slice of a step: B inputs, their labels, and their rows in the dataset."""

    inputs: Inputs  # images are [B, C, H, W] float32, normalised
    labels: Tensor  # [B] int64; with label smoothing, mixup or cutmix [B, C] float32, rows sum to one
    indices: Tensor  # [B] int64
    others: tuple[Batch, ...] = ()
    """other views of the same step, where `Method.views` asks for more than one"""

    def to(self, device: torch.device, channels_last: bool = False) -> Batch:
        """Return the batch on a device; `channels_last` sets the memory layout of images."""
        inputs = to_device(self.inputs, device, channels_last)
        labels, indices = (tensor.to(device, non_blocking=True) for tensor in (self.labels, self.indices))
        return Batch(inputs, labels, indices, tuple(other.to(device, channels_last) for other in self.others))

    def parts(self, count: int) -> list[Batch]:
        """Return the batch cut into `count` parts of nearly equal size, in order; all views are cut in the same way.

        >>> [part.indices.tolist() for part in Batch(torch.zeros(5, 1), torch.zeros(5), torch.arange(5)).parts(2)]
        [[0, 1], [2, 3, 4]]
        """
        return [self._part(number, count) for number in range(count)] if count > 1 else [self]

    def _part(self, number: int, count: int) -> Batch:
        rows = slice(len(self.labels) * number // count, len(self.labels) * (number + 1) // count)
        inputs = map_tensors(self.inputs, lambda tensor: tensor[rows])
        others = tuple(other._part(number, count) for other in self.others)
        return Batch(inputs, self.labels[rows], self.indices[rows], others)


class View(NamedTuple):
    """A step, and which view of its batch: views hold the same images with different augmentation."""

    step: int
    view: int = 0


# The order of a run


class GlobalBatch(NamedTuple):
    """The batch of all ranks together at one step, before any item of it is loaded: B items, b of them this rank's."""

    rows: Tensor
    """[B] int64, rows of the dataset"""
    positions: Tensor
    """[b] int64, the positions in `rows` that belong to this rank"""
    seed: int
    """seed of the augmentation at this step and view"""

    @property
    def own_rows(self) -> Tensor:
        """The rows of this rank, [b]."""
        return self.rows[self.positions]


class Order:
    """The rows of every step: epoch e is a permutation of `count` rows, seeded by (seed, e) and cut into batches.

    Args:
        count: number of items in the dataset.
        batch_size: number of items in a batch of all ranks together.
        seed: seed of the run.
        drop_last: whether the last, smaller batch of an epoch is left out.
        rank, ranks: which slice of every batch this process gets.
        item_name: the items' name in messages, in the plural.
        min_per_rank: the fewest items a rank may get in a batch; BatchNorm needs two.
    """

    def __init__(
        self,
        count: int,
        batch_size: int,
        seed: int,
        *,
        drop_last: bool = False,
        rank: int = 0,
        ranks: int = 1,
        item_name: str = "items",
        min_per_rank: int = 1,
    ) -> None:
        if batch_size < 1:
            raise UserError(f"batch_size must be at least 1, got {batch_size}.")
        self.count, self.batch_size, self.seed = count, batch_size, seed
        self.rank, self.ranks = rank, ranks
        self.steps_per_epoch = count // batch_size if drop_last else -(-count // batch_size)
        if self.steps_per_epoch == 0:
            raise UserError(
                f"{count} training {item_name} do not fill one batch of {batch_size}: use --batch-size {count}."
            )
        smallest = self.size(self.steps_per_epoch - 1)
        if smallest < min_per_rank * ranks:
            raise last_batch_error(smallest, item_name, batch_size, ranks, min_per_rank)

    def size(self, step: int) -> int:
        """Return the number of items in the global batch of `step`."""
        return min(self.batch_size, self.count - step % self.steps_per_epoch * self.batch_size)

    def global_batch(self, step: int, view: int = 0) -> GlobalBatch:
        """Return the rows of the global batch of `step`, this rank's positions in it, and its seed."""
        epoch, number = divmod(step, self.steps_per_epoch)
        order = _epoch_order(self.count, self.seed, epoch)
        rows = order[number * self.batch_size : (number + 1) * self.batch_size]
        positions = torch.arange(len(rows) * self.rank // self.ranks, len(rows) * (self.rank + 1) // self.ranks)
        # The first view is seeded by the step alone: a method with several views trains on the same first one.
        seed = seed_for(self.seed, "augment", step, view) if view else seed_for(self.seed, "augment", step)
        return GlobalBatch(rows, positions, seed)


# Several roles read at different epochs: eight permutations are enough for all of them, whatever the interval.
@lru_cache(maxsize=8)
def _epoch_order(count: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed_for(seed, "order", epoch)))


def last_batch_error(smallest: int, item_name: str, batch_size: int, ranks: int, min_per_rank: int = 2) -> UserError:
    """Return the error for a last batch of an epoch with too few items for all ranks."""
    return UserError(
        f"The last batch of an epoch has {smallest} {item_name.removesuffix('s')}(s) for {ranks} device(s), and "
        f"{'BatchNorm needs two on each' if min_per_rank > 1 else 'each needs one'}: use "
        f"{'a larger' if batch_size < min_per_rank * ranks else '--drop-last or another'} --batch-size."
    )


# The streams


class ShuffledStream(Order, ABC):
    """A stream whose batches are in the shuffled `Order`; subclasses load the items of a batch."""

    def batch(self, step: int, view: int = 0) -> Batch:
        """Return this rank's slice of the global batch of `step`."""
        batch = self.global_batch(step, view)
        inputs, labels = self._load(step, batch)
        return Batch(inputs, labels, batch.own_rows)

    @abstractmethod
    def _load(self, step: int, batch: GlobalBatch) -> tuple[Inputs, Tensor]:
        """Return inputs and labels of this rank's slice of a global batch."""


class TrainingStream(ShuffledStream):
    """Shuffled batches of augmented images; one rank's slice of each global batch.

    Args:
        images: the images to train on.
        batch_size: images in a batch of all ranks together.
        seed: seed of the run.
        augment: an augmentation, or the settings of a batch-wise one; None leaves the images as they are.
        drop_last: whether the last, smaller batch of an epoch is left out.
        rank, ranks: which slice of every batch this process gets.
        mix: mixup and cutmix, on top of the augmentation.
        label_smoothing: share of each label that is spread evenly over all classes.
    """

    def __init__(
        self,
        images: ImageSet,
        batch_size: int,
        seed: int,
        augment: AugmentSpec | Augmentation | None = None,
        *,
        drop_last: bool = False,
        rank: int = 0,
        ranks: int = 1,
        mix: Mix | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(
            len(images),
            batch_size,
            seed,
            drop_last=drop_last,
            rank=rank,
            ranks=ranks,
            item_name="images",
            min_per_rank=2,
        )
        self.images, self.mix, self.label_smoothing = images, mix, label_smoothing
        from spacedkd.data.transforms import BatchWise

        self.augmentation = BatchWise(augment or AugmentSpec()) if isinstance(augment, AugmentSpec | None) else augment

    def _load(self, step: int, batch: GlobalBatch) -> tuple[Tensor, Tensor]:
        if self.mix is None:
            inputs = self.augmentation.training_inputs(self.images, batch.rows, batch.positions, batch.seed)
            labels = self._labels(batch.own_rows)
        else:
            inputs, labels = self._load_mixed(self.mix, batch, seed_for(self.seed, "mix", step))
        return inputs, smooth_labels(labels, len(self.images.classes), self.label_smoothing)

    def _load_mixed(self, mix: Mix, batch: GlobalBatch, seed: int) -> tuple[Tensor, Tensor]:
        mixing = mix.draw(len(batch.rows), *self.images.shape[1:], seed=seed)
        # Partners may belong to other ranks; an image that is needed twice is still made once.
        pairs = torch.stack([batch.positions, mixing.partner[batch.positions]])
        needed, indices = pairs.unique(return_inverse=True)
        augmented = self.augmentation.training_inputs(self.images, batch.rows, needed, batch.seed)
        own_images, partner_images = (augmented[index.to(augmented.device)] for index in indices)
        own_labels, partner_labels = (self._labels(batch.rows[positions]) for positions in pairs)
        labels = mixing.labels(own_labels, partner_labels, len(self.images.classes))
        return mixing.images(own_images, partner_images), labels

    def _labels(self, rows: Tensor) -> Tensor:
        return self.images.labels[rows.to(self.images.labels.device)]


class DatasetStream(ShuffledStream):
    """Shuffled batches of any map-style dataset; one rank's slice of each global batch.

    All that the dataset's transforms draw is seeded by (seed, step, view, position in the global batch).

    Args:
        dataset: a map-style torch dataset.
        batch_size: items in a batch of all ranks together.
        seed: seed of the run.
        collate: makes a batch of a list of items; torch's default if None.
        drop_last: whether the last, smaller batch of an epoch is left out.
        rank, ranks: which slice of every batch this process gets.
        label_smoothing: share of each label that is spread evenly over all classes; needs `classes`.
        classes: number of classes; labels are checked to be below it.
        task: what the labels are, where they are not classes: `spacedkd.task.Regression()`.
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
        task: Task = CLASSIFICATION,
    ) -> None:
        if not isinstance(dataset, Items):
            check_map_style(dataset, "The dataset")
            dataset = Items(dataset, torch.arange(len(dataset)), collate, classes, task)
        super().__init__(len(dataset), batch_size, seed, drop_last=drop_last, rank=rank, ranks=ranks)
        self.items = dataset
        self.label_smoothing = label_smoothing

    def _load(self, step: int, batch: GlobalBatch) -> tuple[Inputs, Tensor]:
        seeds = [seed_for(batch.seed, position) for position in batch.positions.tolist()]
        inputs, labels = self.items.batch(self.items.rows[batch.own_rows].tolist(), seeds, f"at step {step}")
        classes = labels.shape[1] if labels.ndim == 2 else self.items.classes
        if classes is None and self.label_smoothing:
            raise UserError("Label smoothing needs the number of classes: give classes=COUNT.")
        return inputs, smooth_labels(labels, classes or 0, self.label_smoothing)


def smooth_labels(labels: Tensor, classes: int, smoothing: float) -> Tensor:
    """Return labels [B] or [B, C] moved towards the uniform distribution; unchanged without smoothing.

    >>> smooth_labels(torch.tensor([1]), classes=2, smoothing=0.5)
    tensor([[0.2500, 0.7500]])
    """
    if smoothing == 0:
        return labels
    hard = F.one_hot(labels, classes).float() if labels.ndim == 1 else labels
    return hard.lerp(torch.full_like(hard, 1 / classes), smoothing)


# Batches in sequence, prepared by worker processes


def batches(stream: Stream, view_lists: Iterable[Sequence[View]], workers: int = 0) -> Generator[Batch, None, None]:
    """Yield one batch for each list of views, in that order; `workers` processes prepare them ahead of time.

    The first view of a list is the batch itself, the rest become its `others`.
    """
    return _load_views(stream.batch, view_lists, workers)


def evaluation_batches(split: ImageSet | Items, batch_size: int, workers: int = 0) -> Iterator[Batch]:
    """Yield every item once, in order and without augmentation; `workers` are used only if loading takes time."""
    rows = torch.arange(len(split)).split(batch_size)
    numbers = ([(number,)] for number in range(len(rows)))
    return _load_views(partial(_evaluation_batch, split, rows), numbers, 0 if split.instant else workers)


def _evaluation_batch(split: ImageSet | Items, rows: Sequence[Tensor], number: int) -> Batch:
    inputs, labels = split.inputs_and_labels(rows[number])
    return Batch(inputs, labels, rows[number])


def _load_views(
    load: Callable[..., Batch], view_lists: Iterable[Sequence[Any]], workers: int
) -> Generator[Batch, None, None]:
    """Yield one batch for each list of views; a view is a tuple of the arguments of `load`."""
    dataset = _ViewsDataset(load)
    if workers == 0:
        return _raise_errors(map(dataset.__getitem__, view_lists))
    loader = DataLoader(
        dataset,
        batch_size=None,
        sampler=view_lists,
        collate_fn=_identity,
        num_workers=workers,
        worker_init_fn=partial(_start_worker, os.getpid()),
        pin_memory=torch.cuda.is_available(),
    )
    return _raise_errors(iter(loader))


class _ViewsDataset(Dataset[Batch | UserError]):
    """The dataset of a DataLoader: an item is the batch of a list of views, or the user's error in making it."""

    def __init__(self, load: Callable[..., Batch]) -> None:
        self.inherited = Inherited()  # the first attribute: a worker that is not forked needs it to read the others
        self.load = load

    def __getitem__(self, views: Iterable[Sequence[int]]) -> Batch | UserError:
        try:
            with user_code():
                first, *others = (self.load(*view) for view in views)
        except UserError as error:
            return error
        return first._replace(others=tuple(others))


def _start_worker(parent: int, worker: int) -> None:
    """Prepare a worker: it must outlive a Ctrl-C until its parent has finished the turn that it was stopped in."""
    as_child(parent)


def _identity(batch: Any) -> Any:
    """Return the batch as it is; torch's default collate would make lists of tuples."""
    return batch


def _raise_errors(results: Iterator[Batch | UserError]) -> Generator[Batch, None, None]:
    """Yield batches, and raise the errors of workers in this process, where the user sees them."""
    workers = getattr(results, "_workers", ())
    try:
        for batch in results:
            if isinstance(batch, UserError):
                try:
                    raise batch
                finally:
                    del batch  # the error's traceback would hold this frame, and the frame the error
            yield batch
    except (OSError, EOFError) as error:  # raised while reading from a worker that died while it wrote
        if isinstance(error, UserError) or not wait([worker.sentinel for worker in workers], timeout=1):
            raise
        raise _worker_died() from error
    finally:
        # An error that the loader raised keeps it alive, and with it workers that this process would wait for at exit.
        getattr(results, "_shutdown_workers", lambda: None)()
        del results


def lost_worker_error(error: Exception) -> UserError | None:
    """Return the error to raise in place of torch's for a worker that was killed; None for any other error."""
    message = re.match(r"DataLoader worker \(pid.*?\) (?:is|was|exited) .*?(?=\. |$)", first_line(error))
    return None if message is None else _worker_died(f": {message[0].removesuffix('.')}")


def _worker_died(why: str = "") -> UserError:
    return UserError(
        f"A process that prepares batches has ended{why}. The system ends one where memory is short: use fewer "
        "--workers. With --workers 0 an error in your data is shown."
    )
