"""A model that learns: its weights, its optimizer, and its update.

`Learner.update` is the update of a run, `make_optimizer` makes an optimizer by its name.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from timm.optim import create_optimizer_v2, get_optimizer_class
from torch import Tensor, nn

from spacedkd.config.objects import MakeOptimizer
from spacedkd.config.optimizer import OptimizerSpec
from spacedkd.config.serialization import by_signature
from spacedkd.data.stream import Batch
from spacedkd.runtime.errors import UserError, first_line
from spacedkd.runtime.user_code import is_user_code, load_object, user_code_error
from spacedkd.schedule import Turn
from spacedkd.training import device
from spacedkd.training.distributed import Fabric, uses_fsdp

Losses = Mapping[str, Tensor]
"""losses by name, each a tensor with one number"""


class MicroBatch(NamedTuple):
    """A part of the batch of a turn; without gradient accumulation the only one, the whole batch."""

    turn: Turn
    batch: Batch
    number: int = 0
    """its position among the micro-batches of the turn"""
    weight: float = 1.0
    """its share of the whole batch's loss"""


ComputeLosses = Callable[[MicroBatch], Losses]
"""computes the losses of a micro-batch for the weights as they are when it is called"""


class LossScaler:
    """The loss scale of one learner in 16-mixed, whose gradients in float16 would be rounded to zero without it.

    Every learner has a scaler of its own: where the gradients of one overflow, its own update is skipped and its own
    scale is halved; the scale of another, its weights and its gradients stay as they are.

    >>> scaler = LossScaler("cpu")
    >>> scaler.scale, scaler.is_exhausted
    (65536.0, False)
    """

    FIRST = 2.0**16
    """the scale that a run begins with; it finds a lower one in its first updates"""
    SMALLEST = 2.0**-13
    """gradients that overflow at a smaller scale are not finite at any"""

    def __init__(self, device_type: str) -> None:
        self._scaler = torch.amp.GradScaler(device_type, init_scale=self.FIRST)
        self.scale: float = self._scaler.get_scale()
        """the factor of the next loss"""

    @property
    def is_exhausted(self) -> bool:
        """Whether the scale has become so small that halving it does not help."""
        return self.scale < self.SMALLEST

    def multiply(self, loss: Tensor) -> Tensor:
        """Return the loss times the scale."""
        return self._scaler.scale(loss)

    def divide_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the scale."""
        self._scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Take the optimizer's step unless gradients are not finite, adapt the scale, and return if it was taken."""
        before = self.scale
        self._scaler.step(optimizer)
        self._scaler.update()
        self.scale = self._scaler.get_scale()
        return self.scale >= before

    def state_dict(self) -> dict[str, float]:
        """Return the scale and what decides when it grows, as plain numbers."""
        return self._scaler.state_dict()

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Continue with the scale of a state."""
        self._scaler.load_state_dict(dict(state))
        self.scale = self._scaler.get_scale()


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
        """Make the model's optimizer, from the spec or by calling `make`.

        With `own_lr` the optimizer's parameter groups keep the learning rates they were made with, and the rate given
        to an update scales them; without it all groups get that rate.
        """
        self.fabric = fabric
        self.module = model
        """the plain module, without wrappers for devices and precision"""
        self.model: Any = fabric.setup_module(model)
        """the module to call while it learns"""
        self.frozen: nn.Module = device.unwrap_ddp(fabric, self.model, model)
        """the module to call while it is frozen"""
        self.optimizer = make_optimizer(model, optimizer, make)
        self._fabric_optimizer: Any = fabric.setup_optimizers(self.optimizer)
        self._lr_scales = [group["lr"] / optimizer.lr for group in self.optimizer.param_groups] if own_lr else None
        self.clip = optimizer.clip
        self.needs_closure = not _needs_gradients_only(self.optimizer)
        """whether the optimizer may compute the losses again after it has moved the weights (SAM, LBFGS)"""
        if self.needs_closure and uses_fsdp(fabric):
            raise UserError("strategy fsdp needs an optimizer of torch's or timm's that computes the losses once.")
        self.scaler = LossScaler(fabric.device.type) if device.scales_losses(fabric) else None
        """the scaler of its losses, in 16-mixed"""
        if self.needs_closure and self.scaler is not None:
            raise UserError(
                "Precision 16-mixed needs an optimizer of torch's or timm's that computes the losses once: give "
                "another --optimizer, or --precision 32-true."
            )
        self.overflowed = False
        """whether the last update was skipped because gradients overflowed in float16"""

    @property
    def lr(self) -> float:
        """The learning rate of the last update."""
        return float(self.optimizer.param_groups[0]["lr"])

    def update(self, micro_batches: Sequence[MicroBatch], compute_losses: ComputeLosses, lr: float) -> Losses:
        """Take one optimizer step on the sum of the losses, and return the losses from before the step.

        Parameters that got no gradient do not move. Where gradients overflow in float16 nothing moves: `overflowed`.
        """
        losses = self._backward(micro_batches, compute_losses)
        self._set_lr(lr)
        if self.needs_closure:
            self._fabric_optimizer.step(self._closure(losses, lambda: self._backward(micro_batches, compute_losses)))
        elif self.scaler is not None:
            self.overflowed = not self.scaler.step(self.optimizer)
        else:
            self._fabric_optimizer.step()
        return losses

    def _backward(self, micro_batches: Sequence[MicroBatch], compute_losses: ComputeLosses) -> Losses:
        """Replace the gradients by those of the summed losses, and return the losses of the whole batch."""
        self._fabric_optimizer.zero_grad(set_to_none=True)
        losses: list[Losses] = []
        for micro_batch in micro_batches:
            is_last = micro_batch is micro_batches[-1]
            with self.fabric.no_backward_sync(self.model, enabled=not is_last):  # ranks average gradients once, at last
                losses.append(compute_losses(micro_batch))
                loss = _weighted_sum(losses[-1], micro_batch.weight)
                self.fabric.backward(loss if self.scaler is None else self.scaler.multiply(loss))
        if self.scaler is not None:
            self.scaler.divide_gradients(self.optimizer)
        if self.clip is not None:
            self.fabric.clip_gradients(self.model, self._fabric_optimizer, max_norm=self.clip, error_if_nonfinite=False)
        if self.needs_closure:
            for parameter in self.module.parameters():
                if parameter.grad is not None:
                    parameter.grad = parameter.grad.contiguous()  # torch's LBFGS views gradients as flat vectors
        return losses[0] if len(losses) == 1 else _mean(losses, [micro_batch.weight for micro_batch in micro_batches])

    def _set_lr(self, lr: float) -> None:
        for number, group in enumerate(self.optimizer.param_groups):
            group["lr"] = lr if self._lr_scales is None else lr * self._lr_scales[number]

    def _closure(self, losses: Losses, backward: Callable[[], Losses]) -> Callable[[], Tensor]:
        """Return a function that computes losses and gradients with `backward`, as torch's optimizers expect it.

        The first call computes nothing if weights and gradients are still those that gave `losses`.
        """
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        weights_before = [parameter.detach().clone() for parameter in parameters]
        gradients_before = [_gradient_version(parameter) for parameter in parameters]
        called = False

        def is_unchanged() -> bool:
            same_gradients = gradients_before == [_gradient_version(parameter) for parameter in parameters]
            return same_gradients and all(map(torch.equal, parameters, weights_before))

        def closure() -> Tensor:
            nonlocal called
            is_first, called = not called, True
            with torch.enable_grad():
                current = losses if is_first and is_unchanged() else backward()
            return _weighted_sum(current).detach()

        return closure

    def zero_gradient_step(self, lr: float) -> None:
        """Take a step with zero gradients, in which weight decay and momentum move a model that should be frozen.

        A single optimizer over two networks does this to the one that does not learn. The paper's transformer code has
        such an optimizer.
        """
        for parameter in self.module.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        self._set_lr(lr)
        self._fabric_optimizer.step()
        self._fabric_optimizer.zero_grad(set_to_none=True)


def _weighted_sum(losses: Losses, weight: float = 1.0) -> Tensor:
    # Each loss is multiplied before the sum, and none by one: another order would change the last bits of gradients.
    values = losses.values() if weight == 1 else (loss * weight for loss in losses.values())
    return torch.stack([*values]).sum()


def _mean(losses: Sequence[Losses], weights: Sequence[float]) -> Losses:
    """Return the losses of a whole batch from those of its micro-batches."""
    means: dict[str, Tensor] = {}
    for micro_batch, weight in zip(losses, weights, strict=True):
        for name, loss in micro_batch.items():
            means[name] = means.get(name, 0) + loss.detach() * (weight / sum(weights))
    return means


def _gradient_version(parameter: Tensor) -> tuple[int, int] | None:
    """Return a value that changes when the parameter's gradient is replaced or written to."""
    return None if parameter.grad is None else (id(parameter.grad), parameter.grad._version)


