"""The batches of a `DatasetStream` from a plain torch DataLoader, for training loops and trainers that are not ours.

The sampler names every item by its row and by the seed of what is drawn for it; the dataset draws with that seed. So a
batch is a function of its step alone: the same bits in a teacher's run and in its student's, after a resume at any step
and with any number of workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import distributed
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from spacedkd.data.dataset import Collate, MapStyle, check_map_style, drawn, seed_collate
from spacedkd.data.stream import Order
from spacedkd.data.transforms import preserve_generators
from spacedkd.runtime.errors import UserError, format_value, whole_number
from spacedkd.runtime.seeds import seed_for


class Draw(NamedTuple):
    """An item to be asked for: its row in the dataset, and the seed of whatever its transforms draw."""

    row: int
    seed: int


class SeededBatchSampler(Order, Sampler[list[Draw]]):
    """The batches of a run, step by step, for `DataLoader(SeededDataset(dataset), batch_sampler=...)`.

    With `steps`, such as range(done, total), every iteration walks those steps: one loader is the whole run, and a
    resumed one begins where it was left. Without, an iteration is an epoch and the next one the epoch after it;
    trainers say which by `set_epoch`, and skip what they have done, or are put at a step by `set_step`. Of each batch
    the process `rank` of `ranks` gets its slice; without them a `SeededLoader` takes those of torch.distributed, and a
    sampler alone gives whole batches, for others to share out.

    >>> sampler = SeededBatchSampler(10, 4, seed=0)
    >>> [[draw.row for draw in batch] for batch in sampler]
    [[2, 1, 6, 3], [7, 0, 4, 9], [8, 5]]
    >>> sampler.set_step(1)
    >>> [[draw.row for draw in batch] for batch in sampler]
    [[7, 0, 4, 9], [8, 5]]
    """

    def __new__(cls, *args: Any, **options: Any) -> SeededBatchSampler:
        # Lightning makes any batch sampler anew, around a sampler of its own, where it has several processes.
        if args and isinstance(args[0], Sampler):
            raise UserError(
                f"Seeded batches have an order of their own, and no place for a {type(args[0]).__name__}: give "
                "Lightning's Trainer use_distributed_sampler=False. Each process still gets its slice of a batch."
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
        """`count` is how many items the dataset has; `batch_size` is that of all ranks together."""
        count, batch_size = whole_number("count", count, 1), whole_number("batch_size", batch_size, 1)
        seed, self.rank_is_given = whole_number("seed", seed), rank is not None and ranks is not None
        place = 0 if rank is None else whole_number("rank", rank)
        places = 1 if ranks is None else whole_number("ranks", ranks, 1)
        if rank is not None and ranks is not None and place >= places:
            raise UserError(f"rank must be from 0 to {places - 1}, as there are {places}; got {rank}.")
        if not isinstance(steps, range | None):
            raise UserError(
                f"steps must be a range, such as range(0, 300) for the first 300; got {format_value(steps)}."
            )
        _check_batches(count, batch_size, drop_last, places)
        if (rank is None) != (ranks is None):
            raise UserError(f"rank={rank} and ranks={ranks} belong together: give both, or neither.")
        super().__init__(count, batch_size, seed, drop_last, place, places, "items", least=1)
        self.steps, self.drop_last = steps, drop_last
        self._next = 0
        self.reached: int | None = None  # by a loader, which samplers run ahead of; None since it was put somewhere

    @property
    def sampler(self) -> SeededBatchSampler:
        """Itself: trainers tell the epoch to the sampler inside of a batch sampler."""
        return self

    @property
    def next_step(self) -> int:
        """Where the next iteration begins."""
        return self._next if self.steps is None else self.steps.start

    def take_rank(self) -> None:
        """Give this process its slice of each batch, by its rank in torch.distributed; one that was given stays."""
        if self.rank_is_given:
            return
        alone = not (distributed.is_available() and distributed.is_initialized())
        self.rank, self.ranks = (0, 1) if alone else (distributed.get_rank(), distributed.get_world_size())
        _check_batches(self.count, self.batch_size, self.drop_last, self.ranks)

    def set_step(self, step: int) -> None:
        """The next iteration begins here and ends with the epoch; `set_epoch` of the same epoch leaves it so."""
        if self.steps is not None:
            raise UserError(f"set_step does not matter with steps={self.steps}: give steps=range(step, total) instead.")
        self._next, self.reached = whole_number("step", step), None

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch, counted from 0."""
        self.reached = None
        if self.steps is None and self._next // self.steps_per_epoch != epoch:
            self._next = epoch * self.steps_per_epoch

    def __len__(self) -> int:
        """Batches of an iteration; without `steps` those of a whole epoch, also where one begins in its middle."""
        return self.steps_per_epoch if self.steps is None else len(self.steps)

    def __iter__(self) -> Iterator[list[Draw]]:
        steps = self.steps
        if steps is None:
            start, self._next = self._next, (self._next // self.steps_per_epoch + 1) * self.steps_per_epoch
            steps = range(start, self._next)
        for step in steps:
            yield self.batch(step)

    def batch(self, step: int) -> list[Draw]:
        """What this rank asks the dataset for at a step."""
        rows, mine, seed = self.places(step)
        places = mine.tolist()
        return [Draw(row, seed_for(seed, place)) for row, place in zip(rows[mine].tolist(), places, strict=True)]


def _check_batches(count: int, batch_size: int, drop_last: bool, ranks: int) -> None:
    """Refuse epochs without a batch, and batches of which a rank would have nothing."""
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


class Drawn(list[Any]):
    """Items that were drawn together, and the seed of the first of them."""

    seed: int


class SeededDataset(Dataset[Any]):
    """A map-style dataset whose items are asked for as a `SeededBatchSampler` names them, each with its own seed.

    All global generators (torch, numpy, random) are put back afterwards, so nobody else's numbers change.
    """

    def __init__(self, dataset: MapStyle) -> None:
        check_map_style(dataset, "The dataset")
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, draw: Draw) -> Any:
        return self.__getitems__([draw])[0]

    def __getitems__(self, draws: Sequence[Draw]) -> Drawn:
        for draw in draws:
            if not isinstance(draw, tuple) or len(draw) != 2:
                raise UserError(
                    f"A SeededDataset is asked for (row, seed), got {format_value(draw)}: give the DataLoader "
                    "batch_sampler=SeededBatchSampler(...)."
                )
        with preserve_generators():
            items = Drawn(drawn(self.dataset, draws))
        items.seed = draws[0][1]
        return items


