"""Dataclasses as plain JSON and back, with errors that name what is wrong and what was meant."""

from __future__ import annotations

import importlib
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from spacedkd.duration import Duration
from spacedkd.errors import UserError, unknown
from spacedkd.schedule import SCHEDULES, Schedule


def to_json(value: Any) -> Any:
    """Dataclasses to plain dictionaries; durations to text; schedules get their kind.

    >>> from spacedkd.schedule import Spaced
    >>> to_json(Spaced("1.5ep"))
    {'kind': 'spaced', 'interval': '1.5ep', 'tail': 'teach'}
    """
    if isinstance(value, Duration):
        return str(value)
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if not is_dataclass(value) or isinstance(value, type):
        return value
    plain = {f.name: to_json(getattr(value, f.name)) for f in fields(value)}
    return {"kind": _kind(value), **plain} if isinstance(value, Schedule) else plain


def _kind(schedule: Schedule) -> str:
    ours = {kind: name for name, kind in SCHEDULES.items()}
    own = type(schedule)
    return ours.get(own, f"{own.__module__}:{own.__qualname__}")


S = TypeVar("S")


def from_json(kind: type[S], plain: Any, where: str = "spec") -> S:
    """The inverse of `to_json`; an unknown or misspelt key is an error that names the near ones."""
    if not isinstance(plain, Mapping):
        raise UserError(f"{where} must be an object with keys and values, got {plain!r}.")
    hints = get_type_hints(kind)
    known = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    for key in plain:
        if key not in known:
            raise unknown(f"key in {where}", key, known)
    try:
        return kind(**{key: _decode(hints[key], value, f"{where}.{key}") for key, value in plain.items()})
    except TypeError as error:
        raise UserError(f"{where}: {str(error).removeprefix(f'{kind.__name__}.__init__() ')}.") from None


def _decode(hint: Any, value: Any, where: str) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        options = [option for option in get_args(hint) if option is not types.NoneType]
        if value is None and types.NoneType in get_args(hint):
            return None
        return _decode(Duration if Duration in options else options[0], value, where)
    if get_origin(hint) is tuple:
        return _decode_tuple(get_args(hint)[0], value, where)
    if hint is Duration:
        return Duration.parse(value if isinstance(value, int) else str(value))
    if hint is Schedule:
        return _decode_schedule(value, where)
    if is_dataclass(hint):
        return from_json(hint, value, where)  # type: ignore[arg-type]
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise unknown(where, str(value), get_args(hint))
        return value
    if hint in (bool, int, float, str):
        return _decode_scalar(hint, value, where)
    if not isinstance(value, Mapping):
        raise UserError(f"{where} must be an object with keys and values, got {value!r}.")
    return value


def _decode_tuple(hint: Any, value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise UserError(f"{where} must be a list, got {value!r}.")
    return tuple(_decode(hint, item, f"{where}[{place}]") for place, item in enumerate(value))


def _decode_scalar(hint: type, value: Any, where: str) -> Any:
    fits = isinstance(value, hint) and not (hint is int and isinstance(value, bool))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not fits:
        raise UserError(f"{where} must be {'text' if hint is str else f'a {hint.__name__}'}, got {value!r}.")
    return value


def _decode_schedule(value: Any, where: str) -> Schedule:
    if not isinstance(value, Mapping) or not isinstance(value.get("kind"), str):
        raise UserError(f"{where} must be an object with a kind, one of {', '.join(SCHEDULES)}; got {value!r}.")
    options = {key: item for key, item in value.items() if key != "kind"}
    if ":" in value["kind"]:
        own: Schedule = from_json(load_object(value["kind"]), options, where)
        return own
    if value["kind"] not in SCHEDULES:
        raise unknown("schedule", value["kind"], SCHEDULES)
    return from_json(SCHEDULES[value["kind"]], options, where)


def load_object(name: str) -> Any:
    """What `package.module:Name` names."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise UserError(f"Cannot load {name!r} ({error}). Write it as package.module:Name.") from None
