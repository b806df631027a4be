"""One model that learns: its weights, its optimizer, and the update; and who learns in a loop of your own."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spacedkd.config.objects import MakeOptimizer
from spacedkd.config.spec import OptimizerSpec
from spacedkd.runtime.errors import UserError, unknown
from spacedkd.training import device
from spacedkd.training.distributed import uses_fsdp
from spacedkd.training.fabric import Fabric
from spacedkd.training.optimizers import make_optimizer

# One model that learns: its weights, its optimizer, and the update; and who learns in a loop of your own.

Losses = Mapping[str, Tensor]


class MicroBatch(NamedTuple):
    """What one part of an update's batch, mostly all of it, gives."""

    compute_losses: Callable[[], Losses]
    """the losses for the weights as they are"""
    weight: float = 1.0
    """what they count for"""


class Learner:
    """A model and its optimizer, set up for the run's devices and precision."""

    def __init__(
        self,
        fabric: Fabric,
        model: nn.Module,
        optimizer: OptimizerSpec,
        make: MakeOptimizer | None = None,
        own_lr: bool = False,
    ) -> None:
        """With `own_lr` the rates the optimizer was made with count, and the run's rate is a factor on them."""
        self.fabric = fabric
        self.module = model
        self.model: Any = fabric.setup_module(model)
        """as it is called while it learns"""
        self.frozen: nn.Module = device.unwrap_ddp(fabric, self.model, model)
        """as it is called while it stands still"""
        self.optimizer = make_optimizer(model, optimizer, make)
        self._step: Any = fabric.setup_optimizers(self.optimizer)
        self._rates = [group["lr"] / optimizer.lr for group in self.optimizer.param_groups] if own_lr else None
        self.clip = optimizer.clip
        self.needs_closure = not _needs_gradients_alone(self.optimizer)
        if self.needs_closure and uses_fsdp(fabric):
            raise UserError("strategy fsdp needs an optimizer of torch's or timm's that asks for losses once.")

    def update(self, parts: Sequence[MicroBatch], lr: float) -> Losses:
        """One step down the sum of the losses; gives the losses it had before. What has no gradient does not move.

        An optimizer that asks for them again after it has moved the weights (SAM, LBFGS) gets them anew.
        """
        losses = self._backward(parts)
        self._assign(lr)
        if self.needs_closure:
            self._step.step(self._closure(losses, parts))
        else:
            self._step.step()
        return losses

    def _assign(self, lr: float) -> None:
        for place, group in enumerate(self.optimizer.param_groups):
            group["lr"] = lr if self._rates is None else lr * self._rates[place]

    @property
    def lr(self) -> float:
        """The learning rate of the last update."""
        return float(self.optimizer.param_groups[0]["lr"])

    def _backward(self, parts: Sequence[MicroBatch]) -> Losses:
        """Gradients of the losses, in place of those that were there."""
        self._step.zero_grad(set_to_none=True)
        found = []
        for part in parts:
            with self.fabric.no_backward_sync(self.model, enabled=part is not parts[-1]):  # processes meet once
                losses = part.compute_losses()
                shared = losses if part.weight == 1 else {name: loss * part.weight for name, loss in losses.items()}
                self.fabric.backward(_sum(shared))
            found.append(losses)
        losses = found[0] if len(parts) == 1 else _mean(found, [part.weight for part in parts])
        if self.clip is not None:
            self.fabric.clip_gradients(self.model, self._step, max_norm=self.clip, error_if_nonfinite=False)
        if self.needs_closure:
            for parameter in self.module.parameters():
                if parameter.grad is not None:
                    parameter.grad = parameter.grad.contiguous()  # which torch's LBFGS takes for granted
        return losses

    def _closure(self, losses: Losses, parts: Sequence[MicroBatch]) -> Callable[[], Tensor]:
        """The losses once more; asked before anything has changed, they are those known already."""
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        known = [parameter.detach().clone() for parameter in parameters]
        gradients = [_version(parameter.grad) for parameter in parameters]
        asked = False

        def unchanged() -> bool:
            same = gradients == [_version(parameter.grad) for parameter in parameters]
            return same and all(torch.equal(one, before) for one, before in zip(parameters, known, strict=True))

        def closure() -> Tensor:
            nonlocal asked
            first, asked = not asked, True
            with torch.enable_grad():
                found = losses if first and unchanged() else self._backward(parts)
            return _sum(found).detach()

        return closure

    def zero_gradient_step(self, lr: float) -> None:
        """A step with zero gradients: weight decay and momentum move what should stand still.

        One optimizer over two networks does this to whichever is not learning; the paper's transformer code has one.
        """
        for parameter in self.module.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        self._assign(lr)
        self._step.step()
        self._step.zero_grad(set_to_none=True)


def _version(gradient: Tensor | None) -> tuple[int, int] | None:
    """Differs as soon as a gradient is written to or replaced."""
    return None if gradient is None else (id(gradient), gradient._version)


def _sum(losses: Losses) -> Tensor:
    return torch.stack(list(losses.values())).sum()


def _mean(found: Sequence[Losses], shares: Sequence[float]) -> Losses:
    """The losses of a whole batch from those of its parts."""
    whole: dict[str, Tensor] = {}
    for losses, share in zip(found, shares, strict=True):
        for name, loss in losses.items():
            whole[name] = whole.get(name, 0) + loss.detach() * (share / sum(shares))
    return whole


def _needs_gradients_alone(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer never asks for the losses. That is known of torch's and timm's; others may."""
    ours = type(optimizer).__module__.startswith(("torch.optim", "timm.optim"))
    return ours and not isinstance(optimizer, torch.optim.LBFGS)


def set_mode(model: nn.Module, training: bool) -> None:
    """`model.train(training)`, which online happens at every turn, without torch's checks of every attribute set.

    A part with a `train` of its own, say one that keeps its BatchNorm frozen, is asked for it.
    """
    parts = [*model.modules()]
    if any(type(part).train is not nn.Module.train for part in parts):
        model.train(training)
    else:
        for part in parts:
            part.__dict__["training"] = training


@contextmanager
def learning(models: Mapping[str, nn.Module], role: str) -> Iterator[nn.Module]:
    """The role's model trains while this lasts, every other one stands still; afterwards all are as they were.

    To stand still is to be in evaluation mode, so that BatchNorm's statistics stay and dropout does nothing, and to get
    no gradients. Gives the model that learns.

    >>> models = {"teacher": nn.BatchNorm1d(2), "student": nn.BatchNorm1d(2)}
    >>> with learning(models, "student") as student:
    ...     student.training, models["teacher"].training, models["teacher"].weight.requires_grad
    (True, False, False)
    >>> models["teacher"].training, models["teacher"].weight.requires_grad
    (True, True)
    """
    if role not in models:
        raise unknown("role", role, models)
    modes = [(module, module.training) for model in models.values() for module in model.modules()]
    gradients = [(weight, weight.requires_grad) for model in models.values() for weight in model.parameters()]
    own = {id(weight) for weight in models[role].parameters()}  # whatever else it shares with others learns too
    try:
        for model in models.values():
            model.eval()
        models[role].train()
        for weight, wanted in gradients:
            weight.requires_grad_(wanted and id(weight) in own)
        yield models[role]
    finally:
        for module, mode in modes:
            module.training = mode
        for weight, wanted in gradients:
            weight.requires_grad_(wanted)


# What an update is computed from: all of its batch, or several parts of it whose gradients are accumulated.
