"""What a file of settings says: JSON, YAML or TOML, told apart by their endings, as the same plain values.

Nothing is made of them but dictionaries, lists, texts, numbers and truth values, whatever a file asks for.
"""

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spacedkd.errors import UserError, first_line


def read_plain(path: Path) -> Any:
    """The contents of a file."""
    kind, read = _KINDS.get(path.suffix.lower(), ("JSON", json.loads))
    try:
        return _plain(read(path.read_text(encoding="utf-8")))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid {kind}: {first_line(error).removesuffix('.')}.") from None


_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+")
_DEEPEST = 64


def _yaml(text: str) -> Any:
    """YAML without tags and aliases; 1e-3 is a number, as it is in JSON and TOML."""
    import yaml

    loader: Any = type("Loader", (yaml.SafeLoader,), {})
    loader.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, [*"-+.0123456789"])
    try:
        depth = 0
        for event in yaml.parse(text, loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:  # which takes long, and no spec is so deep
                raise ValueError(f"line {event.start_mark.line + 1} is nested more than {_DEEPEST} levels deep")
            if isinstance(event, yaml.AliasEvent):  # a few lines of them can stand for more than any memory holds
                raise ValueError(f"line {event.start_mark.line + 1} has an alias (*name): write out what it stands for")
        return yaml.load(text, loader)
    except yaml.MarkedYAMLError as error:
        where = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
        said = error.problem or ""
        raise ValueError(where + (f"{error.context}, {said}" if said.startswith("but ") else said)) from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


_KINDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    ".yaml": ("YAML", _yaml),
    ".yml": ("YAML", _yaml),
    ".toml": ("TOML", tomllib.loads),
}


def _plain(value: Any, place: str = "") -> Any:
    """The value itself, if JSON could have said it."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"the key {key!r} is no text: write it in quotes")
            _plain(item, f"{place}.{key}" if place else key)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _plain(item, f"{place}[{number}]")
    elif not isinstance(value, str | int | float | bool | None):
        raise ValueError(f"{place or 'it'} is a {type(value).__name__}: write it in quotes")
    return value
