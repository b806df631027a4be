"""The optimizer of a model: by the name a spec gives, or as a function of one's own makes it."""

from typing import Any

import torch
from timm.optim import create_optimizer_v2, get_optimizer_class
from torch import nn

from spacedkd.config.objects import MakeOptimizer
from spacedkd.config.serialization import by_signature
from spacedkd.config.spec import OptimizerSpec
from spacedkd.runtime.errors import UserError, first_line
from spacedkd.runtime.user_code import failed, is_user_code, load_object


def make_optimizer(model: nn.Module, spec: OptimizerSpec, make: MakeOptimizer | None = None) -> torch.optim.Optimizer:
    """The optimizer a spec names, or the one `make` gives for the model's named parameters.

    SGD decays every weight, as the paper's does; all others by name spare biases, norms, tokens and what timm spares.
    """
    if make is None and is_user_code(spec.name):
        make = load_object(spec.name)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("Nothing of the network learns: none of its parameters has requires_grad.")
    if make is not None:
        if not callable(make):
            raise UserError(f"Optimizer {spec.name} must be a function of named parameters, got {make!r}.")
        try:
            made = make(model.named_parameters())
        except UserError:
            raise
        except Exception as error:
            raise failed(f"Optimizer {spec.name}, a function of named parameters,", error) from error
        return _checked(made, model, spec.name)
    momentum = {} if spec.momentum is None else {"momentum": spec.momentum}
    by_signature(_class_of(spec.name), spec.options, f"Optimizer {spec.name}")
    settings = {"lr": spec.lr, **momentum, **spec.options}
    try:
        if spec.name == "sgd":
            decay, nesterov = spec.weight_decay, spec.nesterov
            return torch.optim.SGD(model.parameters(), **settings, weight_decay=decay, nesterov=nesterov)
        groups = _decay_groups(model, spec.weight_decay)
        if spec.name == "adamw":
            return torch.optim.AdamW(groups, **settings)
        by_name: torch.optim.Optimizer = create_optimizer_v2(groups, opt=spec.name, **settings)
        return by_name
    except (TypeError, ValueError, AssertionError, ImportError, RuntimeError, NameError) as error:
        raise UserError(f"Optimizer {spec.name} cannot be made: {first_line(error)}") from None


def _class_of(name: str) -> type[torch.optim.Optimizer]:
    """The class of an optimizer by name, as far as its options are concerned: what Lookahead wraps."""
    if name in ("sgd", "adamw"):
        return torch.optim.SGD if name == "sgd" else torch.optim.AdamW
    made: Any = get_optimizer_class(name.removeprefix("lookahead_"), bind_defaults=False)
    return made  # type: ignore[no-any-return]


def _checked(optimizer: Any, model: nn.Module, name: str) -> torch.optim.Optimizer:
    """What a function of somebody's own gave, if it is an optimizer of this model."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UserError(f"{name} must give a torch.optim.Optimizer for named parameters, got {optimizer!r}.")
    own = {id(parameter) for parameter in model.parameters()}
    given = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if not given or given - own:
        raise UserError(f"{name} must give an optimizer of the parameters it was handed, got one of others or none.")
    return optimizer


def _decay_groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Spares biases, norms, class tokens and positions, and what a network itself names, as timm does.

    Not, say, the `mlp_tokens` of a mixer, which are weights.
    """
    decayed: list[nn.Parameter] = []
    spared: list[nn.Parameter] = []
    named = _named_to_spare(model)
    for name, parameter in model.named_parameters():
        own = name.rpartition(".")[2]
        token = own.endswith("token") or own.startswith("pos_embed") or "position" in own
        spare = parameter.ndim < 2 or own == "bias" or token or name in named
        (spared if spare else decayed).append(parameter)
    return [{"params": decayed, "weight_decay": decay}, {"params": spared, "weight_decay": 0.0}]


def _named_to_spare(model: nn.Module) -> set[str]:
    """What a network says in timm's way should not decay. Like timm we ask networks as a whole, not their parts."""
    found: set[str] = set()
    for name, part in model.named_modules():
        whole = name.rpartition(".")[2] in ("", "network")  # which is what our models call theirs
        if whole and callable(say := getattr(part, "no_weight_decay", None)):
            found |= {f"{name}.{parameter}".lstrip(".") for parameter in say()}
    return found
