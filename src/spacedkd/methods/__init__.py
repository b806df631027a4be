"""What a role learns: the distillation methods by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, cast

from spacedkd.errors import UserError, unknown
from spacedkd.json_form import from_json, load_object, to_json
from spacedkd.methods.ban import BAN
from spacedkd.methods.ctkd import CTKD
from spacedkd.methods.dkd import DKD
from spacedkd.methods.dlb import DLB
from spacedkd.methods.dml import DML
from spacedkd.methods.eskd import ESKD
from spacedkd.methods.fitnet import FitNet
from spacedkd.methods.hinton import Hinton
from spacedkd.methods.kd import KD
from spacedkd.methods.kdcl import KDCL
from spacedkd.methods.lskd import LSKD
from spacedkd.methods.method import Method
from spacedkd.methods.no_kd import NoKD
from spacedkd.methods.one import ONE
from spacedkd.methods.pcl import PCL
from spacedkd.methods.ps_kd import PSKD
from spacedkd.methods.self_kd import SelfKD
from spacedkd.methods.shake import SHAKE
from spacedkd.methods.takd import TAKD
from spacedkd.methods.tsb import TSB
from spacedkd.spec import MethodSpec

METHODS: Mapping[str, type[Any]] = {
    "none": NoKD,
    "kd": KD,
    "hinton": Hinton,
    "fitnet": FitNet,
    "lskd": LSKD,
    "ctkd": CTKD,
    "dkd": DKD,
    "eskd": ESKD,
    "shake": SHAKE,
    "takd": TAKD,
    "ban": BAN,
    "dml": DML,
    "kdcl": KDCL,
    "tsb-like": TSB,
    "pcl": PCL,
    "one": ONE,
    "self-kd": SelfKD,
    "dlb": DLB,
    "ps-kd": PSKD,
}
"""Frozen dataclasses that follow `Method`, each with a `card` that says what it is."""


def build_method(spec: MethodSpec) -> Method:
    """The method a spec names, ours or your own as `package.module:Class`, with its options."""
    if ":" not in spec.name and spec.name not in METHODS:
        raise unknown("method", spec.name, METHODS)
    make: Any = load_object(spec.name) if ":" in spec.name else METHODS[spec.name]
    if not (isinstance(make, type) and is_dataclass(make)):
        raise UserError(f"{spec.name} is not a method: it must name a dataclass that follows spacedkd.Method.")
    method: Any = from_json(make, spec.options, f"method {spec.name}")
    return method  # type: ignore[no-any-return]


def describe(method: Method) -> MethodSpec:
    """The spec of a method with every option written out.

    >>> describe(NoKD())
    MethodSpec(name='none', options={})
    """
    ours = {make: name for name, make in METHODS.items()}
    kind, options = type(method), cast(Any, method)
    if not is_dataclass(options):
        raise UserError(f"{kind.__name__} must be a dataclass, so that its options can be written into the spec.")
    return MethodSpec(ours.get(kind, f"{kind.__module__}:{kind.__qualname__}"), to_json(options))
