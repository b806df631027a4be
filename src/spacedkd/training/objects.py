"""What a run is given as objects, beside the names in its spec.

A function cannot be written into spec.json. What can be is its qualified name and a digest of its source, so that a run
is only ever continued with the object it began with.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, fields, replace
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from spacedkd.errors import UserError
from spacedkd.json_form import changed_fields, qualified_name
from spacedkd.learning_rate import LearningRate
from spacedkd.methods import describe
from spacedkd.methods.method import Method
from spacedkd.spec import DataSpec, NetworkSpec, OptimizerSpec, RateSpec, RunSpec

MakeModule = Callable[..., nn.Module]
MakeOptimizer = Callable[[Iterable[tuple[str, nn.Parameter]]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Objects:
    """Whatever is None is named by the spec."""

    network: MakeModule | None = None
    teacher: MakeModule | None = None
    data: tuple[Any, Any] | None = None
    collate: Callable[[list[Any]], Any] | None = None
    optimizer: MakeOptimizer | None = None
    lr: LearningRate | None = None
    method: Method | None = None

    def __post_init__(self) -> None:
        for name in ("network", "teacher", "collate", "optimizer", "lr"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise UserError(f"{name} must be a function, got {getattr(self, name)!r}. A name goes into the spec.")
        if self.collate is not None and self.data is None:
            raise UserError("collate makes batches of your own datasets: give data=(train, test) too.")

    def described(self) -> dict[str, dict[str, str]]:
        """What goes into spec.json in their place; a method of ours is wholly in the spec already."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        if self.method is not None and ":" not in describe(self.method).name:
            del given["method"]
        return {name: {"name": _name(thing), "digest": digest(thing)} for name, thing in given.items()}

    def check(self, needed: Mapping[str, Any], where: str) -> None:
        """Refuse to go on without an object, or with another one than before."""
        given = self.described()
        for name, before in needed.items():
            if name not in given:
                raise UserError(
                    f"{where} has a {name} of your own, {before['name']}: give it again, "
                    f"spacedkd.train(spec, folder, resume=True, {name}=...)."
                )
            if given[name] != before:
                what = "has other source than then" if given[name]["name"] == before["name"] else "is another one"
                raise UserError(
                    f"{where} was begun with {name} {before['name']}, and the {name} given now, {given[name]['name']}, "
                    f"{what}. Use the old one, or begin again in a new folder."
                )

    def named_in(self, spec: RunSpec) -> RunSpec:
        """The spec with the names of the objects where names belong; what it says besides must still matter."""
        names = {name: described["name"] for name, described in self.described().items()}
        changes: dict[str, Any] = {"objects": self.described()}
        if "network" in names:
            changes["network"] = _network("network", spec.network, names["network"])
        if "teacher" in names:
            changes["teacher"] = _network("teacher", spec.teacher or NetworkSpec(), names["teacher"])
        if "data" in names:
            changes["data"] = _only(spec.data, "source", names["data"], DataSpec, ("holdout", "drop_last"))
        if "optimizer" in names:
            kept = ("lr", "clip", "moves_frozen")
            changes["optimizer"] = _only(spec.optimizer, "name", names["optimizer"], OptimizerSpec, kept)
        if "lr" in names:
            changes["rate"] = _only(spec.rate, "shape", names["lr"], RateSpec, ())
            if spec.optimizer.lr != OptimizerSpec().lr:
                raise UserError("optimizer.lr does not matter where lr= is a function of the step: leave it out.")
        return replace(spec, **changes)


def _network(what: str, spec: NetworkSpec, name: str) -> NetworkSpec:
    if spec.name not in (NetworkSpec().name, name):
        raise UserError(f"{what} is given twice, as {spec.name} in the spec and as the function {name}: leave one out.")
    return replace(spec, name=name)


def _only(spec: Any, field: str, name: str, kind: type[Any], kept: tuple[str, ...]) -> Any:
    """A spec whose `field` is the object's name; of its other settings only those `kept` may be set."""
    for changed in changed_fields(spec):
        usual = changed == "momentum" and spec.momentum == 0.9  # sgd's own
        if changed not in (field, *kept) and not usual:
            raise UserError(f"{changed} does not matter with {name}, an object of your own: leave it out.")
    if getattr(spec, field) not in (getattr(kind(), field), name):
        raise UserError(f"{getattr(spec, field)} in the spec and {name} given as an object: leave one of them out.")
    return kind(**{field: name, **{one: getattr(spec, one) for one in kept}})


def _name(thing: Any) -> str:
    if isinstance(thing, partial):
        return _name(thing.func)
    return qualified_name(thing[0]) if isinstance(thing, tuple) else qualified_name(thing)


def digest(thing: Any) -> str:
    """Names the source of an object, and the plain values it was made with: equal source, equal name."""
    found = hashlib.sha256()
    for part in _parts(thing, set()):
        found.update(part.encode() + b"\0")
    return found.hexdigest()[:16]


def _parts(thing: Any, seen: set[int]) -> Iterator[str]:
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if thing is None or isinstance(thing, bool | int | float | str | bytes):
        yield repr(thing)
    elif isinstance(thing, tuple | list):
        for item in thing:
            yield from _parts(item, seen)
    elif isinstance(thing, partial):
        yield from _parts([thing.func, thing.args, *thing.keywords, *thing.keywords.values()], seen)
    elif isinstance(thing, MethodType):
        yield from _parts([thing.__func__, thing.__self__], seen)
    elif isinstance(thing, FunctionType):
        yield _source(thing)
        cells = [cell.cell_contents for cell in thing.__closure__ or ()]
        yield from _parts([thing.__defaults__, cells, *_used(thing)], seen)
    elif isinstance(thing, type):
        yield _source(thing)
    else:
        yield qualified_name(thing)
        yield str(len(thing)) if isinstance(thing, Sized) else ""  # a dataset with more items is another one
        yield from _parts(type(thing), seen)


def _used(function: FunctionType) -> list[Any]:
    """Functions and classes of the same file that a function names: the network class behind a `lambda`, say."""
    named = [function.__globals__.get(name) for name in function.__code__.co_names]
    here = function.__module__
    return [one for one in named if isinstance(one, FunctionType | type) and one.__module__ == here]


def _source(thing: Any) -> str:
    code = getattr(thing, "__code__", None)
    try:
        if thing.__name__ != "<lambda>":  # its source is a whole line, with whatever else stands there
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
