"""Where a network divides into branches: before its last stage, or before the last quarter of a transformer's blocks.

What enters that stage is watched, so that a trunk is computed once for all branches. A place is accepted only if the
stage and the modules after it, run on their own, give the network's own answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spacedkd.errors import UserError
from spacedkd.models.heads import Prediction, final, looking


@dataclass(frozen=True)
class Fork:
    """Knows a network's modules by name only, so copies stay apart."""

    tail: tuple[str, ...]
    """the last stage, and what follows it up to the network's head"""
    channels: int
    """of what enters the tail: tells [B, C, H, W] from [B, H, W, C]"""

    def run_tail(self, network: nn.Module, shared: Any) -> Any:
        """From what enters the tail to what the network's head takes."""
        for name in self.tail:
            shared = network.get_submodule(name)(shared)
        return shared

    def pooled(self, network: nn.Module, shared: Tensor) -> Tensor:
        """One vector [B, C] for each image: the mean over places, or the class token if the network reads that."""
        if shared.ndim == 4:
            return shared.mean((2, 3) if shared.shape[1] == self.channels else (1, 2))
        return shared[:, 0] if getattr(network, "global_pool", None) == "token" else shared.mean(1)


class Branch(nn.Module):
    """A network that has lost its trunk: everything before the fork is taken out of it."""

    def __init__(self, network: nn.Module, fork: Fork) -> None:
        super().__init__()
        self.network = network
        self._fork = fork
        holder = network
        for name in fork.tail[0].split("."):
            for parameter in [own for own, _ in holder.named_parameters(recurse=False)]:
                holder.register_parameter(parameter, None)
            for child in _until(name, holder):
                holder.add_module(child, nn.Identity())
            holder = holder.get_submodule(name)

    def forward(self, shared: Tensor) -> Prediction:
        return final(self.network, self._fork.run_tail(self.network, shared))


def _until(name: str, holder: nn.Module) -> list[str]:
    children = [child for child, _ in holder.named_children()]
    return children[: children.index(name)]


@contextmanager
def entering(network: nn.Module, name: str, handed_on: Callable[[Tensor], Tensor]) -> Iterator[list[Tensor]]:
    """What enters a module while this lasts; the module itself is given what `handed_on` makes of it."""
    seen: list[Tensor] = []

    def watch(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        seen.append(inputs[0])
        return (handed_on(inputs[0]), *inputs[1:])

    handle = network.get_submodule(name).register_forward_pre_hook(watch)
    try:
        yield seen
    finally:
        handle.remove()


def find_fork(network: nn.Module, image: Tensor) -> Fork:
    """The fork of a network, tried on an example image."""
    stirred = _stirred(network)
    with looking(stirred):
        try:
            before, channels = _last_of_the_trunk(stirred)
            names = [*_after(stirred, before)]
            with entering(stirred, names[0], lambda shared: shared.clone()) as seen:
                last, own = stirred.forward_features(image), stirred(image)  # type: ignore[operator]
            for end in range(1, len(names) + 1):
                fork = Fork(tuple(names[:end]), channels)
                shared = seen[0].clone()
                if not _same(fork.run_tail(stirred, shared), last):
                    continue
                alone = Branch(deepcopy(stirred), fork)(shared)
                if _same(alone.logits, own) and _same(shared, seen[0]):
                    return fork
        except (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            pass  # this network cannot be divided in this way
    raise UserError(
        f"{type(network).__name__} does not show where its last stage begins, so it cannot be divided into branches. "
        "Use --method kd, or another network."
    )


def _stirred(network: nn.Module) -> nn.Module:
    """A copy in which no layer happens to do nothing, as a new BatchNorm does in evaluation mode."""
    stirred, chance = deepcopy(network), torch.Generator().manual_seed(0)
    for value in (*stirred.parameters(), *stirred.buffers()):
        if value.squeeze().ndim == 1 and value.is_floating_point():
            value.data += torch.rand(value.shape, generator=chance)
    return stirred


def _same(found: Any, expected: Tensor) -> bool:
    return isinstance(found, Tensor) and torch.equal(found, expected)


def _last_of_the_trunk(network: nn.Module) -> tuple[str, int]:
    """The last module before the fork, and the channels it gives out."""
    stages = [info for info in network.feature_info if info["module"]]  # type: ignore[union-attr]
    repeats = len({(info["num_chs"], info["reduction"]) for info in stages}) == 1
    place = -1 - max(len(stages) // 4, 1) if repeats else -2
    return stages[place]["module"], stages[place]["num_chs"]


def _after(network: nn.Module, name: str) -> Iterator[str]:
    """The modules after one, in the order in which they were made: those beside it, then those beside its holder."""
    while name:
        holder, _, own = name.rpartition(".")
        beside = [child for child, _ in network.get_submodule(holder).named_children()]
        yield from (f"{holder}.{child}" if holder else child for child in beside[beside.index(own) + 1 :])
        name = holder
