"""The batches of a `DatasetStream` from a plain torch DataLoader, for training loops and trainers that are not ours.

`seeded_loader` makes the DataLoader. Its sampler names every item by its row and a seed; the dataset loads the item
with that seed. So a batch is a function of its step alone: the same bits in a teacher's run and in its student's, after
a resume at any step, and with any number of workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import distributed
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate
from torch.utils.data.distributed import DistributedSampler

from spacedkd.data.dataset import Collate, MapStyle, check_map_style, load_items, seed_collate
from spacedkd.data.generators import preserve_generators
from spacedkd.data.stream import Order
from spacedkd.runtime.errors import UserError, format_value, whole_number
from spacedkd.runtime.seeds import seed_for


class SeededRow(NamedTuple):
    """The row of an item in the dataset, and the seed of whatever its transforms draw."""

    row: int
    seed: int


class SeededBatchSampler(Order, DistributedSampler[list[SeededRow]]):
    """The batches of a run, step by step, for `DataLoader(SeededDataset(dataset), batch_sampler=...)`.

    With `steps`, such as range(done, total), every iteration yields the batches of those steps: one loader is the whole
    run, and a resumed run gives the steps that remain. Without `steps`, an iteration is one epoch, and the next one is
    the epoch after it; a trainer chooses the epoch by `set_epoch`, or the step to start from by `set_step`. The process
    `rank` of `ranks` gets its slice of each batch; without them a `SeededLoader` takes those of torch.distributed, and
    a sampler alone gives whole batches. It is a DistributedSampler, so trainers leave the batches of a loader to it.

    >>> sampler = SeededBatchSampler(10, 4, seed=0)
    >>> [[item.row for item in batch] for batch in sampler]
    [[2, 1, 6, 3], [7, 0, 4, 9], [8, 5]]
    >>> sampler.set_step(1)
    >>> [[item.row for item in batch] for batch in sampler]
    [[7, 0, 4, 9], [8, 5]]
    """

    def __new__(cls, *args: Any, **options: Any) -> SeededBatchSampler:
        # With several processes, Lightning makes a new batch sampler of the same class, around a sampler of its
        # own, for a loader that is not a SeededLoader.
        if args and isinstance(args[0], Sampler):
            raise UserError(
                f"Seeded batches have an order of their own, and take no {type(args[0]).__name__}: make the loader by "
                "seeded_loader(dataset, batch_size, seed), or give the Trainer use_distributed_sampler=False."
            )
        return super().__new__(cls)

    def __init__(
        self,
        count: int,
        batch_size: int,
        seed: int,
        *,
        steps: range | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        ranks: int | None = None,
    ) -> None:
        """`count` is the number of items in the dataset; `batch_size` is that of all ranks together."""
        count, batch_size = whole_number("count", count, 1), whole_number("batch_size", batch_size, 1)
        seed, self.rank_is_given = whole_number("seed", seed), rank is not None and ranks is not None
        own_rank = 0 if rank is None else whole_number("rank", rank)
        rank_count = 1 if ranks is None else whole_number("ranks", ranks, 1)
        if rank is not None and ranks is not None and own_rank >= rank_count:
            raise UserError(f"rank must be from 0 to {rank_count - 1}, as there are {rank_count}; got {rank}.")
        if not isinstance(steps, range | None):
            raise UserError(
                f"steps must be a range, such as range(0, 300) for the first 300; got {format_value(steps)}."
            )
        _check_batches(count, batch_size, drop_last, rank_count)
        if (rank is None) != (ranks is None):
            raise UserError(f"rank={rank} and ranks={ranks} belong together: give both, or neither.")
        super().__init__(count, batch_size, seed, drop_last=drop_last, rank=own_rank, ranks=rank_count)
        self.steps, self.drop_last = steps, drop_last
        self._next = 0
        # The step that a loader has reached, which its sampler runs ahead of; None until the loader yields a batch.
        self.reached: int | None = None

    @property
    def sampler(self) -> SeededBatchSampler:
        """This sampler itself: trainers call `set_epoch` of the sampler inside of a batch sampler."""
        return self

    @property
    def next_step(self) -> int:
        """The first step of the next iteration."""
        return self._next if self.steps is None else self.steps.start

    def take_rank(self) -> None:
        """Set the rank to that of this process in torch.distributed, unless the user gave one."""
        if self.rank_is_given:
            return
        self.rank, self.ranks = rank_and_processes()
        _check_batches(self.count, self.batch_size, self.drop_last, self.ranks)

    def set_step(self, step: int) -> None:
        """Start the next iteration at `step`; it ends with the epoch. `set_epoch` of the same epoch changes nothing."""
        if self.steps is not None:
            raise UserError(f"set_step does not matter with steps={self.steps}: give steps=range(step, total) instead.")
        self._next, self.reached = whole_number("step", step), None

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration this epoch, counted from 0."""
        self.reached = None
        if self.steps is None and self._next // self.steps_per_epoch != epoch:
            self._next = epoch * self.steps_per_epoch

    def __len__(self) -> int:
        """Return the batches of an iteration; without `steps` those of a whole epoch, wherever it starts."""
        return self.steps_per_epoch if self.steps is None else len(self.steps)

    def __iter__(self) -> Iterator[list[SeededRow]]:
        steps = self.steps
        if steps is None:
            start, self._next = self._next, (self._next // self.steps_per_epoch + 1) * self.steps_per_epoch
            steps = range(start, self._next)
        for step in steps:
            yield self.batch(step)

    def batch(self, step: int) -> list[SeededRow]:
        """Return the rows and seeds of this rank's items at a step."""
        batch = self.global_batch(step)
        pairs = zip(batch.own_rows.tolist(), batch.positions.tolist(), strict=True)
        return [SeededRow(row, seed_for(batch.seed, position)) for row, position in pairs]


def rank_and_processes() -> tuple[int, int]:
    """Return the number of this process in torch.distributed, and how many there are; 0 and 1 where it is not used."""
    is_used = distributed.is_available() and distributed.is_initialized()
    return (distributed.get_rank(), distributed.get_world_size()) if is_used else (0, 1)


def _check_batches(count: int, batch_size: int, drop_last: bool, ranks: int) -> None:
    """Refuse epochs without a batch, and batches of which a rank would get nothing."""
    if drop_last and count < batch_size:
        raise UserError(
            f"{count} items do not fill one batch of {batch_size}, and drop_last=True drops the rest: give a "
            f"batch_size of {count} at most."
        )
    if batch_size < ranks:
        raise UserError(
            f"A batch of {batch_size} cannot be shared by {ranks} ranks: give a batch_size of {ranks} or more."
        )
    last = count % batch_size
    if 0 < last < ranks and not drop_last:
        raise UserError(
            f"The last batch of an epoch has {last} of {count} items, which {ranks} ranks cannot share: give "
            "drop_last=True, or another batch_size."
        )


class SeededItems(list[Any]):
    """The items of a batch, and the seed of the first of them."""

    seed: int


class SeededDataset(Dataset[Any]):
    """A map-style dataset whose items are loaded by (row, seed), as a `SeededBatchSampler` names them.

    The global generators of torch, numpy and random are seeded for each item and restored afterwards.
    """

    def __init__(self, dataset: MapStyle) -> None:
        check_map_style(dataset, "The dataset")
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, item: SeededRow) -> Any:
        return self.__getitems__([item])[0]

    def __getitems__(self, rows: Sequence[SeededRow]) -> SeededItems:
        for item in rows:
            if not isinstance(item, tuple) or len(item) != 2:
                raise UserError(
                    f"A SeededDataset is indexed by (row, seed), got {format_value(item)}: give the DataLoader "
                    "batch_sampler=SeededBatchSampler(...)."
                )
        with preserve_generators():
            items = SeededItems(load_items(self.dataset, rows))
        items.seed = rows[0][1]
        return items


