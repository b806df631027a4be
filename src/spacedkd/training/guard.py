"""The guard: it stops a run whose losses or weights are not finite before they are saved."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from itertools import islice
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from spacedkd.config.spec import RunSpec
from spacedkd.data.dataset import Items
from spacedkd.data.inputs import first_not_finite
from spacedkd.evaluation.scores import NotFinite
from spacedkd.runs.checkpoint import Position
from spacedkd.runtime.errors import Diverged
from spacedkd.schedule import Turn
from spacedkd.training.learner import Losses
from spacedkd.training.loop import Callback, StepResult
from spacedkd.training.state import TrainingState

HUGE = 1000
"""smallest method option that the advice on a divergence names before the learning rate"""
MOST_TURNS = 1000
"""largest number of turns whose inputs are searched for values that are not finite"""
Undo = Callable[[Losses], str]
"""undoes an update that left values that are not finite; returns their kind, or an empty string if all are finite"""


class Guard(Callback):
    """Checks the losses and weights of a run; the result is equal in all processes."""

    def __init__(
        self, state: TrainingState, position: Position, writes_weights: Callable[[Turn], bool] = lambda turn: False
    ) -> None:
        """`writes_weights` returns whether any callback writes weights after a turn; they are checked before that."""
        self.state, self._position, self._writes_weights = state, position, writes_weights
        self._finite_until = 0
        self._turn: Turn | None = None
        self._watched: dict[str, TensorSlots] = {}

    def start(self) -> None:
        """Start watching the models before the first turn; their weights are finite now."""
        self._finite_until = self._position.turns
        self._watched = {name: _watched_tensors(module) for name, module in self.state.modules().items()}

    def on_step(self, turn: Turn, result: StepResult) -> None:
        """Check the losses that are about to be logged; this synchronises with the device before the timer does."""
        self._turn = turn
        scaler = self.state.learner(turn.role).scaler
        if result.skipped and scaler is not None and scaler.is_exhausted:
            raise self._diverged(f"the {turn.role}'s gradients", turn.role, turn.step)
        if result.skipped == "gradients" or (not result.skipped and self.state.run.logs(turn)):
            self.check_losses(turn, result.losses)

    def on_turn_end(self, turn: Turn) -> None:
        """Check the weights that are about to be written, so that diverged ones never replace good ones."""
        if self._writes_weights(turn):
            self.check_weights(turn)

    def on_stop(self) -> None:
        """Check the weights before the run saves them and stops."""
        if self._turn is not None:
            self.check_weights(self._turn)

    def on_end(self) -> None:
        """Check the weights before the student and the result are written."""
        student = self.state.run.roles[-1]
        self.check_weights(Turn(student, self.state.run.last_step[student]))

    def check_losses(self, turn: Turn, values: Mapping[str, float]) -> None:
        """Raise `Diverged` where losses that are about to be logged are not finite."""
        wrong = [name for name, value in values.items() if not math.isfinite(value)]
        if self._sum_over_ranks(torch.tensor([float(bool(wrong))], device=self.state.fabric.device))[0]:
            what = f"the {turn.role}'s loss{f' ({wrong[0]})' if wrong and len(values) > 1 else ''}"
            raise self._diverged(what, turn.role, turn.step)
        self._finite_until = self._position.turns

    def check_weights(self, turn: Turn) -> None:
        """Raise `Diverged` where the weights of any model are not finite."""
        names = [*self._watched]
        device = self.state.fabric.device
        flags = self._sum_over_ranks(torch.stack([_is_wrong(_tensors(self._watched[name]), device) for name in names]))
        wrong = [name for name, flag in zip(names, flags, strict=True) if flag]
        if wrong:
            learners = self.state.run.method.learners
            roles = [role for role in (turn.role, *learners) if learners[role] in wrong]
            raise self._diverged(f"the {wrong[0]}'s weights", (*roles, turn.role)[0], turn.step)

    @contextmanager
    def evaluating(self, turn: Turn) -> Iterator[None]:
        """Raise `Diverged` for logits that are not finite in an evaluation; name the weights if they are the cause."""
        try:
            yield
        except NotFinite as error:
            if error.item is None:
                self.check_weights(turn)
            advice = "" if error.item is not None else f" {way_out(self.state.run.spec)}"
            line = f"Training diverged: at step {turn.step} it cannot be evaluated. {error}{advice}"
            raise Diverged(f"{line} Saved files are unchanged.", turn.role, turn.step) from None

    def _diverged(self, what: str, role: str, step: int) -> Diverged:
        verb = "are" if what.endswith(("weights", "gradients")) else "is"
        item = self._item_not_finite()
        if item is None:
            line = f"Training diverged: {what} {verb} not finite at step {step}. {way_out(self.state.run.spec)}"
        else:
            line = (
                f"Item {item} of the training data holds NaN or infinity, so that {what} {verb} not finite at step "
                f"{step}. Correct the item, or leave it out of the dataset."
            )
        return Diverged(f"{line} Saved files are unchanged.", role, step)

    def _item_not_finite(self) -> int | None:
        """Return the row of a training item that is not finite, among those used since the losses last were finite.

        Only a user's dataset can have one: pixels are bytes. The batches are made again, so none have to be kept.
        """
        state, run = self.state, self.state.run
        items = state.data.train
        if not isinstance(items, Items):
            return None
        begin = max(self._finite_until, self._position.turns - MOST_TURNS)
        row = -1
        for turn in islice(run.timeline.after(begin), self._position.turns - begin):
            for view in run.views(turn) if turn.role not in state.replayed and row < 0 else ():
                batch = state.stream.batch(*view)
                if (position := first_not_finite(batch.inputs)) is not None and batch.indices is not None:
                    row = int(items.rows[batch.indices[position]])
        (row_of_all,) = state.fabric.all_reduce(torch.tensor([row], device=state.fabric.device), reduce_op="max")
        return None if row_of_all < 0 else int(row_of_all)

    def _sum_over_ranks(self, flags: Tensor) -> list[float]:
        summed: Tensor = self.state.fabric.all_reduce(flags.float(), reduce_op="sum")  # type: ignore[assignment]
        return summed.tolist()

    def before_update(self, role: str) -> Undo:
        """Copy everything an update of the role may change, if updates that are not finite are to be skipped."""
        if self.state.run.spec.on_nonfinite == "stop":
            return lambda losses: ""  # costs nothing
        learner, device = self.state.learner(role), self.state.fabric.device
        others = {name for name, other in self.state.learners.items() if other is not learner}
        modules = self.state.modules()
        states = [_ModelState(module, parameters=name not in others) for name, module in modules.items()]
        optimizer = _OptimizerState(learner.optimizer)

        def undo(losses: Losses) -> str:
            moved = [tensor for name in modules.keys() - others for tensor in _tensors(self._watched[name])]
            parts = {"loss": [*losses.values()], "weights": moved, "optimizer": [*optimizer.tensors()]}
            flags = self._sum_over_ranks(torch.stack([_is_wrong(part, device) for part in parts.values()]))
            wrong = next((name for name, flag in zip(parts, flags, strict=True) if flag), "")
            if wrong:
                for state in states:
                    state.restore()
                optimizer.restore()
            return wrong

        return undo


def count_skipped(journal: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many updates of each role were skipped."""
    return dict(Counter(entry["role"] for entry in journal if entry["event"] == "skipped"))


