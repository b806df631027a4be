"""Places in a spec by name: optimizer.lr, method.temperature, schedule.tail."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from spacedkd.runtime.errors import UserError, unknown

T = TypeVar("T")


def value_at(spec: Any, place: str) -> Any:
    """What a spec has at a place; None where there is no such place.

    >>> from spacedkd.config.spec import RunSpec
    >>> value_at(RunSpec(), "optimizer.lr"), value_at(RunSpec(), "teacher.width")
    (0.01, None)
    """
    found = spec
    for name in place.split("."):
        if is_dataclass(found) and name not in {one.name for one in fields(found)}:
            found = getattr(found, "options", None)
        found = found.get(name) if isinstance(found, Mapping) else getattr(found, name, None)
    return found


def with_changes(spec: T, changes: Iterable[tuple[str, Any]]) -> T:
    """A spec with what lies at these places changed; where one place is named twice the last wins.

    >>> from spacedkd.config.spec import RunSpec
    >>> with_changes(RunSpec(), [("optimizer.lr", 0.5), ("method.temperature", 4)]).method.options
    {'temperature': 4}
    """
    made: T = _changed(spec, [(place.split("."), place, value) for place, value in changes], "spec")
    return made


def _changed(base: Any, changes: Iterable[tuple[list[str], str, Any]], what: str) -> Any:
    """A spec, or a mapping in one, with what lies at these paths changed, all of it at once."""
    mapping = isinstance(base, Mapping)
    names = [] if mapping else [one.name for one in fields(base)]
    new: dict[str, Any] = {}
    inside: dict[str, list[tuple[list[str], str, Any]]] = {}
    for path, place, value in changes:
        # A network, a method or an optimizer has options of its own: method.temperature is method.options.temperature.
        name, *rest = ["options", *path] if "options" in names and path[0] not in names else path
        if rest:
            inside.setdefault(name, []).append((rest, place, value))
        elif names and name not in names:
            raise unknown(f"key in {what}", name, names)
        else:
            new[name] = value
            inside.pop(name, None)
    for name, deeper in inside.items():
        found = new[name] if name in new else base.get(name) if mapping else getattr(base, name, None)
        if not isinstance(found, Mapping) and not is_dataclass(found):
            raise UserError(f"There is no {deeper[0][1]!r} in this spec. {_WAY_OUT.get(name, _SEE)}")
        new[name] = _changed(found, deeper, f"{what}.{name}")
    return {**base, **new} if mapping else replace(base, **new)


_SEE = "See the spec.json of any run for the names."
_WAY_OUT = {
    "teacher": "Give --teacher NAME too.",
    "schedule": "Give --interval 1.5ep or another schedule too.",
    "augment": "Use --crop, --flip or --rotate.",
}
