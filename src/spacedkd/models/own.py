"""Networks of one's own: what a function of the user's makes, tried before anything is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from spacedkd.data.inputs import Inputs, Shown, call, count
from spacedkd.errors import UserError
from spacedkd.json_form import load_object
from spacedkd.models.heads import Classifier, looking, understood

MakeModule = Callable[..., nn.Module]
_made: WeakSet[nn.Module] = WeakSet()


def is_own(name: str) -> bool:
    """Whether a network's name is that of a function, `package.module:function`, and none of timm's."""
    return ":" in name


def made(make: MakeModule | None, name: str, options: Mapping[str, Any]) -> nn.Module:
    """The module a function makes, given or named."""
    make = load_object(name) if make is None else make
    if not callable(make):
        raise UserError(f"Network {name} must be a function that makes an nn.Module, got {type(make).__name__}.")
    try:
        network = make(**options)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"Network {name} cannot be built: {reason(error)}") from error
    if not isinstance(network, nn.Module):
        raise UserError(f"Network {name} must make an nn.Module, got {type(network).__name__}.")
    if network in _made:
        raise UserError(f"Network {name} gave out the same module twice: it must make a new one whenever it is called.")
    if not any(True for _ in network.parameters()):
        raise UserError(f"Network {name} has no parameters, so there is nothing to train.")
    _made.add(network)
    return network


def tried(network: nn.Module, name: str, shown: Shown) -> None:
    """Show a network two items, so that a misfit shows before training and not in it."""
    several, what = count(shown.sample), _shapes(shown.sample)
    try:
        with looking(network):
            answer = call(network, shown.sample)
    except Exception as error:
        raise UserError(f"Network {name} fails on {what}: {reason(error)}") from error
    logits, features = understood(answer, name)
    if logits.ndim != 2 or len(logits) != several or not logits.is_floating_point():
        raise UserError(
            f"Network {name} must give float logits [{several}, classes] for {what}, got {_shapes(logits)}."
        )
    if features is not None and (features.ndim < 2 or len(features) != several or not features.is_floating_point()):
        raise UserError(f"Network {name} must give float features [{several}, width], got {_shapes(features)}.")
    if shown.classes and logits.shape[1] != len(shown.classes):
        raise UserError(
            f"Network {name} tells {logits.shape[1]} classes apart, and the data has {len(shown.classes)}: "
            "let it give as many logits."
        )
    if not torch.isfinite(logits).all():
        raise UserError(f"Network {name} answers with what is not a number (NaN or infinity) to {what}.")
    _check_reading(network, name, shown.sample, logits)


def _check_reading(network: nn.Module, name: str, sample: Inputs, logits: Tensor) -> None:
    """Refuse a network that looks like timm's and is not."""
    try:
        with looking(network):
            (read,) = Classifier(network)(sample)
        same = torch.allclose(read.logits, logits, rtol=1e-3, atol=1e-5)
    except (AttributeError, RuntimeError, TypeError, ValueError):
        same = False
    if not same:
        raise UserError(
            f"Network {name} has timm's forward_features, forward_head and get_classifier, but is not read by them as "
            "timm's are: give them other names."
        )


def _shapes(inputs: Inputs) -> str:
    """What goes into a network, in a few words.

    >>> _shapes(torch.zeros(2, 5)), _shapes({"tokens": torch.zeros(2, 7).long()})
    ('float32 [2, 5]', 'tokens int64 [2, 7]')
    """
    if isinstance(inputs, Tensor):
        return f"{str(inputs.dtype).removeprefix('torch.')} {[*inputs.shape]}"
    if isinstance(inputs, Mapping):
        return ", ".join(f"{key} {_shapes(one)}" for key, one in inputs.items())
    return ", ".join(_shapes(one) for one in inputs)


def reason(error: Exception) -> str:
    """The first line of an error, as a sentence."""
    line = (str(error).splitlines() or [""])[0].strip() or type(error).__name__
    return line if line.endswith(".") else f"{line}."
