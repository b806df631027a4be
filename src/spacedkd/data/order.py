"""Which items belong to which step, and which of those to which process."""

from functools import lru_cache

import torch
from torch import Tensor

from spacedkd.errors import UserError
from spacedkd.seeds import seed_for

ORDERS_KEPT = 8
"""epochs whose order is remembered: enough for several roles at different places, whatever the interval"""


def too_small(smallest: int, items: str, batch_size: int, ranks: int, least: int = 2) -> UserError:
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
            raise too_small(smallest, items, batch_size, ranks, least)

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
