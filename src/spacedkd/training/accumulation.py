"""The losses of a turn, computed in the micro-batches whose gradients one update accumulates."""

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
    """A run's way from a turn's batch to its losses: split, seed, count, ask the method, check."""

    def __init__(self, state: TrainingState, cost: Cost) -> None:
        self._state, self._cost = state, cost
        self._gather = partial(device.gather_rows, state.fabric)

    def split(self, turn: Turn, batch: Batch) -> list[MicroBatch]:
        """Return the batch in as many micro-batches as the spec's `accumulate` says, mostly one."""
        state = self._state
        on_device, size = batch.to(state.fabric.device, state.channels_last), state.stream.size(turn.step)
        return [
            MicroBatch(
                partial(self._losses, turn, part, number),
                # Ranks average their gradients, so a rank with a larger part of the batch must count for more.
                weight=len(part.labels) * state.fabric.world_size / size,
            )
            for number, part in enumerate(on_device.parts(state.run.spec.accumulate))
        ]

    def _losses(self, turn: Turn, batch: Batch, number: int) -> Losses:
        """Return the method's losses for one micro-batch; the same masks are drawn whenever it is called."""
        state, run, fabric = self._state, self._state.run, self._state.fabric
        # Dropout masks depend on the turn, the rank and the micro-batch alone. The first micro-batch has no number in
        # its seed, so that a batch computed whole has the masks it always had.
        masks: list[str | int] = [*dropout_key(turn, run.spec.frozen_mode), fabric.global_rank]
        device.seed(fabric.device, seed_for(run.spec.seed, "masks", *masks, *([number] if number else [])))
        self._cost.start_part(turn.role, state.stream.size(turn.step), number, run.spec.accumulate)
        losses = run.method.losses(turn.role, state.models, batch, run.progress(turn, self._gather, number))
        _check_losses(losses, run.spec.method.name, turn)
        return losses


def _check_losses(losses: Any, method: str, turn: Turn) -> None:
    """Refuse losses that are no mapping of one-number tensors, or that do not depend on any weights."""
    values = [*losses.values()] if isinstance(losses, Mapping) else []
    are_numbers = all(isinstance(v, Tensor) and v.numel() == 1 and v.shape == values[0].shape for v in values)
    if not values or not are_numbers:
        shapes = {name: _shape(loss) for name, loss in losses.items()} if isinstance(losses, Mapping) else losses
        raise UserError(
            f"Method {method} must give the {turn.role} losses by name, each a tensor with one number; at step "
            f"{turn.step} it gives {shapes!r}."
        )
    if torch.is_grad_enabled() and not any(loss.requires_grad for loss in values):
        raise UserError(
            f"The losses that method {method} gives the {turn.role} at step {turn.step} do not depend on its weights, "
            "so nothing would be learned: compute them from models[...](batch.inputs), not under torch.no_grad()."
        )


def _shape(loss: Any) -> str:
    return f"shape {[*loss.shape]}" if isinstance(loss, Tensor) else type(loss).__name__
