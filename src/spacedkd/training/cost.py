"""What a run costs, counted while it runs and not from what a method says of itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class Cost:
    """Updates of each learner, and the passes and images that went through each model in its turns.

    A forward pass that records gradients is followed by a backward pass. Evaluation is not counted.
    """

    def __init__(self, models: Mapping[str, nn.Module], counts: Mapping[str, int] | None = None) -> None:
        self.counts = Counter(counts or {})
        self._passes: Counter[str] = Counter()
        self._counting = False
        for name, model in models.items():
            model.register_forward_hook(lambda module, inputs, output, name=name: self._passed(name))

    def _passed(self, model: str) -> None:
        if self._counting:
            self._passes[f"{model} forward"] += 1
            self._passes[f"{model} backward"] += torch.is_grad_enabled()

    @contextmanager
    def turn(self, learner: str, images: int) -> Iterator[None]:
        """Count one update of `learner` on a global batch of so many images, with all the passes made for it."""
        self._passes.clear()
        self._counting = True
        yield
        self._counting = False
        self.counts[f"{learner} updates"] += 1
        self.counts[f"{learner} images"] += images
        for name, passes in self._passes.items():
            self.counts[f"{name} passes"] += passes
            self.counts[f"{name} images"] += passes * images

    def summary(self) -> dict[str, Any]:
        """Totals over all models, and the counts they come from."""

        def total(ending: str) -> int:
            return sum(count for name, count in self.counts.items() if name.endswith(ending))

        return {
            "updates": total(" updates"),
            "forward_passes": total(" forward passes"),
            "backward_passes": total(" backward passes"),
            "forward_images": total(" forward images"),
            "backward_images": total(" backward images"),
            "by_model": dict(sorted(self.counts.items())),
        }
