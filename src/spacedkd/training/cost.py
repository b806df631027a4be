"""What training costs: counted, not said."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class Cost:
    """Updates of each learner, and the passes and images that went through each model in its turns; counted, not said.

    A forward pass that records gradients is followed by a backward pass. Evaluation is not counted.
    """

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        self.counts: dict[str, Counter[str]] = {}
        """of each role's turns"""
        self._turn: Counter[str] = Counter()  # of the role whose turn is going on
        self._images = 0
        for name, model in models.items():
            model.register_forward_hook(lambda module, inputs, output, name=name: self._passed(name))

    def _passed(self, model: str) -> None:
        for way, passes in (("forward", 1), ("backward", int(torch.is_grad_enabled()))) if self._images else ():
            self._turn[f"{model} {way} passes"] += passes
            self._turn[f"{model} {way} images"] += passes * self._images

    @contextmanager
    def count_passes(self, role: str, images: int) -> Iterator[None]:
        """Count the passes of a role that are made for a global batch of so many images."""
        self._turn, self._images = self.counts.setdefault(role, Counter()), images
        yield
        self._images = 0

    def set_part(self, images: int, number: int, count: int) -> None:
        """From here on passes are made for one of so many parts of a global batch of so many images."""
        self._images = images * (number + 1) // count - images * number // count

    @contextmanager
    def count_update(self, role: str, learner: str, images: int) -> Iterator[None]:
        """Count one update of `learner` on a global batch of so many images, with all the passes made for it."""
        with self.count_passes(role, images):
            yield
        self._turn[f"{learner} updates"] += 1
        self._turn[f"{learner} images"] += images

    def summary(self, others: Iterable[Mapping[str, int]] = ()) -> dict[str, Any]:
        """Totals over all models, and the counts they come from; with those of `others` added."""
        counts: Counter[str] = Counter()
        for one in (*self.counts.values(), *others):
            counts.update(one)

        def total(ending: str) -> int:
            return sum(count for name, count in counts.items() if name.endswith(ending))

        kinds = ("updates", "forward passes", "backward passes", "forward images", "backward images")
        totals = {kind.replace(" ", "_"): total(f" {kind}") for kind in kinds}
        return {**totals, "by_model": dict(sorted(counts.items()))}
