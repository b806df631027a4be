"""The roles of a run: trained here, or replayed from a trajectory that another run recorded.

`TrainedRole.step` splits the batch into micro-batches; `Learner.update` computes the losses of each with
`TrainedRole.compute_losses`, which calls the method's `losses`.

A `ReplayedRole` only notes which of its blocks were skipped. `TrainedRole.begin` of the next role that learns waits for
the snapshots of those blocks and loads them: no role reads the replayed weights earlier.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from spacedkd.config.spec import RunSpec
from spacedkd.data.dataset import Items
from spacedkd.data.images import Encoded, Images
from spacedkd.data.stream import Batch, evaluation_batches, lost_worker_error
from spacedkd.evaluation.scores import NotFinite, check_finite, count
from spacedkd.runs.checkpoint import Position
from spacedkd.runtime.errors import UserError, is_out_of_memory, out_of_memory
from spacedkd.runtime.seeds import seed_for
from spacedkd.runtime.user_code import user_code
from spacedkd.schedule import Turn
from spacedkd.timeline import Block, dropout_key
from spacedkd.training import device
from spacedkd.training.callbacks import Cost
from spacedkd.training.distributed import broadcast_buffers, gather_rows
from spacedkd.training.guard import Guard
from spacedkd.training.learner import Losses, MicroBatch
from spacedkd.training.loop import Role, Scores, StepResult
from spacedkd.training.state import TrainingState
from spacedkd.trajectory.replay import Replay

AllReady = Callable[[bool], bool]
"""returns whether its argument is true in all processes (`distributed.CollectiveStop.all_ready`)"""


class TrainedRole:
    """A role that learns in this run."""

    def __init__(
        self,
        name: str,
        state: TrainingState,
        position: Position,
        *,
        cost: Cost,
        guard: Guard,
        replay: Replay,
        all_ready: AllReady,
    ) -> None:
        self.name, self.state, self.position, self.guard = name, state, position, guard
        self.learner = state.learner(name)
        self._cost, self._replay, self._all_ready = cost, replay, all_ready
        self._gather = partial(gather_rows, state.fabric)

    def begin(self, block: Block, previous: str) -> Iterator[str]:
        """Wait for the snapshots of replayed roles and load them; then let this role's model learn, freeze all others.

        Yields what it waits for.
        """
        with explain_errors(self.state.run.spec, Turn(block.role, block.steps[0])):
            yield from self._replay.load(self._all_ready)
            if self.state.cached_teacher is not None:
                yield from self.state.cached_teacher.wait(block, self._all_ready)
            self.state.activate(self.name)
            if previous != self.name:  # equal in the middle of a block, where all this was done at the block's start
                for teacher in self.state.run.roles[: self.state.run.roles.index(self.name)]:
                    # Only the average that this role sees: `RecordingCallback` refreshes the others when it saves them.
                    if (average := self.state.run.average_seen(teacher)) is not None:
                        self.state.refresh_averages(teacher, average)
                self.state.run.method.on_block_start(self.name, self.state.models)
                self.state.share_frozen(previous)

    def turns(self, block: Block) -> Iterable[Turn]:
        """Return all turns of a block."""
        return block

    def step(self, turn: Turn, batches: Iterator[Batch]) -> StepResult:
        """Update the role's model with the next batch; an update that is not finite may be undone, as the spec says."""
        run = self.state.run
        with explain_errors(run.spec, turn):
            if (extra := run.timeline.forward_only_turns.get(turn)) is not None:
                with torch.no_grad():
                    for micro_batch in self._split(extra, next(batches)):
                        self.compute_losses(micro_batch)
            micro_batches, lr = self._split(turn, next(batches)), run.lr(turn)
            undo_if_not_finite = self.guard.before_update(self.name)
            losses = self.learner.update(micro_batches, self.compute_losses, lr)
            skipped = undo_if_not_finite(losses)  # "", or what was not finite
            if not skipped and self.learner.overflowed:
                skipped = "gradients"
            if not skipped:
                self.state.update_others(self.name, turn.step, lr)
        scaler = self.learner.scaler
        return StepResult(
            LossValues(losses),
            self.learner.lr,
            self.state.stream.size(turn.step),
            skipped,
            loss_scale=None if scaler is None else scaler.scale,
        )

    def _split(self, turn: Turn, batch: Batch) -> list[MicroBatch]:
        """Move a turn's batch to the device and cut it into `spec.accumulate` micro-batches."""
        state, size = self.state, self.state.stream.size(turn.step)
        parts = batch.to(state.fabric.device, state.channels_last).parts(state.run.spec.accumulate)
        # Ranks average their gradients, so a rank with a larger part of the batch must count for more.
        weights = [len(part.labels) * state.fabric.world_size / size for part in parts]
        return [
            MicroBatch(turn, part, number=number, weight=weight)
            for number, (part, weight) in enumerate(zip(parts, weights, strict=True))
        ]

    def compute_losses(self, micro_batch: MicroBatch) -> Losses:
        """Return the method's losses for one micro-batch; a second call draws the same dropout masks."""
        state, run, fabric = self.state, self.state.run, self.state.fabric
        turn, batch, number, _ = micro_batch
        # Dropout masks depend on the turn, the rank and the micro-batch alone. The first micro-batch has no number in
        # its seed, so that a batch computed whole has the masks it always had.
        masks: list[str | int] = [*dropout_key(turn, run.spec.frozen_mode), fabric.global_rank]
        device.seed(fabric.device, seed_for(run.spec.seed, "masks", *masks, *([number] if number else [])))
        self._cost.start_part(turn.role, state.stream.size(turn.step), number, run.spec.accumulate)
        if state.teacher_outputs is not None:
            state.teacher_outputs.seek(turn, number)
        losses = run.method.losses(turn.role, state.models, batch, run.progress(turn, self._gather, number))
        _check_losses(losses, run.spec.method.name, turn)
        return losses

    def evaluate(self, turn: Turn) -> Iterator[tuple[str, Scores]]:
        """Yield the accuracy of the role's model, and of other models that are evaluated then: see `evaluate_role`."""
        at_end = self.position.turns == len(self.state.run.timeline)
        with explain_errors(self.state.run.spec, turn), self.guard.evaluating(turn):
            yield from evaluate_role(self.state, self.name, at_end)

    def finish(self) -> Iterator[str]:
        """Yield nothing: there is nothing to wait for."""
        return iter(())


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


