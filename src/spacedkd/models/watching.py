"""What passes through modules of a network: the one way in which networks are read from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(eq=False)
class Pass:
    """One call of a module."""

    module: nn.Module
    entered: Tensor
    """its first argument"""
    left: Any = None
    """what it gave out"""


@contextmanager
def watching(modules: Iterable[nn.Module], handed_on: Callable[[Tensor], Tensor] | None = None) -> Iterator[list[Pass]]:
    """What passes through the modules while this lasts, in the order in which they are called.

    The modules are given what `handed_on` makes of what enters. Hooks do not outlive this: copies of a network must
    not share them.
    """
    seen: list[Pass] = []

    def enter(module: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, Any] | None:
        entered = args[0] if args else next(iter(named.values()))
        seen.append(Pass(module, entered))
        return None if handed_on is None else ((handed_on(entered), *args[1:]), named)

    def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        next(one for one in reversed(seen) if one.module is module).left = output

    handles = []
    for module in modules:
        handles += [module.register_forward_pre_hook(enter, with_kwargs=True), module.register_forward_hook(leave)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
