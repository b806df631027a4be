"""How good the models of a run are while it goes on."""

from __future__ import annotations

import torch
from torch import nn

from spacedkd.data.stream import in_order
from spacedkd.evaluation.scores import correct
from spacedkd.training.setup import Setup

Scores = dict[str, dict[str, float]]
"""part of the data -> head -> accuracy"""


def measure(setup: Setup, model: nn.Module, module: nn.Module) -> Scores:
    """Accuracy of every head of a model on every part of the data that is not trained on; its mode is given back.

    `module` is the model without what devices and precision wrap around it, and knows its heads.
    """
    fabric, spec = setup.fabric, setup.plan.spec
    was_training = model.training
    model.eval()
    heads: tuple[str, ...] = module.head_names  # type: ignore[assignment]
    scores = {}
    for part, items in setup.data.evaluated().items():
        rows = torch.arange(fabric.global_rank, len(items), fabric.world_size)
        mine = items if fabric.world_size == 1 else items.subset(rows)
        shown = in_order(mine, max(256, spec.batch_size), spec.engine.workers)
        moved = (batch.to(fabric.device, setup.channels_last) for batch in shown)
        counts = correct(model, heads, moved)
        totals = {head: int(fabric.all_reduce(count, reduce_op="sum")) for head, count in counts.items()}  # type: ignore[arg-type]
        scores[part] = {head: total / len(items) for head, total in totals.items()}
    model.train(was_training)
    return scores