def _needs_gradients_only(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer surely never computes losses itself: only torch's and timm's are known."""
    is_builtin = type(optimizer).__module__.startswith(("torch.optim", "timm.optim"))
    return is_builtin and not isinstance(optimizer, torch.optim.LBFGS)


# The optimizer of a model


def make_optimizer(model: nn.Module, spec: OptimizerSpec, make: MakeOptimizer | None = None) -> torch.optim.Optimizer:
    """Return the optimizer a spec names, or the one `make` returns for the model's named parameters.

    SGD decays every weight, as the paper's code does. All other named optimizers do not decay biases, norms, tokens and
    what timm leaves out. An optimizer of other parameters than the model's is refused.
    """
    if make is None and is_user_code(spec.name):
        make = load_object(spec.name)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("The network has no parameter with requires_grad, so nothing would be learned.")
    if make is not None:
        return _call_user(make, model, spec.name)
    momentum = {} if spec.momentum is None else {"momentum": spec.momentum}
    by_signature(_optimizer_class(spec.name), spec.options, f"Optimizer {spec.name}")
    settings = {"lr": spec.lr, **momentum, **spec.options}
    try:
        if spec.name == "sgd":
            decay, nesterov = spec.weight_decay, spec.nesterov
            return torch.optim.SGD(model.parameters(), **settings, weight_decay=decay, nesterov=nesterov)
        groups = _decay_groups(model, spec.weight_decay)
        if spec.name == "adamw":
            return torch.optim.AdamW(groups, **settings)
        optimizer: torch.optim.Optimizer = create_optimizer_v2(groups, opt=spec.name, **settings)
        return optimizer
    except (TypeError, ValueError, AssertionError, ImportError, RuntimeError, NameError) as error:
        raise UserError(f"Optimizer {spec.name} cannot be made: {first_line(error)}") from None


def _call_user(make: MakeOptimizer, model: nn.Module, name: str) -> torch.optim.Optimizer:
    """Return the optimizer that a user's function makes; refuse anything but an optimizer of this model."""
    if not callable(make):
        raise UserError(f"Optimizer {name} must be a function of named parameters, got {make!r}.")
    try:
        optimizer = make(model.named_parameters())
    except UserError:
        raise
    except Exception as error:
        raise user_code_error(f"Optimizer {name}, a function of named parameters,", error) from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UserError(f"{name} must return a torch.optim.Optimizer for named parameters, got {optimizer!r}.")
    own = {id(parameter) for parameter in model.parameters()}
    optimized = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if not optimized or optimized - own:
        raise UserError(f"{name} must return an optimizer of the parameters it was given, got one of others or none.")
    return optimizer


def _optimizer_class(name: str) -> type[torch.optim.Optimizer]:
    """Return the class whose options an optimizer's name takes; for Lookahead that is the class it wraps."""
    if name in ("sgd", "adamw"):
        return torch.optim.SGD if name == "sgd" else torch.optim.AdamW
    optimizer: Any = get_optimizer_class(name.removeprefix("lookahead_"), bind_defaults=False)
    return optimizer  # type: ignore[no-any-return]


def _decay_groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Return parameter groups with and without weight decay, as timm makes them.

    Biases, norms, class tokens, position embeddings and parameters that the network itself names do not decay. The
    `mlp_tokens` of a mixer do: they are weights.
    """
    decayed: list[nn.Parameter] = []
    not_decayed: list[nn.Parameter] = []
    excluded = _no_weight_decay(model)
    for name, parameter in model.named_parameters():
        own = name.rpartition(".")[2]
        is_token = own.endswith("token") or own.startswith("pos_embed") or "position" in own
        is_excluded = parameter.ndim < 2 or own == "bias" or is_token or name in excluded
        (not_decayed if is_excluded else decayed).append(parameter)
    return [{"params": decayed, "weight_decay": decay}, {"params": not_decayed, "weight_decay": 0.0}]


def _no_weight_decay(model: nn.Module) -> set[str]:
    """Return the names a network's `no_weight_decay` excludes. Like timm, ask whole networks only, not their parts."""
    names: set[str] = set()
    for name, part in model.named_modules():
        is_network = name.rpartition(".")[2] in ("", "network")  # our models call the network in them `network`
        if is_network and callable(no_weight_decay := getattr(part, "no_weight_decay", None)):
            names |= {f"{name}.{parameter}".lstrip(".") for parameter in no_weight_decay()}
    return names