class SeededCollate:
    """A collate that may draw, such as one that masks tokens, seeded for its batch; torch's default if None."""

    def __init__(self, collate: Collate | None = None) -> None:
        self.collate = collate or default_collate

    def __call__(self, items: list[Any]) -> Any:
        if not isinstance(items, SeededItems):
            raise UserError("SeededCollate puts items of a SeededDataset together: give the DataLoader one of them.")
        with preserve_generators():
            seed_collate(items.seed)
            return self.collate(items)


class SeededLoader(DataLoader[Any]):
    """A DataLoader with a state: the step whose batch comes next, in the middle of an epoch too.

    Trainers that save the state of a loader in their checkpoints, such as Lightning's, need nothing more to resume. Of
    several processes of torch.distributed each gets its slice of a batch, unless `rank` and `ranks` were given.
    """

    batch_sampler: SeededBatchSampler

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # torch has a sampler of all rows here, which nobody asks; Lightning would replace it by one for each process.
        object.__setattr__(self, "sampler", self.batch_sampler)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self.batch_sampler.take_rank()  # only now: a loader may be made before torch.distributed is initialized
        start = self.batch_sampler.next_step
        for done, batch in enumerate(super().__iter__(), 1):
            self.batch_sampler.reached = start + done
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Return the step whose batch comes next, in the current iteration or at the start of the next one."""
        reached = self.batch_sampler.reached
        return {"step": self.batch_sampler.next_step if reached is None else reached}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Start the next iteration at the step of a state."""
        self.batch_sampler.set_step(state["step"])


def seeded_loader(
    dataset: MapStyle,
    batch_size: int,
    seed: int,
    collate: Collate | None = None,
    *,
    steps: range | None = None,
    drop_last: bool = False,
    rank: int | None = None,
    ranks: int | None = None,
    **options: Any,
) -> SeededLoader:
    """Return a torch DataLoader of the batches of `DatasetStream(dataset, batch_size, seed, collate)`, step by step.

    `steps`, `rank` and `ranks` are those of `SeededBatchSampler`; all other options are torch's (num_workers, ...). Of
    several processes of torch.distributed each gets its slice of a batch; rank=0, ranks=1 gives each the whole.
    """
    seeded = SeededDataset(dataset)
    sampler = SeededBatchSampler(
        len(dataset), batch_size, seed, steps=steps, drop_last=drop_last, rank=rank, ranks=ranks
    )
    # torch draws a seed for its workers at each iteration: from a generator of its own, so that no other draws change.
    options = {"generator": torch.Generator(), **options}
    return SeededLoader(seeded, batch_sampler=sampler, collate_fn=SeededCollate(collate), **options)
