"""Label noise: a part of the training labels is replaced by other classes, uniformly (symmetric noise).

Which labels are wrong, and what they become, is a property of the data. Two numbers are drawn for every row of the
dataset, from a fixed seed: its place in a queue, and the class that would replace its own. Of n labels of a class, the
first ones in the queue are replaced; in all round(part * n) are wrong, spread evenly over the classes. So

    every seed, schedule, process and worker    sees the same wrong labels
    a larger part                               keeps the wrong labels of a smaller one, but for rounding
    fewer training images                       have nearly the same wrong labels among them
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from spacedkd.runtime.seeds import seed_for


def label_shifts(labels: Tensor, rows: Tensor, classes: int, part: float) -> Tensor:
    """Return what is added to each label, modulo the number of classes: 0 for a label that stays, [N] int64.

    labels     [N] int64, the true classes
    rows       [N] int64, the rows of the dataset that these items are
    classes    the number of classes
    part       the part of the labels to replace, from 0 to less than 1

    >>> labels = torch.arange(3).repeat(20)
    >>> shifts = label_shifts(labels, torch.arange(60), classes=3, part=0.2)
    >>> int(shifts.count_nonzero()), labels[shifts > 0].bincount().tolist()
    (12, [4, 4, 4])
    """
    count = int(rows.max()) + 1
    # Legacy generators: numpy promises their streams for good, and a longer draw begins with the shorter one.
    queue, other = (_generator(purpose).random_sample(count)[rows.numpy()] for purpose in ("queue", "class"))
    shifts = 1 + torch.from_numpy((other * (classes - 1)).astype(np.int64))
    order = torch.from_numpy(np.lexsort((queue, labels.numpy())))  # by class, then by place in the queue
    counts = torch.bincount(labels)
    starts = (counts.cumsum(0) - counts)[labels[order]]
    ranks = torch.empty_like(labels).scatter_(0, order, torch.arange(len(labels)) - starts)
    return torch.where(ranks < _quotas(counts, part)[labels], shifts, 0)


def _generator(purpose: str) -> np.random.RandomState:
    seed = seed_for(0, "label noise", purpose)
    return np.random.RandomState([seed >> 32, seed & 0xFFFFFFFF])


def _quotas(counts: Tensor, part: float) -> Tensor:
    """Return how many labels of each class are replaced: its share rounded down, the rest by largest remainders."""
    shares = counts.double() * part
    quotas = shares.floor().long()
    rest = round(int(counts.sum()) * part) - int(quotas.sum())
    quotas[torch.argsort(shares - quotas, descending=True, stable=True)[:rest]] += 1
    return quotas
