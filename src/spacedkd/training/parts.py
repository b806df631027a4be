"""What an update is computed from: all of its batch, or several parts of it whose gradients are accumulated."""

from functools import partial

from spacedkd.data.stream import Batch
from spacedkd.schedule import Turn
from spacedkd.seeds import seed_for
from spacedkd.training import engine
from spacedkd.training.cost import Cost
from spacedkd.training.learner import Losses, Part
from spacedkd.training.setup import Setup
from spacedkd.training.turns import masked_by


class Parts:
    """The parts of a turn's batch, each with its losses, seeded."""

    def __init__(self, setup: Setup, cost: Cost) -> None:
        self._setup, self._cost = setup, cost
        self._gather = partial(engine.gather_rows, setup.fabric)

    def __call__(self, turn: Turn, batch: Batch) -> list[Part]:
        setup, count = self._setup, self._setup.plan.spec.accumulate
        here, size = batch.to(setup.fabric.device, setup.channels_last), setup.stream.size(turn.step)
        # Ranks average their gradients, so a rank with a larger part of the batch must count for more.
        shares = ((part, len(part.labels) * setup.fabric.world_size / size) for part in here.parts(count))
        return [Part(partial(self._losses, turn, part, number), share) for number, (part, share) in enumerate(shares)]

    def _losses(self, turn: Turn, batch: Batch, part: int) -> Losses:
        setup, plan, fabric = self._setup, self._setup.plan, self._setup.fabric
        masks: list[str | int] = [*masked_by(turn, plan.spec.frozen_mode), fabric.global_rank]
        engine.seed(fabric.device, seed_for(plan.spec.seed, "masks", *masks, *([part] if part else [])))
        self._cost.part(setup.stream.size(turn.step), part, plan.spec.accumulate)
        return plan.method.losses(turn.role, setup.models, batch, plan.progress(turn, self._gather, part))