TensorSlots = list[tuple[Mapping[str, Tensor | None], str]]
"""pairs of a module's dictionary and a tensor's name in it: a module may replace the tensor itself"""


def _watched_tensors(module: nn.Module) -> TensorSlots:
    """Return the tensors that must stay finite; buffers that are not finite now, such as masks, are left out."""
    parameters: TensorSlots = [(part._parameters, name) for part in module.modules() for name in part._parameters]
    buffers: TensorSlots = [(part._buffers, name) for part in module.modules() for name in part._buffers]
    return [
        *((tensors_by_name, name) for tensors_by_name, name in parameters if _is_float(tensors_by_name[name])),
        *(
            (tensors_by_name, name)
            for tensors_by_name, name in buffers
            if _is_float(tensor := tensors_by_name[name]) and tensor.isfinite().all()
        ),
    ]


def _is_float(tensor: Tensor | None) -> TypeGuard[Tensor]:
    return tensor is not None and tensor.is_floating_point()


def _tensors(slots: TensorSlots) -> Iterator[Tensor]:
    return (tensor for tensors_by_name, name in slots if _is_float(tensor := tensors_by_name.get(name)))


@torch.no_grad()
def _is_wrong(tensors: Iterable[Tensor], device: torch.device) -> Tensor:
    """Return whether any value in these tensors is not finite, as a tensor on the device, without waiting for it."""
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach() for tensor in tensors]
    filled = [tensor for tensor in local if tensor.numel()]
    if not filled:
        return torch.tensor(False, device=device)
    largest = torch._foreach_norm(filled, math.inf)
    return torch.stack([norm.isfinite().to(device) for norm in largest]).all().logical_not()


