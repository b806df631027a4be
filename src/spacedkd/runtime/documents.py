"""Readers of JSON, JSON Lines, YAML and TOML files from any source, which may be damaged or hostile.

Everything the package reads in these formats is read here. Only ordinary files are opened. Time and memory are bounded:
the size of a file is limited, and values are nested at most `DEEPEST` levels deep. Refused are keys that occur twice
in an object, numbers that do not fit (whole numbers beyond 64 bits, `1e999`), texts that are no Unicode (lone
surrogates), and all that is no dictionary, list, text, number or truth value. `NaN` and `Infinity` are read where they
are written as such, because options in a spec.json may have these values; callers that need a finite number check that.

Every refusal is a `UserError` of one line that names the file; a file that is missing stays a `FileNotFoundError`.
"""

import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from spacedkd.runtime.errors import CannotRead, Damaged, UserError, first_line, format_value, install_command
from spacedkd.runtime.files import Folder, open_ordinary, read_ordinary

DEEPEST = 64
"""levels of lists and objects within each other"""
MOST_BYTES = 1 << 24
"""largest size of a JSON file, as of a list of a million snapshots; parsing takes at most seconds and 0.5 GB"""
MOST_BYTES_BY_HAND = 1 << 17
"""largest size of a YAML or TOML file, written by hand; their parsers read 0.1 MB in a second"""
LONGEST_LINE = 1 << 22
"""bytes of a line of JSON Lines; a command that was typed can have two million"""
LARGEST = 2**64 - 1
"""largest whole number that is read"""
_BLOCK = 1 << 20


def read_document(path: Path, within: Folder | Path | None = None) -> Any:
    """Return the contents of a file of settings: YAML or TOML if its name ends so, else JSON.

    `within` is a folder with files of unknown origin; below it no link is followed.
    """
    kind, parse, most = _KINDS.get(path.suffix.lower(), ("JSON", _json, MOST_BYTES))
    return _parsed(str(path), kind, parse, _contents(path, most, within))


def read_json(path: Path, within: Folder | Path | None = None) -> Any:
    """Return the contents of a JSON file, whatever its name; see `read_document` for `within`."""
    return _parsed(str(path), "JSON", _json, _contents(path, MOST_BYTES, within))


def read_small_json(path: Path, within: Folder | Path | None = None) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one where the file is missing, damaged or a link."""
    try:
        value = read_json(path, within)
    except (OSError, UserError):
        return {}
    return value if isinstance(value, dict) else {}


def parse_json(text: str | bytes, name: str) -> Any:
    """Return the value of JSON text; an error calls it `name`."""
    return _parsed(name, "JSON", _json, text)


def read_lines(path: Path, within: Folder | Path | None = None, start: int = 0) -> Iterator[bytes]:
    """Yield the complete lines of an ordinary file from the byte `start` on, without their ends, in bounded memory.

    A last line without an end was cut off by a kill, or is being written: it is left out.
    """
    with _reading(path), os.fdopen(open_ordinary(path, within=within), "rb") as file:
        file.seek(start)
        rest = b""
        while block := file.read(_BLOCK):
            *lines, rest = (rest + block).split(b"\n")
            yield from lines
            if len(rest) > LONGEST_LINE:
                raise Damaged(f"{path} cannot be read: it has a line of more than {LONGEST_LINE:,} bytes.")


def _contents(path: Path, most_bytes: int, within: Folder | Path | None) -> bytes:
    with _reading(path):
        return read_ordinary(path, most_bytes, within)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn an OSError in the block into `CannotRead`, except that of a missing file."""
    try:
        yield
    except (FileNotFoundError, UserError):
        raise
    except OSError as error:
        raise CannotRead(f"{path} cannot be read: {error.strerror or error}.") from None


def _parsed(name: str, kind: str, parse: Callable[[str | bytes], Any], text: str | bytes) -> Any:
    try:
        return parse(text)
    except (ValueError, ArithmeticError, RecursionError) as error:  # PyYAML's dates and escapes overflow
        raise Damaged(f"{name} is not valid {kind}: {_why(error)}.") from None


def _why(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return _too_deep()
    if isinstance(error, UnicodeDecodeError):
        return f"its byte {error.start} is no UTF-8 text"
    if "integer string conversion" in str(error):  # Python's own limit, and its advice to raise it
        return "a whole number has more than 64 bits"
    return first_line(error).removesuffix(".")


def _too_deep() -> str:
    return f"it is nested more than {DEEPEST} levels deep"


def _text(contents: str | bytes) -> str:
    """Return UTF-8 as text, without the mark (BOM) that some editors write in front of it."""
    return (contents.decode() if isinstance(contents, bytes) else contents).removeprefix("\ufeff")


def _json(contents: str | bytes) -> Any:
    text = contents.decode() if isinstance(contents, bytes) else contents
    try:
        value, end = _DECODER.raw_decode(text)
    except json.JSONDecodeError:
        end = -1
    if end != len(text):  # space around it, or something that is wrong; lines of a journal are neither
        value = _DECODER.decode(_text(text))
    if text.count("{") + text.count("[") > DEEPEST and _is_deep(value):
        raise ValueError(_too_deep())
    if "\\u" in text and _SURROGATE.search(text):
        # A surrogate: one of a pair, which encodes a character, or a lone one, which is invalid and cannot be written.
        check_unicode(json.dumps(value, ensure_ascii=False))
    return value


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def check_unicode(text: str) -> None:
    """Refuse text with half a character, which no file can hold; file names that are no UTF-8 have it in Python."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"\\u{ord(text[error.start]):04x} in it is half a character") from None


def _is_deep(value: Any) -> bool:
    """Return whether lists and objects are nested more than DEEPEST levels deep; without recursion, level by level."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(DEEPEST):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _repeated_key([key for key, _ in pairs])
    return value


def _repeated_key(keys: Sequence[str]) -> ValueError:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            break
        seen.add(key)
    return ValueError(f"the key {format_value(key)} occurs twice")


def _whole_number(digits: str) -> int:
    if len(digits) < 19 or (len(digits) <= _DIGITS and abs(int(digits)) <= LARGEST):
        return int(digits)
    raise ValueError(f"the whole number {_cut(digits)} has more than 64 bits")


def _fraction(digits: str) -> float:
    number = float(digits)
    if number in _INFINITE and "inf" not in digits.lower():
        raise ValueError(f"the number {_cut(digits)} is out of range")
    return number


def _cut(digits: str) -> str:
    return digits if len(digits) <= 24 else f"{digits[:24]}... of {len(digits)} characters"


_DIGITS = 1 + len(str(LARGEST))
_INFINITE = (math.inf, -math.inf)
_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_whole_number, parse_float=_fraction)


