"""The cost of training in updates, passes and images, as counted while it goes on."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from spacedkd.schedule import Turn
from spacedkd.training.loop import Callback, StepResult


class Cost(Callback):
    """A counter of every learner's updates, and of the passes and images through every model.

    Forward hooks count the passes, so that a method cannot miscount its own. A forward pass that records gradients is
    followed by a backward pass. Evaluation is not counted.
    """

    def __init__(self, models: Mapping[str, nn.Module], learners: Mapping[str, str]) -> None:
        """Count the passes through `models`; `learners` has the model that each role updates."""
        self._learners = learners
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

    def start_part(self, role: str, images: int, number: int, count: int) -> None:
        """Count passes from here on for a role, on part `number` of the `count` parts of a global batch."""
        self._current = self.counts.setdefault(role, Counter())
        self._images = images * (number + 1) // count - images * number // count

    def on_step(self, turn: Turn, result: StepResult) -> None:
        """Count one update of the role's model, and no passes until the next batch."""
        self._images = 0
        learner = self._learners[turn.role]
        self.counts[turn.role][f"{learner} updates"] += 1
        self.counts[turn.role][f"{learner} images"] += result.images

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
