"""Optimizers by name: torch's SGD and AdamW, timm's, or one that a function of the user makes."""

from typing import Any

import torch
from timm.optim import create_optimizer_v2, get_optimizer_class
from torch import nn

from spacedkd.config.objects import MakeOptimizer
from spacedkd.config.serialization import by_signature
from spacedkd.config.spec import OptimizerSpec
from spacedkd.runtime.errors import UserError, first_line
from spacedkd.runtime.user_code import is_user_code, load_object, user_code_error


def make_optimizer(model: nn.Module, spec: OptimizerSpec, make: MakeOptimizer | None = None) -> torch.optim.Optimizer:
    """Return the optimizer a spec names, or the one `make` returns for the model's named parameters.

    SGD decays every weight, as the paper's code does. All other named optimizers do not decay biases, norms, tokens and
    what timm leaves out. An optimizer of other parameters than the model's is refused.
    """
    if make is None and is_user_code(spec.name):
        make = load_object(spec.name)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("Nothing of the network learns: none of its parameters has requires_grad.")
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
