"""The parts of a batch whose gradients are accumulated in one update."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from spacedkd.data.stream import Batch
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.seeds import seed_for
from spacedkd.schedule import Turn
from spacedkd.timeline import dropout_key
from spacedkd.training import device
from spacedkd.training.cost import Cost
from spacedkd.training.learner import Losses, MicroBatch
from spacedkd.training.state import TrainingState


class MicroBatches:
    """The parts of a turn's batch, each with its losses, seeded."""

    def __init__(self, state: TrainingState, cost: Cost) -> None:
        self._state, self._cost = state, cost
        self._gather = partial(device.gather_rows, state.fabric)

    def split(self, turn: Turn, batch: Batch) -> list[MicroBatch]:
        state, count = self._state, self._state.run.spec.accumulate
        here, size = batch.to(state.fabric.device, state.channels_last), state.stream.size(turn.step)
        # Ranks average their gradients, so a rank with a larger part of the batch must count for more.
        shares = ((part, len(part.labels) * state.fabric.world_size / size) for part in here.parts(count))
        return [
            MicroBatch(partial(self._losses, turn, part, number), share) for number, (part, share) in enumerate(shares)
        ]

    def _losses(self, turn: Turn, batch: Batch, part: int) -> Losses:
        state, plan, fabric = self._state, self._state.run, self._state.fabric
        masks: list[str | int] = [*dropout_key(turn, plan.spec.frozen_mode), fabric.global_rank]
        device.seed(fabric.device, seed_for(plan.spec.seed, "masks", *masks, *([part] if part else [])))
        self._cost.set_part(state.stream.size(turn.step), part, plan.spec.accumulate)
        losses = plan.method.losses(turn.role, state.models, batch, plan.progress(turn, self._gather, part))
        _check_losses(losses, plan.spec.method.name, turn)
        return losses


def _check_losses(losses: Any, method: str, turn: Turn) -> None:
    """Refuse what a role cannot learn from."""
    values = [*losses.values()] if isinstance(losses, Mapping) else []
    single = all(isinstance(one, Tensor) and one.numel() == 1 and one.shape == values[0].shape for one in values)
    if not values or not single:
        each = {name: _shape(one) for name, one in losses.items()} if isinstance(losses, Mapping) else losses
        raise UserError(
            f"Method {method} must give the {turn.role} losses by name, each a tensor with one number; at step "
            f"{turn.step} it gives {each!r}."
        )
    if torch.is_grad_enabled() and not any(loss.requires_grad for loss in values):
        raise UserError(
            f"The losses that method {method} gives the {turn.role} at step {turn.step} do not depend on its weights, "
            "so nothing would be learned: compute them from models[...](batch.inputs), not under torch.no_grad()."
        )


def _shape(loss: Any) -> str:
    return f"shape {[*loss.shape]}" if isinstance(loss, Tensor) else type(loss).__name__
