"""Freezing: one model learns while all others are in evaluation mode without gradients."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import nn

from spacedkd.runtime.errors import unknown


def set_mode(model: nn.Module, training: bool) -> None:
    """Do `model.train(training)` faster, because online distillation switches modes at every turn.

    `nn.Module.__setattr__` checks every attribute that is set; writing to `__dict__` skips that. A model with a part
    that overrides `train`, say to keep its BatchNorm frozen, is switched with `model.train`.
    """
    parts = [*model.modules()]
    if any(type(part).train is not nn.Module.train for part in parts):
        model.train(training)
    else:
        for part in parts:
            part.__dict__["training"] = training


@contextmanager
def learning(models: Mapping[str, nn.Module], role: str) -> Iterator[nn.Module]:
    """Let a role's model learn and freeze every other model in a `with` block; then restore all modes.

    A frozen model is in evaluation mode, so that BatchNorm's statistics stay and dropout does nothing, and gets no
    gradients. Yields the model that learns; a role that is not among the models is refused.

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
    own = {id(weight) for weight in models[role].parameters()}  # weights shared with other models learn too
    try:
        for model in models.values():
            model.eval()
        models[role].train()
        for weight, requires_grad in gradients:
            weight.requires_grad_(requires_grad and id(weight) in own)
        yield models[role]
    finally:
        for module, mode in modes:
            module.training = mode
        for weight, requires_grad in gradients:
            weight.requires_grad_(requires_grad)
