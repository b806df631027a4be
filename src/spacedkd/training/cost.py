"""The cost of training in updates, passes and images, as counted while it goes on."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class Cost:
    """A counter of every learner's updates, and of the passes and images through every model.

    Forward hooks count the passes, so that a method cannot miscount its own. A forward pass that records gradients is
    followed by a backward pass. Evaluation is not counted.
    """

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        self.counts: dict[str, Counter[str]] = {}
        """role -> what its turns cost, such as "student forward images" """
        self._current: Counter[str] = Counter()  # the counts of the role whose turn it is
        self._images = 0  # in the batch that passes are made for; 0 while nothing is counted
        for name, model in models.items():
            model.register_forward_hook(lambda module, inputs, output, name=name: self._count_pass(name))

    def _count_pass(self, model: str) -> None:
        if not self._images:
            return
        for direction, passes in (("forward", 1), ("backward", int(torch.is_grad_enabled()))):
            self._current[f"{model} {direction} passes"] += passes
            self._current[f"{model} {direction} images"] += passes * self._images

    @contextmanager
    def count_passes(self, role: str, images: int) -> Iterator[None]:
        """Count the passes of a role's turn on a global batch of so many images."""
        self._current, self._images = self.counts.setdefault(role, Counter()), images
        yield
        self._images = 0

    def set_part(self, images: int, number: int, count: int) -> None:
        """Count passes from here on for part `number` of the `count` parts of a global batch of so many images."""
        self._images = images * (number + 1) // count - images * number // count

    @contextmanager
    def count_update(self, role: str, learner: str, images: int) -> Iterator[None]:
        """Count one update of `learner` on a global batch of so many images, with all the passes made for it."""
        with self.count_passes(role, images):
            yield
        self._current[f"{learner} updates"] += 1
        self._current[f"{learner} images"] += images

    def summary(self, others: Iterable[Mapping[str, int]] = ()) -> dict[str, Any]:
        """Return totals over all models, and the counts they are made of; counts of `others` are added."""
        counts: Counter[str] = Counter()
        for role_counts in (*self.counts.values(), *others):
            counts.update(role_counts)

        def total(ending: str) -> int:
            return sum(count for name, count in counts.items() if name.endswith(ending))

        kinds = ("updates", "forward passes", "backward passes", "forward images", "backward images")
        totals = {kind.replace(" ", "_"): total(f" {kind}") for kind in kinds}
        return {**totals, "by_model": dict(sorted(counts.items()))}
