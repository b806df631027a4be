"""Dataclasses as plain JSON and back; what a field may be is decided by its type, in one place for both.

`check_fields`, called when a dataclass is made, takes '1.5ep' for a `Duration`, 'kd' for a `MethodSpec` and `Online`
for `Online()`, and says in one line what is wrong with anything else. `from_json` asks the same function.
"""

import ast
import inspect
import json
import math
import numbers
import sys
import textwrap
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import lru_cache
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from spacedkd.runtime.documents import check_unicode, parse_json
from spacedkd.runtime.errors import UserError, first_line, format_value, unknown
from spacedkd.runtime.user_code import FromFile, is_user_code, load_object, loaded_already
from spacedkd.schedule import SCHEDULES, Duration, NamedSchedule, Schedule, as_schedule, with_defaults


def to_json(value: Any) -> Any:
    """Dataclasses to plain dictionaries; durations to text; schedules get their kind.

    A field that came "later" is written down only where it is not as usual: what was written before it came still means
    the same.

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
        one.name: to_json(getattr(value, one.name))
        for one in fields(value)
        if "later" not in one.metadata or getattr(value, one.name) != default_value(one)
    }
    if not isinstance(value, Schedule):
        return plain
    names = {kind: name for name, kind in SCHEDULES.items()}
    return with_defaults(value).to_json(names.get(type(value), qualified_name(value)), plain)


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
    """`package.module:Name` of a class or a function; of any other object that of its class.

    What a script defines is named after its file, so that it is the same when the file is imported.
    """
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    module = named.__module__
    if module == "__main__":
        module = Path(getattr(sys.modules["__main__"], "__file__", None) or module).stem
    return f"{module}:{named.__qualname__}"


T = TypeVar("T")


def from_json(kind: type[T], plain: Any, where: str = "spec") -> T:
    """The dataclass that `plain` describes.

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
    """Bring every field of a new dataclass to its type, or say what is wrong with it."""
    for name, hint in _hints(type(value)).items():  # type: ignore[arg-type]
        object.__setattr__(value, name, coerce(hint, getattr(value, name), name))


def changed_fields(spec: Any) -> list[str]:
    """The fields of a spec that are not as its class leaves them.

    >>> from spacedkd.schedule import Spaced
    >>> changed_fields(Spaced("1ep", tail="drop"))
    ['interval', 'tail']
    """
    return [one.name for one in fields(spec) if getattr(spec, one.name) != default_value(one)]


def default_value(one: Field[Any]) -> Any:
    """What a field has where nothing is said."""
    return one.default if one.default_factory is MISSING else one.default_factory()


def field_docs(kind: type[Any]) -> dict[str, str]:
    """The sentence below each field of a class of ours, for help and docs; not of the classes it comes from.

    >>> from spacedkd.config.spec import OptimizerSpec
    >>> sentences(OptimizerSpec)["lr"]
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
    """`value` as the type `hint` wants it."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        options = [option for option in get_args(hint) if option is not types.NoneType]
        if value is None and types.NoneType in get_args(hint):
            return None
        return coerce(Duration if Duration in options else options[0], value, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise UserError(f"{where} must be a list, got {format_value(value)}.")
        return tuple(coerce(get_args(hint)[0], item, f"{where}[{place}]") for place, item in enumerate(value))
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
    """An object of this kind; a name alone stands for one with that name, `Online` for `Online()`."""
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
"""texts that stand for a truth value, in any case, wherever one is wanted"""


def truth(value: Any) -> bool | None:
    """Return the truth value that a text stands for; None for anything else.

    >>> truth("False"), truth("yes"), truth("maybe"), truth(True)
    (False, True, None, None)
    """
    return TRUTH.get(value.lower()) if isinstance(value, str) else None


def with_truth(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options whose types are not known here, with truth values in place of the texts that stand for them.

    Left as text, "False" would count as true wherever Python asks whether it is.
    """

    def read(value: Any) -> Any:
        known = truth(value)
        return value if known is None else known

    return {key: with_truth(one) if isinstance(one, Mapping) else read(one) for key, one in options.items()}


def by_signature(function: Callable[..., Any], options: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Keyword arguments of a function as its parameters want them: by annotation or else by default value.

    A text stays one where the parameter takes texts; elsewhere one that stands for a truth value becomes that. What
    cannot be the truth value or the number that a parameter wants is refused, and so is a truth value (a `no` of YAML,
    say) where it is annotated to take nothing but texts.

    >>> def make(width: int = 8, deep=False, language: str = "en"): ...
    >>> by_signature(make, {"width": 4, "deep": "yes", "language": "no"}, "Network make")
    {'width': 4, 'deep': True, 'language': 'no'}
    """
    wanted = _wanted(function) if any(isinstance(one, str | bool) for one in options.values()) else {}
    made = with_truth(options)
    for name, value in options.items():
        kinds = wanted.get(name, ())
        if str in kinds and bool not in kinds:
            made[name] = value
        if isinstance(made[name], str | bool) and len(kinds) == 1:
            made[name] = _scalar(kinds[0], made[name], f"{what}: {name}")
    return made


def _wanted(function: Callable[..., Any]) -> dict[str, tuple[type, ...]]:
    """The plain types that each parameter takes; of a class also those of the classes it hands keywords on to."""
    kinds = function.__mro__[:-1] if isinstance(function, type) else ()
    makers: list[Any] = [vars(kind)["__init__"] for kind in kinds if "__init__" in vars(kind)] or [function]
    wanted: dict[str, tuple[type, ...]] = {}
    for make in makers:
        try:
            parameters = inspect.signature(make, eval_str=True).parameters.values()
        except (TypeError, ValueError, NameError, AttributeError):
            return wanted
        for one in parameters:
            wanted.setdefault(one.name, _plain_types(one))
        if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
            return wanted
    return wanted


def _plain_types(parameter: inspect.Parameter) -> tuple[type, ...]:
    """What it takes, of bool, int, float and str; (str, object) where it takes texts and perhaps something else."""
    hint, default_value = parameter.annotation, parameter.default
    if hint is str:
        return (str,)
    if hint is inspect.Parameter.empty:
        return (
            (str, object)
            if isinstance(default_value, str)
            else (type(default_value),)
            if isinstance(default_value, bool | float)
            else ()
        )
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    kinds = tuple(one for one in options if one is not types.NoneType)
    if kinds != (str,) and all(one in (bool, int, float, str) for one in kinds):
        return kinds
    return (str, object) if str in kinds else ()


def _scalar(hint: type, value: Any, where: str) -> Any:
    if hint is bool and (known := truth(value)) is not None:
        return known
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
        make = loaded_already(kind) if isinstance(kind, FromFile) else load_object(kind)
        if make is None and isinstance(kind, FromFile):
            return NamedSchedule(kind, options)
    if not (isinstance(make, type) and is_dataclass(make) and callable(getattr(make, "turns", None))):
        raise UserError(f"{where}: {kind} is no schedule: it must name a dataclass with a method turns(roles, steps).")
    for entry in fields(make):
        if entry.init and entry.name not in options and default_value(entry) is MISSING:
            path = f"{where.removeprefix('spec.')}.{entry.name}"
            raise UserError(f"Schedule {kind} needs its {entry.name}: give it with --set {path}=VALUE.")
    schedule: Any = from_json(make, options, where)
    return schedule  # type: ignore[no-any-return]
