"""The global random generators of random, numpy and torch, which transforms draw from."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_generators(seed: int, torch_only: bool = False) -> None:
    """Seed the global generators of random, numpy and torch, which transforms draw from; not those of GPUs."""
    if not torch_only:
        random.seed(seed)
        np.random.seed([seed >> 32, seed & 0xFFFFFFFF])
    torch.default_generator.manual_seed(seed)


@contextmanager
def preserve_generators() -> Iterator[None]:
    """Restore the global generators of random, numpy and torch afterwards, whatever was drawn or seeded inside."""
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