def evaluate_role(state: TrainingState, role: str, at_end: bool) -> Iterator[tuple[str, Scores]]:
    """Yield the accuracy of a role's model after its turn, and of other models that are evaluated then, by name.

    After a turn of the student the average of its weights is evaluated too. After the run's last turn (`at_end`) the
    student is evaluated even if another role took that turn, where that role may have changed the student's model:
    reported accuracies are those of the saved weights.
    """
    learner, student = state.learner(role), state.run.roles[-1]
    scores = evaluate_model(state, learner.frozen, learner.module, role)
    yield role, scores
    if state.average is not None and role == student:
        state.refresh_averages(role)
        yield "average", evaluate_model(state, state.average, state.average, "average")
    if at_end and state.moves_student(role):
        saved = state.learner(student)
        yield student, scores if saved is learner else evaluate_model(state, saved.frozen, saved.module, student)


def evaluate_model(state: TrainingState, model: nn.Module, module: nn.Module, name: str | None = None) -> Scores:
    """Return the accuracy of every head of a model on every split of the data that is not trained on.

    In another task than classification it is the metric of that task, with its other metrics beside it. `module` is the
    model without the wrappers of devices and precision; it has `head_names`, and its mode is restored. With a `name`,
    logits that are not finite raise `NotFinite` in all processes, and the message has the name.
    """
    fabric, spec = state.fabric, state.run.spec
    was_training = module.training
    module.eval()
    if fabric.world_size > 1:
        broadcast_buffers(module)
    heads: tuple[str, ...] = module.head_names  # type: ignore[assignment]
    scores, not_finite, task = Scores(), {}, state.data.task
    for split, items in state.data.evaluated_splits().items():
        rows = torch.arange(fabric.global_rank, len(items), fabric.world_size)
        subset = items if fabric.world_size == 1 else items.subset(rows)
        batch_size = _batch_size(spec.batch_size, len(items), fabric.world_size)
        batches = evaluation_batches(subset, batch_size, state.run.workers)
        on_device = (batch.to(fabric.device, state.channels_last) for batch in batches)
        names, counts = count(model, heads, on_device, task)
        sums = fabric.all_reduce(counts, reduce_op="sum").T.tolist()  # type: ignore[union-attr]
        not_finite[split] = {head: int(of_head[-1]) for head, of_head in zip(names, sums, strict=True)}
        if name is None or not any(not_finite[split].values()):
            _add_scores(scores, split, {h: task.metrics(s, len(items)) for h, s in zip(names, sums, strict=True)})
    module.train(was_training)
    if name is not None:
        for split, counts_by_head in not_finite.items():
            _check_logits(state.data.evaluated_splits()[split], split, counts_by_head, name)
    return scores


