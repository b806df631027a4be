"""What a role learns: the distillation methods by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any, NamedTuple, cast

from spacedkd.errors import UserError, unknown
from spacedkd.json_form import from_json, load_object
from spacedkd.methods.kd import KD
from spacedkd.methods.method import Method
from spacedkd.methods.no_kd import NoKD
from spacedkd.methods.self_kd import SelfKD
from spacedkd.spec import MethodSpec


class Entry(NamedTuple):
    """A method by name."""

    make: type[Any]
    about: str
    when_spaced: Mapping[str, Any] = {}
    """options that make the method one that can be spaced"""


METHODS = {
    "none": Entry(NoKD, "labels alone, no teacher"),
    "kd": Entry(KD, "a teacher network teaches a student network: online, spaced or offline KD"),
    "self-kd": Entry(SelfKD, "one network's deepest classifier teaches its early exits (BYOT)", {"variant": "live"}),
}


def build_method(spec: MethodSpec) -> Method:
    """The method a spec names, ours or your own as `package.module:Class`, with its options."""
    if ":" not in spec.name and spec.name not in METHODS:
        raise unknown("method", spec.name, METHODS)
    make: Any = load_object(spec.name) if ":" in spec.name else METHODS[spec.name].make
    if not (isinstance(make, type) and is_dataclass(make)):
        raise UserError(f"{spec.name} is not a method: it must name a dataclass that follows spacedkd.Method.")
    method: Any = from_json(make, spec.options, f"method {spec.name}")
    return method  # type: ignore[no-any-return]


def describe(method: Method) -> MethodSpec:
    """The spec of a method with every option written out.

    >>> describe(NoKD())
    MethodSpec(name='none', options={})
    """
    ours = {entry.make: name for name, entry in METHODS.items()}
    kind, options = type(method), cast(Any, method)
    if not is_dataclass(options):
        raise UserError(f"{kind.__name__} must be a dataclass, so that its options can be written into the spec.")
    return MethodSpec(ours.get(kind, f"{kind.__module__}:{kind.__qualname__}"), asdict(cast(Any, options)))
