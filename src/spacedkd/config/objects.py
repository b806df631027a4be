"""Python objects that are given to `train` in place of names in the spec.

A function cannot be written into spec.json. Its qualified name and a digest of its source can, so that a run is only
ever resumed with the object it was started with.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from itertools import chain
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spacedkd.config.optimizer import OptimizerSpec
from spacedkd.config.serialization import changed_fields, qualified_name
from spacedkd.config.spec import DataSpec, MethodSpec, NetworkSpec, RunSpec
from spacedkd.learning_rate import LearningRate
from spacedkd.methods.base import Method
from spacedkd.methods.registry import describe
from spacedkd.models.factory import instance_error
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.user_code import is_user_code

MakeModule = Callable[..., nn.Module]
MakeOptimizer = Callable[[Iterable[tuple[str, nn.Parameter]]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Objects:
    """The objects given to a run; where one is None, the spec names it."""

    network: MakeModule | None = None
    teacher: MakeModule | None = None
    data: tuple[Any, Any] | None = None
    collate: Callable[[list[Any]], Any] | None = None
    optimizer: MakeOptimizer | None = None
    lr: LearningRate | None = None
    method: Method | None = None

    @classmethod
    def of_call(cls, spec: RunSpec, **arguments: Any) -> tuple[RunSpec, Objects]:
        """Return the spec and the objects of a call such as `train(spec, folder, network=..., method="dkd")`.

        Names, and specs such as `NetworkSpec`, belong into the spec; one that has another there is refused.
        """
        named: dict[str, Any] = {}
        for what, value in arguments.items():
            if isinstance(value, str | NetworkSpec | DataSpec | MethodSpec):
                named[what] = _put_into(spec, what, value)
        return replace(spec, **named), cls(**{name: value for name, value in arguments.items() if name not in named})

    def __post_init__(self) -> None:
        for name in ("network", "teacher"):
            if isinstance(getattr(self, name), nn.Module):
                raise instance_error(name, getattr(self, name))
        for name in ("network", "teacher", "collate", "optimizer", "lr"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise UserError(f"{name} must be a function, got {getattr(self, name)!r}.")
        if isinstance(self.method, type):
            raise UserError(f"method must be an object, got the class: give {self.method.__name__}().")
        if self.collate is not None and self.data is None:
            raise UserError("collate makes batches of your own datasets: give data=(train, test) too.")

    @cached_property
    def described(self) -> dict[str, dict[str, str]]:
        """Name and digest of each object, as spec.json has them; a built-in method is wholly in the spec already."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        if self.method is not None and ":" not in describe(self.method).name:
            del given["method"]
        return {name: {"name": _name(thing), "digest": digest(thing)} for name, thing in given.items()}

    def check(self, needed: Mapping[str, Any], where: str, how: str = "spacedkd.train(spec, folder, {}=...)") -> None:
        """Refuse to continue without an object, or with another one than before; `how` says how to give it."""
        given = self.described
        for name, before in needed.items():
            if name not in given:
                again = how.replace("{}", name)
                raise UserError(f"{where} has a {name} of your own, {before['name']}: give it again, {again}.")
            if given[name] != before:
                what = "has other source than then" if given[name]["name"] == before["name"] else "is another one"
                raise UserError(
                    f"{where} was begun with {name} {before['name']}, and the {name} given now, {given[name]['name']}, "
                    f"{what}. Use the old one, or begin again in a new folder."
                )

    def named_in(self, spec: RunSpec) -> RunSpec:
        """Return the spec with the names of the objects in it.

        A setting that does not matter where an object, or the name of user code, is given is refused.
        """
        names = {name: described["name"] for name, described in self.described.items()}
        changes: dict[str, Any] = {"objects": self.described}
        if "network" in names:
            changes["network"] = _network_naming("network", spec.network, names["network"])
        if "teacher" in names:
            changes["teacher"] = _network_naming("teacher", spec.teacher or NetworkSpec(), names["teacher"])
        data = names.get("data", spec.data.source)
        if is_user_code(data):
            changes["data"] = _spec_naming(spec.data, "source", data, ("holdout", "drop_last", "label_noise"))
        optimizer, lr = names.get("optimizer", spec.optimizer.name), names.get("lr", spec.rate.shape)
        if is_user_code(optimizer):
            changes["optimizer"] = _spec_naming(spec.optimizer, "name", optimizer, ("clip", "moves_frozen"))
        if is_user_code(lr):
            changes["rate"] = _spec_naming(spec.rate, "shape", lr, ())
            if spec.optimizer.lr != OptimizerSpec().lr:
                raise UserError(f"optimizer.lr does not matter with {lr}, a function of the step: leave it out.")
        if self.method is not None:
            own = describe(self.method)
            if spec.method not in (MethodSpec(), MethodSpec(own.name), own):
                raise UserError(
                    f"method is given twice, as {spec.method.name} in the spec and as an object, {own.name}: "
                    "leave one out."
                )
        return replace(spec, **changes)