def _add_scores(scores: Scores, split: str, metrics: Mapping[str, Mapping[str, float]]) -> None:
    """Add the metrics of a split's heads to scores; the first of them is the one that the run is judged by."""
    scores[split], scores.others[split] = {}, {}
    for head, by_name in metrics.items():
        (scores.metric, scores[split][head]), *others = by_name.items()
        scores.others[split][head] = dict(others)


def _check_logits(items: Images | Encoded | Items, split: str, not_finite: Mapping[str, int], name: str) -> None:
    """Refuse images whose logits are not finite, counted by head; where an input is the cause, name it."""
    try:
        check_finite(not_finite, [*not_finite.values()], len(items), f"{split} images by the {name}")
    except NotFinite as error:
        row = items.first_not_finite() if isinstance(items, Items) else None
        source = "training" if split == "holdout" else split  # held-out items have their row of the training data
        cause = (
            ""
            if row is None
            else f" Item {row} of the {source} data holds NaN or infinity: correct it or leave it out."
        )
        raise NotFinite(f"{error}{cause}", row) from None


def _batch_size(trained_with: int, items: int, ranks: int) -> int:
    """Return a batch size with which all ranks need equally many batches, even where some have one item more."""
    size, fewest, most = max(256, trained_with), items // ranks, math.ceil(items / ranks)
    while fewest and math.ceil(fewest / size) != math.ceil(most / size):
        size += 1
    return size


class ReplayedRole:
    """A role whose weights another run has recorded or is recording; it takes no turns here."""

    def __init__(self, name: str, replay: Replay, all_ready: AllReady) -> None:
        self.name, self._replay, self._all_ready = name, replay, all_ready

    def begin(self, block: Block, previous: str) -> Iterator[str]:
        """Skip a block without waiting: the next `TrainedRole.begin` waits for its snapshot and loads it."""
        self._replay.skip(block)
        return iter(())

    def turns(self, block: Block) -> Iterable[Turn]:
        """Return no turns."""
        return ()

    def step(self, turn: Turn, batches: Iterator[Batch]) -> StepResult:
        raise AssertionError(f"the {turn.role} is replayed and takes no turns")

    def evaluate(self, turn: Turn) -> Iterator[tuple[str, Scores]]:
        raise AssertionError(f"the {turn.role} is replayed and was evaluated where it was trained")

    def finish(self) -> Iterator[str]:
        """Wait for the last snapshot and load it, and wait until the cost of all the role's turns is known."""
        yield from self._replay.load(self._all_ready)
        yield from self._replay.wait_for_costs()


def make_roles(
    state: TrainingState, position: Position, *, cost: Cost, guard: Guard, replay: Replay, all_ready: AllReady
) -> dict[str, Role]:
    """Return the roles of a run by name: replayed where `state.replayed` has their trajectory, else trained."""
    roles: dict[str, Role] = {}
    for name in state.run.roles:
        if name in state.replayed:
            roles[name] = ReplayedRole(name, replay, all_ready)
        else:
            roles[name] = TrainedRole(name, state, position, cost=cost, guard=guard, replay=replay, all_ready=all_ready)
    return roles


class LossValues(Mapping[str, float]):
    """The losses of a turn by name, copied from the device when one is first read: until then nothing waits for it."""

    def __init__(self, losses: Mapping[str, Tensor]) -> None:
        self._losses: Mapping[str, Any] = {name: loss.detach() for name, loss in losses.items()}

    def __getitem__(self, name: str) -> float:
        if isinstance(self._losses[name], Tensor):
            self._losses = {name: float(loss) for name, loss in self._losses.items()}
        return float(self._losses[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._losses)

    def __len__(self) -> int:
        return len(self._losses)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> Any:  # to another process
        return dict, (dict(self),)


@contextmanager
def explain_errors(spec: RunSpec, turn: Turn | None) -> Iterator[None]:
    """Turn errors of user code, lost workers and a lack of memory into one line that names the turn, if any."""
    when = "" if turn is None else f"at step {turn.step} of the {turn.role}"
    try:
        with user_code(lambda: when):
            yield
    except (MemoryError, RuntimeError) as error:
        if (lost := lost_worker_error(error)) is not None:
            raise lost from error
        if not is_out_of_memory(error):
            raise
        raise out_of_memory(error, when, spec.batch_size) from error