def _toml(contents: str | bytes) -> Any:
    text = _text(contents)
    if _LONG_KEY.search(text):  # tomllib takes a time and memory that grow with the square of a key's parts
        raise ValueError(f"it has a key of more than {DEEPEST} parts")
    return _plain(tomllib.loads(text, parse_float=_fraction))


_LONG_KEY = re.compile(rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{DEEPEST}}}""")


def _yaml(contents: str | bytes) -> Any:
    """Return the value of YAML without tags, aliases and merged keys; numbers are those of JSON and TOML.

    So 1e-3 is a number, and 1:30 is text, not 90.
    """
    try:
        import yaml
    except ModuleNotFoundError:
        raise UserError(f"Files in YAML need PyYAML, which is not installed: {install_command('train')}") from None
    try:
        return _plain(yaml.load(_text(contents), _yaml_loader()))
    except yaml.MarkedYAMLError as error:
        where = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
        problem = error.problem or ""
        raise ValueError(where + (f"{error.context}, {problem}" if problem.startswith("but ") else problem)) from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


_YAML_INT = re.compile(r"[-+]?(0b[01_]+|0[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)\Z")
_YAML_FLOAT = re.compile(
    r"[-+]?(([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)[eE][-+]?[0-9]+|[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*"
    r"|\.(inf|Inf|INF))\Z|\.(nan|NaN|NAN)\Z"
)


@cache
def _yaml_loader() -> Any:
    """Return a loader of PyYAML, which is imported only where a file is written in YAML."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            event: Any = self.peek_event()
            line = event.start_mark.line + 1
            if isinstance(event, yaml.AliasEvent):  # a few lines of them can expand beyond any memory
                raise ValueError(f"line {line} has an alias (*name): write out its value")
            if event.tag is not None:
                raise ValueError(f"line {line} has a tag ({_cut(event.tag)}): leave it out, and write text in quotes")
            self.depth += 1
            if self.depth > DEEPEST:
                raise ValueError(f"line {line} is nested more than {DEEPEST} levels deep")
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            mapping = super().construct_mapping(node, deep)
            if len(mapping) != len(node.value):
                keys = [key.value for key, _ in node.value]
                raise ValueError(f"line {node.start_mark.line + 1}: {_repeated_key(keys)}")
            return mapping

        def whole_number(self, node: Any) -> int:
            digits = self.construct_scalar(node)
            if len(digits) > 2 * LARGEST.bit_length():  # in binary, with underscores; the value is checked later
                raise ValueError(f"the whole number {_cut(digits)} has more than 64 bits")
            return self.construct_yaml_int(node)  # type: ignore[no-any-return]

        def fraction(self, node: Any) -> float:
            digits = self.construct_scalar(node).replace("_", "").lower()
            return _fraction(digits.replace(".", "") if digits.endswith((".inf", ".nan")) else digits)

    prefix = "tag:yaml.org,2002:"
    replaced = {f"{prefix}{name}" for name in ("int", "float", "merge", "value")}  # 1:30 would be 90, and << merge
    Loader.yaml_implicit_resolvers = {
        first: [(tag, form) for tag, form in forms if tag not in replaced]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver(f"{prefix}int", _YAML_INT, [*"-+0123456789"])
    Loader.add_implicit_resolver(f"{prefix}float", _YAML_FLOAT, [*"-+.0123456789"])
    Loader.add_constructor(f"{prefix}int", Loader.whole_number)
    Loader.add_constructor(f"{prefix}float", Loader.fraction)
    return Loader


_KINDS: dict[str, tuple[str, Callable[[str | bytes], Any], int]] = {
    ".yaml": ("YAML", _yaml, MOST_BYTES_BY_HAND),
    ".yml": ("YAML", _yaml, MOST_BYTES_BY_HAND),
    ".toml": ("TOML", _toml, MOST_BYTES_BY_HAND),
}


def _plain(value: Any) -> Any:
    """Return a value of YAML or TOML, if JSON can express it."""
    if _is_deep(value):
        raise ValueError(_too_deep())
    _check_plain(value, "")
    return value


def _check_plain(value: Any, name: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"the key {format_value(key)} is no text: write it in quotes")
            check_unicode(key)
            _check_plain(item, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _check_plain(item, f"{name}[{number}]")
    elif isinstance(value, str):
        check_unicode(value)
    elif isinstance(value, int) and not -LARGEST <= value <= LARGEST:
        raise ValueError(f"{name or 'it'} is {format_value(value)}, and whole numbers have at most 64 bits")
    elif not isinstance(value, int | float | None):
        raise ValueError(f"{name or 'it'} is a {type(value).__name__}: write it in quotes")
