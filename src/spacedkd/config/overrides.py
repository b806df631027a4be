"""Values in a spec by path: optimizer.lr, method.temperature, schedule.tail."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from spacedkd.runtime.errors import UserError, unknown

T = TypeVar("T")


def value_at(spec: Any, path: str) -> Any:
    """Return the value at a path in a spec; None where there is no such path.

    >>> from spacedkd.config.spec import RunSpec
    >>> value_at(RunSpec(), "optimizer.lr"), value_at(RunSpec(), "teacher.width")
    (0.01, None)
    """
    value = spec
    for name in path.split("."):
        if is_dataclass(value) and name not in {entry.name for entry in fields(value)}:
            value = getattr(value, "options", None)
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return value


def with_changes(spec: T, changes: Iterable[tuple[str, Any]]) -> T:
    """Return a spec with new values at these paths; where a path is named twice the last wins.

    All changes are made together, because a spec checks its fields together: a multistep rate needs its milestones. A
    path that the spec does not have is refused.

    >>> from spacedkd.config.spec import RunSpec
    >>> with_changes(RunSpec(), [("optimizer.lr", 0.5), ("method.temperature", 4)]).method.options
    {'temperature': 4}
    """
    changed: T = _with_changes(spec, [(path.split("."), path, value) for path, value in changes], "spec")
    return changed


def _with_changes(base: Any, changes: Iterable[tuple[list[str], str, Any]], what: str) -> Any:
    """Return a spec, or a mapping in one, with these changes: the names to go down by, the whole path, the value."""
    mapping = isinstance(base, Mapping)
    names = [] if mapping else [entry.name for entry in fields(base)]
    new: dict[str, Any] = {}
    inside: dict[str, list[tuple[list[str], str, Any]]] = {}
    for parts, path, value in changes:
        # A network, a method or an optimizer has options of its own: method.temperature is method.options.temperature.
        name, *rest = ["options", *parts] if "options" in names and parts[0] not in names else parts
        if rest:
            inside.setdefault(name, []).append((rest, path, value))
        elif names and name not in names:
            raise unknown(f"key in {what}", name, names)
        else:
            new[name] = value
            inside.pop(name, None)
    for name, deeper in inside.items():
        current = new[name] if name in new else base.get(name) if mapping else getattr(base, name, None)
        if not isinstance(current, Mapping) and not is_dataclass(current):
            raise UserError(f"There is no {deeper[0][1]!r} in this spec. {_WAY_OUT.get(name, _SEE)}")
        new[name] = _with_changes(current, deeper, f"{what}.{name}")
    return {**base, **new} if mapping else replace(base, **new)


_SEE = "See the spec.json of any run for the names."
_WAY_OUT = {
    "teacher": "Give --teacher NAME too.",
    "schedule": "Give --interval 1.5ep or another schedule too.",
    "augment": "Use --crop, --flip or --rotate.",
}