class SeededCollate:
    """A collate that draws, such as one that masks tokens, with the seed of its batch; torch's default if None."""

    def __init__(self, collate: Collate | None = None) -> None:
        self.collate = collate or default_collate

    def __call__(self, items: list[Any]) -> Any:
        if not isinstance(items, Drawn):
            raise UserError("SeededCollate puts items of a SeededDataset together: give the DataLoader one of them.")
        with preserve_generators():
            seed_collate(items.seed)
            return self.collate(items)


class SeededLoader(DataLoader[Any]):
    """A DataLoader that says at which step it is and begins there again, in an epoch's middle too.

    Trainers that keep the state of a loader in their checkpoints, such as Lightning's, need nothing more to resume. Of
    several processes of torch.distributed each gets its slice of a batch, unless `rank` and `ranks` were given.
    """

    batch_sampler: SeededBatchSampler

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self.batch_sampler.take_rank()  # not before: a loader may be made before its process knows the others
        begin = self.batch_sampler.next_step
        for done, batch in enumerate(super().__iter__(), 1):
            self.batch_sampler.reached = begin + done
            yield batch

    def state_dict(self) -> dict[str, int]:
        """The step whose batch comes next: in the iteration that goes on, or in the one that is to begin."""
        reached = self.batch_sampler.reached
        return {"step": self.batch_sampler.next_step if reached is None else reached}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Begin with that batch."""
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
    """A torch DataLoader of the batches that `DatasetStream(dataset, batch_size, seed, collate)` has, step by step.

    `steps`, `rank` and `ranks` are those of `SeededBatchSampler`; all other options are torch's (num_workers, ...). Of
    several processes of torch.distributed each gets its slice of a batch; rank=0, ranks=1 gives each the whole.
    """
    seeded = SeededDataset(dataset)
    sampler = SeededBatchSampler(
        len(dataset), batch_size, seed, steps=steps, drop_last=drop_last, rank=rank, ranks=ranks
    )
    # torch seeds workers by a number it draws when an iteration begins: from a generator that is nobody else's.
    options = {"generator": torch.Generator(), **options}
    return SeededLoader(seeded, batch_sampler=sampler, collate_fn=SeededCollate(collate), **options)
