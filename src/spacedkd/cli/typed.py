"""What was typed: numbers, assignments, and the names of code among the flags.

A name of code counts as typed where it is the value of a flag that can name code, and nowhere else: a folder can be
called os:system.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from spacedkd.errors import UserError
from spacedkd.json_form import TRUTH

NAMES_CODE = (
    "network",
    "teacher",
    "assistant",
    "data",
    "collate",
    "optimizer",
    "rate",
    "method",
    "interval",
    "record",
)
"""flags that take package.module:name"""
_KEYS = (*NAMES_CODE, "assistants", "schedule", "name", "source", "shape", "kind")
"""the places of a spec that do"""

READ: dict[Any, Callable[[str], Any]] = {int: int, float: float, bool: lambda text: TRUTH[text.lower()]}
"""what is typed as text, and how it becomes what it is meant to be"""


def read(kind: Any, value: Any) -> Any:
    """A number from its text; what is none stays text."""
    try:
        return READ[kind](value) if kind in READ else value
    except (ValueError, KeyError):
        return value


def assignments(written: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Places and values of --set KEY=VALUE; a value is JSON, or else the text itself."""
    for one in written:
        place, sign, text = one.partition("=")
        if not sign:
            raise UserError(f"--set wants KEY=VALUE, for instance method.temperature=4; got {one!r}.")
        try:
            yield place.strip(), json.loads(text)
        except (ValueError, RecursionError):
            yield place.strip(), text


def names_of_code(flag: str, value: Any) -> Iterator[str]:
    """The texts among a flag's values that may be names of code.

    >>> [*names_of_code("network", "own:make"), *names_of_code("weights", "own:make")]
    ['own:make']
    >>> [*names_of_code("set", ['schedule={"kind": "own:Twice"}', "network.weights=os:system"])]
    ['own:Twice']
    """
    if flag == "set":
        for place, text in assignments(value):
            yield from _texts(place.rpartition(".")[2], text, _KEYS)
    else:
        yield from _texts(flag, value, NAMES_CODE)


def _texts(key: str, value: Any, keys: Iterable[str]) -> Iterator[str]:
    if isinstance(value, Mapping):
        for inner, one in value.items():
            yield from _texts(inner, one, keys)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(key, one, keys)
    elif isinstance(value, str) and key in keys:
        yield value