def _put_into(spec: RunSpec, what: str, value: Any) -> Any:
    """Return the part of a spec that is given by a name or a spec; a name leaves the options that are there."""
    before = getattr(spec, what) or NetworkSpec()
    default = type(before)()
    if not isinstance(value, str):
        alike = before in (default, value)
    else:
        field = "source" if what == "data" else "name"
        value = replace(before, **{field: value})
        alike = getattr(before, field) in (getattr(default, field), getattr(value, field))
    if not alike:
        raise UserError(f"{what} is given twice, as {before!r} in the spec and as {value!r}: leave one out.")
    return value


def _network_naming(what: str, spec: NetworkSpec, name: str) -> NetworkSpec:
    if spec.name not in (NetworkSpec().name, name):
        raise UserError(f"{what} is given twice, as {spec.name} in the spec and as the function {name}: leave one out.")
    return replace(spec, name=name)


def _spec_naming(spec: Any, field: str, name: str, others: tuple[str, ...]) -> Any:
    """Return a spec whose `field` is the name of an object; of its settings only the `others` may be set as well."""
    default = type(spec)()
    for changed in changed_fields(spec):
        if changed not in (field, *others) and getattr(spec, changed) != getattr(default, changed):
            raise UserError(f"{changed} does not matter with {name}, which is user code: leave it out.")
    if getattr(spec, field) not in (getattr(default, field), name):
        raise UserError(f"{getattr(spec, field)} in the spec and {name} given as an object: leave one of them out.")
    return type(spec)(**{field: name, **{option: getattr(spec, option) for option in others}})


def _name(thing: Any) -> str:
    if isinstance(thing, partial):
        return _name(thing.func)
    return qualified_name(thing[0]) if isinstance(thing, tuple) else qualified_name(thing)


def digest(thing: Any) -> str:
    """Return a digest of an object's source and of the values it was made with."""
    hashed = hashlib.sha256()
    for part in _digest_parts(thing, []):
        hashed.update(part.encode() + b"\0")
    return hashed.hexdigest()[:16]


def _digest_parts(thing: Any, inside: list[Any]) -> Iterator[str]:
    """Yield what an object is made of; `inside` are the objects it is a part of, so that a cycle ends."""
    yield type(thing).__name__
    if thing is None or isinstance(thing, bool | int | float | str | bytes):
        yield repr(thing)
        return
    if any(thing is container for container in inside):
        return
    within = partial(_digest_parts, inside=[*inside, thing])
    if isinstance(thing, Mapping):
        for key, value in thing.items():
            yield from chain(within(key), within(value))
    elif isinstance(thing, tuple | list):
        yield str(len(thing))
        yield from chain.from_iterable(within(item) for item in thing)
    elif isinstance(thing, Tensor | np.ndarray):
        yield f"{thing.dtype} {tuple(thing.shape)}"
        yield from within(_sample(thing))
    elif isinstance(thing, partial):
        yield from within([thing.func, thing.args, thing.keywords])
    elif isinstance(thing, MethodType):
        yield from within([thing.__func__, thing.__self__])
    elif isinstance(thing, FunctionType):
        yield _source(thing)
        cells = [cell.cell_contents for cell in thing.__closure__ or ()]
        yield from within([thing.__defaults__, thing.__kwdefaults__, cells, _used_globals(thing)])
    elif isinstance(thing, type):
        yield _source(thing)
    else:
        yield str(len(thing)) if isinstance(thing, Sized) else ""
        yield from within(type(thing))
        public = {name: value for name, value in getattr(thing, "__dict__", {}).items() if not name.startswith("_")}
        if len(inside) < DEPTH:
            yield from within(public)


DEPTH = 12
"""of objects within objects, from which on they are not looked into"""
SAMPLE = 4096
"""numbers of a large array that distinguish it from others"""


def _sample(array: Any) -> list[Any]:
    """Return numbers from all over an array."""
    flat = array.detach().cpu().reshape(-1) if isinstance(array, Tensor) else array.reshape(-1)
    some: list[Any] = flat[:: max(1, len(flat) // SAMPLE)].tolist()
    return some


def _used_globals(function: FunctionType) -> dict[str, Any]:
    """Return what a function uses of its own file: the network class behind a `lambda`, say, or a constant."""
    here = function.__module__
    named = {name: function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__}
    plain = bool | int | float | str
    return {
        name: value
        for name, value in named.items()
        if isinstance(value, plain) or (isinstance(value, FunctionType | type) and value.__module__ == here)
    }


def _source(thing: Any) -> str:
    code = getattr(thing, "__code__", None)
    try:
        if thing.__name__ != "<lambda>":  # its source is a whole line, with whatever else is in it
            return inspect.getsource(thing)
    except (OSError, TypeError):  # typed into a console, or built in
        pass
    return qualified_name(thing) if code is None else "".join(_code(code))


def _code(code: CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        else:
            yield repr(constant)
