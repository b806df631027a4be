"""One model that learns: its weights, its optimizer, and the update."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from spacedkd.spec import OptimizerSpec


class Learner:
    """A model and its optimizer, set up for the run's devices and precision."""

    def __init__(self, fabric: Fabric, model: nn.Module, optimizer: OptimizerSpec) -> None:
        self.fabric = fabric
        self.module = model
        self.optimizer = make_optimizer(model, optimizer)
        self.clip = optimizer.clip
        self.model: Any
        self.model, self._step = fabric.setup(model, self.optimizer)

    def update(self, losses: Mapping[str, Tensor], lr: float) -> None:
        """One step down the sum of the losses. What has no gradient does not move."""
        self._step.zero_grad(set_to_none=True)
        self.fabric.backward(torch.stack(list(losses.values())).sum())
        if self.clip is not None:
            self.fabric.clip_gradients(self.model, self._step, max_norm=self.clip, error_if_nonfinite=False)
        self._take_step(lr)

    def drift(self, lr: float) -> None:
        """A step with zero gradients: weight decay and momentum move what should stand still.

        One optimizer over two networks does this to whichever is not learning; the paper's transformer code has one.
        """
        for parameter in self.module.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        self._take_step(lr)
        self._step.zero_grad(set_to_none=True)

    def _take_step(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self._step.step()


def make_optimizer(model: nn.Module, spec: OptimizerSpec) -> torch.optim.Optimizer:
    """SGD that decays every weight, as the paper's does, or AdamW that spares biases, norms and tokens."""
    if spec.name == "sgd":
        return torch.optim.SGD(
            model.parameters(), spec.lr, spec.momentum, weight_decay=spec.weight_decay, nesterov=spec.nesterov
        )
    return torch.optim.AdamW(_decay_groups(model.named_parameters(), spec.weight_decay), spec.lr)


def _decay_groups(named: Iterable[tuple[str, nn.Parameter]], decay: float) -> list[dict[str, Any]]:
    spared: list[nn.Parameter] = []
    decayed: list[nn.Parameter] = []
    for name, parameter in named:
        (spared if _is_spared(name, parameter) else decayed).append(parameter)
    return [{"params": decayed, "weight_decay": decay}, {"params": spared, "weight_decay": 0.0}]


def _is_spared(name: str, parameter: nn.Parameter) -> bool:
    """Biases, norms, class tokens and positions; not, say, the `mlp_tokens` of a mixer, whose weights are weights."""
    own = name.rpartition(".")[2]
    return parameter.ndim < 2 or own.endswith("token") or own.startswith("pos_embed") or "position" in own
