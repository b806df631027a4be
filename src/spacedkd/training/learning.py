"""Who learns and who stands still, for a training loop of your own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import nn

from spacedkd.errors import unknown


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
