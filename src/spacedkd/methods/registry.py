"""The methods by name: `build_method` makes a method of its spec, `describe` the spec of a method."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

from spacedkd.config.serialization import from_json, qualified_name, to_json
from spacedkd.config.spec import METHOD_CLASSES, MethodSpec
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.user_code import load_object

if TYPE_CHECKING:
    from spacedkd.methods.base import Method


class _Methods(UserDict[str, Any]):
    """A mapping that imports a method's class when it is read."""

    def __getitem__(self, name: str) -> Any:
        return load_object(self.data[name])


METHODS: Mapping[str, type[Any]] = _Methods(METHOD_CLASSES)
"""the methods by name: frozen dataclasses that follow `Method`, each with its card, paper, weights and source"""


def build_method(spec: MethodSpec) -> Method:
    """Return the method a spec names, one of `METHODS` or user code as `package.module:Class`, with its options.

    >>> build_method(MethodSpec("kd", {"temperature": 4.0})).temperature
    4.0
    """
    method_class: Any = load_object(spec.name) if ":" in spec.name else METHODS[spec.name]
    if not (isinstance(method_class, type) and is_dataclass(method_class)):
        raise UserError(f"{spec.name} is not a method: it must name a dataclass that follows spacedkd.methods.Method.")
    return from_json(method_class, spec.options, f"method {spec.name}")  # type: ignore[return-value]


def describe(method: Method) -> MethodSpec:
    """Return the spec of a method with every option written out.

    >>> describe(METHODS["none"]())
    MethodSpec(name='none', options={})
    """
    method_class: Any = type(method)
    if not is_dataclass(method_class):
        raise UserError(
            f"{method_class.__name__} must be a dataclass, so that its options can be written into the spec."
        )
    names = {qualified: name for name, qualified in METHOD_CLASSES.items()}
    qualified = qualified_name(method_class)
    return MethodSpec(names.get(qualified, qualified), to_json(method))
