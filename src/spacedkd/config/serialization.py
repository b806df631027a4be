"""Dataclasses to JSON and back, with every field checked against its type.

`coerce` is the one place that decides which values fit a type: it takes '1.5ep' for a `Duration`, 'kd' for a
`MethodSpec` and `Online` for `Online()`, and refuses anything else in one line. `check_fields` calls it for a dataclass
that is made in Python, `from_json` for one that is read from a file. `option` declares what depends on a field.
`value_at` and `with_changes` read and change values by their path: optimizer.lr, method.temperature, schedule.tail.
"""

import ast
import inspect
import json
import math
import numbers
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass, replace
from functools import lru_cache
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from spacedkd.runtime.documents import check_unicode, parse_json
from spacedkd.runtime.errors import UserError, first_line, format_value, is_command_line, unknown
from spacedkd.runtime.user_code import FromFile, find_imported, is_user_code, load_object
from spacedkd.schedule import SCHEDULES, Duration, NamedSchedule, Schedule, as_schedule, with_defaults


def to_json(value: Any) -> Any:
    """Return a dataclass as a plain dictionary, with durations as text, and schedules with their kind.

    A field that is declared `later` (see `option`) is left out where it has its default.

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
    plain = {
        entry.name: to_json(getattr(value, entry.name))
        for entry in fields(value)
        if "later" not in entry.metadata or getattr(value, entry.name) != default_value(entry)
    }
    if not isinstance(value, Schedule):
        return plain
    return with_defaults(value).to_json(SCHEDULES.name_of(type(value)) or qualified_name(value), plain)


Identity = Literal["always", "changed", "default", "never"]
"""whether a field counts for a fingerprint: always, where it is not the default, as if it were the default, or never"""


def option(
    default: Any = MISSING,
    *,
    factory: Any = MISSING,
    identity: Identity = "always",
    paired: bool = True,
    resumable: bool = False,
    teacher: str | None = None,
    later: bool = False,
) -> Any:
    """Return a dataclass field that declares what depends on it.

    Args:
        default: its value where nothing is given, or `factory`, which makes it.
        identity: whether the field is a part of what the run computes, and so of its fingerprint.
        paired: whether two runs must agree in it to be compared seed by seed, as spaced and unspaced.
        resumable: whether --resume may change it.
        teacher: what a refusal calls the field, where a teacher's weights depend on it: a teacher that was recorded
            is shared only with runs that agree in it.
        later: whether the field is younger than files that lack it: it is written only where it is not the default,
            so that old files and fingerprints keep their meaning.
    """
    declared = {"identity": identity, "paired": paired, "resumable": resumable, "teacher": teacher}
    metadata = {**declared, "later": True} if later else declared
    if factory is not MISSING:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def identity_json(spec: Any) -> dict[str, Any]:
    """Return the JSON of a spec that its fingerprint is computed from: see `option`."""
    written, described = to_json(spec), {}
    for entry in fields(spec):
        value, default = getattr(spec, entry.name), default_value(entry)
        identity = entry.metadata.get("identity", "always")
        if entry.name not in written or identity == "never" or (identity == "changed" and value == default):
            continue
        nested = is_dataclass(value) and not isinstance(value, Duration | Schedule)
        plain = identity_json(value) if nested else written[entry.name]
        described[entry.name] = to_json(default) if identity == "default" else plain
    return described


def qualified_name(thing: Any) -> str:
    """Return `package.module:Name` of a class or a function, or of the class of any other object.

    An object of a script is named after the script's file, so that it has the same name when the file is imported.
    """
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    module = named.__module__
    if module == "__main__":
        module = Path(getattr(sys.modules["__main__"], "__file__", None) or module).stem
    return f"{module}:{named.__qualname__}"


T = TypeVar("T")


def from_json(kind: type[T], plain: Any, where: str = "spec") -> T:
    """Return the dataclass that a plain dictionary describes; `where` names the dictionary in refusals.

    >>> from spacedkd.schedule import Spaced
    >>> from_json(Spaced, {"interval": "2ep"}).interval
    Duration(amount=2.0, unit='ep')
    """
    if not isinstance(plain, Mapping):
        raise UserError(f"{where} must be an object with keys and values, got {format_value(plain)}.")
    hints = _hints(kind)  # type: ignore[arg-type]
    for key in plain:
        if key not in hints:
            raise unknown(f"key in {where}", key, hints)
    try:
        return kind(**{key: coerce(hints[key], value, f"{where}.{key}") for key, value in plain.items()})
    except TypeError as error:
        raise UserError(f"{where}: {str(error).removeprefix(f'{kind.__name__}.__init__() ')}.") from None


def check_fields(value: Any) -> None:
    """Bring every field of a new dataclass to its type, or refuse it."""
    for name, hint in _hints(type(value)).items():  # type: ignore[arg-type]
        object.__setattr__(value, name, coerce(hint, getattr(value, name), name))


def changed_fields(spec: Any) -> list[str]:
    """Return the names of a spec's fields that do not have their defaults.

    >>> from spacedkd.schedule import Spaced
    >>> changed_fields(Spaced("1ep", tail="drop"))
    ['interval', 'tail']
    """
    return [entry.name for entry in fields(spec) if getattr(spec, entry.name) != default_value(entry)]


def default_value(entry: Field[Any]) -> Any:
    """Return the default of a dataclass field; MISSING where it has none."""
    if entry.default_factory is MISSING:
        return entry.default
    return _default_spec(entry.default_factory) if is_dataclass(entry.default_factory) else entry.default_factory()


@lru_cache(maxsize=256)
def _default_spec(kind: Callable[[], Any]) -> Any:
    """Return a spec with all defaults, which is checked once: fingerprints compare with it again and again."""
    return kind()


def field_docs(kind: type[Any]) -> dict[str, str]:
    """Return the text below each field of a class of this package, for help and docs; inherited fields have none.

    >>> from spacedkd.config.spec import OptimizerSpec
    >>> field_docs(OptimizerSpec)["lr"]
    'learning rate'
    """
    if kind.__module__.partition(".")[0] != "spacedkd":
        return {}
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for line, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(line, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            docs[ast.unparse(line.target)] = " ".join(str(below.value.value).split())
    return docs


@lru_cache(maxsize=256)
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind)}


def coerce(hint: Any, value: Any, where: str) -> Any:
    """Return `value` as the type `hint`, or refuse it; `where` names the value in the refusal."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        options = [option for option in get_args(hint) if option is not types.NoneType]
        if value is None and types.NoneType in get_args(hint):
            return None
        if isinstance(value, str) and any(get_origin(kind) is Literal and value in get_args(kind) for kind in options):
            return value  # such as "inf", which a number cannot be in JSON
        return coerce(Duration if Duration in options else options[0], value, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise UserError(f"{where} must be a list, got {format_value(value)}.")
        return tuple(coerce(get_args(hint)[0], item, f"{where}[{number}]") for number, item in enumerate(value))
    if hint is Duration:
        return Duration.parse(value)
    if hint is Schedule:
        return _schedule(value, where)
    if is_dataclass(hint):
        return _dataclass(hint, value, where)
    if origin is Literal:
        if value not in get_args(hint):
            raise unknown(where, str(value), get_args(hint))
        return value
    if hint in (bool, int, float, str):
        return _scalar(hint, value, where)
    return _options(value, where)


def _dataclass(kind: Any, value: Any, where: str) -> Any:
    """Return an object of this kind from itself, from a dictionary, or from a text that is its first field."""
    if isinstance(value, kind):
        return value
    first = next(iter(_hints(kind).values()))
    if isinstance(value, str | PathLike) and first is str:
        return kind(value)
    if not isinstance(value, Mapping):
        raise UserError(
            f"{where} must be a {kind.__name__}, a name or an object with keys and values, got {format_value(value)}."
        )
    return from_json(kind, value, where)


TRUTH = {"true": True, "yes": True, "false": False, "no": False}
"""texts that mean a truth value, in any case, wherever a field is one"""


def truth(value: Any) -> bool | None:
    """Return the truth value that a text means; None for anything else.

    >>> truth("False"), truth("yes"), truth("maybe"), truth(True)
    (False, True, None, None)
    """
    return TRUTH.get(value.lower()) if isinstance(value, str) else None


def with_truth(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options whose types are not known here, with truth values in place of the texts that mean them.

    Left as text, "False" would count as true wherever Python asks whether it is.
    """

    def read(value: Any) -> Any:
        meaning = truth(value)
        return value if meaning is None else meaning

    return {key: with_truth(value) if isinstance(value, Mapping) else read(value) for key, value in options.items()}


def by_signature(function: Callable[..., Any], options: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return keyword arguments of a function with the types of its parameters: by annotation, or by default value.

    A text stays a text where the parameter takes texts; elsewhere "yes" or "false" becomes a truth value. A value that
    cannot be the truth value or the number that a parameter takes is refused, and so is a truth value (YAML's `no`,
    say) for a parameter that is annotated to take nothing but texts.

    >>> def make(width: int = 8, deep=False, language: str = "en"): ...
    >>> by_signature(make, {"width": 4, "deep": "yes", "language": "no"}, "Network make")
    {'width': 4, 'deep': True, 'language': 'no'}
    """
    by_parameter = _parameter_types(function) if any(isinstance(v, str | bool) for v in options.values()) else {}
    arguments = with_truth(options)
    for name, value in options.items():
        kinds = by_parameter.get(name, ())
        if str in kinds and bool not in kinds:
            arguments[name] = value
        if isinstance(arguments[name], str | bool) and len(kinds) == 1:
            arguments[name] = _scalar(kinds[0], arguments[name], f"{what}: {name}")
    return arguments


def _parameter_types(function: Callable[..., Any]) -> dict[str, tuple[type, ...]]:
    """Return the plain types of each parameter; for a class also those of base classes that it passes keywords to."""
    kinds = function.__mro__[:-1] if isinstance(function, type) else ()
    makers: list[Any] = [vars(kind)["__init__"] for kind in kinds if "__init__" in vars(kind)] or [function]
    by_parameter: dict[str, tuple[type, ...]] = {}
    for make in makers:
        try:
            parameters = inspect.signature(make, eval_str=True).parameters.values()
        except (TypeError, ValueError, NameError, AttributeError):
            return by_parameter
        for parameter in parameters:
            by_parameter.setdefault(parameter.name, _plain_types(parameter))
        if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
            return by_parameter
    return by_parameter


def _plain_types(parameter: inspect.Parameter) -> tuple[type, ...]:
    """Return those of bool, int, float and str that a parameter takes; (str, object) if it may take more than str."""
    hint, default = parameter.annotation, parameter.default
    if hint is str:
        return (str,)
    if hint is inspect.Parameter.empty:
        if isinstance(default, str):
            return (str, object)
        return (type(default),) if isinstance(default, bool | float) else ()
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    kinds = tuple(option for option in options if option is not types.NoneType)
    if kinds != (str,) and all(kind in (bool, int, float, str) for kind in kinds):
        return kinds
    return (str, object) if str in kinds else ()


def _scalar(hint: type, value: Any, where: str) -> Any:
    if hint is bool and (meaning := truth(value)) is not None:
        return meaning
    if hint is str and isinstance(value, PathLike):
        return _unicode(str(fspath(value)), where)
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if hint is float and number and not sys.float_info.max < abs(value) < math.inf:
        return float(value)
    if hint is int and number and isinstance(value, numbers.Integral):
        return int(value)
    if hint is str and isinstance(value, str):
        return _unicode(value, where)
    if hint is bool and isinstance(value, bool):
        return value
    words = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
    raise UserError(f"{where} must be {words[hint]}, got {format_value(value)}.")


def _unicode(text: str, where: str) -> str:
    try:
        check_unicode(text)
    except ValueError as error:
        raise UserError(
            f"{where} must be text in Unicode, got {format_value(text)} ({error}). Rename the file."
        ) from None
    return text


def _options(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"{where} must be an object with keys and values, got {format_value(value)}.")
    try:
        parse_json(json.dumps(to_json(value)), where)  # it will be written, and has to be read again
    except (TypeError, ValueError, RecursionError) as error:
        why = first_line(error).removeprefix(f"{where} is not valid JSON: ").removesuffix(".")
        raise UserError(f"{where} must hold what a spec.json can: numbers, text, lists ({why}).") from None
    return dict(value)


def _schedule(value: Any, where: str) -> Schedule:
    """Return a schedule from an object, its JSON, a name or a length; a user's that only a file names stays a name."""
    if isinstance(value, str) and is_user_code(value):
        value = {"kind": value}
    if callable(value) or isinstance(value, str | Schedule):
        return as_schedule(value, where)
    if not isinstance(value, Mapping) or not isinstance(value.get("kind"), str):
        raise UserError(
            f"{where} must be a schedule, or an object with a kind ({', '.join(SCHEDULES)}); got {format_value(value)}."
        )
    kind, options = value["kind"], {key: item for key, item in value.items() if key != "kind"}
    if kind in SCHEDULES:
        make: Any = SCHEDULES[kind]
    elif ":" not in kind:
        raise unknown("schedule", kind, SCHEDULES)
    else:
        make = find_imported(kind) if isinstance(kind, FromFile) else load_object(kind)
        if make is None and isinstance(kind, FromFile):
            return NamedSchedule(kind, options)
    if not (isinstance(make, type) and is_dataclass(make) and callable(getattr(make, "turns", None))):
        raise UserError(f"{where}: {kind} is no schedule: it must name a dataclass with a method turns(roles, steps).")
    for entry in fields(make):
        if entry.init and entry.name not in options and default_value(entry) is MISSING:
            path = f"{where.removeprefix('spec.')}.{entry.name}"
            example = next(iter(getattr(make, "examples", ())), "") if is_command_line() else ""
            instead = f", or write for instance {example}" if example else ""
            raise UserError(f"Schedule {kind} needs its {entry.name}: give it with --set {path}=VALUE{instead}.")
    schedule: Any = from_json(make, options, where)
    return schedule  # type: ignore[no-any-return]


# Values of a spec by path


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
