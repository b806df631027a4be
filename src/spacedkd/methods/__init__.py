"""What a role learns: the distillation methods by name. Each of them, and torch, is imported when it is asked for."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

import lazy_loader

from spacedkd.config import registry
from spacedkd.config.serialization import from_json, qualified_name, to_json
from spacedkd.config.spec import MethodSpec
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.user_code import load_object

if TYPE_CHECKING:
    from spacedkd.methods.base import Method


__getattr__, *_ = lazy_loader.attach(__name__, submodules=["losses"])


class _Methods(UserDict[str, Any]):
    def __getitem__(self, name: str) -> Any:
        return load_object(self.data[name])


METHODS: Mapping[str, type[Any]] = _Methods(registry.METHODS)
"""Frozen dataclasses that follow `Method`; the docstring, card, paper, weights and source of each say what it is."""


def build_method(spec: MethodSpec) -> Method:
    """The method a spec names, ours or your own as `package.module:Class`, with its options."""
    make: Any = load_object(spec.name) if ":" in spec.name else METHODS[spec.name]
    if not (isinstance(make, type) and is_dataclass(make)):
        raise UserError(f"{spec.name} is not a method: it must name a dataclass that follows spacedkd.Method.")
    return from_json(make, spec.options, f"method {spec.name}")  # type: ignore[return-value]


def describe(method: Method) -> MethodSpec:
    """The spec of a method with every option written out.

    >>> describe(METHODS["none"]())
    MethodSpec(name='none', options={})
    """
    kind: Any = type(method)
    if not is_dataclass(kind):
        raise UserError(f"{kind.__name__} must be a dataclass, so that its options can be written into the spec.")
    ours = {place: name for name, place in registry.METHODS.items()}
    place = qualified_name(kind)
    return MethodSpec(ours.get(place, place), to_json(method))