class _ModelState:
    """Copies of a model's buffers and, if it learns, its parameters."""

    def __init__(self, module: nn.Module, parameters: bool) -> None:
        self._copies: list[tuple[dict[str, Any], str, Tensor | None]] = [
            (tensors_by_name, name, None if tensor is None else tensor.detach().clone())
            for part in module.modules()
            for tensors_by_name in ((part._parameters, part._buffers) if parameters else (part._buffers,))
            for name, tensor in tensors_by_name.items()
        ]

    @torch.no_grad()
    def restore(self) -> None:
        for tensors_by_name, name, copy in self._copies:
            tensor = tensors_by_name[name]
            if copy is not None and tensor is not None and tensor.shape == copy.shape:
                tensor.copy_(copy)
            else:
                tensors_by_name[name] = copy


class _OptimizerState:
    """Copies of an optimizer's state."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._slots = {parameter: _copy(slot) for parameter, slot in optimizer.state.items()}
        self._groups = [_copy({k: v for k, v in group.items() if k != "params"}) for group in optimizer.param_groups]

    def tensors(self) -> Iterator[Tensor]:
        for slot in self._optimizer.state.values():
            values = slot.values() if isinstance(slot, Mapping) else ()
            yield from (value for value in values if isinstance(value, Tensor) and value.is_floating_point())

    def restore(self) -> None:
        self._optimizer.state.clear()
        self._optimizer.state.update(self._slots)
        for group, copy in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update(copy)


def _copy(slot: Any) -> Any:
    if not isinstance(slot, Mapping):
        return deepcopy(slot)
    return {name: value.clone() if isinstance(value, Tensor) else deepcopy(value) for name, value in slot.items()}


def way_out(spec: RunSpec) -> str:
    """Return advice against a divergence: the setting that is its likeliest cause first.

    >>> from spacedkd.config.spec import OptimizerSpec
    >>> way_out(RunSpec(optimizer=OptimizerSpec(weight_decay=100)))
    'Lower --weight-decay (100).'
    """
    suspects = [("--weight-decay", spec.optimizer.weight_decay)] if spec.optimizer.weight_decay >= 1 else []
    suspects += [
        (f"--set method.{name}", value)
        for name, value in spec.method.options.items()
        if isinstance(value, int | float) and abs(value) >= HUGE
    ]
    if suspects:
        return f"Lower {', '.join(f'{name} ({value:g})' for name, value in suspects)}."
    more = "" if spec.optimizer.clip is not None else ", or clip gradients with --clip 1"
    return f"Lower --lr ({spec.optimizer.lr:g}){more}; --on-nonfinite skip undoes such updates."
